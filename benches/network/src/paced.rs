//! A DNS client with a fixed rate, and its latencies. One thread sends and receives, many datagrams with a system call,
//! so that most of the machine is left to the server.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use anyhow::Result;
use network::datagrams::Inbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::subject::question;

/// The number of sockets, used in turn.
const CLIENTS: usize = 16;
/// The interval of bursts: a client that spins would take a core from the server.
const TICK: Duration = Duration::from_micros(500);
/// How long to wait for the last answers.
const PATIENCE: Duration = Duration::from_millis(500);
const IDS: usize = 65536;

/// The measured latencies.
pub(crate) struct Seen {
    pub p50: Duration,
    pub p99: Duration,
    pub lost: usize,
}

/// The load.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// The number of names.
    pub services: usize,
    /// Queries per second.
    pub rate: f64,
    pub seconds: u64,
}

/// One socket, and when the query of each id was due; `None` if it is answered.
struct Client {
    socket: UdpSocket,
    due: Vec<Option<Instant>>,
}

/// Sends queries to a port at this pace.
pub(crate) async fn run(port: u16, pace: Pace) -> Result<Seen> {
    tokio::task::spawn_blocking(move || ask(port, pace)).await?
}

fn ask(port: u16, pace: Pace) -> Result<Seen> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", port))?;
        socket.set_nonblocking(true)?;
        let due = vec![None; IDS];
        clients.push(Client { socket, due });
    }
    let total = (pace.rate * pace.seconds as f64) as usize;
    let (begun, mut inbox) = (Instant::now(), Inbox::default());
    let (mut sent, mut took) = (0, Vec::with_capacity(total));
    let mut tick = begun;
    while sent < total {
        tick += TICK;
        receive_until(&mut clients, tick, &mut inbox, &mut took)?;
        let since = tick.duration_since(begun).as_secs_f64();
        let until = ((since * pace.rate) as usize).min(total);
        for index in sent..until {
            let client = &mut clients[index % CLIENTS];
            let id = index / CLIENTS % IDS;
            client.due[id] = Some(tick);
            let id = u16::try_from(id).unwrap_or_default();
            // A full buffer is a lost query.
            let _ = client.socket.send(&question(id, index % pace.services));
        }
        sent = until;
    }
    let end = Instant::now() + PATIENCE;
    while took.len() < total && Instant::now() < end {
        let soon = Instant::now() + TICK;
        receive_until(&mut clients, soon, &mut inbox, &mut took)?;
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

/// Receives answers until a moment.
fn receive_until(
    clients: &mut [Client],
    until: Instant,
    inbox: &mut Inbox,
    took: &mut Vec<Duration>,
) -> Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let timeout = Timespec::try_from(left)?;
        let readable: Vec<bool> = {
            let sockets = clients.iter().map(|client| &client.socket);
            let mut all: Vec<PollFd<'_>> = sockets
                .map(|socket| PollFd::new(socket, PollFlags::IN))
                .collect();
            poll(&mut all, Some(&timeout))?;
            all.iter().map(|one| !one.revents().is_empty()).collect()
        };
        let ready = clients.iter_mut().zip(readable);
        for (client, _) in ready.filter(|(_, readable)| *readable) {
            if inbox.receive(&client.socket).is_err() {
                continue;
            }
            let now = Instant::now();
            for (answer, _) in inbox.iter() {
                if let [first, second, _, _, _, _, _, _, _, _, _, _, ..] = answer {
                    let id = usize::from(u16::from_be_bytes([*first, *second]));
                    let due = client.due[id].take();
                    took.extend(due.map(|due| now.saturating_duration_since(due)));
                }
            }
        }
    }
}
