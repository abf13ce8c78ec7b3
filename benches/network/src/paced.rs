//! A client that asks at a fixed rate, and how long each answer took.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::subject::question;

const CLIENTS: usize = 4;
const PATIENCE: Duration = Duration::from_millis(500);

/// What was seen.
pub struct Seen {
    pub p50: Duration,
    pub p99: Duration,
    pub lost: usize,
}

/// Asks `rate` questions each second, from several sockets.
pub async fn run(port: u16, services: usize, rate: f64, seconds: u64) -> Result<Seen> {
    let clients = (0..CLIENTS).map(|client| {
        tokio::task::spawn_blocking(move || {
            ask(port, services, rate / CLIENTS as f64, seconds, client)
        })
    });
    let clients: Vec<_> = clients.collect();
    let (mut took, mut lost) = (Vec::new(), 0);
    for client in clients {
        let (seen, missing) = client.await??;
        took.extend(seen);
        lost += missing;
    }
    took.sort_unstable();
    let at = |part: f64| {
        let index = (took.len() as f64 * part) as usize;
        took.get(index).copied().unwrap_or_default()
    };
    Ok(Seen {
        p50: at(0.5),
        p99: at(0.99),
        lost,
    })
}

fn ask(
    port: u16,
    services: usize,
    rate: f64,
    seconds: u64,
    client: usize,
) -> Result<(Vec<Duration>, usize)> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    let receiver = socket.try_clone()?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let total = (rate * seconds as f64) as usize;
    let begun = Instant::now();
    let when = move |index: usize| Duration::from_secs_f64(index as f64 / rate);
    // Ids count up: the answer says when its question was due.
    let receiving = thread::spawn(move || {
        let mut took = Vec::with_capacity(total);
        let (mut buffer, mut last) = ([0; 2048], 0_usize);
        while took.len() < total {
            let Ok(length) = receiver.recv(&mut buffer) else {
                break;
            };
            if length < 12 {
                continue;
            }
            let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
            // The nearest number with this id.
            let base = last.saturating_sub(32768);
            let index = base + (id + 65536 - base % 65536) % 65536;
            last = last.max(index);
            took.push(begun.elapsed().saturating_sub(when(index)));
        }
        took
    });
    for index in 0..total {
        let due = when(index);
        while begun.elapsed() < due {
            if due.saturating_sub(begun.elapsed()) > Duration::from_micros(200) {
                thread::sleep(Duration::from_micros(100));
            }
        }
        let id = u16::try_from(index % 65536).unwrap_or_default();
        let service = (index * CLIENTS + client) % services;
        socket.send(&question(id, service))?;
    }
    let took = receiving.join().unwrap_or_default();
    let lost = total.saturating_sub(took.len());
    Ok((took, lost))
}
