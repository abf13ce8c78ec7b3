//! Keeps the DNS server's sockets open while the daemon restarts. A small separate process, the holder, has duplicates
//! of the sockets and passes them to the next daemon. Queries that arrive in between wait in the sockets' buffers and
//! are answered after the restart.
//!
//! The holder never reads from the sockets. It exits when no daemon has connected for [`PATIENCE`]; after that the
//! kernel refuses queries at once, so clients do not wait for a timeout.

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

/// `argv[0]` of the holder process.
const NAME: &str = "mainstay:dns-sockets";
/// How long the holder waits for a daemon before it exits.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// The timeout of reads and writes between daemon and holder.
const ANSWER: Duration = Duration::from_secs(2);

/// The byte of a message that carries a socket, and the byte that ends a list of sockets.
const SOCKET: u8 = b's';
const END: u8 = b'e';

/// Runs the holder if this process was started as one. Call it early in `main`.
pub fn dispatch() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let run = || hold(io::stdin().as_fd().try_clone_to_owned()?.into(), PATIENCE);
    (name == OsStr::new(NAME)).then(|| match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Kills the holder that listens at this path, if there is one, and removes its socket.
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
    /// The holder process, if this process started it.
    child: Option<Child>,
}

impl Holder {
    /// Connects to the holder at this path and receives its sockets. Starts a holder if none is running.
    pub(crate) fn take(path: &Path) -> io::Result<(Self, Vec<OwnedFd>)> {
        let Ok(stream) = UnixStream::connect(path) else {
            return Self::start(path);
        };
        let child = None;
        match take(&stream) {
            Ok(held) => Ok((Self { stream, child }, held)),
            Err(_) => {
                // A holder that does not respond still has the sockets, so the kernel would give it a share of the
                // queries.
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
            // Its own process group: a terminal's signals must only reach the daemon.
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

    /// Replaces the sockets that the holder keeps.
    pub(crate) fn give(&self, sockets: &[OwnedFd]) -> io::Result<()> {
        send_all(&self.stream, sockets)
    }

    /// Waits until the holder has exited.
    pub(crate) async fn ended(self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(self.stream)?;
        // The holder sends nothing after the handover, so the stream becomes readable when it is closed.
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
    // The end of the stream tells that the kernel has closed the holder's sockets.
    let _ = stream.set_read_timeout(Some(ANSWER));
    let _ = (&*stream).read_to_end(&mut Vec::new());
    Ok(killed?)
}

/// The holder's main loop: serves one daemon at a time.
fn hold(listener: UnixListener, patience: Timespec) -> io::Result<()> {
    // `listen` records this process's credentials, which `socket_peercred` returns to daemons.
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
        // On an error, for example when the daemon dies during a transfer, the sockets from before are kept.
        let _ = converse(&stream, &mut held);
    }
}

/// Sends the held sockets to a daemon, then replaces them with each set that it sends, until it disconnects.
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
        // A daemon that dies during a transfer changes nothing.
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
