//! The TCP listener: each connection in a task of its own, with a limited number. A client that
//! opens many, sends nothing, or does not read its answers uses up only its own share.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::Context;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tracing::{debug, warn};

use crate::{
    answers::{Answers, Arrival, Resolved},
    cluster::Cluster,
    reply::Transport,
};

/// The maximum number of connections.
const AT_ONCE: usize = 1000;
/// The maximum number of connections per client address.
const PER_CLIENT: usize = 64;
/// The timeout without a query, and of writing an answer.
const IDLE: Duration = Duration::from_secs(10);

/// The number of connections per client address.
#[derive(Clone, Default)]
struct Clients {
    /// Guards the counts; addresses without a connection are absent.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection's place in the client's share; released when dropped.
struct Share {
    clients: Clients,
    of: IpAddr,
}

impl Clients {
    /// `None` if the client has reached its limit.
    fn enter(&self, of: IpAddr) -> Option<Share> {
        let of = of.to_canonical();
        let mut open = self.open.lock();
        let count = open.entry(of).or_default();
        if *count >= PER_CLIENT {
            return None;
        }
        *count += 1;
        let clients = self.clone();
        Some(Share { clients, of })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.clients.open.lock();
        if let Some(count) = open.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

/// Serves a listener while polled.
pub(crate) async fn serve(
    listener: TcpListener,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
) {
    let (limit, clients) = (Arc::new(Semaphore::new(AT_ONCE)), Clients::default());
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                let Some(share) = clients.enter(from.ip()) else {
                    debug!(%from, "too many streams of one client");
                    continue;
                };
                let (answers, cluster) = (answers.clone(), cluster.clone());
                context.spawn("stream", async move {
                    let _held = (permit, share);
                    if let Err(error) = talk(stream, &answers, &cluster).await {
                        debug!(%error, "a stream ended");
                    }
                });
            }
            Err(error) => {
                // Probably out of descriptors: let others close theirs.
                warn!(%error, "cannot accept stream");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn talk(mut stream: TcpStream, answers: &Answers, cluster: &Cluster) -> io::Result<()> {
    let from = stream.peer_addr()?;
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut request = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut request)).await??;
        let arrival = Arrival {
            from,
            transport: Transport::Tcp,
            begun: Instant::now(),
        };
        let chain = answers.chain.load_full();
        let (step, _) = answers.decide(&chain, cluster, &request);
        let resolved = answers.resolve(step, Transport::Tcp, usize::from(u16::MAX));
        let Some(Resolved { bytes, renew }) = resolved.await else {
            return Ok(());
        };
        answers.record(&chain, &request, &bytes, arrival);
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes(), &bytes[..]].concat();
        timeout(IDLE, stream.write_all(&framed)).await??;
        if let Some((block, request)) = renew {
            block.upstream.renew(&request, Transport::Tcp).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_share_of_the_streams_and_gives_it_back() {
        let clients = Clients::default();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let mut held: Vec<Share> = (0..PER_CLIENT).filter_map(|_| clients.enter(one)).collect();
        assert_eq!(held.len(), PER_CLIENT);
        assert!(clients.enter(one).is_none());
        // The same client in another spelling, and another client.
        assert!(clients.enter("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert!(clients.enter("192.0.2.2".parse().unwrap()).is_some());
        held.pop();
        assert!(clients.enter(one).is_some());
        drop(held);
        assert!(clients.open.lock().is_empty());
    }
}
