//! Questions that somebody else must answer: the servers of the node's own `resolv.conf`.
//!
//! The same question is asked once at a time, and whoever asks it meanwhile shares the answer. That
//! is also what keeps a resolver that asks us back from making a storm: its question waits for
//! itself and times out.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_proto::{
    op::Message,
    rr::{LowerName, RecordType},
};
use parking_lot::Mutex;
use rand::Rng;
use stdx::Clock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};
use tracing::{debug, warn};

use crate::{
    cache::{Cache, Found, readdress},
    lanes::Lanes,
    metrics::Metrics,
    reply::Transport,
};

const ATTEMPT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// How often `resolv.conf` is looked at again.
const FRESH: Duration = Duration::from_secs(5);
/// Resolvers read no more servers than this either.
const SERVERS: usize = 3;

type Key = (LowerName, RecordType, bool, Transport, bool);
type Answer = Option<Arc<Vec<u8>>>;

/// Forwards questions.
pub struct Upstream {
    resolv_conf: PathBuf,
    /// Addresses that lead back to ourselves.
    own: Vec<IpAddr>,
    /// Guards the servers as they were read last.
    servers: Mutex<(Option<Instant>, Vec<SocketAddr>)>,
    /// The sockets to them.
    lanes: Lanes,
    /// Guards the questions under way.
    under_way: Mutex<HashMap<Key, watch::Receiver<Answer>>>,
    cache: Cache<Key>,
    metrics: Arc<Metrics>,
}

/// A reply with the request's id, and whether it should be asked for again after it was sent.
pub struct Reply {
    pub bytes: Vec<u8>,
    pub renew: bool,
}

impl Upstream {
    /// Servers come from `resolv_conf`; those at an address of `own` are left out.
    pub fn new(
        resolv_conf: PathBuf,
        own: Vec<IpAddr>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            resolv_conf,
            own,
            servers: Mutex::new((None, Vec::new())),
            lanes: Lanes::default(),
            under_way: Mutex::new(HashMap::new()),
            cache: Cache::new(clock),
            metrics,
        }
    }

    /// How many answers are kept.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Answers from what is kept, or asks the servers in turn. `None` when nobody answers.
    pub async fn ask(&self, request: &Message, transport: Transport) -> Option<Reply> {
        let key = key(request, transport)?;
        let found = self.cache.find(&key);
        match &found {
            Found::Fresh(bytes) | Found::Ending(bytes) => self.metrics.hit(bytes),
            Found::Stale(_) | Found::Nothing => self.metrics.missed(),
        }
        let (bytes, renew) = match found {
            Found::Fresh(bytes) => (bytes, false),
            Found::Ending(bytes) => (bytes, true),
            Found::Stale(bytes) => {
                let renewed = self.share(key, request, transport).await;
                (renewed.map_or(bytes, |renewed| renewed.to_vec()), false)
            }
            Found::Nothing => {
                let bytes = self.share(key, request, transport).await?;
                (bytes.to_vec(), false)
            }
        };
        let mut bytes = bytes;
        readdress(&mut bytes, &request.to_vec().ok()?)?;
        Some(Reply { bytes, renew })
    }

    /// Asks the servers for what is kept already, so that it does not end.
    pub async fn renew(&self, request: &Message, transport: Transport) {
        if let Some(key) = key(request, transport) {
            self.share(key, request, transport).await;
        }
    }

    async fn share(&self, key: Key, request: &Message, transport: Transport) -> Answer {
        let (tell, told) = watch::channel(None);
        if let Some(mut first) = self.join(&key, told) {
            // Ends also when the first asker is gone without an answer.
            let _ = first.changed().await;
            return first.borrow().clone();
        }
        let mine = Ended {
            upstream: self,
            key,
        };
        let answer = self.exchange(request, transport).await.map(Arc::new);
        if let Some(bytes) = &answer {
            self.cache.keep(&mine.key, bytes);
        }
        tell.send_replace(answer.clone());
        answer
    }

    /// Whoever asks the same already; or puts us on the list as the first.
    fn join(&self, key: &Key, told: watch::Receiver<Answer>) -> Option<watch::Receiver<Answer>> {
        let mut under_way = self.under_way.lock();
        let first = under_way.get(key).cloned();
        if first.is_none() {
            under_way.insert(key.clone(), told);
        }
        first
    }

    async fn exchange(&self, request: &Message, transport: Transport) -> Option<Vec<u8>> {
        let servers = self.servers();
        if servers.is_empty() {
            debug!("no resolver to forward to");
            return None;
        }
        let mut request = request.clone();
        for _ in 0..ROUNDS {
            for server in &servers {
                request.metadata.id = rand::rng().random();
                let bytes = request.to_vec().ok()?;
                let answer = match transport {
                    Transport::Udp => {
                        timeout(ATTEMPT, self.lanes.ask(*server, bytes, is_answer)).await
                    }
                    Transport::Tcp => timeout(ATTEMPT, over_tcp(*server, &bytes)).await,
                };
                match answer {
                    Ok(Ok(answer)) => return Some(answer),
                    Ok(Err(error)) => debug!(%server, %error, "resolver failed"),
                    Err(_) => debug!(%server, "resolver is silent"),
                }
            }
        }
        None
    }

    fn servers(&self) -> Vec<SocketAddr> {
        let mut known = self.servers.lock();
        if known.0.is_none_or(|read| read.elapsed() > FRESH) {
            *known = (
                Some(Instant::now()),
                read_servers(&self.resolv_conf, &self.own),
            );
        }
        known.1.clone()
    }
}

