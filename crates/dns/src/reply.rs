//! From a request's bytes to a reply that fits the client. Pure, except that CNAME targets and
//! other names are returned to be forwarded.

use std::sync::Arc;

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Record, RecordType},
};

use crate::{
    chain::{Block, Chain},
    cluster::Cluster,
    rewrite::{self, Undo},
    wire::HEADER,
};

/// Our UDP payload size: fits every path without fragmentation.
const PAYLOAD: u16 = 1232;
/// The payload size of a client without EDNS.
const PLAIN_PAYLOAD: u16 = 512;
/// In the third byte of a message.
const TRUNCATED: u8 = 2;

/// The transport of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// UDP: the reply must fit into one datagram.
    Udp,
    /// On a stream.
    Tcp,
}

/// What to do with a request.
pub enum Step {
    /// Send this reply.
    Send(Message),
    /// Forward to the block's servers and send their answer.
    Forward(Arc<Block>, Box<Message>),
    /// Query a name, add its records to a reply, and send it.
    Complete(Box<Completion>),
    /// Send nothing.
    Ignore,
}

/// A reply that lacks forwarded records.
pub struct Completion {
    /// The block whose servers are asked.
    pub block: Arc<Block>,
    /// The query to forward.
    pub question: Query,
    reply: Message,
    undo: Undo,
}

/// The maximum datagram size for a client with this EDNS payload size, or none.
pub fn limit(payload: Option<u16>) -> usize {
    let taken = payload.unwrap_or(PLAIN_PAYLOAD);
    usize::from(taken.clamp(PLAIN_PAYLOAD, PAYLOAD))
}

/// The same for forwarded replies: those of servers may be as long as the client allows.
pub fn forwarded_limit(payload: Option<u16>) -> usize {
    usize::from(payload.unwrap_or(PLAIN_PAYLOAD).max(PLAIN_PAYLOAD))
}

/// Decides about a request; also returns the maximum datagram size of the client.
pub fn decide(chain: &Chain, cluster: &Cluster, bytes: &[u8]) -> (Step, usize) {
    match Message::from_vec(bytes) {
        Ok(request) => {
            let limit = limit(request.edns.as_ref().map(Edns::max_payload));
            (decide_request(chain, cluster, request), limit)
        }
        Err(_) => (decide_nonsense(bytes), usize::from(PLAIN_PAYLOAD)),
    }
}

fn decide_nonsense(bytes: &[u8]) -> Step {
    match bytes.first_chunk::<12>() {
        // Only queries are answered; otherwise two servers could send errors to each other for
        // ever.
        Some(header) if header[2] & 0x80 == 0 => {
            let id = u16::from_be_bytes([header[0], header[1]]);
            Step::Send(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr))
        }
        _ => Step::Ignore,
    }
}

fn decide_request(chain: &Chain, cluster: &Cluster, request: Message) -> Step {
    if request.metadata.message_type == MessageType::Response {
        return Step::Ignore;
    }
    let mut reply = empty_reply(&request);
    if request.version() > 0 {
        return refuse(reply, ResponseCode::BADVERS);
    }
    if request.metadata.op_code != OpCode::Query {
        return refuse(reply, ResponseCode::NotImp);
    }
    let [question] = request.queries.as_slice() else {
        return refuse(reply, ResponseCode::FormErr);
    };
    if question.query_class() != DNSClass::IN {
        return refuse(reply, ResponseCode::Refused);
    }
    let is_transfer = matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR);
    let Some(block) = chain.block(question.name()).filter(|_| !is_transfer) else {
        return refuse(reply, ResponseCode::Refused);
    };
    let Ok((changed, undo)) = rewrite::apply(&block.rewrites, question) else {
        return refuse(reply, ResponseCode::ServFail);
    };
    let same = undo.is_empty() && changed == *question;
    match chain.fill(block, cluster, &changed, &mut reply) {
        None => {
            undo.apply(&mut reply);
            Step::Send(reply)
        }
        Some(asked) if same && reply.answers.is_empty() && asked.name == *question.name() => {
            Step::Forward(asked.block, Box::new(request))
        }
        Some(asked) => Step::Complete(Box::new(Completion {
            block: asked.block,
            question: Query::query(asked.name, changed.query_type()),
            reply,
            undo,
        })),
    }
}

fn empty_reply(request: &Message) -> Message {
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.metadata.checking_disabled = request.metadata.checking_disabled;
    reply.metadata.recursion_available = true;
    reply.add_queries(request.queries.iter().cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD);
        reply.set_edns(edns);
    }
    reply
}

fn refuse(mut reply: Message, code: ResponseCode) -> Step {
    reply.metadata.response_code = code;
    if let Some(edns) = &mut reply.edns {
        edns.set_rcode_high(code.high());
    }
    Step::Send(reply)
}

impl Completion {
    /// The reply with the forwarded records, or with the code of the failed query.
    pub fn complete(self, found: Result<&Message, ResponseCode>) -> Message {
        let Self {
            mut reply, undo, ..
        } = self;
        match found {
            Err(code) => reply.metadata.response_code = code,
            Ok(found) => {
                reply.metadata.response_code = found.metadata.response_code;
                reply.metadata.truncation |= found.metadata.truncation;
                let records: Vec<Record> = found.answers.clone();
                reply.add_answers(records);
                if reply.answers.is_empty() {
                    // The SOA says how long a denial may be cached.
                    reply.add_authorities(found.authorities.iter().cloned());
                }
            }
        }
        undo.apply(&mut reply);
        reply
    }
}

/// A reply with an error code.
pub fn failure(request: &Message, code: ResponseCode) -> Message {
    let mut reply = empty_reply(request);
    reply.metadata.response_code = code;
    reply
}

/// The reply's bytes, truncated to `limit` with as many answers as fit, since some clients use
/// those and never retry.
pub fn encode(mut reply: Message, limit: usize) -> Option<Vec<u8>> {
    let mut bytes = reply.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    reply.additionals.clear();
    bytes = reply.to_vec().ok()?;
    while bytes.len() > limit {
        reply.metadata.truncation = true;
        if reply.answers.is_empty() {
            return reply.truncate().to_vec().ok();
        }
        let keep = (reply.answers.len() * limit / bytes.len()).min(reply.answers.len() - 1);
        reply.answers.truncate(keep);
        bytes = reply.to_vec().ok()?;
    }
    Some(bytes)
}

/// A forwarded reply, truncated to `limit`: it may have come over TCP.
pub fn fit(mut bytes: Vec<u8>, limit: usize) -> Vec<u8> {
    if bytes.len() <= limit {
        return bytes;
    }
    let reply = Message::from_vec(&bytes).ok();
    if let Some(fitting) = reply.and_then(|reply| encode(reply, limit)) {
        return fitting;
    }
    // Only the header, without records and truncated.
    bytes.resize(HEADER, 0);
    bytes[2] |= TRUNCATED;
    bytes[4..].fill(0);
    bytes
}
