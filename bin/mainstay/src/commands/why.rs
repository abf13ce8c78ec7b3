//! `mainstay why connection`: which network policy lets a connection pass or stops it.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::{Context, Result, bail};
use client::kube::{self, Api, ResourceExt};
use cluster::Options;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod as KubePod},
    networking::v1::NetworkPolicy,
};
use network::Protocol;
use policy::{
    explain::{Connection, End, Judgement, judge},
    policy::{Direction, Key, Policy},
    state::Pod,
};

use crate::cli::{Why, WhyConnection};

/// Runs it as the administrator of the cluster in the data directory.
pub fn run(command: Why) -> Result<()> {
    let Why::Connection(asked) = command;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(connection(&asked))
}

async fn connection(asked: &WhyConnection) -> Result<()> {
    let options = Options {
        data_dir: asked.cluster.data_dir.clone(),
        ..Options::default()
    };
    let path = cluster::settings::data_dir(&options)?.join("admin.kubeconfig");
    let config = client::Kubeconfig::read(&path);
    let config = config.context("asked on a server of the cluster, with its data directory")?;
    let client = config.client(None)?;
    let (to, port, protocol) = target(&asked.to)?;
    let connection = Connection {
        client: end(&client, &asked.namespace, &asked.from).await?,
        server: end(&client, &asked.namespace, to).await?,
        protocol,
        port,
    };
    let policies: Api<NetworkPolicy> = Api::all(client);
    let policies = policies.list(&kube::api::ListParams::default()).await?;
    let read = |policy: NetworkPolicy| {
        let key = (policy.namespace().unwrap_or_default(), policy.name_any());
        (key, Policy::from_object(&policy))
    };
    let policies: BTreeMap<Key, Policy> = policies.into_iter().map(read).collect();
    let mut passes = true;
    for (direction, name) in [
        (Direction::Egress, &asked.from[..]),
        (Direction::Ingress, to),
    ] {
        let judgement = judge(direction, &connection, &policies);
        passes &= judgement.passes();
        println!("{:<8} {name}: {}", direction.as_str(), words(&judgement));
    }
    println!("{}", if passes { "allowed" } else { "denied" });
    Ok(())
}

fn words(judgement: &Judgement) -> String {
    let name = |key: &Key| format!("{}/{}", key.0, key.1);
    match judgement {
        Judgement::NotIsolated => "allowed: no policy isolates it".to_owned(),
        Judgement::Allowed(policy, rule) => {
            format!("allowed by rule {rule} of policy {}", name(policy))
        }
        Judgement::Denied(policies) => {
            let all: Vec<String> = policies.iter().map(name).collect();
            format!("denied: no rule allows it of {}", all.join(", "))
        }
    }
}

/// `pod/NAME:PORT` or `ADDRESS:PORT`, with `/PROTOCOL` behind it or not.
fn target(text: &str) -> Result<(&str, u16, Protocol)> {
    let wrong = || format!("{text:?} is not pod/NAME:PORT[/PROTOCOL]");
    let (end, port) = text.rsplit_once(':').with_context(wrong)?;
    let (port, protocol) = port.split_once('/').unwrap_or((port, "TCP"));
    let protocol = Protocol::from_kubernetes(Some(&protocol.to_uppercase()));
    let protocol = protocol.with_context(wrong)?;
    Ok((end, port.parse().with_context(wrong)?, protocol))
}

/// A pod with what policies see of it, or an address.
async fn end(client: &kube::Client, namespace: &str, text: &str) -> Result<End> {
    let address = text.trim_matches(['[', ']']).parse::<IpAddr>();
    let Some(name) = text.strip_prefix("pod/").filter(|_| address.is_err()) else {
        let addresses = vec![address.with_context(|| format!("{text:?} is no pod/NAME"))?];
        return Ok(End {
            addresses,
            pod: None,
        });
    };
    let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
    let pods: Api<KubePod> = Api::namespaced(client.clone(), namespace);
    let object = pods.get(name).await?;
    let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let Some(pod) = Pod::from_object(&object, &node.unwrap_or_default()) else {
        bail!("{namespace}/{name} has ended or uses its node's network: ask for an address");
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
