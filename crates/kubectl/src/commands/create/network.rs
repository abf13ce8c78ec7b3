//! `kubectl create service` and `kubectl create ingress`

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Common, Generated, int_or_string};

/// The types of services.
#[derive(Debug, Subcommand)]
pub(super) enum Service {
    /// Create a ClusterIP service
    Clusterip(ClusterIp),
    /// Create an ExternalName service
    Externalname(ExternalName),
    /// Create a LoadBalancer service
    Loadbalancer(LoadBalancer),
    /// Create a NodePort service
    Nodeport(NodePort),
}

/// Flags of every type of service.
#[derive(Debug, Args)]
pub(super) struct Ports {
    name: String,
    /// Port pairs, as PORT[:TARGET-PORT]
    #[arg(long, value_delimiter = ',', value_name = "PORT[:TARGET]")]
    tcp: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Flags of `create service clusterip`.
#[derive(Debug, Args)]
pub(super) struct ClusterIp {
    #[command(flatten)]
    ports: Ports,
    /// Assign your own ClusterIP or set to None for a headless service
    #[arg(long)]
    clusterip: Option<String>,
}

/// Flags of `create service nodeport`.
#[derive(Debug, Args)]
pub(super) struct NodePort {
    #[command(flatten)]
    ports: Ports,
    /// Port used to expose the service on each node in a cluster
    #[arg(long, default_value_t = 0)]
    node_port: i32,
}

/// Flags of `create service loadbalancer`.
#[derive(Debug, Args)]
pub(super) struct LoadBalancer {
    #[command(flatten)]
    ports: Ports,
}

/// Flags of `create service externalname`.
#[derive(Debug, Args)]
pub(super) struct ExternalName {
    #[command(flatten)]
    ports: Ports,
    /// External name of service
    #[arg(long)]
    external_name: Option<String>,
}

impl Service {
    pub(super) fn generate(self) -> Result<(Generated, Common)> {
        let (object, common, noun) = match self {
            Self::Clusterip(one) => {
                let is_headless = one.clusterip.as_deref() == Some("None");
                let mut object = one.ports.object("ClusterIP", is_headless)?;
                if let Some(address) = one.clusterip.filter(|address| !address.is_empty()) {
                    object["spec"]["clusterIP"] = json!(address);
                }
                (object, one.ports.common, "ClusterIP service:")
            }
            Self::Nodeport(one) => {
                let mut object = one.ports.object("NodePort", false)?;
                if one.node_port > 0 {
                    for port in object
                        .pointer_mut("/spec/ports")
                        .and_then(Value::as_array_mut)
                        .into_iter()
                        .flatten()
                    {
                        port["nodePort"] = json!(one.node_port);
                    }
                }
                (object, one.ports.common, "NodePort service:")
            }
            Self::Loadbalancer(one) => (
                one.ports.object("LoadBalancer", false)?,
                one.ports.common,
                "LoadBalancer service:",
            ),
            Self::Externalname(one) => {
                let Some(target) = &one.external_name else {
                    bail!("required flag(s) \"external-name\" not set");
                };
                if !machinery::format::dns1123_subdomain(target).is_empty() {
                    bail!("invalid service external name {target}");
                }
                let mut object = one.ports.object("ExternalName", true)?;
                object["spec"]["externalName"] = json!(target);
                (object, one.ports.common, "ExternalName service:")
            }
        };
        Ok((Generated::new(object, noun), common))
    }
}

impl Ports {
    fn object(&self, kind: &str, may_lack_ports: bool) -> Result<Value> {
        if self.tcp.is_empty() && !may_lack_ports {
            bail!("at least one tcp port specifier must be provided");
        }
        let labels = json!({"app": self.name});
        let mut spec = json!({});
        if !self.tcp.is_empty() {
            spec["ports"] = self
                .tcp
                .iter()
                .map(|text| port(text))
                .collect::<Result<_>>()?;
        }
        spec["selector"] = labels.clone();
        spec["type"] = json!(kind);
        Ok(json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"name": self.name, "labels": labels}, "spec": spec,
            "status": {"loadBalancer": {}}}))
    }
}

fn port(text: &str) -> Result<Value> {
    let mut parts = text.split(':');
    let port = parts.next().unwrap_or_default();
    let number: u16 = port.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        anyhow::anyhow!("strconv.ParseUint: parsing {port:?}: {why}")
    })?;
    let target = match parts.next() {
        None => json!(number),
        Some(target) => target_port(target)?,
    };
    Ok(
        json!({"name": text.replace(':', "-"), "protocol": "TCP", "port": number, "targetPort": target}),
    )
}

/// The number or name of a container's port.
fn target_port(text: &str) -> Result<Value> {
    let (target, why) = match text.parse::<i64>() {
        Ok(number) => (json!(number), machinery::format::port_number(number)),
        Err(_) => (json!(text), machinery::format::port_name(text)),
    };
    match why.is_empty() {
        true => Ok(target),
        false => bail!(why.join(",")),
    }
}

