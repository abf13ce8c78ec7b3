//! `kubectl autoscale`

use anyhow::{Context, Result, bail};
use clap::Args;
use machinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::{
    api::Query,
    args::{DryRun, Files},
    discovery::Resource,
    output::PrintFlags,
    resources,
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
    #[arg(long, default_value_t = -1)]
    max: i32,
    /// The target average CPU utilization over all pods, in percent of what they request
    #[arg(long, default_value_t = -1, hide = true)]
    cpu_percent: i32,
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
        if self.max == -1 {
            bail!("required flag(s) \"max\" not set");
        }
        if self.max < 1 {
            bail!(
                "--max=MAXPODS is required and must be at least 1, max: {}",
                self.max
            );
        }
        if self.max < self.min {
            bail!(
                "--max=MAXPODS must be larger or equal to --min=MINPODS, max: {}, min: {}",
                self.max,
                self.min
            );
        }
        if self.cpu_percent >= 0 {
            eprintln!(
                "Flag --cpu-percent has been deprecated, Use --cpu with percentage or resource quantity format \
                 (e.g., '70%' for utilization or '500m' for milliCPU)."
            );
        }
        if self.cpu_percent >= 0 && self.cpu.is_some() {
            bail!("--cpu-percent and --cpu are mutually exclusive");
        }
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let selection = (&self.files).into();
        let targets = resources::targets(session, &selection, &self.resources, false).await?;
        if targets.is_empty() {
            bail!("no objects passed to autoscale");
        }
        for target in targets {
            target.get(session).await?;
            if !target
                .resource
                .subresources
                .iter()
                .any(|name| name == "scale")
            {
                let Resource {
                    kind,
                    group,
                    version,
                    plural,
                    ..
                } = &target.resource;
                bail!(
                    "cannot autoscale a {kind}: could not find scale subresource for {group}/{version}, Resource={plural} \
                     in discovery information"
                );
            }
            let mut object = self.autoscaler(&target)?;
            if session.namespace_given {
                object["metadata"]["namespace"] = json!(session.namespace);
            }
            if self.save_config {
                super::apply::annotate(&mut object);
            }
            let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
            query.extend(dry_run.parameter());
            let created = create_object(session, object, &query, dry_run).await?;
            let deed = if dry_run.is_client() {
                "created"
            } else {
                "autoscaled"
            };
            report.say_typed(&created, deed)?;
        }
        Ok(())
    }

    fn autoscaler(&self, target: &resources::Target) -> Result<Value> {
        let mut spec = json!({"scaleTargetRef": {
            "kind": target.resource.kind, "name": target.name, "apiVersion": target.resource.api_version()}});
        if self.min > 0 {
            spec["minReplicas"] = json!(self.min);
        }
        spec["maxReplicas"] = json!(self.max);
        let mut metrics = Vec::new();
        if self.cpu_percent > 0 {
            metrics.push(metric("cpu", &format!("{}%", self.cpu_percent))?);
        }
        for (name, value) in [("cpu", &self.cpu), ("memory", &self.memory)] {
            if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                metrics.push(metric(name, value)?);
            }
        }
        if !metrics.is_empty() {
            spec["metrics"] = json!(metrics);
        }
        let name = self.name.as_ref().unwrap_or(&target.name);
        Ok(json!({
            "kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": name},
            "spec": spec, "status": {"desiredReplicas": 0, "currentMetrics": null}}))
    }
}

fn metric(name: &str, value: &str) -> Result<Value> {
    let target = match value.strip_suffix('%') {
        Some(percent) => {
            let percent: i32 = percent
                .trim()
                .parse()
                .with_context(|| format!("invalid percentage value: {value}"))?;
            json!({"type": "Utilization", "averageUtilization": percent})
        }
        // A plain number means millicores.
        None if name == "cpu" && value.parse::<u32>().is_ok() => {
            json!({"type": "AverageValue", "averageValue": format!("{value}m")})
        }
        None if value.parse::<Quantity>().is_ok() => {
            json!({"type": "AverageValue", "averageValue": value})
        }
        None => bail!("invalid resource {name} value: {value}"),
    };
    Ok(json!({"type": "Resource", "resource": {"name": name, "target": target}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_percentages_or_quantities() {
        assert_eq!(
            metric("cpu", "70%").unwrap()["resource"]["target"]["averageUtilization"],
            70
        );
        assert_eq!(
            metric("memory", "200Mi").unwrap()["resource"]["target"]["averageValue"],
            "200Mi"
        );
        assert!(metric("cpu", "much").is_err() && metric("cpu", "x%").is_err());
    }
}
