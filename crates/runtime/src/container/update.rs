//! Updates the resources of a container.

use std::{io, sync::Arc};

use cri::v1::LinuxContainerResources;
use oci_spec::runtime::LinuxResources;
use serde_json::Value;

use super::{Container, Phase};
use crate::{
    cgroup::Cgroup,
    disk,
    engine::Engine,
    error::{Error, Result},
    spec,
};

/// The file with updated resources.
pub(super) const FILE: &str = "limits.pb";

impl Container {
    /// The current resources.
    pub(crate) fn limits(&self) -> Option<LinuxContainerResources> {
        let created = || self.config.linux.as_ref()?.resources.clone();
        self.limits.lock().clone().or_else(created)
    }
}

impl Engine {
    /// Updates the resources of a container: at once if it runs, at its start if it was only
    /// created.
    pub(crate) async fn update_resources(
        &self,
        container: &Arc<Container>,
        wanted: LinuxContainerResources,
    ) -> Result<()> {
        let _changing = container.changing.lock().await;
        let container = container.clone();
        self.blocking(move || container.update(&wanted)).await?
    }
}

impl Container {
    fn update(&self, wanted: &LinuxContainerResources) -> Result<()> {
        let limits = spec::limits(wanted);
        match self.status().phase {
            Phase::Creating | Phase::Created => self.update_configuration(&limits)?,
            Phase::Running => {
                let limits: LinuxResources = serde_json::from_value(limits)
                    .map_err(|error| Error::Invalid(error.to_string()))?;
                Cgroup::new(&self.facts.cgroup)
                    .limit(&limits)
                    .map_err(Error::system::<io::Error>("update limits"))?;
            }
            Phase::Exited => {
                return Err(Error::Precondition("the container has ended".into()));
            }
        }
        let limits = merge(self.limits().unwrap_or_default(), wanted);
        disk::save_message(&self.dir.join(FILE), &limits)?;
        *self.limits.lock() = Some(limits);
        Ok(())
    }

    fn update_configuration(&self, limits: &Value) -> Result<()> {
        let file = self.dir.join("config.json");
        let mut spec: Value = disk::load(&file)?;
        overlay(&mut spec["linux"]["resources"], limits);
        disk::save(&file, &spec)
    }
}

/// Merges `wanted` into `known`, objects field by field.
fn overlay(known: &mut Value, wanted: &Value) {
    match (known, wanted) {
        (Value::Object(known), Value::Object(wanted)) => {
            for (name, value) in wanted {
                overlay(known.entry(name).or_insert(Value::Null), value);
            }
        }
        (known, wanted) => *known = wanted.clone(),
    }
}

/// Zero and empty values keep the old value.
fn merge(
    mut known: LinuxContainerResources,
    wanted: &LinuxContainerResources,
) -> LinuxContainerResources {
    let number = |known: &mut i64, wanted: i64| {
        if wanted != 0 {
            *known = wanted;
        }
    };
    number(&mut known.cpu_period, wanted.cpu_period);
    number(&mut known.cpu_quota, wanted.cpu_quota);
    number(&mut known.cpu_shares, wanted.cpu_shares);
    number(
        &mut known.memory_limit_in_bytes,
        wanted.memory_limit_in_bytes,
    );
    number(
        &mut known.memory_swap_limit_in_bytes,
        wanted.memory_swap_limit_in_bytes,
    );
    for (known, wanted) in [
        (&mut known.cpuset_cpus, &wanted.cpuset_cpus),
        (&mut known.cpuset_mems, &wanted.cpuset_mems),
    ] {
        if !wanted.is_empty() {
            known.clone_from(wanted);
        }
    }
    if !wanted.hugepage_limits.is_empty() {
        known.hugepage_limits.clone_from(&wanted.hugepage_limits);
    }
    let unified = wanted.unified.iter();
    known
        .unified
        .extend(unified.map(|(file, value)| (file.clone(), value.clone())));
    known
}
