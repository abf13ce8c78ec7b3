//! `kubectl expose`: creates a service for an existing object.

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    api::Query,
    args::{DryRun, Selection},
    discovery::Resource,
    error,
    json::{is_empty, list, str_of},
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

/// What is derived from an object if flags do not set it. As in upstream, the first object's values are used for all
/// of them.
#[derive(Default)]
struct Derived {
    selector: Option<Value>,
    /// The only port of an object; the port of a later object does not replace it.
    port: Option<String>,
    /// Several ports of an object; they replace those of an earlier one.
    ports: Vec<String>,
    protocols: Vec<(String, String)>,
    labels: Option<Value>,
}

impl Expose {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        let selection = Selection {
            files: self.files.clone(),
            ..Selection::default()
        };
        let (mut derived, mut errors) = (Derived::default(), Vec::new());
        for target in resources::targets(session, &selection, &self.resource, false).await? {
            let exposed = async {
                // The object of a file is not read from the server.
                let object = match &target.manifest {
                    Some(object) => merge::decoded(object)?,
                    None => target.get(session).await?,
                };
                let service = self.service(&object, &target.resource, &mut derived)?;
                self.create(session, service).await
            };
            match exposed.await {
                Ok(created) => report.say_typed(&created, "exposed")?,
                Err(error) => errors.push(error),
            }
        }
        error::aggregate(errors)
    }

    async fn create(&self, session: &Session, mut service: Value) -> Result<Value> {
        let dry_run = self.dry_run.mode()?;
        if let Some(overrides) = self.overrides.as_ref().filter(|text| !text.is_empty()) {
            service = overridden(&service, overrides, &self.override_type)?;
        }
        session.record(&mut service);
        if session.namespace_given {
            service["metadata"]["namespace"] = json!(session.namespace);
        }
        if self.save_config && !dry_run.is_client() {
            super::apply::annotate(&mut service);
        }
        let mut query: Query = vec![("fieldManager", self.field_manager.clone())];
        query.extend(dry_run.parameter());
        create_object(session, merge::decoded_if_known(service)?, &query, dry_run).await
    }

    fn service(&self, object: &Value, resource: &Resource, derived: &mut Derived) -> Result<Value> {
        refuse_kind(resource)?;
        let default_name: String = str_of(&object["metadata"]["name"])
            .chars()
            .take(63)
            .collect();
        self.derive(object, derived)?;
        let selector = match (given(&self.selector), &derived.selector) {
            (Some(selector), _) => pairs(selector)?,
            (None, Some(selector)) => selector.clone(),
            (None, None) => bail!("selector must be specified"),
        };
        let labels = match given(&self.labels) {
            Some(labels) => Some(pairs(labels)?),
            None => derived.labels.clone(),
        };
        let name = given(&self.name).unwrap_or(&default_name);
        if name.is_empty() {
            bail!("name must be specified");
        }
        let mut metadata = json!({"name": name});
        if let Some(labels) = labels {
            metadata["labels"] = labels;
        }
        let mut spec = json!({"ports": self.ports(derived)?, "selector": selector});
        if let Some(address) = given(&self.external_ip) {
            spec["externalIPs"] = json!([address]);
        }
        if let Some(kind) = given(&self.kind) {
            spec["type"] = json!(kind);
        }
        if let (Some("LoadBalancer"), Some(address)) =
            (given(&self.kind), given(&self.load_balancer_ip))
        {
            spec["loadBalancerIP"] = json!(address);
        }
        match given(&self.session_affinity) {
            None => {}
            Some(affinity @ ("None" | "ClientIP")) => spec["sessionAffinity"] = json!(affinity),
            Some(other) => bail!("unknown session affinity: {other}"),
        }
        if let Some(address) = given(&self.cluster_ip) {
            spec["clusterIP"] = json!(address);
        }
        let service =
            json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": spec});
        Ok(merge::typed(&service))
    }

    /// Sets what is not set yet.
    fn derive(&self, object: &Value, derived: &mut Derived) -> Result<()> {
        if given(&self.selector).is_none() && derived.selector.is_none() {
            derived.selector = selector_of(object).map_err(|error| {
                anyhow!("couldn't retrieve selectors via --selector flag or introspection: {error}")
            })?;
        }
        let exposed = exposed_ports(object);
        if given(&self.port).is_none() && derived.port.is_none() {
            let mut ports: Vec<String> = Vec::new();
            for (port, _) in &exposed {
                if !ports.contains(port) {
                    ports.push(port.clone());
                }
            }
            if ports.is_empty() && given(&self.cluster_ip) != Some("None") {
                bail!("couldn't find port via --port flag or introspection");
            }
            match ports.len() {
                1 => derived.port = ports.pop(),
                _ => derived.ports = ports,
            }
        }
        if !exposed.is_empty() {
            derived.protocols = exposed;
        }
        if given(&self.labels).is_none() && derived.labels.is_none() {
            let labels = &object["metadata"]["labels"];
            derived.labels = (!is_empty(labels)).then(|| labels.clone());
        }
        Ok(())
    }

    fn ports(&self, derived: &Derived) -> Result<Vec<Value>> {
        let texts: Vec<&str> = match given(&self.port) {
            Some(text) => text.split(',').collect(),
            None if derived.ports.is_empty() => derived.port.as_deref().into_iter().collect(),
            None => derived.ports.iter().map(String::as_str).collect(),
        };
        let mut ports = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let number = port_number(text)?;
            let target = match given(&self.target_port) {
                Some(target) => int_or_string(target),
                None => json!(number),
            };
            let known: Vec<&str> = derived
                .protocols
                .iter()
                .filter(|(port, _)| port == text)
                .map(|(_, protocol)| protocol.as_str())
                .collect();
            let name = match texts.len() {
                1 => String::new(),
                _ => format!("port-{}", at + 1),
            };
            let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": number, "targetPort": target});
            match (given(&self.protocol), &known[..]) {
                (Some(protocol), _) | (None, &[protocol]) => ports.push(port(&name, protocol)),
                (None, []) => ports.push(port(&name, "TCP")),
                (None, several) => ports.extend(several.iter().map(|protocol| {
                    let name = format!("port-{}-{}", at + 1, protocol.to_lowercase());
                    port(&name, protocol)
                })),
            }
        }
        Ok(ports)
    }
}

