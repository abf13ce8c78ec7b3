//! `kubectl port-forward`: forwards local ports to a pod, or to a pod of a Service or workload; if
//! the pod goes away, another one is used.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use client::kube::client::Body;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;
use streaming::client::{Handshake, PortForward as Connection};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

use crate::{
    error::io_reason,
    json::{list, str_of},
    session::Session,
    streams::{pod_of, refused},
};

/// How long the server is asked whether the pod is still there.
const PATIENCE: Duration = Duration::from_secs(2);

/// Flags of `port-forward`.
#[derive(Debug, Args)]
pub(crate) struct PortForward {
    /// POD or TYPE/NAME
    resource: String,
    /// [LOCAL:]REMOTE…
    #[arg(required = true)]
    ports: Vec<String>,
    /// Addresses to listen on; localhost is both loopback addresses
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    address: Vec<String>,
    /// How long to wait until at least one pod is running
    #[arg(long, default_value = "1m0s", value_name = "DURATION")]
    pod_running_timeout: String,
}

/// The current pod and the connection to it; replaced when either ends.
struct Link {
    connection: Mutex<(Connection, Value)>,
}

impl PortForward {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        super::exec::check_patience(&self.pod_running_timeout)
            .map_err(|error| crate::error::usage("port-forward", error))?;
        let (pod, service) = self.pod(session).await?;
        let ports = self.pairs(&pod, service.as_ref())?;
        if ports.iter().any(|(_, remote)| *remote == 0) {
            bail!("remote port must be > 0");
        }
        let link = Arc::new(Link {
            connection: Mutex::new((connect(session, &pod).await?, pod.clone())),
        });
        let listeners = self.listen(&ports).await?;
        // A connection that waits for another pod does not keep others waiting.
        let mut opening = FuturesUnordered::new();
        loop {
            let accepts = listeners.iter().map(|(listener, remote)| {
                Box::pin(async move { (listener.accept().await, *remote) })
            });
            let accepts = futures::future::select_all(accepts);
            tokio::select! {
                ((accepted, remote), _, _) = accepts => {
                    let (stream, _) = accepted?;
                    let local = stream.local_addr()?.port();
                    println!("Handling connection for {local}");
                    opening.push(self.forward(session, &link, stream, remote));
                }
                // Any outcome matches: otherwise the branch is disabled, and the others are not polled.
                Some(opened) = opening.next() => {
                    if let Err(error) = opened {
                        eprintln!("error: {error:#}");
                    }
                }
            }
        }
    }

    /// The pod to forward to, and its service, if any.
    async fn pod(&self, session: &Session) -> Result<(Value, Option<Value>)> {
        let is_service = match self.resource.split_once('/') {
            Some((kind, _)) => session.discovery.resolve(kind).await?.kind == "Service",
            None => false,
        };
        let service = match is_service {
            true => {
                let (_, name) = self.resource.split_once('/').unwrap_or_default();
                let path = format!("/api/v1/namespaces/{}/services/{name}", session.namespace);
                Some(session.api.get(&path).await?)
            }
            false => None,
        };
        let pod = pod_of(session, &self.resource, &self.pod_running_timeout).await?;
        // Missing ports are reported before the pod is resolved.
        self.pairs(&pod, service.as_ref())?;
        if pod["status"]["phase"] != "Running" {
            bail!(
                "unable to forward port because pod is not running. Current status={}",
                str_of(&pod["status"]["phase"])
            );
        }
        Ok((pod, service))
    }

    /// Local and remote ports; ports of a service are translated to the pod's.
    fn pairs(&self, pod: &Value, service: Option<&Value>) -> Result<Vec<(u16, u16)>> {
        let mut pairs = Vec::new();
        for text in &self.ports {
            // More than one colon is a named port that does not exist.
            let (local, remote) = match text.matches(':').count() {
                0 | 1 => text.split_once(':').unwrap_or((text, text)),
                _ => {
                    let first = text.split(':').next().unwrap_or_default();
                    (first, first)
                }
            };
            let number = match service {
                Some(service) => {
                    refuse_udp(list(&service["spec"]["ports"]), "port", remote)?;
                    service_port(service, pod, remote)?
                }
                None => {
                    refuse_udp(ports_of(pod), "containerPort", remote)?;
                    pod_port(pod, remote)?
                }
            };
            let local = match local {
                "" => 0,
                // A named port without a local one uses its own number.
                local => match local.parse() {
                    Ok(local) => local,
                    Err(_) if local == remote => number,
                    Err(_) => bail!("error parsing local port '{local}': invalid syntax"),
                },
            };
            pairs.push((local, number));
        }
        Ok(pairs)
    }

    /// Listens on all addresses for all ports; it is enough if one port can be forwarded.
    async fn listen(&self, ports: &[(u16, u16)]) -> Result<Vec<(TcpListener, u16)>> {
        let addresses = addresses(&self.address)?;
        let (mut listeners, mut tried, mut is_forwarded) = (Vec::new(), Vec::new(), false);
        for (local, remote) in ports {
            let mut local = *local;
            let (opened, failures) = open(&addresses, &mut local, *remote).await;
            listeners.extend(opened.into_iter().map(|listener| (listener, *remote)));
            match failures {
                Some(failures) => eprintln!(
                    "Unable to listen on port {local}: Listeners failed to create with the following errors: [{failures}]"
                ),
                None => is_forwarded = true,
            }
            tried.push(format!("{{{local} {remote}}}"));
        }
        match is_forwarded {
            true => Ok(listeners),
            false => bail!(
                "unable to listen on any of the requested ports: [{}]",
                tried.join(" ")
            ),
        }
    }

    /// Opens a stream for one accepted connection; if the pod is gone, to another one.
    async fn forward(
        &self,
        session: &Session,
        link: &Arc<Link>,
        stream: TcpStream,
        remote: u16,
    ) -> Result<()> {
        let known = link.connection.lock().await.1.clone();
        // The tunnel of a deleted pod may stay open.
        let is_gone = !still_runs(session, &known).await;
        let mut connection = link.connection.lock().await;
        let (open, pod) = &mut *connection;
        let is_gone = is_gone && pod["metadata"]["uid"] == known["metadata"]["uid"];
        if open.closed().is_cancelled() || is_gone {
            let (next, _) = self.pod(session).await.context("lost connection to pod")?;
            *open = connect(session, &next).await?;
            *pod = next;
        }
        let forwarded = open.open(remote);
        drop(connection);
        tokio::spawn(carry(stream, forwarded, remote));
        Ok(())
    }
}

