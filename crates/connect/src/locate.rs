//! Finds the address and path that a proxied request goes to.

use std::net::IpAddr;

use http::request::Parts;
use machinery::{Object, Status, Value};
use rand::seq::SliceRandom;
use registry::{Reader, meta};
use request::{Query, ResourceRequest};
use stdx::percent;

use super::{Location, Trust, log_options};

const KUBELET_PORT: u16 = 10250;
/// The declared feature of nodes whose kubelet handles WebSockets itself.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// Finds the target of a request.
pub(super) struct Lookup<'a> {
    pub(super) reader: &'a Reader,
    pub(super) parts: &'a Parts,
    pub(super) query: &'a Query,
    pub(super) subject: &'a ResourceRequest,
}

impl Lookup<'_> {
    /// The target of a request for the resource with this plural; `None` for the log of a pod that
    /// has no node yet.
    pub(super) async fn location(&self, plural: &str) -> Result<Option<Location>, Status> {
        let subject = self.subject;
        match (plural, subject.subresource.as_str()) {
            ("pods", "proxy") => pod_proxy(self, subject).await.map(Some),
            ("services", "proxy") => service_proxy(self, subject).await.map(Some),
            ("nodes", "proxy") => node_proxy(self, subject).await.map(Some),
            ("pods", _) => kubelet(self, subject).await,
            _ => Err(Status::path_not_found()),
        }
    }
}

async fn object(
    lookup: &Lookup<'_>,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Object, Status> {
    let found = lookup.reader.get("", plural, namespace, name).await?;
    found
        .map(|found| found.parse())
        .ok_or_else(|| Status::not_found("", plural, name))
}

/// The kubelet's path for logs and streams of a pod.
async fn kubelet(
    lookup: &Lookup<'_>,
    subject: &ResourceRequest,
) -> Result<Option<Location>, Status> {
    if subject.subresource == "log" {
        log_options::check(lookup.query, &subject.name)?;
    }
    let pod = object(lookup, "pods", &subject.namespace, &subject.name).await?;
    let node = meta::spec_text(&pod, "nodeName").to_owned();
    let (namespace, name) = (&subject.namespace, &subject.name);
    let path = match subject.subresource.as_str() {
        "log" => {
            let container = container(lookup, &pod)?;
            format!(
                "/containerLogs/{namespace}/{name}/{container}{}",
                log_query(lookup)
            )
        }
        "portforward" => {
            let ports: Vec<String> = lookup
                .query
                .all("ports")
                .map(|port| format!("port={}", escape(port)))
                .collect();
            format!("/portForward/{namespace}/{name}{}", join(ports))
        }
        stream => {
            let container = container(lookup, &pod)?;
            format!(
                "/{stream}/{namespace}/{name}/{container}{}",
                stream_query(lookup)
            )
        }
    };
    if node.is_empty() {
        if subject.subresource == "log" {
            return Ok(None);
        }
        return Err(Status::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    }
    let location = node_location(lookup, &node, path).await;
    let location = location.map_err(|status| match status.reason.as_str() {
        // The request was for a pod, so upstream's error names pods.
        "NotFound" => Status::not_found("", "pods", &node),
        _ => status,
    })?;
    Ok(Some(location))
}

async fn node_location(
    lookup: &Lookup<'_>,
    node: &str,
    path_and_query: String,
) -> Result<Location, Status> {
    let node = object(lookup, "nodes", "", node).await?;
    kubelet_location(&node, path_and_query)
}

/// The address of a node's kubelet.
pub(super) fn kubelet_location(node: &Object, path_and_query: String) -> Result<Location, Status> {
    let status = node.get("status").cloned().unwrap_or_default();
    let addresses = status["addresses"].as_array().cloned().unwrap_or_default();
    let of = |kind: &str| {
        addresses.iter().find(|address| address["type"] == kind)?["address"]
            .as_str()
            .map(str::to_owned)
    };
    let host = of("InternalIP").or_else(|| of("ExternalIP"));
    let host = host.ok_or_else(|| {
        let known = Value::from(addresses.clone());
        Status::unknown(format!(
            "no preferred addresses found; known addresses: {known}"
        ))
    })?;
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0);
    let name = node.get("metadata").and_then(|meta| meta["name"].as_str());
    Ok(Location {
        tls: Some(Trust::Kubelet(name.unwrap_or_default().to_owned())),
        host,
        port: port.unwrap_or(KUBELET_PORT),
        path_and_query,
        websockets: status["declaredFeatures"]
            .as_array()
            .is_some_and(|features| features.iter().any(|feature| feature == WEBSOCKETS)),
    })
}

