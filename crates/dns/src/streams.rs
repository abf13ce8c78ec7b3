//! The TCP listener: each connection in a task of its own, with a limited number. A client that
//! opens many, sends nothing, or does not read its answers uses up only its own share. Replies about the cluster are
//! memoized, since those that need a stream are long and take time to make.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::Context;
use network::ClientShares;
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
    chain::Chain,
    cluster::Cluster,
    memo::{Memo, MemoEntry},
    reply::{Step, Transport},
    wire,
};

/// The maximum number of connections: more than the pods of a node can open together.
const AT_ONCE: usize = 8192;
/// The maximum number of connections per client address.
const PER_CLIENT: usize = 64;
/// The timeout without a query, and of writing an answer.
const IDLE: Duration = Duration::from_secs(10);

/// Serves a listener while polled.
pub(crate) async fn serve(
    listener: TcpListener,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
) {
    let memo = Arc::new(Mutex::new(Memo::default()));
    let (limit, clients) = (
        Arc::new(Semaphore::new(AT_ONCE)),
        ClientShares::new(PER_CLIENT),
    );
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
                let served = Served {
                    answers: answers.clone(),
                    cluster: cluster.clone(),
                    memo: memo.clone(),
                };
                context.spawn("stream", async move {
                    let _held = (permit, share);
                    if let Err(error) = served.talk(stream).await {
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

/// What streams are answered from.
struct Served {
    answers: Arc<Answers>,
    cluster: Cluster,
    /// Guards the memoized replies, which all streams share; held for a lookup.
    memo: Arc<Mutex<Memo>>,
}

/// The maximum length of a reply on a stream.
const LIMIT: usize = u16::MAX as usize;

impl Served {
    async fn talk(&self, mut stream: TcpStream) -> io::Result<()> {
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
            let chain = self.answers.chain.load_full();
            let Some(Resolved { bytes, renew }) = self.answer(&chain, &request).await else {
                return Ok(());
            };
            self.answers.record(&chain, &request, &bytes, arrival);
            let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
            let framed = [&length.to_be_bytes(), &bytes[..]].concat();
            timeout(IDLE, stream.write_all(&framed)).await??;
            if let Some((block, request)) = renew {
                block.upstream.renew(&request, Transport::Tcp).await;
            }
        }
    }

    async fn answer(&self, chain: &Chain, request: &[u8]) -> Option<Resolved> {
        // Read before the answer is made: a memoized reply is never older than its generation.
        let generation = chain.generation + self.cluster.generation();
        let question = wire::plain(request);
        if let Some(question) = &question {
            let mut bytes = Vec::new();
            let mut memo = self.memo.lock();
            memo.enter(generation);
            let found = memo.find(request, question, LIMIT, &mut bytes);
            if let Some(MemoEntry::Written) = found {
                return Some(Resolved { bytes, renew: None });
            }
        }
        let (step, _) = self.answers.decide(chain, &self.cluster, request);
        let is_known = matches!(step, Step::Send(_));
        let resolved = self.answers.resolve(step, Transport::Tcp, LIMIT).await?;
        if let Some(question) = question.filter(|_| is_known) {
            let mut memo = self.memo.lock();
            // A change in the meantime has another generation.
            if memo.generation() == generation {
                memo.keep_reply(request, &question, LIMIT, &resolved.bytes);
            }
        }
        Some(resolved)
    }
}
