//! Keeps the server's sockets open while the daemon is away. A small process of its own holds copies of them and
//! gives them to the next daemon: questions that come meanwhile wait in the sockets and are answered after the restart.
//!
//! The holder reads nothing from the sockets. It ends when no daemon has come for [`PATIENCE`]: from then on clients
//! are refused at once instead of waiting.

use std::{
    ffi::OsStr,
    fs,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
    },
    process::{Signal, getpid, kill_process},
};

/// The name that the holder is started under.
const NAME: &str = "mainstay:dns-sockets";
/// How long the sockets are held without a daemon.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// How long the other side may take.
const ANSWER: Duration = Duration::from_secs(2);

/// A message with a socket, and the one after the last socket.
const SOCKET: u8 = b's';
const END: u8 = b'e';

/// Runs the holder if this process was started as one. Must be called early in `main`.
pub fn dispatch() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let run = || hold(io::stdin().as_fd().try_clone_to_owned()?.into(), PATIENCE);
    (name == OsStr::new(NAME)).then(|| match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Ends the holder that listens at this path, if there is one.
pub fn end(path: &Path) -> io::Result<()> {
    if let Ok(stream) = UnixStream::connect(path) {
        end_process(&stream)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A connection to the holder.
pub(crate) struct Holder {
    stream: UnixStream,
    /// The process, when it is a child of this one.
    child: Option<Child>,
}

impl Holder {
    /// What is held at this path. A holder is started when none is there.
    pub(crate) fn take(path: &Path) -> io::Result<(Self, Vec<OwnedFd>)> {
        let Ok(stream) = UnixStream::connect(path) else {
            return Self::start(path);
        };
        let child = None;
        match take(&stream) {
            Ok(held) => Ok((Self { stream, child }, held)),
            Err(_) => {
                // As long as it lives it gets a share of the questions.
                end_process(&stream)?;
                Self::start(path)
            }
        }
    }

    fn start(path: &Path) -> io::Result<(Self, Vec<OwnedFd>)> {
        let _ = fs::remove_file(path);
        let listener = OwnedFd::from(UnixListener::bind(path)?);
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .env_clear()
            .current_dir("/")
            // Signals of a terminal are for the daemon.
            .process_group(0)
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let stream = UnixStream::connect(path)?;
        let held = take(&stream)?;
        let child = Some(child);
        Ok((Self { stream, child }, held))
    }

    /// Replaces what is held.
    pub(crate) fn give(&self, sockets: &[OwnedFd]) -> io::Result<()> {
        send_all(&self.stream, sockets)
    }

    /// Waits until the holder has ended.
    pub(crate) async fn ended(self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(self.stream)?;
        // It says nothing on its own: this is the end of the stream.
        stream.readable().await?;
        if let Some(mut child) = self.child {
            child.wait()?;
        }
        Ok(())
    }
}

fn end_process(stream: &UnixStream) -> io::Result<()> {
    let pid = socket_peercred(stream)?.pid;
    if pid == getpid() {
        return Ok(());
    }
    let killed = kill_process(pid, Signal::KILL);
    // Its sockets are closed before its end of the stream is.
    let _ = stream.set_read_timeout(Some(ANSWER));
    let _ = (&*stream).read_to_end(&mut Vec::new());
    Ok(killed?)
}

/// The holder's whole life.
fn hold(listener: UnixListener, patience: Timespec) -> io::Result<()> {
    // From now on clients see the identity of this process.
    rustix::net::listen(&listener, 8)?;
    let mut held = Vec::new();
    loop {
        let mut waited = [PollFd::new(&listener, PollFlags::IN)];
        match poll(&mut waited, Some(&patience)) {
            Ok(0) => return Ok(()),
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        let (stream, _) = listener.accept()?;
        // A daemon that dies in the middle has changed nothing.
        let _ = converse(&stream, &mut held);
    }
}

/// Gives what is held and takes what comes, until the daemon is gone.
fn converse(stream: &UnixStream, held: &mut Vec<OwnedFd>) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER))?;
    send_all(stream, held)?;
    loop {
        *held = receive_all(stream)?;
    }
}

fn take(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    receive_all(stream)
}

fn send_all(mut stream: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    for socket in sockets {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        let parts = [IoSlice::new(&[SOCKET])];
        sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
    }
    stream.write_all(&[END])
}

fn receive_all(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    loop {
        let mut message = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut message)];
        let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(given) = ancillary {
                sockets.extend(given);
            }
        }
        match (received.bytes, message[0]) {
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, END) => return Ok(sockets),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, thread};

    use super::*;

    const SHORT: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };

    fn holder(path: &Path, patience: Timespec) -> thread::JoinHandle<io::Result<()>> {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || hold(listener, patience))
    }

    #[test]
    fn a_question_that_came_while_nobody_listened_is_read_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sockets");
        holder(&path, PATIENCE);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (first, held) = Holder::take(&path).unwrap();
        assert!(held.is_empty());
        first.give(&[socket.into()]).unwrap();
        // A daemon that dies while it gives changes nothing.
        (&first.stream).write_all(&[SOCKET]).unwrap();
        drop(first);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"?", address).unwrap();
        let (_second, held) = Holder::take(&path).unwrap();
        let [socket] = <[OwnedFd; 1]>::try_from(held).unwrap();
        let socket = UdpSocket::from(socket);
        assert_eq!(socket.local_addr().unwrap(), address);
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
    }

    #[test]
    fn sockets_are_not_held_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sockets");
        holder(&path, SHORT).join().unwrap().unwrap();
        assert!(UnixStream::connect(&path).is_err());
        end(&path).unwrap();
        assert!(!path.exists());
        end(&path).unwrap();
    }
}
