//! Which network policy allows or blocks a connection.

use std::{collections::BTreeMap, net::IpAddr};

use client::{Api, kube};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod as KubePod},
    networking::v1::NetworkPolicy,
};
use kube::ResourceExt;
use network::Protocol;
use policy::{
    explain::{Connection, End, Judgement, explain},
    policy::{Direction, Key, Policy},
    state::Pod,
};

use crate::{Answer, Error, Result};

mod backends;

/// How many different results are shown for the endpoints of a Service.
const SHOWN: usize = 5;

/// The connection in question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionQuery {
    /// `pod/NAME`, `pod/NAMESPACE/NAME` or an address.
    pub from: String,
    /// The same or `service/NAME`, with a port, and a protocol or not.
    pub to: String,
    /// The default namespace of pods and Services.
    pub namespace: String,
}

/// One server that the connection may reach.
struct Server {
    name: String,
    end: End,
    protocol: Protocol,
    port: u16,
}

/// The judgements of both sides for some server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Judged {
    server: String,
    egress: Judgement,
    ingress: Judgement,
}

impl Judged {
    fn passes(&self) -> bool {
        self.egress.passes() && self.ingress.passes()
    }
}

pub(crate) async fn answer(client: &kube::Client, asked: &ConnectionQuery) -> Result<Answer> {
    let (to, port, protocol) = target(&asked.to)?;
    let from = end(client, &asked.namespace, &asked.from).await?;
    let servers = match service_name(to, &asked.namespace) {
        Some((namespace, name)) => {
            match backends::read(client, namespace, name, port, protocol).await? {
                Ok(servers) => servers,
                Err(answer) => return Ok(answer),
            }
        }
        None => vec![Server {
            name: to.to_owned(),
            end: end(client, &asked.namespace, to).await?,
            protocol: protocol.unwrap_or(Protocol::Tcp),
            port: port.parse().map_err(|_| not_a_target(&asked.to))?,
        }],
    };
    let policies: Api<NetworkPolicy> = Api::all_with(client.clone(), &());
    let policies = policies.list(&kube::api::ListParams::default()).await?;
    let read = |policy: NetworkPolicy| {
        let key = (policy.namespace().unwrap_or_default(), policy.name_any());
        (key, Policy::from_object(&policy))
    };
    let policies: BTreeMap<Key, Policy> = policies.into_iter().map(read).collect();
    let judged = servers.into_iter().map(|server| {
        let connection = Connection {
            client: from.clone(),
            server: server.end,
            protocol: server.protocol,
            port: server.port,
        };
        Judged {
            server: server.name,
            egress: explain(Direction::Egress, &connection, &policies),
            ingress: explain(Direction::Ingress, &connection, &policies),
        }
    });
    Ok(report(&asked.from, &judged.collect::<Vec<_>>()))
}

/// The verdict over all servers; servers with the same judgements are reported once.
fn report(from: &str, judged: &[Judged]) -> Answer {
    let passing = judged.iter().filter(|judged| judged.passes()).count();
    let mut answer = Answer::new(match (passing, judged.len()) {
        (0, _) => "denied".to_owned(),
        (passing, all) if passing == all => "allowed".to_owned(),
        (passing, all) => format!("allowed to {passing} of {all} endpoints"),
    });
    let mut groups: Vec<(&Judged, usize)> = Vec::new();
    for one in judged {
        let same = |(other, _): &&mut (&Judged, usize)| {
            (&other.egress, &other.ingress) == (&one.egress, &one.ingress)
        };
        match groups.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None => groups.push((one, 1)),
        }
    }
    for (one, count) in groups.into_iter().take(SHOWN) {
        let more = match count {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let sides = [
            (Direction::Egress, from, "", &one.egress),
            (Direction::Ingress, &one.server, &more, &one.ingress),
        ];
        answer = answer.because_all(sides.map(|(direction, name, more, judgement)| {
            let (direction, judgement) = (direction.as_str(), describe_judgement(judgement));
            format!("{direction:<8} {name}{more}: {judgement}")
        }));
    }
    answer
}

fn describe_judgement(judgement: &Judgement) -> String {
    let name = |key: &Key| format!("{}/{}", key.0, key.1);
    match judgement {
        Judgement::NotIsolated => "allowed: no policy isolates it".to_owned(),
        Judgement::Allowed(policy, rule) => {
            format!("allowed by rule {rule} of policy {}", name(policy))
        }
        Judgement::Denied(policies) => {
            let all: Vec<String> = policies.iter().map(name).collect();
            format!("denied: no rule of {} allows it", all.join(", "))
        }
    }
}

