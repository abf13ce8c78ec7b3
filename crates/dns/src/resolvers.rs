//! The upstream servers: their addresses, which of them answered last, and the sockets. Shared by
//! all blocks, and kept when settings change.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_proto::op::{Message, ResponseCode};
use parking_lot::Mutex;
use stdx::Clock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tracing::warn;

use crate::{
    lanes::Lanes,
    metrics::Metrics,
    reply::Transport,
    wire::{self, HEADER},
};

/// How often a `resolv.conf` is checked for changes.
const FRESH: Duration = Duration::from_secs(5);
/// How long a server that did not answer is tried last.
const SET_BACK: Duration = Duration::from_secs(5);
/// Resolvers use no more servers of a `resolv.conf` either.
const SERVERS: usize = 3;

/// The upstream servers.
pub struct Resolvers {
    /// Our own addresses.
    own: Vec<IpAddr>,
    /// The clock of the cache.
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// Guards the servers of each file, and when it was read.
    files: Mutex<HashMap<PathBuf, (Instant, Vec<SocketAddr>)>>,
    /// Guards the servers that did not answer, and when.
    silent: Mutex<HashMap<SocketAddr, Instant>>,
    lanes: Lanes,
}

impl Resolvers {
    /// Servers at an address in `own` are never asked.
    pub fn new(own: Vec<IpAddr>, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            own,
            clock,
            metrics,
            files: Mutex::default(),
            silent: Mutex::default(),
            lanes: Lanes::default(),
        })
    }

    /// The servers of a `resolv.conf`.
    pub fn of_file(&self, path: &Path) -> Vec<SocketAddr> {
        let mut files = self.files.lock();
        if let Some((read, servers)) = files.get(path)
            && read.elapsed() < FRESH
        {
            return servers.clone();
        }
        let servers = read_servers(path, &self.own);
        files.insert(path.to_owned(), (Instant::now(), servers.clone()));
        servers
    }

    /// Moves servers that did not answer recently to the end.
    pub fn order(&self, servers: &mut [SocketAddr]) {
        let mut silent = self.silent.lock();
        silent.retain(|_, since| since.elapsed() < SET_BACK);
        servers.sort_by_key(|server| silent.contains_key(server));
    }

    /// Queries a server.
    pub async fn ask(
        &self,
        server: SocketAddr,
        request: Vec<u8>,
        transport: Transport,
        patience: Duration,
    ) -> io::Result<Vec<u8>> {
        let asked = async {
            match transport {
                Transport::Udp => self.lanes.ask(server, request, is_answer).await,
                Transport::Tcp => over_tcp(server, &request).await,
            }
        };
        let begun = Instant::now();
        let answer = tokio::time::timeout(patience, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match &answer {
            Ok(answer) => {
                self.metrics.forwarded(server, answer, begun.elapsed());
                self.silent.lock().remove(&server)
            }
            Err(_) => self.silent.lock().insert(server, Instant::now()),
        };
        answer
    }
}

fn read_servers(path: &Path, own: &[IpAddr]) -> Vec<SocketAddr> {
    match fs::read_to_string(path) {
        Ok(text) => parse_servers(&text, own),
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot read resolvers, answering only cluster names");
            Vec::new()
        }
    }
}

/// The name servers of a `resolv.conf`, without our own addresses.
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
    // A zone index (`fe80::1%eth0`) needs an interface that may be gone.
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

/// Whether bytes answer our request: the same id, a response, the same question.
fn is_answer(request: &[u8], answer: &[u8]) -> bool {
    let (Some(asked), Some(got)) = (request.first_chunk::<12>(), answer.first_chunk::<12>()) else {
        return false;
    };
    if asked[..2] != got[..2] || got[2] & 0x80 == 0 {
        return false;
    }
    match (Message::from_vec(request), Message::from_vec(answer)) {
        // An error response may omit the question.
        (Ok(asked), Ok(got)) => {
            let is_error = got.metadata.response_code != ResponseCode::NoError;
            asked.queries == got.queries || (is_error && got.queries.is_empty())
        }
        // An unparsable response to this question is passed to the client.
        _ => wire::plain(request).is_some_and(|question| {
            let asked = &request[HEADER..question.end()];
            let got = answer.get(HEADER..question.end());
            got.is_some_and(|got| got.eq_ignore_ascii_case(asked))
        }),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{MessageType, OpCode, Query},
        rr::{Name, RecordType},
    };

    use super::*;

    #[test]
    fn an_answer_has_the_id_and_the_question_of_its_request() {
        let question = |name: &str| {
            let mut message = Message::new(7, MessageType::Query, OpCode::Query);
            let name = Name::from_ascii(name).unwrap();
            message.add_query(Query::query(name, RecordType::A));
            message
        };
        let request = question("www.example.").to_vec().unwrap();
        let answer = |name: Option<&str>, code: ResponseCode| {
            let mut message = name.map_or_else(|| Message::response(7, OpCode::Query), question);
            message.metadata.message_type = MessageType::Response;
            message.metadata.response_code = code;
            message.to_vec().unwrap()
        };
        let mut other_id = answer(Some("www.example."), ResponseCode::NoError);
        other_id[1] = 8;
        let cut = |name: &str| {
            let mut cut = answer(Some(name), ResponseCode::NoError);
            // One answer that is not there.
            cut[7] = 1;
            cut
        };
        for (bytes, expected) in [
            (answer(Some("www.example."), ResponseCode::NoError), true),
            (answer(Some("www.example."), ResponseCode::NXDomain), true),
            (answer(Some("www.other."), ResponseCode::NoError), false),
            (answer(None, ResponseCode::ServFail), true),
            (answer(None, ResponseCode::NoError), false),
            (other_id, false),
            (request.clone(), false),
            (cut("www.example."), true),
            (cut("www.other.com."), false),
            (request[..11].to_vec(), false),
        ] {
            assert_eq!(is_answer(&request, &bytes), expected, "{bytes:?}");
        }
    }

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
