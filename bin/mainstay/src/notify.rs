//! Readiness notification for service managers: a datagram to the socket in `NOTIFY_SOCKET`.
//! `mainstay up --detach` waits for it as well.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
    time::Duration,
};

/// The variable's name.
pub(crate) const VARIABLE: &str = "NOTIFY_SOCKET";
const READY: &[u8] = b"READY=1";

/// Sends it, if `NOTIFY_SOCKET` is set.
pub(crate) fn ready() {
    if let Ok(name) = std::env::var(VARIABLE)
        && let Err(error) = send(&name)
    {
        tracing::warn!(name, %error, "cannot notify the service manager");
    }
}

fn send(name: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    socket.send_to_addr(READY, &address).map(drop)
}

/// A socket for the notification of a child process.
pub(crate) struct Listener(UnixDatagram);

impl Listener {
    /// At a path that only this user can write to.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self(socket))
    }

    /// Waits briefly; returns whether the child is ready.
    pub(crate) fn is_ready(&self) -> bool {
        let mut buffer = [0; 256];
        self.0
            .recv(&mut buffer)
            .is_ok_and(|length| buffer[..length].starts_with(READY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_notification_is_received() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = Listener::bind(&path).unwrap();
        assert!(!listener.is_ready());
        send(path.to_str().unwrap()).unwrap();
        assert!(listener.is_ready());
    }
}
