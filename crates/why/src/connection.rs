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

/// The connection in question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionQuery {
    /// `pod/NAME`, `pod/NAMESPACE/NAME` or an address.
    pub from: String,
    /// The same with a port, and a protocol or not.
    pub to: String,
    /// The default namespace of pods.
    pub namespace: String,
}

pub(crate) async fn answer(client: &kube::Client, asked: &ConnectionQuery) -> Result<Answer> {
    let (to, port, protocol) = target(&asked.to)?;
    let connection = Connection {
        client: end(client, &asked.namespace, &asked.from).await?,
        server: end(client, &asked.namespace, to).await?,
        protocol,
        port,
    };
    let policies: Api<NetworkPolicy> = Api::all_with(client.clone(), &());
    let policies = policies.list(&kube::api::ListParams::default()).await?;
    let read = |policy: NetworkPolicy| {
        let key = (policy.namespace().unwrap_or_default(), policy.name_any());
        (key, Policy::from_object(&policy))
    };
    let policies: BTreeMap<Key, Policy> = policies.into_iter().map(read).collect();
    let sides = [
        (Direction::Egress, &asked.from[..]),
        (Direction::Ingress, to),
    ];
    let judged = sides
        .map(|(direction, name)| (direction, name, explain(direction, &connection, &policies)));
    let verdict = match judged.iter().all(|(.., judgement)| judgement.passes()) {
        true => "allowed",
        false => "denied",
    };
    let line = |(direction, name, judgement): &(Direction, &str, Judgement)| {
        format!(
            "{:<8} {name}: {}",
            direction.as_str(),
            describe_judgement(judgement)
        )
    };
    Ok(Answer::new(verdict).because_all(judged.iter().map(line)))
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

/// `pod/NAME:PORT` or `ADDRESS:PORT`, optionally with `/PROTOCOL`.
fn target(text: &str) -> Result<(&str, u16, Protocol)> {
    let parse = || {
        let (end, port) = text.rsplit_once(':')?;
        let (port, protocol) = port.split_once('/').unwrap_or((port, "TCP"));
        let protocol = Protocol::from_kubernetes(Some(&protocol.to_uppercase()))?;
        Some((end, port.parse().ok()?, protocol))
    };
    parse().ok_or_else(|| Error::Question(format!("{text:?} is not pod/NAME:PORT[/PROTOCOL]")))
}

/// A pod with the data that policies select by, or an address.
async fn end(client: &kube::Client, namespace: &str, text: &str) -> Result<End> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(End {
            addresses: vec![address],
            pod: None,
        });
    }
    let Some(name) = text.strip_prefix("pod/") else {
        return Err(Error::Question(format!(
            "{text:?} is neither pod/NAME nor an address"
        )));
    };
    let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
    let pods: Api<KubePod> = Api::namespaced(client.clone(), namespace);
    let object = pods.get(name).await?;
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let Some(pod) = Pod::from_object(&object, &node.unwrap_or_default()) else {
        let why = "has ended or uses the host network: give an IP address instead";
        return Err(Error::Question(format!("{namespace}/{name} {why}")));
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labels = namespaces.get(namespace).await?.metadata.labels;
    let addresses = pod.addresses.iter().copied().collect();
    let key = (namespace.to_owned(), name.to_owned());
    Ok(End {
        addresses,
        pod: Some((key, pod, labels.unwrap_or_default())),
    })
}
