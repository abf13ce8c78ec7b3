//! `kubectl expose`: creates a service for an existing object.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::Query,
    args::{DryRun, Selection},
    discovery::Resource,
    json::{list, str_of},
    merge,
    output::PrintFlags,
    resources,
    session::Session,
};

use super::{
    create::{create_object, int_or_string, pairs},
    report::Report,
};

/// Flags of `expose`.
#[derive(Debug, Args)]
pub(crate) struct Expose {
    /// TYPE NAME or TYPE/NAME
    resource: Vec<String>,
    #[command(flatten)]
    files: crate::args::Files,
    /// The name for the newly created object
    #[arg(long)]
    name: Option<String>,
    /// The port that the service should serve on; several separated by commas
    #[arg(long)]
    port: Option<String>,
    /// Name or number for the port on the container that the service should direct traffic to
    #[arg(long)]
    target_port: Option<String>,
    /// The network protocol for the service to be created
    #[arg(long)]
    protocol: Option<String>,
    /// Type for this service: ClusterIP, NodePort, LoadBalancer, or ExternalName
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// A label selector to use for this service; only equality is supported
    #[arg(long)]
    selector: Option<String>,
    /// Labels to apply to the service
    #[arg(short, long)]
    labels: Option<String>,
    /// Additional external IP address of the service
    #[arg(long, value_name = "ADDRESS")]
    external_ip: Option<String>,
    /// IP to assign to the load balancer
    #[arg(long, value_name = "ADDRESS")]
    load_balancer_ip: Option<String>,
    /// ClusterIP to be assigned to the service; None is a headless service
    #[arg(long, value_name = "ADDRESS")]
    cluster_ip: Option<String>,
    /// None or ClientIP
    #[arg(long)]
    session_affinity: Option<String>,
    /// A JSON object that changes the generated one
    #[arg(long, value_name = "JSON")]
    overrides: Option<String>,
    /// How to override: json, merge or strategic
    #[arg(long, default_value = "merge")]
    override_type: String,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-expose", value_name = "NAME")]
    field_manager: String,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Expose {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let selection = Selection {
            files: self.files.clone(),
            ..Selection::default()
        };
        for target in resources::targets(session, &selection, &self.resource, false).await? {
            let object = target.get(session).await?;
            let Resource { kind, group, .. } = &target.resource;
            let kind = match group.as_str() {
                "" => kind.clone(),
                group => format!("{kind}.{group}"),
            };
            let mut service = self.service(&object, &kind)?;
            if session.namespace_given {
                service["metadata"]["namespace"] = json!(session.namespace);
            }
            if let Some(overrides) = &self.overrides {
                service = overridden(&service, overrides, &self.override_type)?;
                let has_no_ports = list(&service["spec"]["ports"]).len() == 0;
                if let Some(spec) = service.pointer_mut("/spec").and_then(Value::as_object_mut)
                    && has_no_ports
                {
                    spec.remove("ports");
                }
            }
            if self.save_config {
                super::apply::annotate(&mut service);
            }
            let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
            query.extend(dry_run.parameter());
            let created = create_object(session, service, &query, dry_run).await?;
            report.say_typed(&created, "exposed")?;
        }
        Ok(())
    }

