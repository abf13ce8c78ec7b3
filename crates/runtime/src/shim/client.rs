//! The daemon's side of a shim's socket: calls that wait for their replies, and notices that come
//! on their own.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{io::Interest, net::UnixStream, sync::oneshot};

use super::protocol::{Answer, Call, Exit, Held, Message, Request, VERSION};
use crate::{
    error::{Error, Result},
    wire::{Inbox, encode, send},
};

/// What a shim tells without being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A container has ended.
    Exited {
        /// Which.
        container: String,
        /// How.
        exit: Exit,
    },
    /// A process in a container has ended.
    ExecExited {
        /// Which.
        exec: String,
        /// How.
        exit: Exit,
    },
}

type Reply = (Result<Answer, String>, Option<OwnedFd>);

/// A connected shim. Clones share the connection.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    sandbox: String,
    stream: UnixStream,
    next: AtomicU64,
    /// Held while a frame is written, so that frames do not mix.
    writing: tokio::sync::Mutex<()>,
    /// Who waits for which reply; `None` once the connection is lost.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>,
}

impl Client {
    /// Connects and asks what the shim holds. The caller must run [`Client::listen`] at once, since
    /// replies are read there.
    pub async fn connect(sandbox: &str, socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(Error::file(socket))?;
        Ok(Self(Arc::new(Inner {
            sandbox: sandbox.to_owned(),
            stream,
            next: AtomicU64::new(1),
            writing: tokio::sync::Mutex::default(),
            waiting: Mutex::new(Some(HashMap::new())),
        })))
    }

    /// Reads until the shim is gone; every open call then fails.
    pub async fn listen(&self, mut notice: impl FnMut(Notice)) {
        let mut inbox = Inbox::default();
        while let Ok(true) = self.read(&mut inbox).await {
            loop {
                match inbox.take() {
                    Ok(Some(Message::Reply { id, result })) => self.settle(id, result, &mut inbox),
                    Ok(Some(Message::Exited { container, exit })) => {
                        notice(Notice::Exited { container, exit });
                    }
                    Ok(Some(Message::ExecExited { exec, exit })) => {
                        notice(Notice::ExecExited { exec, exit });
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(sandbox = self.0.sandbox, %error, "unreadable message of a shim");
                        return self.lose();
                    }
                }
            }
        }
        self.lose();
    }

    async fn read(&self, inbox: &mut Inbox) -> io::Result<bool> {
        let stream = &self.0.stream;
        let length = stream
            .async_io(Interest::READABLE, || inbox.fill(stream.as_fd()))
            .await?;
        Ok(length > 0)
    }

    fn settle(&self, id: u64, result: Result<Answer, String>, inbox: &mut Inbox) {
        let fd = match &result {
            Ok(Answer::Started { terminal: true, .. }) => inbox.fd().ok(),
            _ => None,
        };
        let waiting = self
            .0
            .waiting
            .lock()
            .as_mut()
            .and_then(|waiting| waiting.remove(&id));
        if let Some(sender) = waiting {
            let _ = sender.send((result, fd));
        }
    }

    fn lose(&self) {
        self.0.waiting.lock().take();
    }

    /// Makes a call, with descriptors, and waits for its answer.
    pub async fn call(&self, call: Call, fds: &[RawFd]) -> Result<(Answer, Option<OwnedFd>)> {
        let gone = || Error::ShimGone(self.0.sandbox.clone());
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.0
            .waiting
            .lock()
            .as_mut()
            .ok_or_else(gone)?
            .insert(id, sender);
        let frame = encode(&Request { id, call }).map_err(Error::system("encode a call"))?;
        self.write(&frame, fds).await.map_err(|_| gone())?;
        let (result, fd) = receiver.await.map_err(|_| gone())?;
        Ok((result.map_err(Error::Shim)?, fd))
    }

    async fn write(&self, frame: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let _writing = self.0.writing.lock().await;
        let stream = &self.0.stream;
        let mut sent = 0;
        while sent < frame.len() {
            let fds = if sent == 0 { fds } else { &[] };
            let write = || send(stream.as_fd(), &frame[sent..], fds);
            sent += stream.async_io(Interest::WRITABLE, write).await?;
        }
        Ok(())
    }

    /// What the shim holds.
    pub async fn hello(&self) -> Result<(i32, Vec<Held>)> {
        match self.call(Call::Hello { version: VERSION }, &[]).await?.0 {
            Answer::Hello {
                pid, containers, ..
            } => Ok((pid, containers)),
            other => Err(Error::Shim(format!("unexpected answer {other:?}"))),
        }
    }

    /// Makes a call that is only done or not.
    pub async fn ask(&self, call: Call) -> Result<()> {
        self.call(call, &[]).await.map(|_| ())
    }
}

/// The standard streams that a process in a container is given.
pub struct ExecStdio {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

impl ExecStdio {
    /// In the order of the protocol.
    pub fn raw(&self) -> [RawFd; 3] {
        [
            self.stdin.as_raw_fd(),
            self.stdout.as_raw_fd(),
            self.stderr.as_raw_fd(),
        ]
    }
}
