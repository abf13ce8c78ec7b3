//! CRI messages about containers.

use std::{collections::BTreeMap, path::PathBuf};

use cri::v1::{self, ContainerState};

use super::{Container, Phase};
use crate::{engine::Engine, matching};

impl Container {
    fn cri_state(&self) -> ContainerState {
        match self.status().phase {
            Phase::Creating | Phase::Created => ContainerState::ContainerCreated,
            Phase::Running => ContainerState::ContainerRunning,
            Phase::Exited => ContainerState::ContainerExited,
        }
    }

    /// The entry in a list.
    pub(crate) fn summary(&self) -> v1::Container {
        v1::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.facts.sandbox.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.facts.image_ref.clone(),
            state: self.cri_state().into(),
            created_at: self.facts.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.facts.image_id.clone(),
        }
    }

    /// The full status.
    pub(crate) fn cri_status(&self) -> v1::ContainerStatus {
        let status = self.status();
        let identity = &self.facts.identity;
        let user = v1::LinuxContainerUser {
            uid: identity.uid.into(),
            gid: identity.gid.into(),
            supplemental_groups: identity.groups.iter().copied().map(i64::from).collect(),
        };
        let resources = self.limits();
        let log = self.facts.log.clone().map(PathBuf::into_os_string);
        v1::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.cri_state().into(),
            created_at: self.facts.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            image: self.config.image.clone(),
            image_ref: self.facts.image_ref.clone(),
            reason: status.reason,
            message: status.message,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: log
                .and_then(|log| log.into_string().ok())
                .unwrap_or_default(),
            resources: Some(v1::ContainerResources {
                linux: resources,
                windows: None,
            }),
            image_id: self.facts.image_id.clone(),
            user: Some(v1::ContainerUser { linux: Some(user) }),
            stop_signal: self.config.stop_signal,
        }
    }

    /// The `verbose` information.
    pub(crate) fn info(&self) -> BTreeMap<String, String> {
        let spec = std::fs::read_to_string(self.dir.join("config.json")).unwrap_or_default();
        let spec: serde_json::Value = serde_json::from_str(&spec).unwrap_or_default();
        let info = serde_json::json!({
            "pid": self.status().pid,
            "sandboxID": self.facts.sandbox,
            "cgroup": self.facts.cgroup,
            "runtimeSpec": spec,
        });
        BTreeMap::from([("info".to_owned(), info.to_string())])
    }
}

impl Engine {
    /// The containers that a filter matches.
    pub(crate) fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Vec<v1::Container> {
        let filter = filter.unwrap_or_default();
        let all: Vec<_> = self.containers.read().values().cloned().collect();
        let summaries = all.iter().map(|container| container.summary());
        summaries
            .filter(|container| {
                let state = filter
                    .state
                    .as_ref()
                    .is_none_or(|wanted| wanted.state == container.state);
                let id = filter.id.is_empty() || container.id.starts_with(&filter.id);
                let pod = container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id);
                state && id && pod && matching::labels(&filter.label_selector, &container.labels)
            })
            .collect()
    }
}
