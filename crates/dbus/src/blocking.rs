//! A client that blocks: calls methods and receives signals.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::{
    Call, Error,
    message::{Argument, Builder, Message, Reader},
};

/// How long the other side may take to send anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum message size.
const MAX_MESSAGE: usize = 1 << 20;
/// The maximum number of signals that are queued while a call waits for its reply.
const MAX_PENDING: usize = 4096;
const BUS: Call<'static> = Call {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    member: "",
};

/// What is at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A message bus, which passes messages on to services.
    Bus,
    /// A service itself.
    Service,
}

/// A connection.
pub struct Bus {
    stream: UnixStream,
    peer: Peer,
    received: Vec<u8>,
    serial: u32,
    pending: VecDeque<Message>,
}

impl Bus {
    /// Connects and authenticates as the process' user.
    pub fn connect(socket: &Path, peer: Peer) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut bus = Self {
            stream,
            peer,
            received: Vec::new(),
            serial: 0,
            pending: VecDeque::new(),
        };
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        // In one piece: if a call directly follows BEGIN, systemd may read both at once and then
        // does not look at the call until more arrives.
        let lines = format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n");
        bus.stream.write_all(lines.as_bytes())?;
        if !bus.line()?.starts_with(b"OK ") {
            return Err(Error::Protocol("D-Bus rejected the authentication"));
        }
        if peer == Peer::Bus {
            let hello = Call {
                member: "Hello",
                ..BUS
            };
            bus.call(&hello, &[])?;
        }
        Ok(bus)
    }

    /// Receives signals that match a rule. A service sends its signals in any case.
    pub fn add_match(&mut self, rule: &str) -> Result<(), Error> {
        if self.peer == Peer::Service {
            return Ok(());
        }
        let add = Call {
            member: "AddMatch",
            ..BUS
        };
        self.call(&add, &[Argument::Text(rule)])?;
        Ok(())
    }

    /// Calls a method and waits for its reply.
    pub fn call(&mut self, call: &Call<'_>, arguments: &[Argument<'_>]) -> Result<Message, Error> {
        self.serial += 1;
        let serial = self.serial;
        let mut call = *call;
        if self.peer == Peer::Service {
            // systemd ignores calls with a destination on its own socket.
            call.destination = "";
        }
        let bytes = Builder::call(&call, arguments).finish(serial);
        self.stream.write_all(&bytes)?;
        loop {
            let message = self.message()?;
            if message.is_signal() {
                if self.pending.len() < MAX_PENDING {
                    self.pending.push_back(message);
                }
            } else if message.reply_to == Some(serial) {
                return message.into_answer();
            }
        }
    }

    /// Waits for the next signal.
    pub fn signal(&mut self) -> Result<Message, Error> {
        if let Some(signal) = self.pending.pop_front() {
            return Ok(signal);
        }
        loop {
            let message = self.message()?;
            if message.is_signal() {
                return Ok(message);
            }
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                return Ok(self.received.drain(..end + 2).collect());
            }
            if self.received.len() > 4096 {
                return Err(Error::Protocol("D-Bus did not confirm the authentication"));
            }
            self.receive()?;
        }
    }

    fn message(&mut self) -> Result<Message, Error> {
        loop {
            if self.received.len() >= 16 {
                let needed = Reader::length(&self.received)?;
                if needed > MAX_MESSAGE {
                    return Err(Error::Protocol("D-Bus message too large"));
                }
                if self.received.len() >= needed {
                    let bytes: Vec<u8> = self.received.drain(..needed).collect();
                    return Message::read(&bytes);
                }
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer)? {
            0 => Err(Error::Protocol("D-Bus closed the connection")),
            count => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    }
}
