//! Streams: each in a task of its own, and only so many at a time.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::Context;
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

/// Streams that may be open at once.
const AT_ONCE: usize = 1000;
/// A stream without a question for this long is closed.
const IDLE: Duration = Duration::from_secs(10);

/// Answers what comes to a listener, for as long as it is polled.
pub async fn serve(
    listener: TcpListener,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
) {
    let limit = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (answers, cluster) = (answers.clone(), cluster.clone());
                context.spawn("stream", async move {
                    let _permit = permit;
                    if let Err(error) = talk(stream, &answers, &cluster).await {
                        debug!(%error, "a stream ended");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others must get a turn to give some back.
                warn!(%error, "accepting a stream");
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
        stream.write_all(&framed).await?;
        if let Some((block, request)) = renew {
            block.upstream.renew(&request, Transport::Tcp).await;
        }
    }
}
