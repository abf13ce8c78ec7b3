//! HTTP/1.1 by hand: requests are ready-made bytes, answers are counted and not kept. The load
//! shares the machine's cores with the server, so every instruction here is one less there.

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// How much is read at a time.
const BUFFER: usize = 64 * 1024;
/// How much of a refusal is shown.
const SHOWN: usize = 400;

/// One connection; one request at a time.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    /// What has been read and not yet used.
    unread: std::ops::Range<usize>,
}

/// What the head of an answer says.
struct Head {
    code: u16,
    length: Length,
}

enum Length {
    Known(usize),
    Chunked,
}

/// Where a chunked body is.
#[derive(Default)]
struct Chunks {
    /// Bytes of the current chunk that are still to come.
    left: usize,
    /// The line of a chunk's size, as far as it has come.
    size: Vec<u8>,
    /// The line break behind a chunk is still to come.
    break_next: bool,
    over: bool,
}

impl Connection {
    pub fn new(stream: TlsStream<TcpStream>) -> Self {
        Self {
            stream,
            buffer: vec![0; BUFFER],
            unread: 0..0,
        }
    }

    /// Sends a request, checks that its answer is a success, and counts the body's bytes.
    pub async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<u64> {
        let (code, count, text) = self.answer(request).await?;
        ensure!((200..300).contains(&code), "{code}: {text}");
        Ok(count)
    }

    /// Sends a request and gives its answer's code.
    pub async fn code(&mut self, request: &[u8]) -> anyhow::Result<u16> {
        Ok(self.answer(request).await?.0)
    }

    async fn answer(&mut self, request: &[u8]) -> anyhow::Result<(u16, u64, String)> {
        let head = self.send(request).await?;
        let (mut count, mut text) = (0, Vec::new());
        let mut take = |data: &[u8]| {
            count += data.len() as u64;
            if head.code >= 300 && text.len() < SHOWN {
                text.extend_from_slice(&data[..data.len().min(SHOWN)]);
            }
        };
        match head.length {
            Length::Known(mut left) => loop {
                let some = self.unread.len().min(left);
                take(&self.buffer[self.unread.start..self.unread.start + some]);
                self.unread.start += some;
                left -= some;
                if left == 0 {
                    break;
                }
                self.fill().await?;
            },
            Length::Chunked => {
                let mut chunks = Chunks::default();
                while !chunks.over {
                    if self.unread.is_empty() {
                        self.fill().await?;
                    }
                    let used = chunks.feed(&self.buffer[self.unread.clone()], &mut take)?;
                    self.unread.start += used;
                }
            }
        }
        Ok((
            head.code,
            count,
            String::from_utf8_lossy(&text).into_owned(),
        ))
    }

    async fn send(&mut self, request: &[u8]) -> anyhow::Result<Head> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(end) = find(unread, b"\r\n\r\n") {
                let head = head(&unread[..end])?;
                self.unread.start += end + 4;
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// Reads more behind what is unread.
    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        ensure!(self.unread.end < self.buffer.len(), "an endless header");
        let count = self
            .stream
            .read(&mut self.buffer[self.unread.end..])
            .await?;
        ensure!(count > 0, "the server hung up");
        self.unread.end += count;
        Ok(())
    }

    /// Begins a watch.
    pub async fn watch(mut self, request: &[u8]) -> anyhow::Result<Watch> {
        let head = self.send(request).await?;
        ensure!(head.code == 200, "watch: {}", head.code);
        ensure!(matches!(head.length, Length::Chunked), "not a stream");
        // A thousand of them wait: small buffers do.
        self.buffer.truncate(8 * 1024);
        self.buffer.shrink_to_fit();
        Ok(Watch {
            connection: self,
            chunks: Chunks::default(),
        })
    }
}

/// A watch; its events are lines.
pub struct Watch {
    connection: Connection,
    chunks: Chunks,
}

impl Watch {
    /// Waits until this many lines more have come; gives the count of bytes.
    pub async fn lines(&mut self, mut wanted: usize) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let connection = &mut self.connection;
        while wanted > 0 {
            if connection.unread.is_empty() {
                connection.fill().await?;
            }
            let unread = &connection.buffer[connection.unread.clone()];
            let used = self.chunks.feed(unread, &mut |data| {
                bytes += data.len() as u64;
                let lines = data.iter().filter(|byte| **byte == b'\n').count();
                wanted = wanted.saturating_sub(lines);
            })?;
            connection.unread.start += used;
            ensure!(!self.chunks.over, "the watch ended");
        }
        Ok(bytes)
    }
}

impl Chunks {
    /// Takes what is there; gives how much of it belonged to the body.
    fn feed(&mut self, data: &[u8], take: &mut impl FnMut(&[u8])) -> anyhow::Result<usize> {
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
                // Behind the last chunk, whose size is none.
                self.over = true;
                continue;
            }
            let digits = std::str::from_utf8(line)?;
            self.left = usize::from_str_radix(digits, 16).context("a chunk without a size")?;
        }
        Ok(at)
    }
}

fn find(data: &[u8], what: &[u8]) -> Option<usize> {
    data.windows(what.len()).position(|window| window == what)
}

fn head(bytes: &[u8]) -> anyhow::Result<Head> {
    let text = std::str::from_utf8(bytes)?;
    let mut lines = text.split("\r\n");
    let code = lines.next().and_then(|line| line.get(9..12));
    let code = code.context("no status line")?.parse()?;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            bail!("a header without a colon");
        };
        if name.eq_ignore_ascii_case("content-length") {
            let length = Length::Known(value.trim().parse()?);
            return Ok(Head { code, length });
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            let length = Length::Chunked;
            return Ok(Head { code, length });
        }
    }
    let length = Length::Known(0);
    Ok(Head { code, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together_wherever_they_are_cut() {
        let wire = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\nHTTP/1.1";
        for cut in 0..wire.len() {
            let (mut chunks, mut body, mut used) = (Chunks::default(), Vec::new(), 0);
            for part in [&wire[..cut], &wire[cut..]] {
                used += chunks
                    .feed(part, &mut |data| body.extend_from_slice(data))
                    .expect("well formed");
            }
            assert_eq!(body, b"abc0123456789", "cut at {cut}");
            assert!(chunks.over && used >= wire.len() - 8, "cut at {cut}");
        }
    }

    #[test]
    fn a_head_tells_the_code_and_the_length() {
        let head = head(b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\na: b").expect("a head");
        assert!(head.code == 201 && matches!(head.length, Length::Known(12)));
    }
}
