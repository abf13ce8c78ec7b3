//! UDP sockets to upstream servers: a few per server, shared by all pending queries. Each has a
//! random source port, lives for a limited time and number of queries, and matches answers by
//! message id: a forger must guess the port, the id and the question.
//!
//! There is no reader task: a waiter that receives a datagram for another one passes it on.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rand::Rng;
use tokio::{net::UdpSocket, sync::mpsc};

/// The maximum number of sockets per server.
const LANES: usize = 16;
/// A socket is not used for new queries after this time, or this many queries, since its port may
/// become known.
const LIFE: Duration = Duration::from_secs(10);
const QUESTIONS: usize = 500;
/// The maximum length of a datagram.
const LONGEST: usize = 65535;

/// All sockets.
#[derive(Default)]
pub(crate) struct Lanes {
    /// Guards the sockets per server.
    open: Mutex<HashMap<SocketAddr, Vec<Arc<Lane>>>>,
}

/// One socket.
struct Lane {
    socket: UdpSocket,
    born: Instant,
    /// Guards the waiters by id, and the number of queries.
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_id: HashMap<u16, mpsc::UnboundedSender<Vec<u8>>>,
    asked: usize,
}

/// A pending query; releases its id when dropped.
struct PendingQuery<'a> {
    lane: &'a Lane,
    id: u16,
    answers: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Drop for PendingQuery<'_> {
    fn drop(&mut self) {
        self.lane.waiting.lock().by_id.remove(&self.id);
    }
}

impl Lanes {
    /// Sends a request to a server and returns the first answer that `accept` accepts. The
    /// request's id is replaced; `accept` sees the request as it was sent.
    pub(crate) async fn ask(
        &self,
        server: SocketAddr,
        mut request: Vec<u8>,
        accept: impl Fn(&[u8], &[u8]) -> bool,
    ) -> io::Result<Vec<u8>> {
        let lane = self.lane(server).await?;
        let mut asked = lane.begin();
        let id = request.get_mut(..2).ok_or(io::ErrorKind::InvalidInput)?;
        id.copy_from_slice(&asked.id.to_be_bytes());
        lane.socket.send(&request).await?;
        loop {
            let answer = lane.receive(&mut asked).await?;
            if accept(&request, &answer) {
                return Ok(answer);
            }
        }
    }

    /// A random socket to a server.
    async fn lane(&self, server: SocketAddr) -> io::Result<Arc<Lane>> {
        {
            let mut open = self.open.lock();
            let lanes = open.entry(server).or_default();
            // Dropped sockets stay open while queries wait on them.
            lanes.retain(|lane| lane.is_fresh());
            let place = rand::rng().random_range(0..LANES);
            if let Some(lane) = lanes.get(place) {
                return Ok(lane.clone());
            }
        }
        let lane = Arc::new(Lane::open(server).await?);
        let mut open = self.open.lock();
        // Remove servers without usable sockets.
        open.retain(|_, lanes| lanes.iter().any(|lane| lane.is_fresh()));
        let lanes = open.entry(server).or_default();
        if lanes.len() >= LANES {
            let place = rand::rng().random_range(0..LANES);
            return Ok(lanes[place].clone());
        }
        lanes.push(lane.clone());
        Ok(lane)
    }

    /// The number of sockets for new queries.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.open.lock().values().map(Vec::len).sum()
    }
}

impl Lane {
    async fn open(server: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = if server.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        // The kernel drops datagrams from other addresses.
        socket.connect(server).await?;
        Ok(Self {
            socket,
            born: Instant::now(),
            waiting: Mutex::default(),
        })
    }

    fn is_fresh(&self) -> bool {
        self.born.elapsed() < LIFE && self.waiting.lock().asked < QUESTIONS
    }

    /// Allocates an unused id.
    fn begin(&self) -> PendingQuery<'_> {
        let (send, answers) = mpsc::unbounded_channel();
        let mut waiting = self.waiting.lock();
        waiting.asked += 1;
        let mut id: u16 = rand::rng().random();
        while waiting.by_id.contains_key(&id) {
            id = rand::rng().random();
        }
        waiting.by_id.insert(id, send);
        PendingQuery {
            lane: self,
            id,
            answers,
        }
    }

    /// The next datagram with the id of this query; others are passed on.
    async fn receive(&self, asked: &mut PendingQuery<'_>) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; LONGEST];
        loop {
            let length = tokio::select! {
                biased;
                Some(answer) = asked.answers.recv() => return Ok(answer),
                received = self.socket.recv(&mut buffer) => received?,
            };
            let Some(id) = buffer[..length].first_chunk::<2>() else {
                continue;
            };
            let id = u16::from_be_bytes(*id);
            if id == asked.id {
                buffer.truncate(length);
                return Ok(buffer);
            }
            if let Some(other) = self.waiting.lock().by_id.get(&id) {
                // The waiter may be gone.
                let _ = other.send(buffer[..length].to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn many_questions_share_few_sockets_and_each_gets_its_own_answer() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let lanes = Lanes::default();
        let respond = async {
            let mut buffer = [0; 64];
            let (mut ports, mut held) = (HashSet::new(), Vec::new());
            // Answers in another order than the queries.
            while held.len() < 200 {
                let (length, from) = server.recv_from(&mut buffer).await.unwrap();
                ports.insert(from.port());
                held.push((buffer[..length].to_vec(), from));
            }
            for (request, from) in held.into_iter().rev() {
                // First an answer with this id to another question.
                let forged = [&request[..2], b"forged"].concat();
                server.send_to(&forged, from).await.unwrap();
                server.send_to(&request, from).await.unwrap();
            }
            ports.len()
        };
        let ask = async |number: u32| {
            let request = [&[0, 0][..], &number.to_be_bytes()].concat();
            let accept = |sent: &[u8], got: &[u8]| sent == got;
            let answer = lanes.ask(at, request, accept).await.unwrap();
            assert_eq!(answer[2..], number.to_be_bytes());
        };
        let asking = futures::future::join_all((0..200).map(ask));
        let (ports, _) = tokio::join!(respond, asking);
        assert!((2..=LANES).contains(&lanes.count()), "{}", lanes.count());
        assert!(ports >= 2, "the source port is always the same");
    }
}
