//! Many connections doing the same thing for a while, and what came of it. Two threads drive them,
//! each with connections of its own.

use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use crate::{peer::Peer, process, report::Figures, wire::Connection};

/// Threads that drive connections.
const THREADS: usize = 2;
/// How long it runs before anything counts.
const WARM_UP: Duration = Duration::from_millis(300);

/// Writes the request with this number into the buffer.
pub trait Requests: Fn(u64, &mut Vec<u8>) + Send + Sync {}
impl<F: Fn(u64, &mut Vec<u8>) + Send + Sync> Requests for F {}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    durations: Vec<Duration>,
    bytes: u64,
}

/// Lets each connection send requests one after the other until the time is over.
pub fn run(
    peer: &Peer,
    what: &str,
    connections: usize,
    lasts: Duration,
    requests: &dyn Requests,
) -> anyhow::Result<Figures> {
    let threads = THREADS.min(connections);
    let start = Arc::new(Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for thread in 0..threads {
            let mine: Vec<u64> = (thread..connections)
                .step_by(threads)
                .map(|connection| connection as u64)
                .collect();
            let start = start.clone();
            workers.push(scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(drive(
                    peer,
                    &mine,
                    connections as u64,
                    lasts,
                    requests,
                    &start,
                ))
            }));
        }
        start.wait();
        std::thread::sleep(WARM_UP);
        let (begun, cpu) = (Instant::now(), process::cpu(&peer.processes));
        std::thread::sleep(lasts);
        let (took, cpu) = (
            begun.elapsed(),
            process::cpu(&peer.processes).saturating_sub(cpu),
        );
        let mut all = Seen::default();
        for worker in workers {
            let seen = worker
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            all.durations.extend(seen.durations);
            all.bytes += seen.bytes;
        }
        Ok(Figures::of(
            what,
            connections,
            all.durations,
            all.bytes,
            took,
            cpu,
        ))
    })
}

async fn drive(
    peer: &Peer,
    mine: &[u64],
    step: u64,
    lasts: Duration,
    requests: &dyn Requests,
    start: &Barrier,
) -> anyhow::Result<Seen> {
    let mut open = Vec::new();
    for first in mine {
        open.push((*first, peer.connect().await));
    }
    // Whoever could not connect must not keep the others waiting.
    start.wait();
    let from = Instant::now() + WARM_UP;
    let until = from + lasts;
    let work = open.into_iter().map(|(first, connection)| async move {
        repeat(connection?, first, step, from, until, requests).await
    });
    let mut all = Seen::default();
    for seen in futures::future::join_all(work).await {
        let seen = seen?;
        all.durations.extend(seen.durations);
        all.bytes += seen.bytes;
    }
    Ok(all)
}

async fn repeat(
    mut connection: Connection,
    first: u64,
    step: u64,
    from: Instant,
    until: Instant,
    requests: &dyn Requests,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let (mut number, mut request) = (first, Vec::new());
    loop {
        request.clear();
        requests(number, &mut request);
        number += step;
        let begun = Instant::now();
        if begun >= until {
            return Ok(seen);
        }
        let bytes = connection.exchange(&request).await?;
        let ended = Instant::now();
        if begun >= from && ended <= until {
            seen.durations.push(ended - begun);
            seen.bytes += bytes;
        }
    }
}

/// Sends requests numbered up to `count` over some connections, as fast as they go.
pub fn each(
    peer: &Peer,
    connections: usize,
    count: usize,
    requests: &dyn Requests,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let work = (0..connections).map(|first| async move {
        let mut connection = peer.connect().await?;
        let mut request = Vec::new();
        for number in (first..count).step_by(connections) {
            request.clear();
            requests(number as u64, &mut request);
            connection.exchange(&request).await?;
        }
        anyhow::Ok(())
    });
    runtime
        .block_on(futures::future::join_all(work))
        .into_iter()
        .collect()
}
