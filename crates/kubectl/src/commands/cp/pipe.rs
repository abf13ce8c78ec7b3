//! A bounded pipe between the streams of a connection and code that reads or writes files.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

/// Chunks in a pipe. A chunk is at most one frame of the connection.
const CHUNKS: usize = 16;
/// Bytes that are collected before they are sent.
const CHUNK: usize = 32 * 1024;

pub(super) fn chunks() -> (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>) {
    mpsc::channel(CHUNKS)
}

/// The reading end, for threads that may block.
pub(super) struct ChunkReader {
    chunks: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl ChunkReader {
    pub(super) fn new(chunks: mpsc::Receiver<Bytes>) -> Self {
        Self {
            chunks,
            current: Bytes::new(),
        }
    }
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = chunk,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// The writing end, for threads that may block.
pub(super) struct ChunkWriter(io::BufWriter<Sending>);

struct Sending(mpsc::Sender<Bytes>);

impl ChunkWriter {
    pub(super) fn new(chunks: mpsc::Sender<Bytes>) -> Self {
        Self(io::BufWriter::with_capacity(CHUNK, Sending(chunks)))
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Write for Sending {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let chunk = Bytes::copy_from_slice(buffer);
        match self.0.blocking_send(chunk) {
            Ok(()) => Ok(buffer.len()),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
