//! How long changes of network policies and of pods take until the kernel has their rules: beside few policies, beside
//! many, and beside those of a tenant that has as many selectors and ports as an object can.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::{core::v1::Pod as KubePod, networking::v1::NetworkPolicy};
use network::nft::Nft;
use policy::{
    policy::{Key, Labels, Policy},
    state::{Pod, State},
};
use serde_json::{Value, json};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Policies, a hundred in each namespace.
    #[arg(long, default_value_t = 10_000)]
    policies: usize,
    /// Pods of the cluster.
    #[arg(long, default_value_t = 5_000)]
    pods: usize,
    /// Those of them on this node.
    #[arg(long, default_value_t = 110)]
    local: usize,
    /// Changes of each kind.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Peers and ports of the tenant's policies; without them there is no such tenant.
    #[arg(long, default_value_t = 0)]
    hostile: usize,
    /// The tenant's policies.
    #[arg(long, default_value_t = 1)]
    hostile_policies: usize,
}

const PER_NAMESPACE: usize = 100;

fn namespace(number: usize) -> String {
    format!("tenant-{number}")
}

/// Selects the pods of an app, and allows those of another, from everywhere and on two ports.
fn ordinary(number: usize) -> Value {
    let app =
        |number: usize| json!({"matchLabels": {"app": format!("app-{}", number % PER_NAMESPACE)}});
    json!({"podSelector": app(number), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": app(number + 1)}, {"namespaceSelector": {"matchLabels": {"team": "shared"}}}],
                     "ports": [{"port": 80}, {"port": 8000 + number % 50}]}],
        "egress": [{"to": [{"podSelector": app(number + 2)}]}, {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]})
}

/// Every rule has a peer and a port of its own.
fn hostile(size: usize, salt: usize) -> Value {
    let rule = |number: usize| {
        let label = format!("{salt}-{number}");
        let block = format!("10.{}.{}.0/24", number / 256 % 256, number % 256);
        json!({"from": [{"podSelector": {"matchLabels": {"a": label}}}, {"namespaceSelector": {}, "podSelector": {"matchLabels": {"b": label}}},
                        {"ipBlock": {"cidr": block}}],
               "ports": [{"port": number % 60_000 + 1, "endPort": number % 60_000 + 2}, {"port": format!("p{}", number % 30_000)}]})
    };
    json!({"podSelector": {}, "ingress": (0..size).map(rule).collect::<Vec<_>>()})
}

fn policy(namespace: &str, name: &str, spec: Value) -> Result<(Key, Policy)> {
    let object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
    let object: NetworkPolicy = serde_json::from_value(object)?;
    Ok((
        (namespace.to_owned(), name.to_owned()),
        Policy::from_object(&object),
    ))
}

/// Pods are spread over the namespaces; the first are on this node.
fn pod(number: usize, arguments: &Arguments, app: usize) -> Result<(Key, Option<Pod>)> {
    let namespaces = arguments.policies.div_ceil(PER_NAMESPACE).max(1);
    let key = (namespace(number % namespaces), format!("pod-{number}"));
    let [high, low] = u16::try_from(number + 1)?.to_be_bytes();
    let ip = IpAddr::from(Ipv4Addr::new(10, 42, high, low));
    let node = if number < arguments.local {
        "here"
    } else {
        "there"
    };
    let object = json!({"metadata": {"labels": {"app": format!("app-{app}")}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "p1", "containerPort": 80}]}]},
        "status": {"podIPs": [{"ip": ip}]}});
    let object: KubePod = serde_json::from_value(object)?;
    Ok((key, Pod::from_object(&object, "here")))
}

/// The time of a decision, and until the kernel has its rules.
struct Took {
    decided: Duration,
    applied: Duration,
    statements: usize,
}

async fn change(nft: &Nft, state: &mut State, change: impl FnOnce(&mut State)) -> Result<Took> {
    let begun = Instant::now();
    change(state);
    let batch = state.commit();
    let decided = begun.elapsed();
    nft.apply(&batch).await?;
    Ok(Took {
        decided,
        applied: begun.elapsed(),
        statements: batch.statements().len(),
    })
}

fn print(what: &str, mut all: Vec<Took>) {
    all.sort_by_key(|took| took.applied);
    let at = |part: f64| &all[((all.len() - 1) as f64 * part) as usize];
    let (p50, p99) = (at(0.5), at(0.99));
    println!(
        "{what:<40} p50 {:>10.2?} ({:.2?} to decide, {} statements) p99 {:>10.2?}",
        p50.applied, p50.decided, p50.statements, p99.applied
    );
}

async fn measure(nft: &Nft, state: &mut State, arguments: &Arguments) -> Result<()> {
    let (mut added, mut removed, mut relabelled) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..arguments.rounds.max(1) {
        let (key, new) = policy(&namespace(0), "new", ordinary(round))?;
        added.push(change(nft, state, |state| state.set_policy(&key, Some(new))).await?);
        removed.push(change(nft, state, |state| state.set_policy(&key, None)).await?);
        let (key, pod) = pod(round % arguments.pods, arguments, round + 1)?;
        relabelled.push(change(nft, state, |state| state.set_pod(&key, pod)).await?);
    }
    print("a policy is added", added);
    print("a policy is removed", removed);
    print("a pod has another label", relabelled);
    Ok(())
}

/// Measures in a namespace of its own.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let (nft, mut state) = (Nft::new(), State::new("mainstay-0123abcd-policy".into()));
    let begun = Instant::now();
    for number in 0..arguments.policies.div_ceil(PER_NAMESPACE).max(1) {
        let team = if number == 0 { "shared" } else { "other" };
        let labels = Labels::from([("team".to_owned(), team.to_owned())]);
        state.set_namespace(&namespace(number), Some(labels));
    }
    for number in 0..arguments.pods {
        let (key, pod) = pod(number, arguments, number % PER_NAMESPACE)?;
        state.set_pod(&key, pod);
    }
    for number in 0..arguments.policies {
        let (key, policy) = policy(
            &namespace(number / PER_NAMESPACE),
            &format!("p{number}"),
            ordinary(number),
        )?;
        state.set_policy(&key, Some(policy));
    }
    let full = state.full();
    let decided = begun.elapsed();
    nft.apply(&full).await.context("the whole table")?;
    println!(
        "{} policies, {} pods: all rules are in the kernel {:.2?} after a start ({decided:.2?} to decide, {} statements)",
        arguments.policies,
        arguments.pods,
        begun.elapsed(),
        full.statements().len()
    );
    measure(&nft, &mut state, arguments).await?;
    if arguments.hostile == 0 {
        return Ok(());
    }
    for number in 0..arguments.hostile_policies {
        let (key, policy) = policy(
            &namespace(0),
            &format!("hostile-{number}"),
            hostile(arguments.hostile, number),
        )?;
        let took = change(&nft, &mut state, |state| {
            state.set_policy(&key, Some(policy))
        })
        .await?;
        print("a policy of the tenant", vec![took]);
    }
    measure(&nft, &mut state, arguments).await?;
    let begun = Instant::now();
    let full = state.full();
    nft.apply(&full)
        .await
        .context("the whole table beside the tenant")?;
    println!(
        "a restart beside the tenant: {:.2?} ({} statements)",
        begun.elapsed(),
        full.statements().len()
    );
    Ok(())
}