/// `pod/NAME:PORT`, `service/NAME:PORT` or `ADDRESS:PORT`, optionally with `/PROTOCOL`.
fn target(text: &str) -> Result<(&str, &str, Option<Protocol>)> {
    let parse = || {
        let (end, port) = text.rsplit_once(':')?;
        let (port, protocol) = match port.split_once('/') {
            Some((port, protocol)) => {
                let protocol = Protocol::from_kubernetes(Some(&protocol.to_uppercase()))?;
                (port, Some(protocol))
            }
            None => (port, None),
        };
        (!end.is_empty() && !port.is_empty()).then_some((end, port, protocol))
    };
    parse().ok_or_else(|| not_a_target(text))
}

fn not_a_target(text: &str) -> Error {
    Error::Question(format!(
        "{text:?} is not pod/NAME:PORT, service/NAME:PORT or ADDRESS:PORT, with /PROTOCOL or without"
    ))
}

/// The namespace and name in `service/NAME`, `svc/NAME` or `svc/NAMESPACE/NAME`.
fn service_name<'a>(text: &'a str, namespace: &'a str) -> Option<(&'a str, &'a str)> {
    let (kind, name) = text.split_once('/')?;
    let is_service = matches!(kind, "service" | "services" | "svc");
    is_service.then(|| name.split_once('/').unwrap_or((namespace, name)))
}

/// A pod with the data that policies select by, or an address.
async fn end(client: &kube::Client, namespace: &str, text: &str) -> Result<End> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(End {
            addresses: vec![address],
            pod: None,
        });
    }
    let name = text.split_once('/');
    let name = name.filter(|(kind, _)| matches!(*kind, "pod" | "pods" | "po"));
    let Some((_, name)) = name else {
        return Err(Error::Question(format!(
            "{text:?} is neither pod/NAME nor an address"
        )));
    };
    let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
    match pod_end(client, namespace, name).await? {
        Some(end) => Ok(end),
        None => {
            let why = "has ended or uses the host network: give an IP address instead";
            Err(Error::Question(format!("{namespace}/{name} {why}")))
        }
    }
}

/// `None` for a pod that policies do not apply to.
async fn pod_end(client: &kube::Client, namespace: &str, name: &str) -> Result<Option<End>> {
    let pods: Api<KubePod> = Api::namespaced(client.clone(), namespace);
    let object = pods.get(name).await?;
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let Some(pod) = Pod::from_object(&object, &node.unwrap_or_default()) else {
        return Ok(None);
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labels = namespaces.get(namespace).await?.metadata.labels;
    let addresses = pod.addresses.iter().copied().collect();
    let key = (namespace.to_owned(), name.to_owned());
    Ok(Some(End {
        addresses,
        pod: Some((key, pod, labels.unwrap_or_default())),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_a_port_and_may_be_services() {
        assert_eq!(target("svc/web:http").unwrap(), ("svc/web", "http", None));
        let udp = Some(Protocol::Udp);
        assert_eq!(target("10.0.0.1:53/udp").unwrap(), ("10.0.0.1", "53", udp));
        for text in ["pod/a", "pod/a:", ":80", "pod/a:80/nope"] {
            assert!(target(text).is_err(), "{text}");
        }
        assert_eq!(service_name("svc/web", "shop"), Some(("shop", "web")));
        assert_eq!(service_name("service/a/b", "shop"), Some(("a", "b")));
        assert_eq!(service_name("pod/web", "shop"), None);
    }

    #[test]
    fn endpoints_with_the_same_judgements_are_reported_once() {
        let denied = Judgement::Denied(vec![("shop".to_owned(), "deny".to_owned())]);
        let judged = |server: &str, ingress: &Judgement| Judged {
            server: server.to_owned(),
            egress: Judgement::NotIsolated,
            ingress: ingress.clone(),
        };
        let open = Judgement::NotIsolated;
        let text = report(
            "pod/a",
            &[
                judged("pod/b", &open),
                judged("pod/c", &denied),
                judged("pod/d", &open),
            ],
        );
        let expected = "allowed to 2 of 3 endpoints\n  \
            egress   pod/a: allowed: no policy isolates it\n  \
            ingress  pod/b and 1 more: allowed: no policy isolates it\n  \
            egress   pod/a: allowed: no policy isolates it\n  \
            ingress  pod/c: denied: no rule of shop/deny allows it\n";
        assert_eq!(text.to_string(), expected);
        assert_eq!(
            report("pod/a", &[judged("pod/b", &denied)]).verdict(),
            "denied"
        );
    }
}
