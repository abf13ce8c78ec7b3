//! Forwards queries to the servers of `forward`.
//!
//! Concurrent equal queries are sent once and share the answer. This also prevents loops with a
//! server that forwards to us: its query waits for itself and times out.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::Name,
};
use parking_lot::Mutex;
use rand::{Rng, seq::SliceRandom};
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use crate::{
    cache::{Cache, CacheLookup},
    corefile::{self, Forward, Policy, Preference, Resolver},
    hosts::within,
    reply::{Transport, fit, forwarded_limit},
    resolvers::Resolvers,
    wire::{self, Plain},
};

/// How long a client waits for servers if there is a stale answer (RFC 8767): it gives up before all of them were asked.
const STALE_AFTER: Duration = Duration::from_millis(1800);
/// How often each server is asked.
const ROUNDS: usize = 2;

/// Identifies a query: the question's bytes, and what else the reply depends on.
type Key = Box<[u8]>;
type Answer = Result<Arc<Vec<u8>>, ResponseCode>;

/// Forwards the queries of one block.
pub struct Upstream {
    forwards: Vec<Forwarder>,
    resolvers: Arc<Resolvers>,
    /// Guards the pending queries.
    under_way: Mutex<HashMap<Key, watch::Receiver<Option<Answer>>>>,
    cache: Option<Cache<Key>>,
}

struct Forwarder {
    settings: Forward,
    /// Counts queries, for round robin.
    turn: AtomicUsize,
    /// Limits concurrent queries.
    limit: Option<Semaphore>,
}

/// A reply with the request's id, and whether to prefetch it after it was sent.
pub struct Reply {
    pub bytes: Vec<u8>,
    pub renew: bool,
}

/// A request to forward.
struct ForwardRequest<'a> {
    request: &'a Message,
    transport: Transport,
}

impl Upstream {
    /// Forwards to the servers of `forwards`, with a cache as configured.
    pub fn new(
        forwards: Vec<Forward>,
        cache: Option<corefile::Cache>,
        resolvers: Arc<Resolvers>,
    ) -> Self {
        let forwarder = |settings: Forward| Forwarder {
            limit: settings.max_concurrent.map(Semaphore::new),
            turn: AtomicUsize::new(0),
            settings,
        };
        let cache = cache.map(|settings| Cache::new(resolvers.clock.clone(), settings));
        Self {
            forwards: forwards.into_iter().map(forwarder).collect(),
            resolvers,
            under_way: Mutex::default(),
            cache,
        }
    }

    /// The number of cached answers.
    pub fn cached(&self) -> usize {
        self.cache.as_ref().map_or(0, Cache::len)
    }

    /// Whether there is a forwarder for a name.
    pub fn has(&self, name: &Name) -> bool {
        self.forwarder(name).is_some()
    }

    fn forwarder(&self, name: &Name) -> Option<&Forwarder> {
        self.forwards.iter().find(|forwarder| {
            let Forward { from, except, .. } = &forwarder.settings;
            from.zone_of(name) && !within(except, name)
        })
    }

    /// A cached answer to a datagram that can be sent at once.
    pub fn find(&self, request: &[u8], question: &Plain<'_>) -> Option<Reply> {
        let key = key(question, Transport::Udp);
        let (mut bytes, renew) = match self.cache.as_ref()?.find(&key) {
            CacheLookup::Fresh(bytes) => (bytes, false),
            CacheLookup::Ending(bytes) => (bytes, true),
            CacheLookup::Expired { reply, renew } => {
                self.resolvers.metrics.served_stale();
                (reply, renew)
            }
            CacheLookup::Stale(_) | CacheLookup::Nothing => return None,
        };
        wire::readdress(&mut bytes, request, question)?;
        self.resolvers.metrics.hit(&bytes);
        let bytes = fit(bytes, forwarded_limit(question.payload));
        Some(Reply { bytes, renew })
    }

