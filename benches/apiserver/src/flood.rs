//! One user's flood: while it keeps many requests in flight, another user reads and a node renews
//! its lease. The users are impersonated by the one who runs this, so that it works on any server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde_json::json;

use crate::{peer::Peer, process, report::Figures, scenario};

const FLOODER: &str = "impersonate-user: bench-flooder\r\n";
const READER: &str = "impersonate-user: bench-reader\r\n";
const NODE: &str = "impersonate-user: system:node:bench\r\nimpersonate-group: system:nodes\r\n";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Lets both users read, and makes the node's lease.
async fn prepare(peer: &Peer) -> anyhow::Result<()> {
    let binding = json!({
        "metadata": {"name": "bench-apiserver"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bench-flooder"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bench-reader"},
        ],
    });
    peer.ask("POST", RBAC, &binding.to_string()).await?;
    peer.ask("POST", LEASES, &lease().to_string()).await?;
    // A binding may take a moment until it counts.
    let mut connection = peer.connect().await?;
    let path = format!("{}?limit=1", scenario::path("pods"));
    let deadline = Instant::now() + Duration::from_secs(10);
    for who in [FLOODER, READER] {
        let request = peer.request("GET", &path, who, "");
        while connection.code(&request).await? != 200 {
            ensure!(Instant::now() < deadline, "the users may not read");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

async fn clean(peer: &Peer) -> anyhow::Result<()> {
    peer.ask("DELETE", &format!("{RBAC}/bench-apiserver"), "")
        .await?;
    peer.ask("DELETE", &format!("{LEASES}/bench"), "").await?;
    Ok(())
}

fn lease() -> serde_json::Value {
    json!({
        "metadata": {"name": "bench"},
        "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 40},
    })
}

/// What the flood got.
pub struct Flooded {
    /// Reads by the other user, and renewals of the lease.
    pub figures: Vec<Figures>,
    pub served: u64,
    pub turned_away: u64,
}

/// Measures with this many requests in flight.
pub fn run(peer: &Peer, in_flight: usize, lasts: Duration) -> anyhow::Result<Flooded> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(prepare(peer))?;
    let over = Arc::new(AtomicBool::new(false));
    let ready = Arc::new(AtomicU64::new(0));
    let flooded = std::thread::scope(|scope| {
        let (peer, stop, up) = (peer, over.clone(), ready.clone());
        let flooder = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(flood(peer, in_flight, &stop, &up))
        });
        while ready.load(Ordering::Acquire) < in_flight as u64 && !flooder.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let figures = runtime.block_on(others(peer, lasts));
        over.store(true, Ordering::Release);
        let flood = flooder
            .join()
            .map_err(|_| anyhow::anyhow!("the flood panicked"))??;
        anyhow::Ok(Flooded {
            figures: figures?,
            served: flood.0,
            turned_away: flood.1,
        })
    })?;
    runtime.block_on(clean(peer))?;
    Ok(flooded)
}

/// Keeps requests in flight until told to stop; counts what was served and what was turned away.
async fn flood(
    peer: &Peer,
    in_flight: usize,
    over: &AtomicBool,
    ready: &AtomicU64,
) -> anyhow::Result<(u64, u64)> {
    let path = format!("{}?limit=500", scenario::path("pods"));
    let request = peer.request("GET", &path, FLOODER, "");
    let mut open = Vec::new();
    for _ in 0..in_flight {
        open.push(peer.connect().await?);
        ready.fetch_add(1, Ordering::Release);
    }
    let work = open.into_iter().map(|mut connection| {
        let request = &request;
        async move {
            let (mut served, mut turned_away) = (0, 0);
            while !over.load(Ordering::Acquire) {
                match connection.code(request).await? {
                    200 => served += 1,
                    429 => turned_away += 1,
                    other => anyhow::bail!("the flood got {other}"),
                }
            }
            anyhow::Ok((served, turned_away))
        }
    });
    let mut sum = (0, 0);
    for (served, turned_away) in futures::future::try_join_all(work).await? {
        sum = (sum.0 + served, sum.1 + turned_away);
    }
    Ok(sum)
}

/// The other user and the node, at the pace that people and kubelets have.
async fn others(peer: &Peer, lasts: Duration) -> anyhow::Result<Vec<Figures>> {
    let pod = format!("{}/filled-{:016x}", scenario::path("pods"), 0);
    let get = peer.request("GET", &pod, READER, "");
    let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}).to_string();
    let renew = peer.request("PATCH", &format!("{LEASES}/bench"), NODE, &renewal);
    let (gets, renewals) = tokio::join!(
        paced(
            peer,
            "GET by another user",
            &get,
            Duration::from_millis(5),
            lasts
        ),
        paced(
            peer,
            "lease renewed",
            &renew,
            Duration::from_millis(100),
            lasts
        ),
    );
    Ok(vec![gets?, renewals?])
}

async fn paced(
    peer: &Peer,
    what: &str,
    request: &[u8],
    pace: Duration,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    let mut connection = peer.connect().await?;
    let (begun, cpu) = (Instant::now(), process::cpu(&peer.processes));
    let (mut durations, mut bytes) = (Vec::new(), 0);
    while begun.elapsed() < lasts {
        let start = Instant::now();
        bytes += connection.exchange(request).await?;
        durations.push(start.elapsed());
        tokio::time::sleep(pace).await;
    }
    let cpu = process::cpu(&peer.processes).saturating_sub(cpu);
    Ok(Figures::of(what, 1, durations, bytes, begun.elapsed(), cpu))
}
