//! The measurements. Every server gets the same objects and requests.

use std::{
    sync::{
        Barrier, LazyLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::ensure;
use parking_lot::{Condvar, Mutex};
use serde_json::json;

use crate::{
    load::{self, Requests, Sender},
    peer::Peer,
    process,
    report::Figures,
    wire::Many,
};

/// The namespace of all objects; a new name each time, because not every server has a controller
/// that empties namespaces.
static NAMESPACE: LazyLock<String> = LazyLock::new(|| format!("bench-{:x}", nanoseconds()));
/// The number of changes that the watchers see.
const CHANGES: usize = 50;
/// The number of concurrent writers for a flow of changes: as many as upstream's watchers handle
/// without being disconnected.
const AT_ONCE: usize = 8;
/// The placeholder for the number in a template.
pub(crate) const NUMBER: &str = "0123456789abcdef";

pub(crate) fn path(plural: &str) -> String {
    format!("/api/v1/namespaces/{}/{plural}", *NAMESPACE)
}

/// The namespace, and the service account that pods need: paths and bodies.
pub(crate) fn preparation() -> [(String, String); 2] {
    let named = |name: &str| json!({"metadata": {"name": name}}).to_string();
    [
        ("/api/v1/namespaces".to_owned(), named(&NAMESPACE)),
        (path("serviceaccounts"), named("default")),
    ]
}

/// Creates what the measurements need.
pub(crate) fn prepare(peer: &Peer) -> anyhow::Result<()> {
    let [(namespaces, namespace), (accounts, account)] = preparation();
    peer.ask("POST", &namespaces, &namespace)?;
    // A controller may have created it already.
    let _ = peer.ask("POST", &accounts, &account);
    Ok(())
}

/// The created resources, and their bodies with a placeholder for a number.
pub(crate) fn bodies() -> [(&'static str, String); 2] {
    [("configmaps", map(NUMBER)), ("pods", pod(NUMBER))]
}

/// Deletes the namespace; its objects are deleted only if there is a controller for it.
pub(crate) fn clean(peer: &Peer) -> anyhow::Result<()> {
    let namespace = format!("/api/v1/namespaces/{}", *NAMESPACE);
    peer.ask("DELETE", &namespace, "").map(|_| ())
}

fn map(name: &str) -> String {
    json!({"metadata": {"name": name}, "data": {"text": "x".repeat(400)}}).to_string()
}

fn pod(name: &str) -> String {
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example/hello:1", "command": ["/hello", "serve"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        })
    };
    json!({
        "metadata": {"name": name, "labels": {"app": "bench", "pod-template-hash": "abc"}},
        "spec": {
            "automountServiceAccountToken": false, "nodeName": "nowhere",
            "containers": [container("main"), container("side")],
        },
    })
    .to_string()
}

/// Creates objects whose names differ in a number.
fn creates(peer: &Peer, plural: &str, body: &str) -> impl Requests + use<> {
    creates_at(peer, &path(plural), body)
}

/// The same at any path.
pub(crate) fn creates_at(peer: &Peer, path: &str, body: &str) -> impl Requests + use<> {
    let request = peer.request("POST", path, "", body);
    let at = request
        .windows(NUMBER.len())
        .position(|window| window == NUMBER.as_bytes())
        .unwrap_or(0);
    let (before, after) = (
        request[..at].to_vec(),
        request[at + NUMBER.len()..].to_vec(),
    );
    move |number, out| {
        out.extend_from_slice(&before);
        out.extend_from_slice(format!("{number:016x}").as_bytes());
        out.extend_from_slice(&after);
    }
}

/// A name prefix that no other measurement uses.
pub(crate) fn unique() -> String {
    format!("b{:x}-{NUMBER}", nanoseconds())
}

pub(crate) fn nanoseconds() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}

pub(crate) fn create_maps(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    create_maps_as(peer, "create ConfigMap 0.5 KiB", connections, lasts)
}

/// The same under another name.
pub(crate) fn create_maps_as(
    peer: &Peer,
    what: &str,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    let requests = creates(peer, "configmaps", &map(&unique()));
    load::run(peer, what, connections, lasts, &requests)
}

pub(crate) fn create_pods(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    let requests = creates(peer, "pods", &pod(&unique()));
    load::run(peer, "create Pod", connections, lasts, &requests)
}

/// Creates this many pods; the first is named `filled-` and zeros.
pub(crate) fn fill(peer: &Peer, pods: usize) -> anyhow::Result<()> {
    let requests = creates(peer, "pods", &pod(&format!("filled-{NUMBER}")));
    load::each(peer, 16, pods, &requests)
}

pub(crate) fn get(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &str,
) -> anyhow::Result<Figures> {
    let path = format!("{}/filled-{:016x}{query}", path("pods"), 0);
    repeat(peer, &format!("GET Pod {query}"), connections, lasts, &path)
}

pub(crate) fn list(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
    query: &str,
) -> anyhow::Result<Figures> {
    let what = format!("LIST Pods {}", if query.is_empty() { "all" } else { query });
    let path = format!("{}{query}", path("pods"));
    repeat(peer, what.trim(), connections, lasts, &path)
}

fn repeat(
    peer: &Peer,
    what: &str,
    connections: usize,
    lasts: Duration,
    path: &str,
) -> anyhow::Result<Figures> {
    let request = peer.request("GET", path, "", "");
    load::run(
        peer,
        what.trim(),
        connections,
        lasts,
        &move |_, out: &mut Vec<u8>| out.extend_from_slice(&request),
    )
}

/// Many watchers see the same changes, one at a time; a duration is from the write to the last
/// watcher.
pub(crate) fn watch(peer: &Peer, watchers: usize) -> anyhow::Result<Figures> {
    let changes = creates(peer, "configmaps", &map(&unique()));
    let mut connection = peer.connect()?;
    watched(peer, watchers, |seen| {
        let (begun, cpu, mut durations) =
            (Instant::now(), process::cpu(&peer.processes), Vec::new());
        for number in 0..CHANGES {
            let mut request = Vec::new();
            changes(number as u64, &mut request);
            let start = Instant::now();
            connection.exchange(&request)?;
            seen.wait_for((number + 1) * watchers)?;
            durations.push(start.elapsed());
        }
        let took = begun.elapsed();
        let cpu = process::cpu(&peer.processes).saturating_sub(cpu);
        let (what, bytes) = ("change seen by all watchers", seen.bytes());
        Ok(Figures::of(what, watchers, durations, bytes, took, cpu))
    })
}

/// Many watchers see concurrent changes; the rate is that of events received by watchers.
pub(crate) fn watch_flow(peer: &Peer, watchers: usize, lasts: Duration) -> anyhow::Result<Figures> {
    let changes = creates(peer, "configmaps", &map(&unique()));
    let mut writers = Sender::new(peer, AT_ONCE)?;
    watched(peer, watchers, |seen| {
        let (begun, cpu) = (Instant::now(), process::cpu(&peer.processes));
        let mut made = 0;
        while begun.elapsed() < lasts {
            writers.send(AT_ONCE, &|number, out: &mut Vec<u8>| {
                changes(made + number, out);
            })?;
            made += AT_ONCE as u64;
            // Wait for all events: lagging behind must not count as speed.
            seen.wait_for((made as usize) * watchers)?;
        }
        let took = begun.elapsed();
        let cpu = process::cpu(&peer.processes).saturating_sub(cpu);
        let events = made as usize * watchers;
        let mut figures = Figures::of(
            "events to watchers",
            watchers,
            vec![],
            seen.bytes(),
            took,
            cpu,
        );
        figures.rate = events as f64 / took.as_secs_f64();
        figures.cpu = cpu / u32::try_from(events.max(1)).unwrap_or(u32::MAX);
        Ok(figures)
    })
}

/// What all watchers together have received.
#[derive(Default)]
struct Sight {
    events: AtomicUsize,
    bytes: AtomicU64,
    over: AtomicBool,
    /// Guards the awaited number of events.
    wanted: Mutex<usize>,
    changed: Condvar,
}

impl Sight {
    fn wait_for(&self, wanted: usize) -> anyhow::Result<()> {
        let mut waits = self.wanted.lock();
        *waits = wanted;
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.events.load(Ordering::Acquire) < wanted {
            let timeout = self.changed.wait_until(&mut waits, deadline);
            ensure!(!timeout.timed_out(), "not every watcher saw the changes");
        }
        Ok(())
    }

    fn add(&self, events: usize, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let now = self.events.fetch_add(events, Ordering::AcqRel) + events;
        if now >= *self.wanted.lock() {
            self.changed.notify_one();
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Runs something while many watchers are connected.
fn watched<T>(
    peer: &Peer,
    watchers: usize,
    run: impl FnOnce(&Sight) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (ready, seen) = (Barrier::new(load::THREADS + 1), Sight::default());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..load::THREADS {
            let count = (thread..watchers).step_by(load::THREADS).count();
            let (ready, seen) = (&ready, &seen);
            threads.push(scope.spawn(move || follow(peer, count, ready, seen)));
        }
        ready.wait();
        let outcome = run(&seen);
        seen.over.store(true, Ordering::Release);
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        outcome
    })
}

/// Some watchers, until the end.
fn follow(peer: &Peer, count: usize, ready: &Barrier, seen: &Sight) -> anyhow::Result<()> {
    let query = "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let request = peer.request("GET", &format!("{}{query}", path("configmaps")), "", "");
    let watching = || {
        let mut many = Many::new(load::open(peer, count)?)?;
        for (_, connection) in many.each() {
            connection.send_for_lines(&request)?;
        }
        let mut waits: Vec<bool> = vec![true; count];
        while waits.contains(&true) {
            let soon = Instant::now() + Duration::from_secs(30);
            many.turn(soon, |number, connection, _| {
                // The first data may be a TLS session ticket.
                if connection.answer().code > 0 {
                    connection.answer().success()?;
                    waits[number] = false;
                }
                Ok(())
            })?;
        }
        anyhow::Ok(many)
    };
    let many = watching();
    // A failed connection must not block the others.
    ready.wait();
    let (mut many, mut known) = (many?, vec![(0, 0); count]);
    while !seen.over.load(Ordering::Acquire) {
        let soon = Instant::now() + Duration::from_millis(100);
        let (mut events, mut bytes) = (0, 0);
        many.turn(soon, |number, connection, ended| {
            ensure!(!ended, "a watch ended");
            let answer = connection.answer();
            let (lines_before, bytes_before) = known[number];
            events += answer.lines - lines_before;
            bytes += answer.bytes - bytes_before;
            known[number] = (answer.lines, answer.bytes);
            Ok(())
        })?;
        if events > 0 {
            seen.add(events, bytes);
        }
    }
    Ok(())
}
