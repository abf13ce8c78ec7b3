//! A minimal HTTP/1.1 client over TLS without an async runtime: requests are prepared bytes,
//! responses are counted and not kept. The load shares the machine's cores with the server, so that
//! it must be cheap.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    io::Errno,
    net::RecvFlags,
};
use rustls::{
    ClientConfig,
    client::UnbufferedClientConnection,
    pki_types::ServerName,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus},
};

/// The bytes per read.
const BUFFER: usize = 256 * 1024;
/// The maximum length of a shown error.
const SHOWN: usize = 400;
/// The maximum number of events per poll.
const EVENTS: usize = 256;

/// One connection; one request at a time.
pub(crate) struct Connection {
    socket: TcpStream,
    tls: UnbufferedClientConnection,
    /// An incomplete TLS record.
    part: Vec<u8>,
    out: Vec<u8>,
    answer: Answer,
}

impl Connection {
    /// Connects, with the TLS handshake.
    pub(crate) fn open(
        address: &str,
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
    ) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut connection = Self {
            socket,
            tls: UnbufferedClientConnection::new(config, server)?,
            part: Vec::new(),
            out: Vec::new(),
            answer: Answer::default(),
        };
        let mut incoming = Vec::new();
        while !connection.shake(&mut incoming)? {
            let mut some = [0; 16 * 1024];
            let count = connection.socket.read(&mut some)?;
            ensure!(count > 0, "the server hung up during the handshake");
            incoming.extend_from_slice(&some[..count]);
        }
        connection.part = incoming;
        Ok(connection)
    }

    /// Continues the handshake; returns whether it is complete.
    fn shake(&mut self, incoming: &mut Vec<u8>) -> anyhow::Result<bool> {
        loop {
            let UnbufferedStatus { discard, state, .. } = self.tls.process_tls_records(incoming);
            let done = match state? {
                ConnectionState::EncodeTlsData(mut data) => {
                    let mut some = vec![0; 32 * 1024];
                    match data.encode(&mut some) {
                        Ok(count) => self.out.extend_from_slice(&some[..count]),
                        Err(EncodeError::InsufficientSize(_)) => bail!("an endless handshake"),
                        Err(error) => return Err(error.into()),
                    }
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    self.socket.write_all(&self.out)?;
                    self.out.clear();
                    data.done();
                    None
                }
                ConnectionState::BlockedHandshake => Some(false),
                ConnectionState::WriteTraffic(_) => Some(true),
                other => bail!("the handshake ended as {other:?}"),
            };
            incoming.drain(..discard);
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Sends a request; the response is read later.
    pub(crate) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.answer = Answer::default();
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut []);
        let ConnectionState::WriteTraffic(mut traffic) = state? else {
            bail!("the connection cannot be written to");
        };
        // TLS records add a few bytes.
        self.out.resize(request.len() + 1024, 0);
        let count = match traffic.encrypt(request, &mut self.out) {
            Ok(count) => count,
            Err(EncryptError::InsufficientSize(size)) => {
                self.out.resize(size.required_size, 0);
                traffic.encrypt(request, &mut self.out)?
            }
            Err(error) => return Err(error.into()),
        };
        self.socket.write_all(&self.out[..count])?;
        Ok(())
    }

    /// Sends a request whose response lines are counted.
    pub(crate) fn send_for_lines(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.send(request)?;
        self.answer.counts_lines = true;
        Ok(())
    }

    /// Reads what is available without blocking; returns whether the response is complete.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> anyhow::Result<bool> {
        loop {
            buffer.clear();
            buffer.append(&mut self.part);
            let before = buffer.len();
            let read = rustix::net::recv(&self.socket, spare_capacity(buffer), RecvFlags::DONTWAIT);
            match read {
                Ok((0, _)) => bail!("the server hung up"),
                Ok(_) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    self.part.extend_from_slice(buffer);
                    return Ok(self.answer.is_complete());
                }
                Err(error) => return Err(error.into()),
            }
            // Less than the capacity: everything was read.
            let all = buffer.len() < buffer.capacity();
            ensure!(buffer.len() > before, "the server hung up");
            self.decrypt(buffer)?;
            if all {
                return Ok(self.answer.is_complete());
            }
        }
    }

    fn decrypt(&mut self, data: &mut [u8]) -> anyhow::Result<()> {
        let mut at = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.tls.process_tls_records(&mut data[at..]);
            at += discard;
            match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        self.answer.feed(record.payload)?;
                        at += record.discard;
                    }
                }
                ConnectionState::WriteTraffic(_) => break,
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    bail!("the server hung up")
                }
                other => bail!("the connection is {other:?}"),
            }
        }
        self.part.extend_from_slice(&data[at..]);
        Ok(())
    }

    /// Sends a request and waits for its response.
    fn ask(&mut self, request: &[u8]) -> anyhow::Result<&Answer> {
        self.send(request)?;
        let mut buffer = Vec::with_capacity(BUFFER);
        while !self.answer.is_complete() {
            buffer.clear();
            buffer.append(&mut self.part);
            let count = rustix::net::recv(
                &self.socket,
                spare_capacity(&mut buffer),
                RecvFlags::empty(),
            )?;
            ensure!(count.0 > 0, "the server hung up");
            self.decrypt(&mut buffer)?;
        }
        Ok(&self.answer)
    }

    /// Sends a request, checks for success, and returns the number of body bytes.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> anyhow::Result<u64> {
        self.ask(request)?.success()
    }

    /// Sends a request and returns the status code.
    pub(crate) fn code(&mut self, request: &[u8]) -> anyhow::Result<u16> {
        Ok(self.ask(request)?.code)
    }

    pub(crate) fn answer(&self) -> &Answer {
        &self.answer
    }
}

