//! The UDP listener: one socket and one thread per core. Queries for cluster names and for cached answers are answered
//! on the thread, many with one system call; only forwarded queries run as tasks of the async runtime.

use std::{
    io::{self, PipeReader},
    net::{SocketAddr, UdpSocket},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Instant,
};

use lifecycle::Context;
use network::datagrams::{Inbox, Outbox, Peer};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net,
};
use tracing::{debug, error};

use crate::{
    answers::{Answers, Arrival, Resolved},
    chain::{Block, Chain},
    cluster::Cluster,
    memo::{Memo, MemoEntry, Outcome},
    metrics::{Labels, Tally},
    reply::{self, Step, Transport, encode},
    wire::{self, Plain},
};

/// The maximum number of batches before the thread checks for shutdown.
const BATCHES: usize = 16;

/// Answers queries from a UDP socket on a separate thread until shutdown.
pub(crate) fn serve(
    socket: UdpSocket,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: &Context,
) -> io::Result<()> {
    let worker = Worker {
        socket: Arc::new(socket),
        answers,
        cluster,
        context: context.clone(),
        memo: Memo::default(),
        outbox: Outbox::default(),
        tally: Tally::default(),
    };
    // Dropping the writer stops the thread. The socket must not be shut down instead: the holder may have a duplicate
    // of it.
    let (stopping, stop) = io::pipe()?;
    let runtime = tokio::runtime::Handle::current();
    let thread = thread::Builder::new().name("dns".into()).spawn(move || {
        let _entered = runtime.enter();
        worker.run(&stopping);
    })?;
    let shutdown = context.token();
    context.spawn_draining("udp", async move {
        let stop = stop;
        shutdown.cancelled().await;
        drop(stop);
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    });
    Ok(())
}

/// The state of one socket's thread.
struct Worker {
    socket: Arc<UdpSocket>,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
    memo: Memo,
    outbox: Outbox,
    tally: Tally,
}

/// The client of a request, and when it arrived.
#[derive(Clone, Copy)]
struct QueryOrigin {
    from: Peer,
    begun: Instant,
}

impl Worker {
    fn run(mut self, stopping: &PipeReader) {
        let mut inbox = Inbox::default();
        while wait(&self.socket, stopping) {
            for _ in 0..BATCHES {
                if let Err(error) = inbox.receive(&*self.socket) {
                    // An ICMP error about an earlier reply shows up here; the socket is fine.
                    debug!(%error, "cannot receive datagrams");
                    break;
                }
                // A panic while answering one client must not stop the thread, which serves all clients of this socket.
                if catch_unwind(AssertUnwindSafe(|| self.answer_all(&inbox))).is_err() {
                    error!("handler of a datagram panicked");
                    self.answers.metrics.panicked();
                    (self.memo, self.outbox) = (Memo::default(), Outbox::default());
                    self.tally = Tally::default();
                }
                if !inbox.is_full() {
                    break;
                }
            }
        }
    }

    fn answer_all(&mut self, inbox: &Inbox) {
        let begun = Instant::now();
        let chain = self.answers.chain.load_full();
        // Read the generation before answering: a memoized reply is then never older than its generation.
        self.memo
            .enter(chain.generation + self.cluster.generation());
        for (request, from) in inbox.iter() {
            self.answer(&chain, request, QueryOrigin { from, begun });
        }
        if let Err(error) = self.outbox.send(&*self.socket) {
            debug!(%error, "cannot send reply");
        }
        self.answers.metrics.add(&mut self.tally, begun.elapsed());
    }

    fn answer(&mut self, chain: &Arc<Chain>, request: &[u8], asked: QueryOrigin) {
        let question = wire::plain(request);
        if let Some(question) = &question {
            let limit = reply::limit(question.payload);
            let reply = self.outbox.buffer();
            match self.memo.find(request, question, limit, reply) {
                Some(MemoEntry::Written) => return self.reply(chain, request, asked),
                Some(MemoEntry::Forward(block)) => {
                    if let Some(block) = chain.at(block)
                        && self.answer_kept(chain, block, request, question, asked)
                    {
                        return;
                    }
                }
                None => {}
            }
        }
        self.decide(chain, request, question.as_ref(), asked);
    }

