//! `kubectl autoscale`

use anyhow::{Result, anyhow, bail};
use clap::Args;
use machinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::{
    api::Query,
    args::{DryRun, Files},
    discovery::Resource,
    error, merge,
    output::PrintFlags,
    resources::{self, Target},
    session::Session,
};

use super::{create::create_object, report::Report};

/// Flags of `autoscale`.
#[derive(Debug, Args)]
pub(crate) struct Autoscale {
    /// TYPE NAME or TYPE/NAME
    resources: Vec<String>,
    #[command(flatten)]
    files: Files,
    /// The lower limit for the number of pods
    #[arg(long, default_value_t = -1)]
    min: i32,
    /// The upper limit for the number of pods
    #[arg(long)]
    max: Option<i32>,
    /// The target average CPU utilization over all pods, in percent of what they request
    #[arg(long, hide = true)]
    cpu_percent: Option<i32>,
    /// Target CPU: a percentage such as 70% or a quantity such as 500m
    #[arg(long)]
    cpu: Option<String>,
    /// Target memory: a percentage such as 70% or a quantity such as 200Mi
    #[arg(long)]
    memory: Option<String>,
    /// The name of the new object; by default that of the resource
    #[arg(long)]
    name: Option<String>,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-autoscale", value_name = "NAME")]
    field_manager: String,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Autoscale {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if self.cpu_percent.is_some() {
            eprintln!(
                "Flag --cpu-percent has been deprecated, Use --cpu with percentage or resource quantity format \
                 (e.g., '70%' for utilization or '500m' for milliCPU)."
            );
        }
        let Some(max) = self.max else {
            bail!("required flag(s) \"max\" not set");
        };
        let dry_run = self.dry_run.mode()?;
        self.check(max)?;
        let selection = (&self.files).into();
        let targets = resources::targets(session, &selection, &self.resources, false).await?;
        if targets.is_empty() {
            bail!("no objects passed to autoscale");
        }
        let mut errors = Vec::new();
        for target in targets {
            let autoscaled = async {
                // The object of a file is not read from the server.
                if target.manifest.is_none() {
                    target.get(session).await?;
                }
                refuse_unscalable(&target.resource)?;
                let created = self.create(session, &target, max).await?;
                let deed = match dry_run.is_client() {
                    true => "created",
                    false => "autoscaled",
                };
                Report::new(&self.print, dry_run)?.say_typed(&created, deed)
            };
            errors.extend(autoscaled.await.err());
        }
        error::aggregate(errors)
    }

    fn check(&self, max: i32) -> Result<()> {
        if max < 1 {
            bail!("--max=MAXPODS is required and must be at least 1, max: {max}");
        }
        if max < self.min {
            bail!(
                "--max=MAXPODS must be larger or equal to --min=MINPODS, max: {max}, min: {}",
                self.min
            );
        }
        if self.cpu_percent.is_some_and(|percent| percent > 0) && given(&self.cpu).is_some() {
            bail!("--cpu-percent and --cpu are mutually exclusive");
        }
        for (name, value) in [("cpu", given(&self.cpu)), ("memory", given(&self.memory))] {
            value.map(|value| target_of(name, value)).transpose()?;
        }
        Ok(())
    }

    /// Creates the autoscaler; if the server refuses it, also in the older version, which knows less.
    async fn create(&self, session: &Session, target: &Target, max: i32) -> Result<Value> {
        let created = self
            .send(session, self.autoscaler(session, target, max)?)
            .await;
        let Err(error) = created else {
            return created;
        };
        if self.dry_run.mode()?.is_client() {
            return Err(error);
        }
        const INCOMPATIBLE: &str = "failed to create autoscaling/v2 HPA and the configuration is incompatible with autoscaling/v1:";
        let cpu = target_of("cpu", self.cpu.as_deref().unwrap_or_default());
        let cpu = cpu.map_err(|error| anyhow!("{INCOMPATIBLE} {error}"))?;
        let is_percentage = self.cpu_percent.unwrap_or(-1) >= 0 || cpu["type"] == "Utilization";
        if given(&self.memory).is_some() || !is_percentage {
            // Upstream formats an absent error.
            bail!("{INCOMPATIBLE} %!w(<nil>)");
        }
        self.send(session, self.older_autoscaler(session, target, max))
            .await
    }