/// The container: the named one, the only one, or the annotated default.
fn container(lookup: &Lookup<'_>, pod: &Object) -> Result<String, Status> {
    let names = |key: &str| -> Vec<String> {
        let list = pod
            .get("spec")
            .and_then(|spec| spec.get(key))
            .and_then(Value::as_array);
        let names = list
            .into_iter()
            .flatten()
            .filter_map(|container| container["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let (main, init, ephemeral) = (
        names("containers"),
        names("initContainers"),
        names("ephemeralContainers"),
    );
    let pod_name = meta::text(pod, "name");
    if let Some(asked) = lookup.query.filled("container") {
        let known = [&main, &init, &ephemeral]
            .iter()
            .any(|list| list.iter().any(|n| n == asked));
        if !known {
            let why = format!("container {asked} is not valid for pod {pod_name}");
            return Err(Status::bad_request(why));
        }
        return Ok(asked.to_owned());
    }
    match main.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}"
        ))),
        several => {
            let mut why = format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                several.join(" ")
            );
            if !init.is_empty() {
                why += &format!(" or one of the init containers: [{}]", init.join(" "));
            }
            if !ephemeral.is_empty() {
                why += &format!(
                    " or one of the ephemeral containers: [{}]",
                    ephemeral.join(" ")
                );
            }
            Err(Status::bad_request(why))
        }
    }
}

fn log_query(lookup: &Lookup<'_>) -> String {
    const KNOWN: &[&str] = &[
        "follow",
        "previous",
        "sinceSeconds",
        "sinceTime",
        "timestamps",
        "tailLines",
        "limitBytes",
        "stream",
    ];
    let given = KNOWN.iter().filter_map(|key| {
        lookup
            .query
            .filled(key)
            .map(|value| format!("{key}={}", escape(value)))
    });
    join(given.collect())
}

/// The query of a stream, with the kubelet's parameter names.
fn stream_query(lookup: &Lookup<'_>) -> String {
    let mut query: Vec<String> = Vec::new();
    for (ours, theirs) in [
        ("stdin", "input"),
        ("stdout", "output"),
        ("stderr", "error"),
        ("tty", "tty"),
    ] {
        if lookup.query.flag(ours) {
            query.push(format!("{theirs}=1"));
        }
    }
    query.extend(
        lookup
            .query
            .all("command")
            .map(|word| format!("command={}", escape(word))),
    );
    join(query)
}

fn join(query: Vec<String>) -> String {
    if query.is_empty() {
        String::new()
    } else {
        format!("?{}", query.join("&"))
    }
}

/// Percent-encodes a value of a query.
fn escape(value: &str) -> String {
    percent::encode(value, "")
}

/// The target of a proxy request: `[scheme:]name[:port]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target<'a> {
    tls: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Target<'a> {
    /// `kind` is the target's kind, for the error.
    fn parse(given: &'a str, kind: &str) -> Result<Self, Status> {
        let parts: Vec<&str> = given.split(':').collect();
        let (scheme, name, port) = match *parts.as_slice() {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => ("-", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            let why = format!("invalid {kind} request {given:?}");
            return Err(Status::bad_request(why));
        }
        let tls = scheme == "https";
        Ok(Self { tls, name, port })
    }
}

/// The path after `proxy`, with the query.
fn rest(lookup: &Lookup<'_>, subject: &ResourceRequest) -> String {
    let tail = tail(lookup.parts.uri.path(), subject.depth);
    let tail = match tail.strip_prefix('/') {
        Some(_) => tail.to_owned(),
        // The separator was escaped.
        None => format!("/{}", tail.get(3..).unwrap_or_default()),
    };
    match lookup.parts.uri.query() {
        Some(query) => format!("{tail}?{query}"),
        None => tail,
    }
}

