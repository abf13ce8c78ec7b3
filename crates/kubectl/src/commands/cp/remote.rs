//! Programs in a container, with their streams connected to files.

use std::io;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::Value;
use streaming::{CONNECTION_ENDED, ExitStatus, StreamReader, client::Exec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use super::pipe::{self, ChunkReader, ChunkWriter};
use crate::{session::Session, streams};

/// Maximum bytes of a program's error output that are kept.
const MAX_ERRORS: u64 = 1 << 20;

/// A container to copy to or from.
pub(super) struct Remote<'a> {
    pub(super) session: &'a Session,
    pub(super) pod: Value,
    pub(super) container: String,
}

/// How a program ended, and its standard error.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) errors: String,
}

impl Ended {
    /// Whether the connection ended before the program.
    pub(super) fn is_disconnected(&self) -> bool {
        matches!(&self.status, ExitStatus::Failed(message) if message == CONNECTION_ENDED)
    }
}

impl Remote<'_> {
    async fn start(&self, command: &[&str], stdin: bool) -> Result<Exec> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        streams::exec(self.session, &self.pod, &self.container, &command, stdin).await
    }

    pub(super) async fn is_directory(&self, path: &str) -> bool {
        let ended = self
            .receive(&["test", "-d", path], |mut output: ChunkReader| {
                Ok(io::copy(&mut output, &mut io::sink())?)
            })
            .await;
        ended.is_ok_and(|(ended, _)| ended.status == ExitStatus::Code(0))
    }

    /// Runs a program; `consume` reads its output on another thread.
    pub(super) async fn receive<T: Send + 'static>(
        &self,
        command: &[&str],
        consume: impl FnOnce(ChunkReader) -> Result<T> + Send + 'static,
    ) -> Result<(Ended, Result<T>)> {
        let (sender, chunks) = pipe::chunks();
        let consuming = tokio::task::spawn_blocking(move || consume(ChunkReader::new(chunks)));
        let ended = self.output(command, &sender, &mut 0).await?;
        drop(sender);
        Ok((ended, consuming.await.context("the reader of the output")?))
    }

    /// Runs `tar cf - SOURCE`; `consume` reads the archive on another thread. If the connection
    /// ends, tar is run again and the copy continues where it was.
    pub(super) async fn receive_archive<T: Send + 'static>(
        &self,
        source: &str,
        retries: i64,
        consume: impl FnOnce(ChunkReader) -> Result<T> + Send + 'static,
    ) -> Result<(Ended, Result<T>)> {
        if retries == 0 {
            return self.receive(&["tar", "cf", "-", source], consume).await;
        }
        let (sender, chunks) = pipe::chunks();
        let consuming = tokio::task::spawn_blocking(move || consume(ChunkReader::new(chunks)));
        let (mut received, mut retry) = (0, 0);
        let ended = loop {
            let script = format!("tar cf - {} | tail -c+{}", quoted(source), received + 1);
            let ended = self
                .output(&["sh", "-c", &script], &sender, &mut received)
                .await;
            let is_cut_off = match &ended {
                Ok(ended) => ended.is_disconnected() && !sender.is_closed(),
                Err(_) => true,
            };
            if !is_cut_off {
                break ended?;
            }
            if retries >= 0 && retry >= retries {
                println!("Dropping out copy after {retry} retries");
                break ended?;
            }
            retry += 1;
            println!("Resuming copy at {received} bytes, retry {retry}/{retries}");
        };
        drop(sender);
        Ok((ended, consuming.await.context("the reader of the output")?))
    }

    /// Runs a program and sends its output until the receiver is dropped; counts the bytes.
    async fn output(
        &self,
        command: &[&str],
        into: &mpsc::Sender<Bytes>,
        received: &mut u64,
    ) -> Result<Ended> {
        let mut exec = self.start(command, false).await?;
        let (stdout, stderr) = (exec.stdout.take(), exec.stderr.take());
        let pass_on = async {
            let mut stdout = stdout;
            while let Some(stdout) = stdout.as_mut()
                && let Some(chunk) = stdout.chunk().await
            {
                let length = chunk.len() as u64;
                if into.send(chunk).await.is_err() {
                    break;
                }
                *received += length;
            }
        };
        let (mut is_closed, mut result) = (false, (ExitStatus::Code(0), String::new()));
        let all = async { tokio::join!(pass_on, read(stderr), exec.status()) };
        tokio::select! {
            ((), errors, status) = all => result = (status, errors),
            () = into.closed() => is_closed = true,
        }
        // The error of the receiver is the one to report.
        if !is_closed {
            exec.close().await;
        }
        let (status, errors) = result;
        Ok(Ended { status, errors })
    }

    /// Runs a program; `produce` writes its input on another thread. What the program prints is
    /// printed.
    pub(super) async fn send(
        &self,
        command: &[&str],
        produce: impl FnOnce(ChunkWriter) -> Result<()> + Send + 'static,
    ) -> Result<Ended> {
        let mut exec = self.start(command, true).await?;
        let (sender, mut chunks) = pipe::chunks();
        let producing = tokio::task::spawn_blocking(move || produce(ChunkWriter::new(sender)));
        let stdin = exec.stdin.take();
        let pass_on = async move {
            let mut stdin = stdin.context("no standard input")?;
            while let Some(chunk) = chunks.recv().await {
                if stdin.write_all(&chunk).await.is_err() {
                    // The program has ended; its status says why.
                    return Ok(());
                }
            }
            // A file that cannot be read must not look like the end of the archive.
            producing.await.context("the writer of the input")??;
            let _ = stdin.shutdown().await;
            anyhow::Ok(())
        };
        let (stdout, stderr) = (exec.stdout.take(), exec.stderr.take());
        let (status, errors) = {
            let ended = async { tokio::join!(read(stdout), read(stderr), exec.status()) };
            tokio::pin!(ended);
            let (output, errors, status) = tokio::select! {
                biased;
                ended = &mut ended => ended,
                passed_on = pass_on => {
                    passed_on?;
                    ended.await
                }
            };
            print!("{output}");
            (status, errors)
        };
        exec.close().await;
        Ok(Ended { status, errors })
    }
}

/// Reads to the end, and keeps the beginning.
async fn read(from: Option<StreamReader>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = (&mut from).take(MAX_ERRORS).read_to_end(&mut bytes).await;
        while from.chunk().await.is_some() {}
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A word for a shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
