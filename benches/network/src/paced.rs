//! A DNS client with a fixed rate, and its latencies.

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::subject::question;

/// The number of sockets, used in turn.
const CLIENTS: usize = 8;
/// The interval of bursts: a client that spins would take a core from the server.
const TICK: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_millis(500);
const IDS: usize = 65536;

/// The measured latencies.
pub(crate) struct Seen {
    pub p50: Duration,
    pub p99: Duration,
    pub lost: usize,
}

/// One socket, and when the query of each id was due, in nanoseconds since the start.
struct Client {
    socket: UdpSocket,
    due: Vec<AtomicU64>,
}

/// Sends `rate` queries per second.
pub(crate) async fn run(port: u16, services: usize, rate: f64, seconds: u64) -> Result<Seen> {
    tokio::task::spawn_blocking(move || ask(port, services, rate, seconds)).await?
}

fn ask(port: u16, services: usize, rate: f64, seconds: u64) -> Result<Seen> {
    let begun = Instant::now();
    let (mut clients, mut receiving) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let due = (0..IDS).map(|_| AtomicU64::new(0)).collect();
        let client = Arc::new(Client { socket, due });
        clients.push(client.clone());
        receiving.push(thread::spawn(move || receive(&client, begun)));
    }
    let total = (rate * seconds as f64) as usize;
    let (mut sent, mut tick) = (0, begun);
    while sent < total {
        tick += TICK;
        thread::sleep(tick.saturating_duration_since(Instant::now()));
        let since = tick.duration_since(begun);
        let until = ((since.as_secs_f64() * rate) as usize).min(total);
        for index in sent..until {
            let client = &clients[index % CLIENTS];
            let id = index / CLIENTS % IDS;
            let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            client.due[id].store(nanoseconds, Ordering::Relaxed);
            let id = u16::try_from(id).unwrap_or_default();
            client.socket.send(&question(id, index % services))?;
        }
        sent = until;
    }
    let mut took = Vec::with_capacity(total);
    for receiver in receiving {
        took.extend(receiver.join().unwrap_or_default());
    }
    took.sort_unstable();
    let at = |part: f64| {
        let index = (took.len() as f64 * part) as usize;
        took.get(index).copied().unwrap_or_default()
    };
    Ok(Seen {
        p50: at(0.5),
        p99: at(0.99),
        lost: total.saturating_sub(took.len()),
    })
}

/// Reads answers until there are none.
fn receive(client: &Client, begun: Instant) -> Vec<Duration> {
    let (mut took, mut buffer) = (Vec::new(), [0; 2048]);
    while let Ok(length) = client.socket.recv(&mut buffer) {
        if length >= 12 {
            let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
            let due = Duration::from_nanos(client.due[id].load(Ordering::Relaxed));
            took.push(begun.elapsed().saturating_sub(due));
        }
    }
    took
}
