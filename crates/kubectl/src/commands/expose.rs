//! `kubectl expose`: a service for what is there already.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{DryRun, Output, Selection},
    discovery::Discovery,
    resources,
    session::Session,
};

use super::create::create_generated;

/// Flags of `expose`.
#[derive(Debug, Args)]
pub struct Expose {
    /// TYPE NAME or TYPE/NAME
    resource: Vec<String>,
    /// Name of the service [default: that of the resource]
    #[arg(long)]
    name: Option<String>,
    /// The service's port [default: those that the resource exposes]
    #[arg(long)]
    port: Option<u16>,
    /// The containers' port, by number or name [default: the service's]
    #[arg(long)]
    target_port: Option<String>,
    #[arg(long, default_value = "TCP")]
    protocol: String,
    /// ClusterIP, NodePort, LoadBalancer
    #[arg(long = "type")]
    kind: Option<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Expose {
    pub async fn run(self, session: &Session) -> Result<()> {
        let discovery = Discovery::load(&session.api).await?;
        let targets =
            resources::targets(session, &discovery, &self.selection, &self.resource, false).await?;
        let mut services = Vec::new();
        for target in targets {
            let object = session.api.get(&target.path()).await?;
            services.push(self.service(&object)?);
        }
        create_generated(session, services, &self.output, &self.dry_run).await
    }

    fn service(&self, object: &Value) -> Result<Value> {
        let selector = match object["kind"].as_str().unwrap_or_default() {
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
                if object["spec"]["selector"].get("matchExpressions").is_some() {
                    bail!(
                        "couldn't convert expressions - \"matchExpressions\" to map-based selector"
                    );
                }
                object["spec"]["selector"]["matchLabels"].clone()
            }
            "ReplicationController" | "Service" => object["spec"]["selector"].clone(),
            "Pod" => object["metadata"]["labels"].clone(),
            kind => bail!("cannot expose a {kind}"),
        };
        if selector.as_object().is_none_or(|labels| labels.is_empty()) {
            bail!("couldn't retrieve selectors: the object has no labels to select by");
        }
        let ports = self.ports(object)?;
        let mut spec = json!({"selector": selector, "ports": ports});
        if let Some(kind) = &self.kind {
            spec["type"] = json!(kind);
        }
        let name = self
            .name
            .as_deref()
            .or(object["metadata"]["name"].as_str())
            .unwrap_or_default();
        let mut metadata = json!({"name": name});
        if let Some(labels) = object["metadata"].get("labels") {
            metadata["labels"] = labels.clone();
        }
        Ok(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
    }

    fn ports(&self, object: &Value) -> Result<Vec<Value>> {
        let target = |port: u16| match &self.target_port {
            Some(text) => text
                .parse::<u16>()
                .map_or_else(|_| json!(text), |number| json!(number)),
            None => json!(port),
        };
        let one = |port: u16, protocol: &str| json!({"port": port, "protocol": protocol, "targetPort": target(port)});
        if let Some(port) = self.port {
            return Ok(vec![one(port, &self.protocol)]);
        }
        let exposed = container_ports(object);
        if exposed.is_empty() {
            bail!("couldn't find port via --port flag or introspection");
        }
        let named = |(at, (port, protocol)): (usize, &(u16, String))| {
            let mut value = one(*port, protocol);
            if exposed.len() > 1 {
                value["name"] = json!(format!("port-{}", at + 1));
            }
            value
        };
        Ok(exposed.iter().enumerate().map(named).collect())
    }
}

fn container_ports(object: &Value) -> Vec<(u16, String)> {
    let spec = if object["kind"] == "Pod" {
        &object["spec"]
    } else {
        &object["spec"]["template"]["spec"]
    };
    let containers = spec["containers"].as_array().into_iter().flatten();
    let ports =
        containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let of = |port: &Value| {
        let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
        Some((
            number,
            port["protocol"].as_str().unwrap_or("TCP").to_owned(),
        ))
    };
    ports.filter_map(of).collect()
}