    /// Answers from the cache, or asks the servers in turn.
    pub async fn ask(
        &self,
        request: &Message,
        transport: Transport,
    ) -> Result<Reply, ResponseCode> {
        let asking = ForwardRequest { request, transport };
        let bytes = request.to_vec().map_err(|_| ResponseCode::ServFail)?;
        let question = wire::plain(&bytes);
        // Requests of another form are rare, and not cached.
        let Some(question) = question else {
            let bytes = self.exchange(&asking).await?;
            return Ok(Reply {
                bytes: with_id(bytes, request.metadata.id),
                renew: false,
            });
        };
        let key = key(&question, transport);
        let found = match &self.cache {
            Some(cache) => cache.find(&key),
            None => CacheLookup::Nothing,
        };
        match &found {
            CacheLookup::Fresh(bytes) | CacheLookup::Ending(bytes) => {
                self.resolvers.metrics.hit(bytes)
            }
            CacheLookup::Expired { reply, .. } => {
                self.resolvers.metrics.hit(reply);
                self.resolvers.metrics.served_stale();
            }
            CacheLookup::Stale(_) | CacheLookup::Nothing => self.resolvers.metrics.missed(),
        }
        let mut renew = matches!(
            found,
            CacheLookup::Ending(_) | CacheLookup::Expired { renew: true, .. }
        );
        let mut reply = match found {
            CacheLookup::Fresh(reply)
            | CacheLookup::Ending(reply)
            | CacheLookup::Expired { reply, .. } => reply,
            CacheLookup::Stale(reply) => {
                let renewed = self.share(key.clone(), &asking);
                match tokio::time::timeout(STALE_AFTER, renewed).await {
                    Ok(Ok(renewed)) => renewed.to_vec(),
                    failed => {
                        // Without an answer yet the caller continues to ask, after it has sent this one.
                        renew = failed.is_err();
                        self.cache.iter().for_each(|cache| cache.failed(&key));
                        self.resolvers.metrics.served_stale();
                        reply
                    }
                }
            }
            CacheLookup::Nothing => self.share(key, &asking).await?.to_vec(),
        };
        wire::readdress(&mut reply, &bytes, &question);
        let reply = with_id(reply, request.metadata.id);
        Ok(Reply {
            bytes: reply,
            renew,
        })
    }

    /// Prefetches a cached answer.
    pub async fn renew(&self, request: &Message, transport: Transport) {
        let bytes = request.to_vec().unwrap_or_default();
        if let Some(question) = wire::plain(&bytes) {
            self.resolvers.metrics.prefetched();
            let key = key(&question, transport);
            let renewed = self
                .share(key.clone(), &ForwardRequest { request, transport })
                .await;
            if let Err(code) = renewed {
                self.cache.iter().for_each(|cache| cache.failed(&key));
                debug!(%code, "prefetch failed");
            }
        }
    }

    async fn share(&self, key: Key, asking: &ForwardRequest<'_>) -> Answer {
        let (publish, published) = watch::channel(None);
        if let Some(mut first) = self.join(&key, published) {
            // Also ends if the first client is gone without an answer.
            let _ = first.changed().await;
            let answer = first.borrow().clone();
            return answer.unwrap_or(Err(ResponseCode::ServFail));
        }
        let mine = Ended {
            upstream: self,
            key,
        };
        let answer = self.exchange(asking).await.map(Arc::new);
        if let (Ok(bytes), Some(cache), Some(question)) =
            (&answer, &self.cache, asking.request.queries.first())
        {
            cache.keep(&mine.key, question.name(), bytes);
        }
        publish.send_replace(Some(answer.clone()));
        answer
    }

    /// Joins an equal pending query, or registers this one as the first.
    fn join(
        &self,
        key: &Key,
        published: watch::Receiver<Option<Answer>>,
    ) -> Option<watch::Receiver<Option<Answer>>> {
        let mut under_way = self.under_way.lock();
        let first = under_way.get(key).cloned();
        if first.is_none() {
            under_way.insert(key.clone(), published);
        }
        first
    }