/// What tells questions apart.
fn key(request: &Message, transport: Transport) -> Option<Key> {
    let question = request.queries.first()?;
    let edns = request.edns.as_ref();
    let dnssec = edns.is_some_and(|edns| edns.flags().dnssec_ok);
    Some((
        LowerName::new(question.name()),
        question.query_type(),
        dnssec || request.metadata.checking_disabled,
        transport,
        request.edns.is_some(),
    ))
}

/// Takes a question off the list when its asker is done, or gone.
struct Ended<'a> {
    upstream: &'a Upstream,
    key: Key,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.upstream.under_way.lock().remove(&self.key);
    }
}

fn read_servers(path: &Path, own: &[IpAddr]) -> Vec<SocketAddr> {
    match fs::read_to_string(path) {
        Ok(text) => parse_servers(&text, own),
        Err(error) => {
            warn!(path = %path.display(), %error, "no resolvers: only names of the cluster are known");
            Vec::new()
        }
    }
}

/// The name servers of a `resolv.conf`, without those that lead back here.
pub fn parse_servers(text: &str, own: &[IpAddr]) -> Vec<SocketAddr> {
    let lines = text
        .lines()
        .map(|line| line.split(['#', ';']).next().unwrap_or_default());
    let named = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver"))
            .then(|| words.next())
            .flatten()
    });
    // A zone index (`fe80::1%eth0`) needs an interface that may not be there any more.
    let parsed = named.filter_map(|address| address.parse::<IpAddr>().ok());
    parsed
        .filter(|address| !own.contains(address))
        .take(SERVERS)
        .map(|address| SocketAddr::new(address, 53))
        .collect()
}

async fn over_tcp(server: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), request].concat())
        .await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    if is_answer(request, &buffer) {
        Ok(buffer)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Whether bytes answer our request: same id, a response, the same question.
fn is_answer(request: &[u8], answer: &[u8]) -> bool {
    let (Some(asked), Some(got)) = (request.first_chunk::<12>(), answer.first_chunk::<12>()) else {
        return false;
    };
    if asked[..2] != got[..2] || got[2] & 0x80 == 0 {
        return false;
    }
    match (Message::from_vec(request), Message::from_vec(answer)) {
        // A refusal may leave the question out.
        (Ok(asked), Ok(got)) => got.queries.is_empty() || asked.queries == got.queries,
        // Something in it that we do not know is still the client's to judge.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_resolvers_do() {
        let text = "# nameserver 192.0.2.1\nsearch a.b\nnameserver 192.0.2.2 # home\n\
                    nameserver fe80::1%eth0\nnameserver 2001:db8::1\n  nameserver 10.43.0.10\n\
                    nameserver 192.0.2.3\nnameserver 192.0.2.4\noptions ndots:5\n";
        let shown: Vec<String> = parse_servers(text, &["10.43.0.10".parse().unwrap()])
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["192.0.2.2:53", "[2001:db8::1]:53", "192.0.2.3:53"]);
    }
}
