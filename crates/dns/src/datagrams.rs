//! Datagrams: one socket for each core. Names of the cluster, and answers of others that are kept, are
//! answered at once; only questions that somebody must be asked wait in tasks of their own.

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use lifecycle::Context;
use rustix::net;
use tokio::net::UdpSocket;
use tracing::debug;

use crate::{
    answers::{Answers, Arrival, Resolved},
    chain::{Block, Chain},
    cluster::Cluster,
    memo::{Known, Memo, Outcome, Template},
    reply::{self, Step, Transport, encode},
    wire::{self, Plain},
};

/// The longest request.
const LONGEST: usize = 65535;
/// What may wait in a socket: a burst of all pods of a node.
const WAITING: usize = 4 << 20;

/// One socket for each core: the kernel spreads clients over them.
pub fn sockets() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A datagram socket at an address that several of ours listen on.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = if address.is_ipv4() {
        net::AddressFamily::INET
    } else {
        net::AddressFamily::INET6
    };
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let socket = net::socket_with(domain, net::SocketType::DGRAM, flags, None)?;
    net::sockopt::set_socket_reuseport(&socket, true)?;
    // As much as the kernel's limit allows.
    net::sockopt::set_socket_recv_buffer_size(&socket, WAITING)?;
    net::bind(&socket, &address)?;
    UdpSocket::from_std(socket.into())
}

/// One socket's work.
struct Worker {
    socket: Arc<UdpSocket>,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
    memo: Memo,
    reply: Vec<u8>,
}

/// Answers what comes to a socket, for as long as it is polled.
pub async fn serve(
    socket: Arc<UdpSocket>,
    answers: Arc<Answers>,
    cluster: Cluster,
    context: Context,
) {
    let mut buffer = vec![0; LONGEST];
    let mut worker = Worker {
        socket: socket.clone(),
        answers,
        cluster,
        context,
        memo: Memo::default(),
        reply: Vec::new(),
    };
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => worker.answer(&buffer[..length], from).await,
            Err(error) => {
                // An ICMP error about an earlier reply shows up here; the socket is fine.
                debug!(%error, "receiving a datagram");
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Worker {
    async fn answer(&mut self, request: &[u8], from: SocketAddr) {
        let arrival = Arrival {
            from,
            transport: Transport::Udp,
            begun: Instant::now(),
        };
        let chain = self.answers.chain.load_full();
        let question = wire::plain(request);
        // Before anything is decided, so that what is remembered is not older than it says.
        self.memo
            .enter(chain.generation + self.cluster.generation());
        if let Some(question) = &question {
            self.reply.clear();
            let limit = reply::limit(question.payload);
            let known = self.memo.find(request, question, limit, &mut self.reply);
            match known {
                Some(Known::Written) => {
                    let (socket, reply) = (&self.socket, &self.reply);
                    self.answers.record(&chain, request, reply, arrival);
                    return send(socket, reply, from).await;
                }
                Some(Known::Forward(block)) => {
                    if let Some(block) = chain.at(block)
                        && self
                            .answer_kept(&chain, block, request, question, arrival)
                            .await
                    {
                        return;
                    }
                }
                None => {}
            }
        }
        self.decide(&chain, request, question.as_ref(), arrival)
            .await;
    }

    /// Sends an answer of others that is kept. `false` when there is none.
    async fn answer_kept(
        &self,
        chain: &Chain,
        block: &Arc<Block>,
        request: &[u8],
        question: &Plain<'_>,
        arrival: Arrival,
    ) -> bool {
        let Some(kept) = block.upstream.find(request, question) else {
            return false;
        };
        self.answers.record(chain, request, &kept.bytes, arrival);
        send(&self.socket, &kept.bytes, arrival.from).await;
        if kept.renew
            && let Ok(request) = hickory_proto::op::Message::from_vec(request)
        {
            let block = block.clone();
            let renew = async move { block.upstream.renew(&request, Transport::Udp).await };
            self.context.spawn("renew", renew);
        }
        true
    }

    async fn decide(
        &mut self,
        chain: &Arc<Chain>,
        request: &[u8],
        question: Option<&Plain<'_>>,
        arrival: Arrival,
    ) {
        let (step, limit) = self.answers.decide(chain, &self.cluster, request);
        match step {
            Step::Ignore => {}
            Step::Send(reply) => {
                let Some(bytes) = encode(reply, limit) else {
                    return;
                };
                if let Some(question) = question
                    && let Some(template) = Template::new(&bytes, question)
                {
                    self.memo.keep(question, limit, Outcome::Reply(template));
                }
                self.answers.record(chain, request, &bytes, arrival);
                send(&self.socket, &bytes, arrival.from).await;
            }
            step => {
                if let (Step::Forward(block, _), Some(question)) = (&step, question) {
                    let outcome = Outcome::Forward(block.index);
                    self.memo.keep(question, limit, outcome);
                }
                self.ask_others(chain.clone(), request.to_vec(), step, limit, arrival);
            }
        }
    }

    /// Answers in a task of its own.
    fn ask_others(
        &self,
        chain: Arc<Chain>,
        request: Vec<u8>,
        step: Step,
        limit: usize,
        arrival: Arrival,
    ) {
        let Ok(permit) = self.answers.limit.clone().try_acquire_owned() else {
            debug!("too many questions for others: one is dropped");
            return;
        };
        let (socket, answers) = (self.socket.clone(), self.answers.clone());
        self.context.spawn("forward", async move {
            let _permit = permit;
            let resolved = answers.resolve(step, Transport::Udp, limit).await;
            let Some(Resolved { bytes, renew }) = resolved else {
                return;
            };
            answers.record(&chain, &request, &bytes, arrival);
            send(&socket, &bytes, arrival.from).await;
            if let Some((block, request)) = renew {
                block.upstream.renew(&request, Transport::Udp).await;
            }
        });
    }
}

async fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, to).await {
        debug!(%to, %error, "a reply was not sent");
    }
}
