//! Handles every query, however it arrived: runs the chain, counts and logs.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use arc_swap::ArcSwap;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use network::ClientShares;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::{
    chain::{Block, Chain},
    cluster::Cluster,
    log_budget::LogBudget,
    metrics::{Labels, Metrics},
    reply::{Step, Transport, decide, encode, failure, fit, forwarded_limit},
};

/// State shared by all listeners.
pub(crate) struct Answers {
    /// The chain of the current settings.
    pub chain: ArcSwap<Chain>,
    pub metrics: Arc<Metrics>,
    /// Limits concurrent forwarded queries.
    pub limit: Arc<Semaphore>,
    /// Limits the forwarded datagrams of each client: names whose servers never answer would otherwise use up the
    /// queries that a block may have pending.
    pub shares: ClientShares,
    /// Limits the lines about failed queries.
    pub failures: LogBudget,
}

/// Where a request came from, its transport and its time.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub from: SocketAddr,
    pub transport: Transport,
    pub begun: Instant,
}

/// A forwarded reply, and what to prefetch after it was sent.
pub(crate) struct Resolved {
    pub bytes: Vec<u8>,
    pub renew: Option<(Arc<Block>, Box<Message>)>,
}

impl Answers {
    /// Decides about a request. Before the informers have synced nothing is known about names of
    /// the cluster: the client retries, which is better than NXDOMAIN.
    pub(crate) fn decide(&self, chain: &Chain, cluster: &Cluster, request: &[u8]) -> (Step, usize) {
        let known = cluster.has_synced();
        match decide(chain, cluster, request) {
            (Step::Send(_), limit) if !known => (Step::Ignore, limit),
            decided => decided,
        }
    }

    /// The reply to a request, which may have to be forwarded.
    pub(crate) async fn resolve(
        &self,
        step: Step,
        transport: Transport,
        limit: usize,
    ) -> Option<Resolved> {
        let bytes = match step {
            Step::Ignore => None,
            Step::Send(reply) => encode(reply, limit),
            Step::Forward(block, request) => match block.upstream.ask(&request, transport).await {
                Ok(reply) => {
                    let payload = request.edns.as_ref().map(Edns::max_payload);
                    let bytes = match transport {
                        Transport::Udp => fit(reply.bytes, forwarded_limit(payload)),
                        Transport::Tcp => reply.bytes,
                    };
                    let renew = reply.renew.then_some((block, request));
                    return Some(Resolved { bytes, renew });
                }
                Err(code) => {
                    self.log_failure(&block, &request, code);
                    encode(failure(&request, code), limit)
                }
            },
            Step::Complete(completion) => {
                let mut request = Message::new(0, MessageType::Query, OpCode::Query);
                request.metadata.recursion_desired = true;
                request.add_query(completion.question.clone());
                let block = completion.block.clone();
                let mut renew = None;
                let found = match block.upstream.ask(&request, transport).await {
                    Ok(found) => {
                        if found.renew {
                            renew = Some((block.clone(), Box::new(request.clone())));
                        }
                        Message::from_vec(&found.bytes).map_err(|_| ResponseCode::ServFail)
                    }
                    Err(code) => Err(code),
                };
                if let Err(code) = found {
                    self.log_failure(&block, &request, code);
                }
                let bytes = encode(
                    completion.complete(found.as_ref().map_err(|code| *code)),
                    limit,
                );
                return bytes.map(|bytes| Resolved { bytes, renew });
            }
        };
        bytes.map(|bytes| Resolved { bytes, renew: None })
    }

    /// Counts a reply, and logs it if configured.
    pub(crate) fn record(&self, chain: &Chain, request: &[u8], reply: &[u8], arrival: Arrival) {
        let labels = Labels::new(reply, arrival.transport, arrival.from.is_ipv6());
        self.metrics.answered(labels, 1, arrival.begun.elapsed());
        self.metrics.sized(labels, request.len(), reply.len());
        if chain.logs() {
            self.log(chain, request, reply, arrival);
        }
    }

    /// Logs a reply if configured for its name.
    pub(crate) fn log(&self, chain: &Chain, request: &[u8], reply: &[u8], arrival: Arrival) {
        log_query(chain, request, reply, arrival);
    }

    /// Logs a query that was not answered, if configured.
    fn log_failure(&self, block: &Block, request: &Message, code: ResponseCode) {
        if block.errors
            && let Some(question) = request.queries.first()
            && let Some(suppressed) = self.failures.take(Instant::now())
        {
            let (name, kind) = (question.name(), question.query_type());
            warn!(%name, %kind, %code, suppressed, "no upstream resolver answered");
        }
    }
}

/// One line per query, with the fields of CoreDNS' common log format.
fn log_query(chain: &Chain, request: &[u8], reply: &[u8], arrival: Arrival) {
    let (Ok(asked), Ok(message)) = (Message::from_vec(request), Message::from_vec(reply)) else {
        return;
    };
    let Some(question) = asked.queries.first() else {
        return;
    };
    let block = chain.block(question.name());
    let Some(classes) = block.and_then(|block| block.log) else {
        return;
    };
    let code = message.metadata.response_code;
    let wanted = match code {
        ResponseCode::NoError if !message.answers.is_empty() => classes.success,
        ResponseCode::NoError | ResponseCode::NXDomain => classes.denial,
        _ => classes.error,
    };
    if !wanted {
        return;
    }
    let protocol = match arrival.transport {
        Transport::Udp => "udp",
        Transport::Tcp => "tcp",
    };
    info!(
        remote = %arrival.from,
        id = asked.metadata.id,
        kind = %question.query_type(),
        name = %question.name(),
        protocol,
        size = request.len(),
        code = %code,
        reply_size = reply.len(),
        seconds = arrival.begun.elapsed().as_secs_f64(),
        "query"
    );
}