/// A flag's value unless it is empty.
fn given(flag: &Option<String>) -> Option<&str> {
    flag.as_deref().filter(|text| !text.is_empty())
}

/// A number as Go's `int32` of an `int`.
pub(super) fn port_number(text: &str) -> Result<i32> {
    let number: i64 = text.parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        match error.kind() {
            PosOverflow | NegOverflow => {
                anyhow!("strconv.Atoi: parsing {text:?}: value out of range")
            }
            _ => anyhow!("strconv.Atoi: parsing {text:?}: invalid syntax"),
        }
    })?;
    #[allow(clippy::cast_possible_truncation)]
    Ok(number as i32)
}

/// The object with the user's JSON merged in.
pub(super) fn overridden(object: &Value, overrides: &str, kind: &str) -> Result<Value> {
    use crate::api::PatchType;
    let kind = match kind {
        "json" => PatchType::Json,
        "merge" | "" => PatchType::Merge,
        "strategic" => PatchType::Strategic,
        other => bail!("invalid override type: {other}"),
    };
    let invalid = match kind {
        PatchType::Strategic => "invalid JSON document",
        _ => "Invalid JSON Patch",
    };
    let patch: Value = serde_json::from_str(overrides).map_err(|_| anyhow!(invalid))?;
    if kind != PatchType::Json && !patch.is_object() {
        bail!(invalid);
    }
    let object = merge::apply(object, kind, &patch)?;
    merge::decoded_if_known(object)
}

/// Only some kinds can be exposed.
fn refuse_kind(resource: &Resource) -> Result<()> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "ReplicationController" | "Service" | "Pod") => Ok(()),
        ("apps" | "extensions", "Deployment" | "ReplicaSet") => Ok(()),
        ("", kind) => bail!("cannot expose a {kind}"),
        (group, kind) => bail!("cannot expose a {kind}.{group}"),
    }
}

/// The labels that select the object's pods; `None` if there are none.
fn selector_of(object: &Value) -> Result<Option<Value>> {
    let kind = str_of(&object["kind"]);
    let selector = match kind {
        "ReplicationController" | "Service" => &object["spec"]["selector"],
        "Pod" => &object["metadata"]["labels"],
        _ => &object["spec"]["selector"]["matchLabels"],
    };
    let is_none = is_empty(selector);
    match kind {
        "Pod" if is_none => bail!("the pod has no labels and cannot be exposed"),
        "Service" if is_none => bail!("the service has no pod selector set"),
        "Deployment" | "ReplicaSet" if is_none => bail!(
            "invalid {}: no selectors, therefore cannot be exposed",
            kind.to_lowercase()
        ),
        _ => {}
    }
    let expressions = &object["spec"]["selector"]["matchExpressions"];
    if list(expressions).len() > 0 && matches!(kind, "Deployment" | "ReplicaSet") {
        let shown = |one: &Value| {
            let values: Vec<&str> = list(&one["values"]).map(str_of).collect();
            format!(
                "{{Key:{} Operator:{} Values:[{}]}}",
                str_of(&one["key"]),
                str_of(&one["operator"]),
                values.join(" ")
            )
        };
        let shown: Vec<String> = list(expressions).map(shown).collect();
        bail!(
            "couldn't convert expressions - \"[{}]\" to map-based selector format",
            shown.join(" ")
        );
    }
    Ok((!is_none).then(|| selector.clone()))
}

/// The ports of an object, each with its protocol.
fn exposed_ports(object: &Value) -> Vec<(String, String)> {
    let protocol = |port: &Value| match str_of(&port["protocol"]) {
        "" => "TCP".to_owned(),
        protocol => protocol.to_owned(),
    };
    if object["kind"] == "Service" {
        return list(&object["spec"]["ports"])
            .map(|port| (port["port"].to_string(), protocol(port)))
            .collect();
    }
    let spec = match object["kind"] == "Pod" {
        true => &object["spec"],
        false => &object["spec"]["template"]["spec"],
    };
    let ports = list(&spec["containers"]).flat_map(|container| list(&container["ports"]));
    ports
        .map(|port| (port["containerPort"].to_string(), protocol(port)))
        .collect()
}