    async fn exchange(&self, asking: &ForwardRequest<'_>) -> Result<Vec<u8>, ResponseCode> {
        let question = asking.request.queries.first();
        let forwarder = question.and_then(|question| self.forwarder(question.name()));
        let forwarder = forwarder.ok_or(ResponseCode::ServFail)?;
        let permit = forwarder.limit.as_ref().map(Semaphore::try_acquire);
        if let Some(Err(_)) = permit {
            self.resolvers.metrics.rejected();
            return Err(ResponseCode::Refused);
        }
        let servers = forwarder.servers(&self.resolvers);
        if servers.is_empty() {
            debug!("no resolver to forward to");
        }
        let mut request = without_extras(asking.request);
        let transport = forwarder.settings.transport.choose(asking.transport);
        for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
            request.metadata.id = rand::rng().random();
            let bytes = request.to_vec().map_err(|_| ResponseCode::ServFail)?;
            let patience = forwarder.settings.read_timeout;
            let mut answer = self
                .resolvers
                .ask(*server, bytes.clone(), transport, patience)
                .await;
            let again = forwarder.settings.transport == Preference::PreferUdp
                && asking.transport == Transport::Tcp
                && answer.as_ref().is_ok_and(|answer| is_truncated(answer));
            if again {
                let tcp = Transport::Tcp;
                answer = self.resolvers.ask(*server, bytes, tcp, patience).await;
            }
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => debug!(%server, %error, "upstream resolver did not answer"),
            }
        }
        Err(ResponseCode::ServFail)
    }
}

/// The request without what servers could answer differently to one client than to another, such as the client's subnet,
/// and what they do not need: the answer is shared with all clients that ask the same.
fn without_extras(request: &Message) -> Message {
    let mut clean = Message::new(0, MessageType::Query, OpCode::Query);
    clean.metadata.recursion_desired = request.metadata.recursion_desired;
    clean.metadata.checking_disabled = request.metadata.checking_disabled;
    clean.metadata.authentic_data = request.metadata.authentic_data;
    clean.add_queries(request.queries.iter().cloned());
    if let Some(asked) = &request.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(asked.max_payload());
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        clean.set_edns(edns);
    }
    clean
}

impl Forwarder {
    /// The servers in the order to ask.
    fn servers(&self, resolvers: &Resolvers) -> Vec<SocketAddr> {
        let mut servers: Vec<SocketAddr> = Vec::new();
        for resolver in &self.settings.to {
            match resolver {
                Resolver::Server(server) => servers.push(*server),
                Resolver::ResolvConf(path) => servers.extend(resolvers.of_file(path)),
            }
        }
        match self.settings.policy {
            Policy::Sequential => {}
            Policy::Random => servers.shuffle(&mut rand::rng()),
            Policy::RoundRobin => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let turn = turn % servers.len().max(1);
                servers.rotate_left(turn);
            }
        }
        resolvers.order(&mut servers);
        servers
    }
}

impl Preference {
    fn choose(self, asked: Transport) -> Transport {
        match self {
            Self::AsAsked => asked,
            Self::ForceTcp => Transport::Tcp,
            Self::PreferUdp => Transport::Udp,
        }
    }
}

fn is_truncated(reply: &[u8]) -> bool {
    reply.get(2).is_some_and(|flags| flags & 2 != 0)
}

fn with_id(mut reply: Vec<u8>, id: u16) -> Vec<u8> {
    if let Some(first) = reply.first_chunk_mut::<2>() {
        *first = id.to_be_bytes();
    }
    reply
}

fn key(question: &Plain<'_>, transport: Transport) -> Key {
    let mut key = Vec::with_capacity(question.name.len() + 7);
    question.write_key(&mut key);
    let flags = [question.dnssec, transport == Transport::Tcp];
    key.extend(flags.map(u8::from));
    // An answer that fits one client may be too long for another.
    key.extend(question.payload.unwrap_or(0).to_be_bytes());
    key.into()
}