/// An address to listen on. Of those of localhost one is enough.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    text: String,
    ip: IpAddr,
    is_of_localhost: bool,
}

/// The addresses of the flag, each once and in order.
fn addresses(named: &[String]) -> Result<Vec<Address>> {
    let mut addresses: Vec<Address> = Vec::new();
    for name in named {
        let is_of_localhost = name == "localhost";
        let texts = match is_of_localhost {
            true => vec!["127.0.0.1", "::1"],
            false => vec![name.as_str()],
        };
        for text in texts {
            let ip = text.parse();
            let ip = ip.with_context(|| format!("{text} is not a valid IP"))?;
            let known = addresses.iter_mut().find(|known| known.text == text);
            match known {
                // Named beside localhost, it must be listened on.
                Some(known) => known.is_of_localhost &= is_of_localhost,
                None => addresses.push(Address {
                    text: text.to_owned(),
                    ip,
                    is_of_localhost,
                }),
            }
        }
    }
    addresses.sort();
    Ok(addresses)
}

/// Listens on the addresses with one port, which is chosen if it is 0, and returns the errors if they matter.
async fn open(
    addresses: &[Address],
    local: &mut u16,
    remote: u16,
) -> (Vec<TcpListener>, Option<String>) {
    let (mut opened, mut failures) = (Vec::new(), Vec::new());
    let (mut has_localhost, mut is_failed) = (false, false);
    for address in addresses {
        let wanted = SocketAddr::new(address.ip, *local);
        let listening = TcpListener::bind(wanted).await;
        match listening.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((bound, listener)) => {
                *local = bound.port();
                println!("Forwarding from {bound} -> {remote}");
                has_localhost |= address.is_of_localhost;
                opened.push(listener);
            }
            Err(error) => {
                let family = if wanted.is_ipv4() { "tcp4" } else { "tcp6" };
                let why = io_reason(&error);
                is_failed |= !address.is_of_localhost;
                failures.push(format!(
                    "unable to create listener: Error listen {family} {wanted}: bind: {why}"
                ));
            }
        }
    }
    let needs_localhost = addresses.iter().any(|address| address.is_of_localhost);
    let is_failed = is_failed || (needs_localhost && !has_localhost);
    (opened, is_failed.then(|| failures.join(" ")))
}