/// Many connections with a poll over them.
pub(crate) struct Many {
    connections: Vec<Connection>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl Many {
    pub(crate) fn new(connections: Vec<Connection>) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, connection) in connections.iter().enumerate() {
            epoll::add(
                &epoll,
                &connection.socket,
                epoll::EventData::new_u64(number as u64),
                epoll::EventFlags::IN | epoll::EventFlags::ET,
            )?;
        }
        Ok(Self {
            connections,
            epoll,
            events: Vec::with_capacity(EVENTS),
            buffer: Vec::with_capacity(BUFFER),
        })
    }

    /// All of them, by index.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = (usize, &mut Connection)> {
        self.connections.iter_mut().enumerate()
    }

    /// Waits for data on some connections until the deadline, and reads it. `heard` is called for
    /// each, with whether its response is complete.
    pub(crate) fn turn(
        &mut self,
        until: Instant,
        mut heard: impl FnMut(usize, &mut Connection, bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let wait = until.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(wait.min(Duration::from_secs(60)))?;
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&wait)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let data = event.data;
            let number = usize::try_from(data.u64())?;
            let connection = &mut self.connections[number];
            let complete = connection.receive(&mut self.buffer)?;
            heard(number, connection, complete)?;
        }
        Ok(())
    }
}

/// A response, possibly incomplete.
#[derive(Default)]
pub(crate) struct Answer {
    pub code: u16,
    /// The body bytes so far.
    pub bytes: u64,
    /// The body lines so far, if they are counted.
    pub lines: usize,
    counts_lines: bool,
    /// The incomplete head.
    head: Vec<u8>,
    length: Option<Length>,
    /// The beginning of an error.
    text: Vec<u8>,
}

enum Length {
    /// The remaining bytes.
    Known(usize),
    Chunked(Chunks),
}

/// The state of a chunked body.
#[derive(Default)]
struct Chunks {
    /// The remaining bytes of the current chunk.
    left: usize,
    /// The incomplete line with a chunk's size.
    size: Vec<u8>,
    /// Whether the line break after a chunk follows.
    break_next: bool,
    over: bool,
}

impl Answer {
    fn is_complete(&self) -> bool {
        match &self.length {
            None => false,
            Some(Length::Known(left)) => *left == 0,
            Some(Length::Chunked(chunks)) => chunks.over,
        }
    }

