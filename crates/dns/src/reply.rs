//! From a request's bytes to a reply that fits the client. Pure, except that aliases and foreign
//! names are handed back to be asked elsewhere.

use std::sync::Arc;

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Record},
};

use crate::{
    chain::{Block, Chain},
    cluster::Cluster,
    rewrite::{self, Undo},
};

/// What we accept in one datagram: fits every path without fragments.
const PAYLOAD: u16 = 1232;
/// What a client takes that does not say.
const PLAIN_PAYLOAD: u16 = 512;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// In a datagram: the reply must fit one.
    Udp,
    /// On a stream.
    Tcp,
}

/// What to do with a request.
pub enum Step {
    /// Send this.
    Send(Message),
    /// Ask the block's resolvers and send what comes.
    Forward(Arc<Block>, Box<Message>),
    /// Ask for a name, add what comes to a reply, and send it.
    Complete(Box<Completion>),
    /// Say nothing.
    Ignore,
}

/// A reply that lacks what others know.
pub struct Completion {
    /// Whose resolvers are asked.
    pub block: Arc<Block>,
    /// What they are asked.
    pub question: Query,
    reply: Message,
    undo: Undo,
}

/// How many bytes of a datagram a client takes that says this, or nothing.
pub fn limit(payload: Option<u16>) -> usize {
    let taken = payload.unwrap_or(PLAIN_PAYLOAD);
    usize::from(taken.clamp(PLAIN_PAYLOAD, PAYLOAD))
}

/// Decides about a request; also says how many bytes of a datagram the client takes.
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
        // Only a query may be answered, or two servers could send errors to each other for ever.
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
    let Some(block) = chain.block(question.name()) else {
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
    /// The reply with what was found, or with the code that asking failed with.
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
                    // Says how long absence may be remembered.
                    reply.add_authorities(found.authorities.iter().cloned());
                }
            }
        }
        undo.apply(&mut reply);
        reply
    }
}

/// A reply that says that nobody could be asked.
pub fn failure(request: &Message, code: ResponseCode) -> Message {
    let mut reply = empty_reply(request);
    reply.metadata.response_code = code;
    reply
}

/// The reply's bytes; cut to `limit` and marked so, with as many answers as fit, since some clients
/// use those and never ask again.
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