    async fn send(&self, session: &Session, mut object: Value) -> Result<Value> {
        let dry_run = self.dry_run.mode()?;
        session.record(&mut object);
        if self.save_config && !dry_run.is_client() {
            super::apply::annotate(&mut object);
        }
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        create_object(session, merge::typed(&object), &query, dry_run).await
    }

    /// What both versions have.
    fn common(&self, session: &Session, target: &Target, max: i32) -> Value {
        let name = given(&self.name).unwrap_or(&target.name);
        let mut object = json!({
            "kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": name},
            "spec": {"maxReplicas": max, "scaleTargetRef": {
                "kind": target.resource.kind, "name": target.name, "apiVersion": target.resource.api_version()}}});
        if session.namespace_given {
            object["metadata"]["namespace"] = json!(session.namespace);
        }
        if self.min > 0 {
            object["spec"]["minReplicas"] = json!(self.min);
        }
        object
    }

    fn autoscaler(&self, session: &Session, target: &Target, max: i32) -> Result<Value> {
        let mut metrics = Vec::new();
        let metric = |name: &str, target: Value| json!({"type": "Resource", "resource": {"name": name, "target": target}});
        if let Some(percent) = self.cpu_percent.filter(|percent| *percent > 0) {
            let target = json!({"type": "Utilization", "averageUtilization": percent});
            metrics.push(metric("cpu", target));
        }
        for (name, value) in [("cpu", given(&self.cpu)), ("memory", given(&self.memory))] {
            if let Some(value) = value {
                metrics.push(metric(name, target_of(name, value)?));
            }
        }
        let mut object = self.common(session, target, max);
        if !metrics.is_empty() {
            object["spec"]["metrics"] = json!(metrics);
        }
        Ok(object)
    }

    fn older_autoscaler(&self, session: &Session, target: &Target, max: i32) -> Value {
        let mut object = self.common(session, target, max);
        object["apiVersion"] = json!("autoscaling/v1");
        if let Some(percent) = self.cpu_percent.filter(|percent| *percent >= 0) {
            object["spec"]["targetCPUUtilizationPercentage"] = json!(percent);
        }
        object
    }
}

/// A flag's value unless it is empty.
fn given(flag: &Option<String>) -> Option<&str> {
    flag.as_deref().filter(|text| !text.is_empty())
}

fn refuse_unscalable(resource: &Resource) -> Result<()> {
    if resource.subresources.iter().any(|name| name == "scale") {
        return Ok(());
    }
    let Resource {
        kind,
        group,
        version,
        plural,
        ..
    } = resource;
    bail!(
        "cannot autoscale a {kind}: could not find scale subresource for {group}/{version}, Resource={plural} in \
         discovery information"
    )
}

/// A percentage of what pods request, or a quantity. A plain number is in millicores or mebibytes.
fn target_of(name: &str, value: &str) -> Result<Value> {
    let value = value.trim();
    if value.is_empty() {
        bail!("empty input");
    }
    if let Some(percent) = value.strip_suffix('%') {
        return match percent.parse::<i32>() {
            Ok(number) if number >= 0 => {
                Ok(json!({"type": "Utilization", "averageUtilization": number}))
            }
            _ => bail!("invalid percentage value: {percent}"),
        };
    }
    let quantity = match value.parse::<f64>() {
        Ok(number) => {
            let unit = if name == "cpu" { "m" } else { "Mi" };
            let quantity = format!("{number}{unit}");
            quantity.parse::<Quantity>()?;
            quantity
        }
        Err(_) if value.parse::<Quantity>().is_ok() => value.to_owned(),
        Err(_) => bail!("invalid resource {name} value: {value}"),
    };
    Ok(json!({"type": "AverageValue", "averageValue": quantity}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_percentages_or_quantities() {
        for (name, value, field, expected) in [
            ("cpu", "70%", "averageUtilization", json!(70)),
            ("cpu", "500", "averageValue", json!("500m")),
            ("memory", "200", "averageValue", json!("200Mi")),
            ("memory", "200Ki", "averageValue", json!("200Ki")),
        ] {
            assert_eq!(target_of(name, value).unwrap()[field], expected);
        }
        for value in ["much", "x%", "-5%", ""] {
            assert!(target_of("cpu", value).is_err());
        }
    }
}