/// Removes a pending query when it has ended or was dropped.
struct Ended<'a> {
    upstream: &'a Upstream,
    key: Key,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.upstream.under_way.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {

    use hickory_proto::{
        op::Query,
        rr::{RData, Record, RecordType, rdata::A, rdata::opt::EdnsOption},
    };
    use jiff::Timestamp;
    use stdx::FakeClock;
    use tokio::net::UdpSocket;

    use super::*;

    /// Longer than a client may wait, and shorter than the patience of resolvers.
    const SILENT: Duration = Duration::from_secs(4);

    #[tokio::test]
    async fn a_stale_answer_does_not_wait_for_silent_servers() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let name = Name::from_ascii("www.example.").unwrap();
        let mut request = Message::new(7, MessageType::Query, OpCode::Query);
        request.add_query(Query::query(name.clone(), RecordType::A));
        let forward = Forward {
            from: Name::root(),
            except: Vec::new(),
            to: vec![Resolver::Server(at)],
            policy: Policy::Sequential,
            max_concurrent: None,
            transport: Preference::AsAsked,
            read_timeout: SILENT,
        };
        let cache = corefile::Cache {
            stale: Duration::from_secs(3600),
            ..corefile::Cache::default()
        };
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let resolvers = Resolvers::new(Vec::new(), Arc::new(clock.clone()), Arc::default());
        let metrics = resolvers.metrics.clone();
        let upstream = Upstream::new(vec![forward], Some(cache), resolvers);
        let respond = async {
            let mut buffer = [0; 512];
            let (length, from) = server.recv_from(&mut buffer).await.unwrap();
            let mut reply = Message::from_vec(&buffer[..length]).unwrap();
            reply.metadata.message_type = MessageType::Response;
            let address = RData::A(A::new(192, 0, 2, 1));
            reply.add_answers([Record::from_rdata(name.clone(), 60, address)]);
            server
                .send_to(&reply.to_vec().unwrap(), from)
                .await
                .unwrap();
        };
        let (first, ()) = tokio::join!(upstream.ask(&request, Transport::Udp), respond);
        assert!(!first.unwrap_or_else(|code| panic!("{code}")).renew);
        clock.advance(Duration::from_secs(61));
        let begun = std::time::Instant::now();
        let asked = async {
            for renew in [true, false] {
                let stale = upstream.ask(&request, Transport::Udp).await;
                let stale = stale.unwrap_or_else(|code| panic!("{code}"));
                assert!(
                    begun.elapsed() >= STALE_AFTER,
                    "the server may still answer"
                );
                let message = Message::from_vec(&stale.bytes).unwrap();
                assert_eq!((message.answers.len(), stale.renew), (1, renew));
            }
        };
        tokio::select! {
            () = asked => {}
            () = tokio::time::sleep(SILENT) => panic!("it waited for the server"),
        }
        let page = metrics.page(0);
        let answered = format!(r#"to="{at}",rcode="NOERROR"}} 1"#);
        for line in [
            "served_stale_total{server=\"dns://:53\",zones=\".\",view=\"\"} 2",
            &answered,
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn servers_get_the_question_and_no_options_of_the_client() {
        let mut request = Message::new(7, MessageType::Query, OpCode::Query);
        let name = Name::from_ascii("www.example.").unwrap();
        request.add_query(Query::query(name.clone(), RecordType::A));
        request.metadata.recursion_desired = true;
        request.metadata.checking_disabled = true;
        let mut edns = Edns::new();
        edns.set_max_payload(1400).set_dnssec_ok(true);
        // The number of the client's subnet.
        edns.options_mut()
            .insert(EdnsOption::Unknown(8, vec![0, 1, 24, 0, 192, 0, 2]));
        request.set_edns(edns);
        let record = Record::from_rdata(name, 5, RData::A(A::new(192, 0, 2, 1)));
        request.add_additionals([record]);
        let sent = Message::from_vec(&without_extras(&request).to_vec().unwrap()).unwrap();
        assert_eq!(sent.queries, request.queries);
        assert!(sent.metadata.recursion_desired && sent.metadata.checking_disabled);
        assert!(sent.additionals.is_empty());
        let edns = sent.edns.unwrap();
        assert_eq!((edns.max_payload(), edns.flags().dnssec_ok), (1400, true));
        assert_eq!(edns.options().as_ref().len(), 0);
        request.edns = None;
        assert!(without_extras(&request).edns.is_none());
    }
}