/// The rest of a path after its first `depth` segments, with its leading separator, still escaped.
/// An escaped slash is a separator, too: paths are parsed after unescaping.
pub(super) fn tail(path: &str, depth: usize) -> &str {
    let is_separator = |at: usize| {
        let rest = &path.as_bytes()[at..];
        rest[0] == b'/' || rest.len() > 2 && rest[..3].eq_ignore_ascii_case(b"%2f")
    };
    let mut separators = (0..path.len()).filter(|at| is_separator(*at));
    separators.nth(depth).map_or("", |start| &path[start..])
}

async fn node_proxy(lookup: &Lookup<'_>, subject: &ResourceRequest) -> Result<Location, Status> {
    let target = Target::parse(&subject.name, "node")?;
    let mut location = node_location(lookup, target.name, rest(lookup, subject)).await?;
    if !may_be_proxied(&location.host) {
        return Err(Status::bad_request("address not allowed"));
    }
    let port = target.port.parse().ok();
    if let Some(port) = port.filter(|port| *port != location.port) {
        // A target other than the kubelet does not get our client certificate.
        location.port = port;
        location.tls = target.tls.then_some(Trust::Anybody);
    }
    Ok(location)
}

async fn pod_proxy(lookup: &Lookup<'_>, subject: &ResourceRequest) -> Result<Location, Status> {
    let target = Target::parse(&subject.name, "pod")?;
    let pod = object(lookup, "pods", &subject.namespace, target.name).await?;
    let address = pod
        .get("status")
        .and_then(|status| status.get("podIP"))
        .and_then(Value::as_str);
    let host = address.filter(|address| may_be_proxied(address));
    let host = host
        .ok_or_else(|| Status::bad_request("address not allowed"))?
        .to_owned();
    let port = match target.port {
        "" => first_port(&pod),
        port => port.parse().ok(),
    };
    let usual = if target.tls { 443 } else { 80 };
    Ok(Location {
        tls: target.tls.then_some(Trust::Anybody),
        host,
        port: port.unwrap_or(usual),
        path_and_query: rest(lookup, subject),
        websockets: true,
    })
}

/// Whether an address may be proxied to: not loopback or link-local, where services trust local
/// callers, nor unspecified, multicast or broadcast.
fn may_be_proxied(address: &str) -> bool {
    match address
        .parse()
        .map(|address: IpAddr| address.to_canonical())
    {
        Ok(IpAddr::V4(address)) => {
            !(address.is_unspecified()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast())
        }
        Ok(IpAddr::V6(address)) => {
            !(address.is_unspecified()
                || address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_multicast())
        }
        Err(_) => false,
    }
}

fn first_port(pod: &Object) -> Option<u16> {
    let containers = pod.get("spec")?.get("containers")?.as_array()?;
    let mut ports = containers
        .iter()
        .filter_map(|container| container["ports"].as_array())
        .flatten();
    ports.find_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok())
}

/// The name of the service port given by number or name.
async fn port_name(
    lookup: &Lookup<'_>,
    namespace: &str,
    target: Target<'_>,
) -> Result<String, Status> {
    let Ok(number) = target.port.parse::<i64>() else {
        return Ok(target.port.to_owned());
    };
    let name = target.name;
    let service = Value::Object(object(lookup, "services", namespace, name).await?);
    let ports = service["spec"]["ports"].as_array();
    let mut ports = ports.into_iter().flatten();
    let port = ports.find(|port| port["port"].as_i64() == Some(number));
    let port = port.ok_or_else(|| {
        let why = format!("no service port {number} found for service {name:?}");
        Status::service_unavailable(why)
    })?;
    Ok(port["name"].as_str().unwrap_or_default().to_owned())
}

