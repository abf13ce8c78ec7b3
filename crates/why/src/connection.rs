//! Which network policy allows or blocks a connection.

use std::{collections::BTreeMap, net::IpAddr};

use client::{Api, kube};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod as KubePod, Service},
    networking::v1::NetworkPolicy,
};
use kube::{ResourceExt, api::ListParams};
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
    let servers = match service(client, to, &asked.namespace).await? {
        Some((namespace, name)) => {
            match backends::read(client, &namespace, &name, port, protocol).await? {
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
    let policies = policies.list(&ListParams::default()).await?;
    let read = |policy: NetworkPolicy| {
        let key = (policy.namespace().unwrap_or_default(), policy.name_any());
        (key, Policy::from_object(&policy))
    };
    let policies: BTreeMap<Key, Policy> = policies.into_iter().map(read).collect();
    let judged = servers
        .iter()
        .flat_map(|server| judge(&from, server, &policies));
    let judged: Vec<Judged> = judged.collect();
    if judged.is_empty() {
        let failed = Answer::new("fails: both ends need an address of the same family");
        return Ok(failed);
    }
    Ok(report(&asked.from, &judged))
}

/// The judgements about a server, for each family that both ends have addresses of; one if they are equal.
fn judge(from: &End, server: &Server, policies: &BTreeMap<Key, Policy>) -> Vec<Judged> {
    let families = [true, false].into_iter();
    let pairs = families.filter_map(|v4| Some((from.of_family(v4)?, server.end.of_family(v4)?)));
    let mut judged: Vec<Judged> = Vec::new();
    for (client, end) in pairs {
        let address = end.addresses.first().copied();
        let connection = Connection {
            client,
            server: end,
            protocol: server.protocol,
            port: server.port,
        };
        let [egress, ingress] = [Direction::Egress, Direction::Ingress]
            .map(|direction| explain(direction, &connection, policies));
        let address = address.map(|ip| ip.to_string()).unwrap_or_default();
        judged.push(Judged {
            server: match server.name == address {
                true => address,
                false => format!("{} ({address})", server.name),
            },
            egress,
            ingress,
        });
    }
    let mut others = judged.iter().skip(1);
    let judgements = |one: &Judged| (one.egress.clone(), one.ingress.clone());
    if others.all(|other| judgements(other) == judgements(&judged[0])) {
        judged.truncate(1);
        for one in &mut judged {
            one.server.clone_from(&server.name);
        }
    }
    judged
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
        Judgement::Itself => "allowed: no policy isolates it from itself".to_owned(),
        Judgement::OwnNode => "allowed: no policy isolates it from its own node".to_owned(),
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

/// The Service that is named, or that has the address.
async fn service(
    client: &kube::Client,
    text: &str,
    namespace: &str,
) -> Result<Option<(String, String)>> {
    if let Some((namespace, name)) = service_name(text, namespace) {
        return Ok(Some((namespace.to_owned(), name.to_owned())));
    }
    let Some(address) = address(text) else {
        return Ok(None);
    };
    let services: Api<Service> = Api::all_with(client.clone(), &());
    let services = services.list(&ListParams::default()).await?;
    let found = services.into_iter().find(|service| has(service, address));
    Ok(found.map(|service| (service.namespace().unwrap_or_default(), service.name_any())))
}

/// Whether connections to an address lead to a Service.
fn has(service: &Service, address: IpAddr) -> bool {
    let spec = service.spec.as_ref();
    let own = spec.and_then(|spec| spec.cluster_ips.as_ref());
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let given = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let given = given
        .into_iter()
        .flatten()
        .filter_map(|one| one.ip.as_ref());
    let mut all = own.into_iter().flatten().chain(given);
    all.any(|ip| ip.parse() == Ok(address))
}

fn address(text: &str) -> Option<IpAddr> {
    text.trim_matches(['[', ']']).parse().ok()
}

/// A pod with the data that policies select by, or an address. An address may be that of a pod.
async fn end(client: &kube::Client, namespace: &str, text: &str) -> Result<End> {
    if let Some(address) = address(text) {
        let pods: Api<KubePod> = Api::all_with(client.clone(), &());
        let pods = pods.list(&ListParams::default()).await?;
        let own = |pod: &KubePod| {
            let read = Pod::from_object(pod, "");
            read.is_some_and(|pod| pod.addresses.contains(&address))
        };
        return match pods.into_iter().find(own) {
            Some(pod) => of_pod(client, &pod, &[address]).await,
            None => Ok(End {
                addresses: vec![address],
                ..End::default()
            }),
        };
    }
    let name = text.split_once('/');
    let name = name.filter(|(kind, _)| matches!(*kind, "pod" | "pods" | "po"));
    let Some((_, name)) = name else {
        return Err(Error::Question(format!(
            "{text:?} is neither pod/NAME nor an address"
        )));
    };
    let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
    let pods: Api<KubePod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get(name).await?;
    let addresses = addresses(&pod);
    if addresses.is_empty() {
        let why = "has ended, or has no address yet";
        return Err(Error::Question(format!("pod {namespace}/{name} {why}")));
    }
    of_pod(client, &pod, &addresses).await
}

/// The addresses of a pod; none if it has ended.
fn addresses(pod: &KubePod) -> Vec<IpAddr> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let listed = status.and_then(|status| status.pod_ips.as_ref());
    let listed = listed.into_iter().flatten();
    listed.filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// A pod with these addresses. A pod in the host's network is not a pod for policies.
async fn of_pod(client: &kube::Client, object: &KubePod, addresses: &[IpAddr]) -> Result<End> {
    let mut end = End {
        addresses: addresses.to_vec(),
        ..End::default()
    };
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let Some(pod) = Pod::from_object(object, &node.unwrap_or_default()) else {
        return Ok(end);
    };
    let namespace = object.namespace().unwrap_or_default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labels = namespaces.get(&namespace).await?.metadata.labels;
    let key = (namespace, object.name_any());
    end.pod = Some((key, pod, labels.unwrap_or_default()));
    let status = object.status.as_ref();
    let hosts = status.and_then(|status| status.host_ips.as_ref());
    let hosts = hosts.into_iter().flatten();
    end.node = hosts.filter_map(|host| host.ip.parse().ok()).collect();
    Ok(end)
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
    fn families_are_judged_apart_and_reported_once_if_they_agree() {
        let ips = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let host = |all: &[&str]| End {
            addresses: ips(all),
            ..End::default()
        };
        let labels = policy::policy::Labels::new();
        let key = ("shop".to_owned(), "b".to_owned());
        let mut end = host(&["10.42.0.2", "fd42::2"]);
        end.pod = Some((key, Pod::default(), labels));
        let server = Server {
            name: "pod/b".to_owned(),
            end,
            protocol: Protocol::Tcp,
            port: 80,
        };
        let policy = serde_json::json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {"podSelector": {},
            "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}});
        let policy = Policy::from_object(&serde_json::from_value(policy).unwrap());
        let policies = BTreeMap::from([(("shop".to_owned(), "p".to_owned()), policy)]);
        let found = |client: &[&str]| -> Vec<(String, bool)> {
            let judged = judge(&host(client), &server, &policies).into_iter();
            judged
                .map(|one| (one.server.clone(), one.passes()))
                .collect()
        };
        let both = [
            ("pod/b (10.42.0.2)".into(), true),
            ("pod/b (fd42::2)".into(), false),
        ];
        assert_eq!(found(&["192.0.2.1", "2001:db8::1"]), both);
        let denied = [("pod/b".into(), false)];
        assert_eq!(found(&["198.51.100.1", "2001:db8::1"]), denied);
        assert_eq!(found(&["2001:db8::1"]), denied);
        assert_eq!(found(&[]), []);
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