    fn service(&self, object: &Value, resource: &str) -> Result<Value> {
        let selector = match &self.selector {
            Some(selector) => pairs(selector)?,
            None => selector_of(object, resource)?,
        };
        let name = self
            .name
            .as_deref()
            .unwrap_or_else(|| str_of(&object["metadata"]["name"]));
        let mut metadata = json!({"name": name});
        match &self.labels {
            Some(labels) => metadata["labels"] = pairs(labels)?,
            None => {
                if let Some(labels) = object["metadata"].get("labels") {
                    metadata["labels"] = labels.clone();
                }
            }
        }
        let mut spec = json!({});
        let ports = self.ports(object)?;
        if !ports.is_empty() {
            spec["ports"] = json!(ports);
        }
        spec["selector"] = selector;
        if let Some(address) = self
            .cluster_ip
            .as_ref()
            .filter(|address| !address.is_empty())
        {
            spec["clusterIP"] = json!(address);
        }
        if let Some(kind) = self.kind.as_ref().filter(|kind| !kind.is_empty()) {
            spec["type"] = json!(kind);
        }
        if let Some(address) = self
            .external_ip
            .as_ref()
            .filter(|address| !address.is_empty())
        {
            spec["externalIPs"] = json!([address]);
        }
        match self.session_affinity.as_deref() {
            None | Some("") => {}
            Some(affinity @ ("None" | "ClientIP")) => spec["sessionAffinity"] = json!(affinity),
            Some(other) => bail!("unknown session affinity: {other}"),
        }
        if spec["type"] == "LoadBalancer"
            && let Some(address) = &self.load_balancer_ip
        {
            spec["loadBalancerIP"] = json!(address);
        }
        Ok(json!({
            "kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}}))
    }

    fn ports(&self, object: &Value) -> Result<Vec<Value>> {
        let exposed = exposed_ports(object);
        let given: Vec<(u16, Option<String>)> = match &self.port {
            Some(text) => text
                .split(',')
                .map(|text| {
                    let port: u16 = text.parse().map_err(|_| {
                        anyhow::anyhow!("strconv.Atoi: parsing {text:?}: invalid syntax")
                    })?;
                    let known: Vec<&String> = exposed
                        .iter()
                        .filter(|(known, _)| *known == port)
                        .map(|(_, protocol)| protocol)
                        .collect();
                    Ok((port, known.first().map(|protocol| (*protocol).clone())))
                })
                .collect::<Result<_>>()?,
            None => exposed
                .iter()
                .map(|(port, protocol)| (*port, Some(protocol.clone())))
                .collect(),
        };
        if given.is_empty() && self.cluster_ip.as_deref() != Some("None") {
            bail!(
                "couldn't find port via --port flag or introspection\nSee 'kubectl expose -h' for help and examples"
            );
        }
        let several = given.len() > 1;
        let port = |(at, (port, known)): (usize, (u16, Option<String>))| {
            let protocol = self
                .protocol
                .clone()
                .filter(|text| !text.is_empty())
                .or(known);
            let mut value = json!({});
            if several {
                value["name"] = json!(format!("port-{}", at + 1));
            }
            value["protocol"] = json!(protocol.unwrap_or_else(|| "TCP".into()));
            value["port"] = json!(port);
            value["targetPort"] = match &self.target_port {
                Some(target) => int_or_string(target),
                None => json!(port),
            };
            value
        };
        Ok(given.into_iter().enumerate().map(port).collect())
    }
}

/// The object with the user's JSON or YAML merged in.
pub(super) fn overridden(object: &Value, overrides: &str, kind: &str) -> Result<Value> {
    use crate::api::PatchType;
    let patch = serde_saphyr::from_str::<Value>(overrides);
    let patch = patch.map_err(|_| anyhow::anyhow!("Invalid JSON Patch"))?;
    if kind != "json" && !patch.is_object() {
        bail!("Invalid JSON Patch");
    }
    let kind = match kind {
        "json" => PatchType::Json,
        "merge" => PatchType::Merge,
        "strategic" => PatchType::Strategic,
        other => bail!("invalid override type: {other}"),
    };
    merge::apply(object, kind, &patch)
}

fn selector_of(object: &Value, resource: &str) -> Result<Value> {
    let selector = match str_of(&object["kind"]) {
        "Deployment" | "ReplicaSet" => {
            if list(&object["spec"]["selector"]["matchExpressions"]).len() > 0 {
                bail!(
                    "couldn't convert expressions - \"{}\" to map-based selector format",
                    object["spec"]["selector"]["matchExpressions"]
                );
            }
            object["spec"]["selector"]["matchLabels"].clone()
        }
        "ReplicationController" | "Service" => object["spec"]["selector"].clone(),
        "Pod" => object["metadata"]["labels"].clone(),
        _ => bail!("cannot expose a {resource}"),
    };
    if selector.as_object().is_none_or(serde_json::Map::is_empty) {
        bail!(
            "couldn't retrieve selectors via --selector flag or introspection: the object has no labels and cannot be exposed"
        );
    }
    Ok(selector)
}

fn exposed_ports(object: &Value) -> Vec<(u16, String)> {
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or("TCP").to_owned();
    if object["kind"] == "Service" {
        return list(&object["spec"]["ports"])
            .filter_map(|port| Some((number(&port["port"])?, protocol(port))))
            .collect();
    }
    let spec = match object["kind"] == "Pod" {
        true => &object["spec"],
        false => &object["spec"]["template"]["spec"],
    };
    let ports = list(&spec["containers"]).flat_map(|container| list(&container["ports"]));
    ports
        .filter_map(|port| Some((number(&port["containerPort"])?, protocol(port))))
        .collect()
}