/// The address of one ready endpoint of a service.
async fn service_proxy(lookup: &Lookup<'_>, subject: &ResourceRequest) -> Result<Location, Status> {
    let target = Target::parse(&subject.name, "service")?;
    let (tls, name) = (target.tls, target.name);
    let port_name = port_name(lookup, &subject.namespace, target).await?;
    let (_, slices) = lookup
        .reader
        .list("discovery.k8s.io", "endpointslices", &subject.namespace)
        .await?;
    let mut candidates = Vec::new();
    let mut known = false;
    for slice in slices
        .iter()
        .filter(|slice| slice.label("kubernetes.io/service-name") == Some(name))
    {
        known = true;
        let slice = Value::Object(slice.parse());
        let port = slice["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|port| port["name"].as_str().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok()) else {
            continue;
        };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] == Value::Bool(false) {
                continue;
            }
            if let Some(address) = endpoint["addresses"][0].as_str() {
                candidates.push((address.to_owned(), port, endpoint["targetRef"].clone()));
            }
        }
    }
    candidates.shuffle(&mut rand::rng());
    for (host, port, target) in candidates {
        if is_of_pod(lookup, &subject.namespace, &host, &target).await {
            return Ok(Location {
                tls: tls.then_some(Trust::Anybody),
                host,
                port,
                path_and_query: rest(lookup, subject),
                websockets: true,
            });
        }
    }
    if !known {
        // Without an Endpoints object, upstream reports the service as not found.
        let kept = lookup.reader.get("", "endpoints", &subject.namespace, name);
        if kept.await?.is_none() {
            return Err(Status::not_found("", "services", name));
        }
    }
    let why = format!("no endpoints available for service {:?}", subject.name);
    Err(Status::service_unavailable(why))
}

/// Whether an endpoint's address belongs to the pod of this namespace that it references. Otherwise
/// a writer of EndpointSlices could make the server call any address.
async fn is_of_pod(lookup: &Lookup<'_>, namespace: &str, address: &str, target: &Value) -> bool {
    let name = target["name"].as_str().unwrap_or_default();
    if target["namespace"] != namespace || name.is_empty() {
        return false;
    }
    let Ok(pod) = object(lookup, "pods", namespace, name).await else {
        return false;
    };
    let addresses = pod.get("status").and_then(|status| status.get("podIPs"));
    let addresses = addresses.and_then(Value::as_array);
    addresses.is_some_and(|addresses| addresses.iter().any(|known| known["ip"] == address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split_and_words_escaped() {
        for (given, tls, name, port) in [
            ("web", false, "web", ""),
            ("web:80", false, "web", "80"),
            ("http:web:", false, "web", ""),
            ("https:web:443", true, "web", "443"),
        ] {
            let expected = Target { tls, name, port };
            assert_eq!(Target::parse(given, "pod").unwrap(), expected);
        }
        for refused in ["", ":80", "ftp:web:1", "a:b:c:d", "http::80"] {
            let refused = Target::parse(refused, "pod").unwrap_err();
            assert_eq!(refused.code, 400);
            assert!(refused.message.starts_with("invalid pod request \""));
        }
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b/proxy", ""),
            ("/api/v1/namespaces/a/pods/b/proxy/", "/"),
            ("/api/v1/namespaces/a/pods/b/proxy/x/pods/y", "/x/pods/y"),
            (
                "/api/v1/namespaces/a/pods/b/proxy/pods/b/proxy",
                "/pods/b/proxy",
            ),
            ("/api/v1/namespaces/a/pods/b/proxy/%2Fx%20y", "/%2Fx%20y"),
            ("/api/v1/namespaces/a/pods%2Fb/proxy/x", "/x"),
        ] {
            assert_eq!(tail(path, 7), expected, "{path}");
        }
        assert_eq!(escape("a b&c/ü"), "a%20b%26c%2F%C3%BC");
    }

    #[test]
    fn only_addresses_in_the_network_are_proxied_to() {
        for refused in [
            "",
            "host",
            "0.0.0.0",
            "127.0.0.1",
            "127.8.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(!may_be_proxied(refused), "{refused}");
        }
        for taken in ["10.42.0.7", "192.0.2.1", "fd00::7", "::ffff:10.42.0.7"] {
            assert!(may_be_proxied(taken), "{taken}");
        }
    }
}
