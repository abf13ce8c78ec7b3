//! Tests with a fake D-Bus and logind in a thread.

use std::{
    io::{IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use dbus::message::{Builder, Message, Reader};

use super::*;

/// A bus with a logind whose delay is `delay` seconds until its configuration is reloaded.
struct FakeBus {
    stream: UnixStream,
    received: Vec<u8>,
    delay: u64,
    overrides: std::path::PathBuf,
    calls: Vec<String>,
}

impl FakeBus {
    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..end + 2).collect();
                return String::from_utf8_lossy(&line).trim().to_owned();
            }
            self.receive();
        }
    }

    fn receive(&mut self) -> bool {
        let mut buffer = [0; 1024];
        let count = self.stream.read(&mut buffer).unwrap_or(0);
        self.received.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// The next call: its serial and member.
    fn call(&mut self) -> Option<(u32, String)> {
        loop {
            if self.received.len() >= 16 {
                let length = Reader::length(&self.received).unwrap();
                if self.received.len() >= length {
                    let bytes: Vec<u8> = self.received.drain(..length).collect();
                    let serial = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                    return Some((serial, Message::read(&bytes).unwrap().member));
                }
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// Answers calls up to and including `until`.
    fn serve(&mut self, until: &str) {
        while let Some((serial, member)) = self.call() {
            self.calls.push(member.clone());
            let (arguments, descriptors): (&[Argument], u32) = match member.as_str() {
                "Get" => (&[Argument::VariantU64(self.delay * 1_000_000)], 0),
                "Inhibit" => (&[Argument::Descriptor], 1),
                "KillUnit" => {
                    let text = std::fs::read_to_string(self.overrides.join("99-kubelet.conf"));
                    let seconds = text.unwrap();
                    let seconds = seconds.trim().rsplit('=').next().unwrap();
                    self.delay = seconds.parse().unwrap();
                    (&[], 0)
                }
                _ => (&[], 0),
            };
            let bytes = Builder::answer(serial, arguments, descriptors).finish(serial);
            self.send(&bytes, descriptors > 0);
            if member == until {
                return;
            }
        }
    }

    fn send(&mut self, bytes: &[u8], with_descriptor: bool) {
        if !with_descriptor {
            return self.stream.write_all(bytes).unwrap();
        }
        let (lock, _other) = rustix::pipe::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [lock.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.stream, &parts, &mut control, SendFlags::empty()).unwrap();
    }

    fn prepare_for_shutdown(&mut self, begins: bool) {
        let signal = Call {
            member: "PrepareForShutdown",
            ..LOGIND
        };
        let bytes = Builder::signal(&signal, &[Argument::Bool(begins)]).finish(1000);
        self.stream.write_all(&bytes).unwrap();
    }
}

#[tokio::test]
async fn the_delay_is_raised_the_inhibitor_taken_and_the_shutdown_signal_received() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("bus");
    let overrides = dir.path().join("logind.conf.d");
    let listener = UnixListener::bind(&socket).unwrap();
    let of_bus = overrides.clone();
    let bus = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut bus = FakeBus {
            stream,
            received: Vec::new(),
            delay: 5,
            overrides: of_bus,
            calls: Vec::new(),
        };
        assert!(bus.line().starts_with("\0AUTH EXTERNAL "));
        bus.stream.write_all(b"OK 1234\r\n").unwrap();
        assert_eq!(bus.line(), "NEGOTIATE_UNIX_FD");
        bus.stream.write_all(b"AGREE_UNIX_FD\r\n").unwrap();
        assert_eq!(bus.line(), "BEGIN");
        bus.serve("AddMatch");
        bus.prepare_for_shutdown(true);
        bus.prepare_for_shutdown(false);
        bus.calls
    });
    let mut client = Bus::connect(&socket).await.unwrap();
    let session = Session::open(&mut client, Duration::from_secs(30), &overrides)
        .await
        .unwrap();
    assert!(session.lock.is_some());
    assert_eq!(next(&mut client).await.unwrap(), Some(true));
    assert_eq!(next(&mut client).await.unwrap(), Some(false));
    assert_eq!(next(&mut client).await.unwrap(), None);
    let calls = bus.join().unwrap();
    assert_eq!(
        calls,
        ["Hello", "Get", "KillUnit", "Get", "Inhibit", "AddMatch"]
    );
}
