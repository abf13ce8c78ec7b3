//! Many connections sending the same requests for a while, and the results. Two threads drive them,
//! each with its own connections.

use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use crate::{
    peer::Peer,
    process,
    report::Figures,
    wire::{Connection, Many},
};

/// Threads that drive connections.
pub(crate) const THREADS: usize = 2;
/// The warm-up time, which does not count.
const WARM_UP: Duration = Duration::from_millis(300);

/// Writes the request with this number into the buffer.
pub(crate) trait Requests: Fn(u64, &mut Vec<u8>) + Send + Sync {}
impl<F: Fn(u64, &mut Vec<u8>) + Send + Sync> Requests for F {}

/// The measurements of some connections.
#[derive(Default)]
struct Seen {
    durations: Vec<Duration>,
    bytes: u64,
}

/// Each connection sends requests one after the other until the time is over.
pub(crate) fn run(
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
            let mine = (thread..connections).step_by(threads).count();
            let start = start.clone();
            let numbers = (thread as u64..).step_by(threads);
            workers.push(scope.spawn(move || {
                let open = open(peer, mine);
                // A failed connection must not block the others.
                start.wait();
                drive(Many::new(open?)?, numbers, lasts, requests)
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

/// Opens this many connections.
pub(crate) fn open(peer: &Peer, count: usize) -> anyhow::Result<Vec<Connection>> {
    (0..count).map(|_| peer.connect()).collect()
}

fn drive(
    mut many: Many,
    mut numbers: impl Iterator<Item = u64>,
    lasts: Duration,
    requests: &dyn Requests,
) -> anyhow::Result<Seen> {
    let from = Instant::now() + WARM_UP;
    let until = from + lasts;
    let mut request = Vec::new();
    let mut send = |connection: &mut Connection| {
        request.clear();
        requests(numbers.next().unwrap_or_default(), &mut request);
        connection.send(&request)
    };
    let mut begun = Vec::new();
    for (_, connection) in many.each() {
        begun.push(Instant::now());
        send(connection)?;
    }
    let mut seen = Seen::default();
    while Instant::now() < until {
        many.turn(until, |number, connection, complete| {
            if !complete {
                return Ok(());
            }
            let ended = Instant::now();
            let bytes = connection.answer().success()?;
            if begun[number] >= from && ended <= until {
                seen.durations.push(ended - begun[number]);
                seen.bytes += bytes;
            }
            begun[number] = ended;
            send(connection)
        })?;
    }
    Ok(seen)
}

/// Sends requests numbered up to `count` over some connections, as fast as possible.
pub(crate) fn each(
    peer: &Peer,
    connections: usize,
    count: usize,
    requests: &dyn Requests,
) -> anyhow::Result<()> {
    Sender::new(peer, connections.min(count))?.send(count, requests)
}

/// Connections that share the requests to send.
pub(crate) struct Sender(Many);

impl Sender {
    pub(crate) fn new(peer: &Peer, connections: usize) -> anyhow::Result<Self> {
        Ok(Self(Many::new(open(peer, connections)?)?))
    }

    /// Sends requests numbered up to `count`, and waits for all responses.
    pub(crate) fn send(&mut self, count: usize, requests: &dyn Requests) -> anyhow::Result<()> {
        let mut numbers = 0..count as u64;
        let mut request = Vec::new();
        let mut send = |connection: &mut Connection| {
            let Some(number) = numbers.next() else {
                return anyhow::Ok(());
            };
            request.clear();
            requests(number, &mut request);
            connection.send(&request)
        };
        for (_, connection) in self.0.each() {
            send(connection)?;
        }
        let mut done = 0;
        while done < count {
            let soon = Instant::now() + Duration::from_secs(60);
            self.0.turn(soon, |_, connection, complete| {
                if !complete {
                    return Ok(());
                }
                connection.answer().success()?;
                done += 1;
                send(connection)
            })?;
        }
        Ok(())
    }
}
