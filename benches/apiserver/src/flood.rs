//! One user's flood: while it keeps many requests in flight, another user reads and a node renews
//! its lease. The users are impersonated, so that it works on any server.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde_json::json;

use crate::{load, peer::Peer, process, report::Figures, scenario, wire::Many};

const FLOODER: &str = "impersonate-user: bench-flooder\r\n";
const READER: &str = "impersonate-user: bench-reader\r\n";
const NODE: &str = "impersonate-user: system:node:bench\r\nimpersonate-group: system:nodes\r\n";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Lets both users read, and creates the node's lease.
fn prepare(peer: &Peer) -> anyhow::Result<()> {
    let binding = json!({
        "metadata": {"name": "bench-apiserver"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bench-flooder"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bench-reader"},
        ],
    });
    peer.ask("POST", RBAC, &binding.to_string())?;
    peer.ask("POST", LEASES, &lease().to_string())?;
    // A binding may take a moment to take effect.
    let mut connection = peer.connect()?;
    let path = format!("{}?limit=1", scenario::path("pods"));
    let deadline = Instant::now() + Duration::from_secs(10);
    for who in [FLOODER, READER] {
        let request = peer.request("GET", &path, who, "");
        while connection.code(&request)? != 200 {
            ensure!(Instant::now() < deadline, "the users may not read");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn clean(peer: &Peer) -> anyhow::Result<()> {
    peer.ask("DELETE", &format!("{RBAC}/bench-apiserver"), "")?;
    peer.ask("DELETE", &format!("{LEASES}/bench"), "")?;
    Ok(())
}

fn lease() -> serde_json::Value {
    json!({
        "metadata": {"name": "bench"},
        "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 40},
    })
}

/// The result of a flood.
pub(crate) struct Flooded {
    /// Reads by the other user, and renewals of the lease.
    pub figures: Vec<Figures>,
    pub served: u64,
    pub turned_away: u64,
}

/// Measures with this many requests in flight.
pub(crate) fn run(peer: &Peer, in_flight: usize, lasts: Duration) -> anyhow::Result<Flooded> {
    prepare(peer)?;
    let (over, ready) = (AtomicBool::new(false), Barrier::new(2));
    let flooded = std::thread::scope(|scope| {
        let flooder = scope.spawn(|| {
            let open = load::open(peer, in_flight);
            ready.wait();
            flood(peer, Many::new(open?)?, &over)
        });
        ready.wait();
        let figures = others(peer, lasts);
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
    clean(peer)?;
    Ok(flooded)
}

/// Keeps requests in flight until it is stopped; counts served and rejected ones.
fn flood(peer: &Peer, mut many: Many, over: &AtomicBool) -> anyhow::Result<(u64, u64)> {
    let path = format!("{}?limit=500", scenario::path("pods"));
    let request = peer.request("GET", &path, FLOODER, "");
    for (_, connection) in many.each() {
        connection.send(&request)?;
    }
    let (mut served, mut turned_away) = (0, 0);
    while !over.load(Ordering::Acquire) {
        let soon = Instant::now() + Duration::from_millis(100);
        many.turn(soon, |_, connection, complete| {
            if !complete {
                return Ok(());
            }
            match connection.answer().code {
                200 => served += 1,
                429 => turned_away += 1,
                other => anyhow::bail!("the flood got {other}"),
            }
            connection.send(&request)
        })?;
    }
    Ok((served, turned_away))
}

/// The other user and the node, at realistic rates.
fn others(peer: &Peer, lasts: Duration) -> anyhow::Result<Vec<Figures>> {
    let pod = format!("{}/filled-{:016x}", scenario::path("pods"), 0);
    let get = peer.request("GET", &pod, READER, "");
    let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}).to_string();
    let renew = peer.request("PATCH", &format!("{LEASES}/bench"), NODE, &renewal);
    let second = Duration::from_secs(1);
    std::thread::scope(|scope| {
        let renewals = scope.spawn(|| paced(peer, "lease renewed", &renew, second / 10, lasts));
        let gets = paced(peer, "GET by another user", &get, second / 200, lasts)?;
        let renewals = renewals
            .join()
            .map_err(|_| anyhow::anyhow!("the node panicked"))??;
        Ok(vec![gets, renewals])
    })
}

fn paced(
    peer: &Peer,
    what: &str,
    request: &[u8],
    pace: Duration,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    let mut connection = peer.connect()?;
    let (begun, cpu) = (Instant::now(), process::cpu(&peer.processes));
    let (mut durations, mut bytes) = (Vec::new(), 0);
    while begun.elapsed() < lasts {
        let start = Instant::now();
        bytes += connection.exchange(request)?;
        durations.push(start.elapsed());
        std::thread::sleep(pace);
    }
    let cpu = process::cpu(&peer.processes).saturating_sub(cpu);
    Ok(Figures::of(what, 1, durations, bytes, begun.elapsed(), cpu))
}