async fn carry(mut stream: TcpStream, mut forwarded: streaming::client::Forwarded, remote: u16) {
    let copied = tokio::io::copy_bidirectional(&mut stream, &mut forwarded.data).await;
    if copied.is_err() {
        // The local side is gone; data of the pod must not block other streams.
        return;
    }
    let mut error = String::new();
    let _ = forwarded.error.read_to_string(&mut error).await;
    if !error.is_empty() {
        eprintln!("error: an error occurred forwarding {remote}: {error}");
    }
}

/// Whether the same pod is still there and not being deleted. A server that cannot be asked does not
/// end a tunnel that works.
async fn still_runs(session: &Session, pod: &Value) -> bool {
    let metadata = &pod["metadata"];
    let (namespace, name) = (str_of(&metadata["namespace"]), str_of(&metadata["name"]));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    match tokio::time::timeout(PATIENCE, session.api.find(&path)).await {
        Ok(Ok(Some(live))) => is_same_running(pod, &live),
        Ok(Ok(None)) => false,
        Ok(Err(_)) | Err(_) => true,
    }
}

fn is_same_running(pod: &Value, live: &Value) -> bool {
    live["metadata"]["uid"] == pod["metadata"]["uid"]
        && live["metadata"]["deletionTimestamp"].is_null()
        && live["status"]["phase"] == "Running"
}

async fn connect(session: &Session, pod: &Value) -> Result<Connection> {
    let (namespace, name) = (
        str_of(&pod["metadata"]["namespace"]),
        str_of(&pod["metadata"]["name"]),
    );
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/portforward");
    let handshake = Handshake::for_port_forward();
    let mut request = handshake.request().uri(path).body(Body::empty())?;
    session.connection.authorize(&mut request)?;
    let sent = session.upgrading()?.send(request).await;
    let response =
        sent.map_err(|error| crate::unreachable::unreachable(error, &session.connection.server))?;
    handshake.port_forward(response).await.map_err(refused)
}

/// The ports of a pod's containers.
fn ports_of(pod: &Value) -> impl Iterator<Item = &Value> {
    let containers = list(&pod["spec"]["containers"]).chain(list(&pod["spec"]["initContainers"]));
    containers.flat_map(|container| list(&container["ports"]))
}

/// Fails for a number or name of a port that is only UDP: tunnels carry TCP.
fn refuse_udp<'a>(ports: impl Iterator<Item = &'a Value>, field: &str, remote: &str) -> Result<()> {
    let ports: Vec<&Value> = ports.collect();
    let named = ports.iter().find(|port| port["name"] == remote);
    let number = match remote.parse::<u64>() {
        Ok(number) => Some(number),
        Err(_) => named.and_then(|port| port[field].as_u64()),
    };
    let has = |protocol: &str| {
        let mut same = ports.iter().filter(|port| port[field].as_u64() == number);
        same.any(|port| port["protocol"].as_str().unwrap_or("TCP") == protocol)
    };
    match number.is_some() && has("UDP") && !has("TCP") {
        true => bail!("UDP protocol is not supported for {remote}"),
        false => Ok(()),
    }
}

/// The pod's port by number or name.
fn pod_port(pod: &Value, text: &str) -> Result<u16> {
    if let Ok(port) = text.parse() {
        return Ok(port);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!(
            "error parsing remote port '{text}': strconv.ParseUint: parsing {text:?}: value out of range"
        );
    }
    let named = ports_of(pod).find(|port| port["name"] == text);
    let number = named.and_then(|port| u16::try_from(port["containerPort"].as_u64()?).ok());
    number.with_context(|| {
        format!(
            "Pod '{}' does not have a named port '{text}'",
            str_of(&pod["metadata"]["name"])
        )
    })
}