/// Flags of `create ingress`.
#[derive(Debug, Args)]
pub(super) struct Ingress {
    name: String,
    /// Ingress class to be used
    #[arg(long)]
    class: Option<String>,
    /// Rule in the format host/path=service:port[,tls[=secret]]; may be repeated
    #[arg(long)]
    rule: Vec<String>,
    /// Default service for backend, as service:port
    #[arg(long)]
    default_backend: Option<String>,
    /// Annotation to insert, as key=value; may be repeated
    #[arg(long)]
    annotation: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Ingress {
    pub(super) fn generate(&self) -> Result<Generated> {
        if self.rule.is_empty() && self.default_backend.is_none() {
            bail!(
                "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)"
            );
        }
        let mut metadata = json!({"name": self.name});
        if !self.annotation.is_empty() {
            for annotation in &self.annotation {
                let Some((key, value)) = annotation
                    .split_once('=')
                    .filter(|(key, _)| !key.is_empty())
                else {
                    bail!("annotation {annotation} is invalid and should be in format key=[value]");
                };
                metadata["annotations"][key] = json!(value);
            }
        }
        let mut spec = json!({});
        if let Some(class) = self.class.as_ref().filter(|class| !class.is_empty()) {
            spec["ingressClassName"] = json!(class);
        }
        if let Some(service) = self
            .default_backend
            .as_ref()
            .filter(|text| !text.is_empty())
        {
            if service.split(':').count() != 2 {
                bail!("default-backend should be in format servicename:serviceport");
            }
            spec["defaultBackend"] = backend(service).map_err(|_| {
                anyhow::anyhow!("default-backend should be in format servicename:serviceport")
            })?;
        }
        let mut tls: Vec<Value> = Vec::new();
        let mut rules: Vec<Value> = Vec::new();
        for rule in &self.rule {
            add_rule(rule, &mut rules, &mut tls).map_err(|_| {
                anyhow::anyhow!("rule {rule} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]")
            })?;
        }
        if !tls.is_empty() {
            spec["tls"] = json!(tls);
        }
        if !rules.is_empty() {
            spec["rules"] = json!(rules);
        }
        let object = json!({
            "kind": "Ingress", "apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec,
            "status": {"loadBalancer": {}}});
        Ok(Generated::new(object, "ingress:"))
    }
}

fn backend(text: &str) -> Result<Value> {
    let (name, port) = text.split_once(':').context("no port")?;
    if name.is_empty() || port.is_empty() {
        bail!("a part is missing");
    }
    let port = match int_or_string(port) {
        Value::String(name) => json!({"name": name}),
        number => json!({"number": number}),
    };
    Ok(json!({"service": {"name": name, "port": port}}))
}

/// Adds a rule. As in upstream the second part after a comma sets TLS whatever its name is, and more than two parts do
/// not.
fn add_rule(text: &str, rules: &mut Vec<Value>, tls: &mut Vec<Value>) -> Result<()> {
    let form = regex::Regex::new(r"^[\w*.-]*/.*=[\w-]+:[\w-]+")?;
    if !form.is_match(text) {
        bail!("not a rule");
    }
    let parts: Vec<&str> = text.split(',').collect();
    let rule = parts.first().copied().unwrap_or_default();
    let secret = match parts[..] {
        [_, option] => Some(option.split('=').nth(1).unwrap_or_default()),
        _ => None,
    };
    let (host, rest) = rule.split_once('/').context("no path")?;
    let mut rest = rest.split('=');
    let path = rest.next().unwrap_or_default();
    let service = rest.next().context("no service")?;
    let path = format!("/{path}");
    let (path, kind) = match path.strip_suffix('*') {
        Some(prefix) => (prefix.to_owned(), "Prefix"),
        None => (path, "Exact"),
    };
    let path = json!({"path": path, "pathType": kind, "backend": backend(service)?});
    let same_host = |rule: &&mut Value| rule["host"].as_str().unwrap_or_default() == host;
    match rules.iter_mut().find(same_host).and_then(|rule| {
        rule.pointer_mut("/http/paths")
            .and_then(Value::as_array_mut)
    }) {
        Some(paths) => paths.push(path),
        None => {
            let mut rule = json!({});
            if !host.is_empty() {
                rule["host"] = json!(host);
            }
            rule["http"] = json!({"paths": [path]});
            rules.push(rule);
        }
    }
    if let Some(secret) = secret {
        add_tls(host, secret, tls);
    }
    Ok(())
}

/// A host is in one TLS entry; hosts with the same secret share one.
fn add_tls(host: &str, secret: &str, tls: &mut Vec<Value>) {
    if tls
        .iter()
        .any(|entry| super::contains(&entry["hosts"], &json!(host)))
    {
        return;
    }
    let same_secret =
        |entry: &&mut Value| entry["secretName"].as_str().unwrap_or_default() == secret;
    if let Some(hosts) = tls
        .iter_mut()
        .find(same_secret)
        .and_then(|entry| entry.pointer_mut("/hosts").and_then(Value::as_array_mut))
    {
        return hosts.push(json!(host));
    }
    let mut entry = json!({});
    if !host.is_empty() {
        entry["hosts"] = json!([host]);
    }
    if !secret.is_empty() {
        entry["secretName"] = json!(secret);
    }
    if entry.as_object().is_some_and(|entry| !entry.is_empty()) {
        tls.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_one_host_share_an_entry_and_hosts_a_secret() {
        let (mut rules, mut tls) = (Vec::new(), Vec::new());
        for rule in [
            "a.com/x=svc:80,tls=s",
            "a.com/y*=svc:http",
            "b.com/=svc:80,tls=s",
            "/=svc:1",
        ] {
            add_rule(rule, &mut rules, &mut tls).unwrap();
        }
        assert_eq!(rules.len(), 3);
        assert_eq!(rules[0]["http"]["paths"][1]["pathType"], "Prefix");
        assert_eq!(
            rules[0]["http"]["paths"][1]["backend"]["service"]["port"]["name"],
            "http"
        );
        assert_eq!(
            tls,
            [json!({"hosts": ["a.com", "b.com"], "secretName": "s"})]
        );
        for bad in ["a.com", "a.com/x", "a.com/x=svc", "a.com/x=svc:"] {
            assert!(add_rule(bad, &mut rules, &mut tls).is_err(), "{bad}");
        }
    }
}
