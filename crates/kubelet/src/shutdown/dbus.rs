//! A minimal D-Bus client over a Unix socket: calls methods and receives signals, with file
//! descriptors.

use std::{collections::VecDeque, io::IoSliceMut, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::UnixStream,
};

use dbus::message::{Builder, Message, Reader};
pub(super) use dbus::{
    Call, Error,
    message::{Argument, Value},
};

/// The maximum message size.
const MAX_MESSAGE: usize = 1 << 20;
/// The maximum number of signals that are queued while a call waits for its reply.
const MAX_PENDING: usize = 64;

/// A reply or a signal.
#[derive(Debug)]
pub(super) struct Answer {
    pub member: String,
    pub values: Vec<Value>,
    pub descriptors: Vec<OwnedFd>,
}

/// A connection to a bus.
pub(super) struct Bus {
    stream: UnixStream,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    serial: u32,
    pending: VecDeque<Answer>,
}

impl Bus {
    /// Connects and authenticates as the process' user.
    pub(super) async fn connect(socket: &Path) -> Result<Self, Error> {
        let mut bus = Self::over(UnixStream::connect(socket).await?);
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        bus.stream.write_all(b"\0").await?;
        bus.exchange_line(&format!("AUTH EXTERNAL {hex}"), "OK ")
            .await?;
        bus.exchange_line("NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD")
            .await?;
        bus.stream.write_all(b"BEGIN\r\n").await?;
        bus.call_bus("Hello", &[]).await?;
        Ok(bus)
    }

    fn over(stream: UnixStream) -> Self {
        Self {
            stream,
            received: Vec::new(),
            descriptors: VecDeque::new(),
            serial: 0,
            pending: VecDeque::new(),
        }
    }

    async fn exchange_line(&mut self, line: &str, expected: &str) -> Result<(), Error> {
        self.stream
            .write_all(format!("{line}\r\n").as_bytes())
            .await?;
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return match line.starts_with(expected.as_bytes()) {
                    true => Ok(()),
                    false => Err(Error::Protocol("D-Bus rejected the authentication")),
                };
            }
            if self.received.len() > 4096 || !self.receive().await? {
                return Err(Error::Protocol("D-Bus did not confirm the authentication"));
            }
        }
    }

    /// Subscribes to signals that match a rule.
    pub(super) async fn add_match(&mut self, rule: &str) -> Result<(), Error> {
        self.call_bus("AddMatch", &[Argument::Text(rule)]).await
    }

    async fn call_bus(&mut self, member: &str, arguments: &[Argument<'_>]) -> Result<(), Error> {
        let call = Call {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member,
        };
        self.call(&call, arguments).await?;
        Ok(())
    }

    /// Calls a method and waits for its reply.
    pub(super) async fn call(
        &mut self,
        call: &Call<'_>,
        arguments: &[Argument<'_>],
    ) -> Result<Answer, Error> {
        self.serial += 1;
        let serial = self.serial;
        let bytes = Builder::call(call, arguments).finish(serial);
        self.stream.write_all(&bytes).await?;
        loop {
            let message = self.message().await?;
            let message = message.ok_or(Error::Protocol("D-Bus closed the connection"))?;
            if message.is_signal() {
                if self.pending.len() < MAX_PENDING {
                    let answer = self.answer(message);
                    self.pending.push_back(answer);
                }
                continue;
            }
            if message.reply_to != Some(serial) {
                continue;
            }
            let message = message.into_answer()?;
            return Ok(self.answer(message));
        }
    }

    /// The next signal; `None` when the bus has closed the connection.
    pub(super) async fn signal(&mut self) -> Result<Option<Answer>, Error> {
        if let Some(signal) = self.pending.pop_front() {
            return Ok(Some(signal));
        }
        while let Some(message) = self.message().await? {
            if message.is_signal() {
                return Ok(Some(self.answer(message)));
            }
        }
        Ok(None)
    }

    fn answer(&mut self, message: Message) -> Answer {
        let count = usize::try_from(message.descriptors).unwrap_or(0);
        let count = count.min(self.descriptors.len());
        Answer {
            member: message.member,
            values: message.values,
            descriptors: self.descriptors.drain(..count).collect(),
        }
    }

    async fn message(&mut self) -> Result<Option<Message>, Error> {
        loop {
            let mut needed = 16;
            if self.received.len() >= needed {
                needed = Reader::length(&self.received)?;
                if needed > MAX_MESSAGE {
                    return Err(Error::Protocol("D-Bus message too large"));
                }
                if self.received.len() >= needed {
                    let bytes: Vec<u8> = self.received.drain(..needed).collect();
                    return Message::read(&bytes).map(Some);
                }
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// Reads what the socket has; false at its end.
    async fn receive(&mut self) -> Result<bool, Error> {
        let mut buffer = [0; 4096];
        let (count, descriptors) = self
            .stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
                let received = recvmsg(&self.stream, &mut parts, &mut control, flags)?;
                let mut descriptors = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(given) = message {
                        descriptors.extend(given);
                    }
                }
                Ok((received.bytes, descriptors))
            })
            .await?;
        self.received.extend_from_slice(&buffer[..count]);
        self.descriptors.extend(descriptors);
        Ok(count > 0)
    }
}
