//! The daemon's side of a shim's socket: calls with replies, and notices.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{io::Interest, net::UnixStream, sync::oneshot};

use super::protocol::{Answer, Call, Exit, HeldContainer, Message, Request, VERSION};
use crate::{
    error::{Error, Result},
    wire::{Inbox, encode, send},
};

/// A message that a shim sends without a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A container has ended.
    Exited {
        /// The container's id.
        container: String,
        /// Its exit status.
        exit: Exit,
    },
    /// A process in a container has ended.
    ExecExited {
        /// The process' id.
        exec: String,
        /// Its exit status.
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
    /// The shim's protocol version; the oldest until it is known.
    version: AtomicU32,
    next: AtomicU64,
    /// Held while a frame is written, so that frames do not interleave.
    writing: tokio::sync::Mutex<()>,
    /// Receivers of replies by call id; `None` once the connection is lost.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>,
}

impl Client {
    /// Connects and asks for the shim's containers. The caller must run [`Client::listen`] at once,
    /// which reads the replies.
    pub async fn connect(sandbox: &str, socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(Error::file(socket))?;
        Ok(Self(Arc::new(Inner {
            sandbox: sandbox.to_owned(),
            stream,
            version: AtomicU32::new(1),
            next: AtomicU64::new(1),
            writing: tokio::sync::Mutex::default(),
            waiting: Mutex::new(Some(HashMap::new())),
        })))
    }

    /// Reads until the shim is gone; pending calls then fail.
    pub async fn listen(&self, mut notice: impl FnMut(Notice)) {
        let mut inbox = Inbox::default();
        while let Ok(true) = self.read(&mut inbox).await {
            loop {
                match inbox.take::<serde_json::Value>() {
                    Ok(Some(message)) => match serde_json::from_value(message) {
                        Ok(message) => self.take(message, &mut inbox, &mut notice),
                        // A newer shim may send unknown messages.
                        Err(error) => {
                            tracing::debug!(sandbox = self.0.sandbox, %error, "unknown message of a shim");
                        }
                    },
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

    fn take(&self, message: Message, inbox: &mut Inbox, notice: &mut impl FnMut(Notice)) {
        match message {
            Message::Reply { id, result } => self.complete(id, result, inbox),
            Message::Exited { container, exit } => notice(Notice::Exited { container, exit }),
            Message::ExecExited { exec, exit } => notice(Notice::ExecExited { exec, exit }),
        }
    }

    async fn read(&self, inbox: &mut Inbox) -> io::Result<bool> {
        let stream = &self.0.stream;
        let length = stream
            .async_io(Interest::READABLE, || inbox.fill(stream.as_fd()))
            .await?;
        Ok(length > 0)
    }

    fn complete(&self, id: u64, result: Result<Answer, String>, inbox: &mut Inbox) {
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

    /// Makes a call, with descriptors, and waits for its reply.
    pub async fn call(&self, call: Call, fds: &[RawFd]) -> Result<(Answer, Option<OwnedFd>)> {
        let gone = || Error::ShimGone(self.0.sandbox.clone());
        let version = self.version();
        if call.since() > version {
            return Err(Error::Shim(format!(
                "the pod's shim has version {version} and does not support this call"
            )));
        }
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

    /// The shim's protocol version.
    pub fn version(&self) -> u32 {
        self.0.version.load(Ordering::Relaxed)
    }

    /// The shim's pid and containers.
    pub async fn hello(&self) -> Result<(i32, Vec<HeldContainer>)> {
        match self.call(Call::Hello { version: VERSION }, &[]).await?.0 {
            Answer::Hello {
                version,
                pid,
                containers,
            } => {
                self.0.version.store(version, Ordering::Relaxed);
                Ok((pid, containers))
            }
            other => Err(Error::Shim(format!("unexpected answer {other:?}"))),
        }
    }

    /// Makes a call without a result.
    pub async fn ask(&self, call: Call) -> Result<()> {
        self.call(call, &[]).await.map(|_| ())
    }
}

/// The standard streams of an exec process.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::{UnixListener, UnixStream as Stream},
    };

    use super::*;

    fn read(stream: &mut Stream) -> String {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut text = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn write(stream: &mut Stream, text: &str) {
        let length = u32::try_from(text.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
    }

    /// A shim of protocol version 1: its messages are literals, so that they cannot change with the
    /// code.
    fn old_shim(listener: &UnixListener) {
        let (mut daemon, _) = listener.accept().unwrap();
        let hello = read(&mut daemon);
        assert!(hello.starts_with(r#"{"id":1,"call":{"hello":{"version":"#));
        let held = r#"{"id":"c","pid":5,"started_at":9,"exit":null}"#;
        let hello = format!(r#"{{"hello":{{"version":1,"pid":77,"containers":[{held}]}}}}"#);
        write(
            &mut daemon,
            &format!(r#"{{"reply":{{"id":1,"result":{{"Ok":{hello}}}}}}}"#),
        );
        let signal = r#"{"id":2,"call":{"signal":{"container":"c","signal":15,"all":false}}}"#;
        assert_eq!(read(&mut daemon), signal);
        write(&mut daemon, r#"{"reply":{"id":2,"result":{"Ok":"done"}}}"#);
        // An unknown message, as of a later version.
        write(&mut daemon, r#"{"weather":{"rain":true}}"#);
        let exit = r#"{"code":143,"oom":false,"finished_at":12}"#;
        write(
            &mut daemon,
            &format!(r#"{{"exited":{{"container":"c","exit":{exit}}}}}"#),
        );
    }

    #[tokio::test]
    async fn a_shim_of_the_first_version_is_still_spoken_to() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("shim.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let shim = std::thread::spawn(move || old_shim(&listener));
        let client = Client::connect("pod", &socket).await.unwrap();
        let (notices, mut noticed) = tokio::sync::mpsc::unbounded_channel();
        let listening = client.clone();
        let listener = tokio::spawn(async move {
            listening
                .listen(move |notice| notices.send(notice).unwrap())
                .await;
        });
        let (pid, held) = client.hello().await.unwrap();
        assert_eq!((pid, held[0].id.as_str(), held[0].pid), (77, "c", 5));
        let signal = Call::Signal {
            container: "c".into(),
            signal: 15,
            all: false,
        };
        client.ask(signal).await.unwrap();
        let exit = Exit {
            code: 143,
            oom: false,
            finished_at: 12,
        };
        let container = "c".to_owned();
        assert_eq!(
            noticed.recv().await,
            Some(Notice::Exited { container, exit })
        );
        listener.await.unwrap();
        shim.join().unwrap();
        assert!(matches!(
            client.ask(Call::Shutdown).await,
            Err(Error::ShimGone(_))
        ));
    }
}