/// The pod's port of a service port.
fn service_port(service: &Value, pod: &Value, text: &str) -> Result<u16> {
    let number: Option<u64> = text.parse().ok();
    let is_it = |port: &&Value| match number {
        Some(number) => port["port"].as_u64() == Some(number),
        None => port["name"] == text,
    };
    let Some(port) = list(&service["spec"]["ports"]).find(is_it) else {
        let name = str_of(&service["metadata"]["name"]);
        match number {
            Some(_) => bail!("Service {name} does not have a service port {text}"),
            None => bail!("Service '{name}' does not have a named port '{text}'"),
        }
    };
    if service["spec"]["clusterIP"] == "None" {
        return pod_port(pod, &port["port"].to_string());
    }
    match &port["targetPort"] {
        Value::Number(target) if target.as_u64() != Some(0) => pod_port(pod, &target.to_string()),
        Value::String(name) => pod_port(pod, name),
        _ => pod_port(pod, &port["port"].to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_unique_and_ordered() {
        let texts = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            addresses(&named).map(|addresses| {
                let texts = addresses
                    .into_iter()
                    .map(|one| (one.text, one.is_of_localhost));
                texts.collect::<Vec<_>>()
            })
        };
        let pair = |text: &str, is_of_localhost| (text.to_owned(), is_of_localhost);
        assert_eq!(
            texts(&["localhost", "127.0.0.1", "10.0.0.1"]).unwrap(),
            [
                pair("10.0.0.1", false),
                pair("127.0.0.1", false),
                pair("::1", true)
            ]
        );
        assert!(texts(&["nope"]).is_err());
    }

    #[tokio::test]
    async fn one_address_of_localhost_is_enough_and_all_others_are_required() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let required = addresses(&["127.0.0.1".to_owned()]).unwrap();
        let (opened, failures) = open(&required, &mut port.clone(), 80).await;
        assert!(opened.is_empty());
        let expected = format!("listen tcp4 127.0.0.1:{port}: bind: address already in use");
        assert!(failures.is_some_and(|failures| failures.contains(&expected)));
        let free = addresses(&["localhost".to_owned()]).unwrap();
        let (opened, failures) = open(&free, &mut 0, 80).await;
        assert!(!opened.is_empty() && failures.is_none());
    }

    #[test]
    fn a_pod_that_is_replaced_or_deleted_ends_its_tunnel() {
        let pod = |uid: &str, phase: &str, deletion: Value| {
            json!({"metadata": {"uid": uid, "deletionTimestamp": deletion},
                "status": {"phase": phase}})
        };
        let first = pod("a", "Running", Value::Null);
        for (live, expected) in [
            (first.clone(), true),
            (pod("b", "Running", Value::Null), false),
            (pod("a", "Running", json!("2026-01-01T00:00:00Z")), false),
            (pod("a", "Failed", Value::Null), false),
        ] {
            assert_eq!(is_same_running(&first, &live), expected, "{live}");
        }
    }

    #[test]
    fn ports_that_are_only_udp_are_refused() {
        let pod = json!({"spec": {"containers": [{"ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80, "protocol": "TCP"}]}]}});
        for (remote, is_refused) in [("53", true), ("dns", true), ("80", false), ("9", false)] {
            let refused = refuse_udp(ports_of(&pod), "containerPort", remote);
            assert_eq!(refused.is_err(), is_refused, "{remote}");
        }
    }

    #[test]
    fn ports_of_services_become_those_of_pods() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}});
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [
            {"name": "web", "port": 80, "targetPort": "http"}, {"name": "n", "port": 81, "targetPort": 9000}, {"port": 82}]}});
        for (text, expected) in [("80", 8080), ("web", 8080), ("81", 9000), ("82", 82)] {
            assert_eq!(
                service_port(&service, &pod, text).unwrap(),
                expected,
                "{text}"
            );
        }
        assert!(service_port(&service, &pod, "99").is_err());
        assert_eq!(pod_port(&pod, "http").unwrap(), 8080);
        assert!(pod_port(&pod, "none").is_err());
    }
}
