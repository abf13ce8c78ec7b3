//! From a request's bytes to a reply that fits the client. Pure, except that aliases and foreign
//! names are handed back to be asked elsewhere.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, Record, RecordType},
};

use crate::{
    cluster::Cluster,
    zone::{Answer, Zone},
};

/// What we accept in one datagram: fits every path without fragments.
const PAYLOAD: u16 = 1232;
/// What a client takes that does not say.
const PLAIN_PAYLOAD: u16 = 512;
/// How many aliases inside the cluster are followed.
const ALIASES: usize = 8;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// In a datagram: the reply must fit one.
    Udp,
    /// On a stream.
    Tcp,
}

/// What to do with a request.
#[derive(Debug)]
pub enum Step {
    /// Send this.
    Send(Message),
    /// Ask elsewhere and send what comes.
    Forward(Box<Message>),
    /// Ask elsewhere for a name, add what comes to this, and send it.
    Complete(Box<Message>, Query),
    /// Say nothing.
    Ignore,
}

/// Decides about a request; also says how many bytes of a datagram the client takes.
pub fn decide(zone: &Zone, cluster: &Cluster, bytes: &[u8]) -> (Step, usize) {
    match Message::from_vec(bytes) {
        Ok(request) => {
            let limit = usize::from(request.max_payload().min(PAYLOAD));
            (decide_request(zone, cluster, request), limit)
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

fn decide_request(zone: &Zone, cluster: &Cluster, request: Message) -> Step {
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
    let question = question.clone();
    match fill(zone, cluster, &question, &mut reply) {
        None => Step::Send(reply),
        Some(target) if reply.answers.is_empty() && target == *question.name() => {
            Step::Forward(Box::new(request))
        }
        Some(target) => {
            Step::Complete(Box::new(reply), Query::query(target, question.query_type()))
        }
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

/// Puts the zone's answer into the reply; returns the name that somebody else must be asked for.
fn fill(zone: &Zone, cluster: &Cluster, question: &Query, reply: &mut Message) -> Option<Name> {
    let mut name = question.name().clone();
    let kind = question.query_type();
    for _ in 0..ALIASES {
        match zone.answer(cluster, &name, kind) {
            Answer::Elsewhere => return Some(name),
            Answer::NoName => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                reply.add_authority(zone.start_of_authority());
            }
            Answer::Records {
                mut records,
                additional,
            } => {
                if records.is_empty() {
                    reply.add_authority(zone.start_of_authority());
                }
                // Clients tend to take the first: let it be another one each time.
                let turn = usize::from(reply.metadata.id) % records.len().max(1);
                records.rotate_left(turn);
                reply.add_answers(records);
                reply.add_additionals(additional);
            }
            Answer::Alias(record, target) => {
                reply.metadata.authoritative = true;
                reply.add_answer(*record);
                if kind == RecordType::CNAME {
                    return None;
                }
                name = target;
                continue;
            }
        }
        reply.metadata.authoritative = true;
        return None;
    }
    reply.metadata.response_code = ResponseCode::ServFail;
    None
}

/// Adds what was found elsewhere for the target of an alias.
pub fn complete(mut reply: Message, found: Option<&Message>) -> Message {
    match found {
        None => reply.metadata.response_code = ResponseCode::ServFail,
        Some(found) => {
            reply.metadata.response_code = found.metadata.response_code;
            let records: Vec<Record> = found.answers.clone();
            reply.add_answers(records);
        }
    }
    reply
}

/// A reply that says that nobody could be asked.
pub fn failure(request: &Message) -> Message {
    let mut reply = empty_reply(request);
    reply.metadata.response_code = ResponseCode::ServFail;
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