    /// Sends the outbox's current buffer as the reply.
    fn reply(&mut self, chain: &Chain, request: &[u8], asked: QueryOrigin) {
        let reply = self.outbox.filled();
        let labels = Labels::new(reply, Transport::Udp, asked.from.is_ipv6());
        self.tally.count(labels, request.len(), reply.len());
        if chain.logs()
            && let Some(arrival) = arrival(asked)
        {
            self.answers.log(chain, request, reply, arrival);
        }
        self.outbox.add(asked.from);
    }

    /// Sends a cached answer; returns false if there is none.
    fn answer_kept(
        &mut self,
        chain: &Chain,
        block: &Arc<Block>,
        request: &[u8],
        question: &Plain<'_>,
        asked: QueryOrigin,
    ) -> bool {
        let Some(kept) = block.upstream.find(request, question) else {
            return false;
        };
        self.outbox.buffer().extend_from_slice(&kept.bytes);
        self.reply(chain, request, asked);
        if kept.renew
            && let Ok(request) = hickory_proto::op::Message::from_vec(request)
        {
            let block = block.clone();
            let renew = async move { block.upstream.renew(&request, Transport::Udp).await };
            self.context.spawn("renew", renew);
        }
        true
    }

    fn decide(
        &mut self,
        chain: &Arc<Chain>,
        request: &[u8],
        question: Option<&Plain<'_>>,
        asked: QueryOrigin,
    ) {
        let (step, limit) = self.answers.decide(chain, &self.cluster, request);
        match step {
            Step::Ignore => {}
            Step::Send(reply) => {
                let Some(bytes) = encode(reply, limit) else {
                    return;
                };
                if let Some(question) = question {
                    self.memo.keep_reply(request, question, limit, &bytes);
                }
                self.outbox.buffer().extend_from_slice(&bytes);
                self.reply(chain, request, asked);
            }
            step => {
                if let (Step::Forward(block, _), Some(question)) = (&step, question) {
                    let outcome = Outcome::Forward(block.index);
                    self.memo.keep(question, limit, outcome);
                }
                if let Some(arrival) = arrival(asked) {
                    self.ask_others(chain.clone(), request.to_vec(), step, limit, arrival);
                }
            }
        }
    }

    /// Forwards the query in a separate task.
    fn ask_others(
        &self,
        chain: Arc<Chain>,
        request: Vec<u8>,
        step: Step,
        limit: usize,
        arrival: Arrival,
    ) {
        let Some(share) = self.answers.shares.enter(arrival.from.ip()) else {
            debug!(from = %arrival.from, "too many forwarded queries of one client, dropping one");
            return;
        };
        let Ok(permit) = self.answers.limit.clone().try_acquire_owned() else {
            debug!("too many forwarded queries, dropping one");
            return;
        };
        let (socket, answers) = (self.socket.clone(), self.answers.clone());
        self.context.spawn("forward", async move {
            let _held = (permit, share);
            let resolved = answers.resolve(step, Transport::Udp, limit).await;
            let Some(Resolved { bytes, renew }) = resolved else {
                return;
            };
            answers.record(&chain, &request, &bytes, arrival);
            send(&socket, &bytes, arrival.from);
            if let Some((block, request)) = renew {
                block.upstream.renew(&request, Transport::Udp).await;
            }
        });
    }
}

/// Waits for a datagram; returns `false` on shutdown.
fn wait(socket: &UdpSocket, stopping: &PipeReader) -> bool {
    let mut both = [
        PollFd::new(socket, PollFlags::IN),
        PollFd::new(stopping, PollFlags::IN),
    ];
    // If the call is interrupted, the caller finds no datagram and waits again.
    let _ = poll(&mut both, None);
    both[1].revents().is_empty()
}

fn arrival(asked: QueryOrigin) -> Option<Arrival> {
    Some(Arrival {
        from: asked.from.address()?,
        transport: Transport::Udp,
        begun: asked.begun,
    })
}

/// Sends without blocking. If the kernel's send buffer is full, the reply is dropped; the client asks again.
fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
    if let Err(error) = net::sendto(socket, bytes, net::SendFlags::DONTWAIT, &to) {
        debug!(%to, %error, "cannot send reply");
    }
}