    /// The number of bytes, if it is a success.
    pub(crate) fn success(&self) -> anyhow::Result<u64> {
        let text = String::from_utf8_lossy(&self.text);
        ensure!((200..300).contains(&self.code), "{}: {text}", self.code);
        Ok(self.bytes)
    }

    fn feed(&mut self, mut data: &[u8]) -> anyhow::Result<()> {
        if self.length.is_none() {
            let had = self.head.len();
            self.head.extend_from_slice(data);
            let from = had.saturating_sub(3);
            let Some(end) = find(&self.head[from..], b"\r\n\r\n") else {
                ensure!(self.head.len() < BUFFER, "an endless header");
                return Ok(());
            };
            let end = from + end;
            let (code, length) = head(&self.head[..end])?;
            (self.code, self.length) = (code, Some(length));
            data = &data[end + 4 - had..];
        }
        let (code, counts_lines) = (self.code, self.counts_lines);
        let (bytes, lines, text) = (&mut self.bytes, &mut self.lines, &mut self.text);
        let mut take = |data: &[u8]| {
            *bytes += data.len() as u64;
            if counts_lines {
                *lines += data.iter().filter(|byte| **byte == b'\n').count();
            }
            if code >= 300 && text.len() < SHOWN {
                text.extend_from_slice(&data[..data.len().min(SHOWN)]);
            }
        };
        match &mut self.length {
            Some(Length::Known(left)) => {
                ensure!(data.len() <= *left, "more than the length says");
                *left -= data.len();
                take(data);
            }
            Some(Length::Chunked(chunks)) => chunks.feed(data, &mut take)?,
            None => {}
        }
        Ok(())
    }
}

impl Chunks {
    fn feed(&mut self, data: &[u8], take: &mut impl FnMut(&[u8])) -> anyhow::Result<()> {
        let mut at = 0;
        while at < data.len() && !self.over {
            if self.left > 0 {
                let some = self.left.min(data.len() - at);
                take(&data[at..at + some]);
                self.left -= some;
                at += some;
                self.break_next = self.left == 0;
                continue;
            }
            let byte = data[at];
            at += 1;
            if byte != b'\n' {
                self.size.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.size);
            let line = line.trim_ascii();
            if std::mem::take(&mut self.break_next) && line.is_empty() {
                continue;
            }
            if line.is_empty() {
                // After the last chunk, of size zero.
                self.over = true;
                continue;
            }
            let digits = std::str::from_utf8(line)?;
            self.left = usize::from_str_radix(digits, 16).context("a chunk without a size")?;
        }
        Ok(())
    }
}

fn find(data: &[u8], what: &[u8]) -> Option<usize> {
    data.windows(what.len()).position(|window| window == what)
}

/// The status code, and the length of the body.
fn head(bytes: &[u8]) -> anyhow::Result<(u16, Length)> {
    let text = std::str::from_utf8(bytes)?;
    let mut lines = text.split("\r\n");
    let code = lines.next().and_then(|line| line.get(9..12));
    let code = code.context("no status line")?.parse()?;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            bail!("a header without a colon");
        };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok((code, Length::Known(value.trim().parse()?)));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok((code, Length::Chunked(Chunks::default())));
        }
    }
    Ok((code, Length::Known(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed_however_they_are_split() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\nA\r\n012345678\n\r\n0\r\n\r\n";
        let known = b"HTTP/1.1 429 Too Many\r\na: b\r\nContent-Length: 4\r\n\r\nwait";
        for (wire, code, bytes, lines) in [(&chunked[..], 200, 13, 1), (&known[..], 429, 4, 0)] {
            for cut in 0..wire.len() {
                let mut answer = Answer {
                    counts_lines: true,
                    ..Answer::default()
                };
                answer.feed(&wire[..cut]).expect("well formed");
                assert!(!answer.is_complete(), "cut at {cut}");
                answer.feed(&wire[cut..]).expect("well formed");
                assert!(answer.is_complete(), "cut at {cut}");
                let seen = (answer.code, answer.bytes, answer.lines);
                assert_eq!(seen, (code, bytes, lines), "cut at {cut}");
                assert_eq!(answer.success().is_ok(), code == 200);
            }
        }
    }
}
