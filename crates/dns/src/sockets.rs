//! The server's sockets: those that the previous daemon left with the [holder](crate::holder), and new ones where they
//! are missing.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    path::PathBuf,
    thread,
};

use lifecycle::Context;
use rustix::net::{self, SocketType};
use tracing::warn;

use crate::{Error, holder::Holder};

/// The receive buffer of a UDP socket: holds a burst of queries from all pods of a node.
const WAITING: usize = 4 << 20;
/// The backlog of a TCP listener.
const STREAMS: i32 = 1024;

/// All sockets of a server.
pub(crate) struct Sockets {
    pub listeners: Vec<TcpListener>,
    /// At least one per core for each address: the kernel distributes clients among them.
    pub datagrams: Vec<UdpSocket>,
}

impl Sockets {
    /// Uses held sockets for these addresses, and opens those that are missing.
    fn open(listen: &[SocketAddr], held: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut sockets = Self::from_held(listen, held);
        for address in listen {
            let failed = |error| Error::Listen(*address, error);
            let at = |listener: &TcpListener| listener.local_addr().ok() == Some(*address);
            if !sockets.listeners.iter().any(at) {
                sockets
                    .listeners
                    .push(bind_stream(*address).map_err(failed)?);
            }
            let at = |socket: &&UdpSocket| socket.local_addr().ok() == Some(*address);
            let known = sockets.datagrams.iter().filter(at).count();
            for _ in known..per_address() {
                sockets
                    .datagrams
                    .push(bind_datagram(*address).map_err(failed)?);
            }
        }
        Ok(sockets)
    }

    /// Keeps the held sockets whose address is still configured, and closes the others.
    fn from_held(listen: &[SocketAddr], held: Vec<OwnedFd>) -> Self {
        let (mut listeners, mut datagrams) = (Vec::new(), Vec::new());
        for socket in held {
            let address = net::getsockname(&socket).and_then(SocketAddr::try_from);
            if !address.is_ok_and(|address| listen.contains(&address)) {
                continue;
            }
            match net::sockopt::socket_type(&socket) {
                Ok(SocketType::STREAM) => listeners.push(socket.into()),
                Ok(SocketType::DGRAM) => datagrams.push(socket.into()),
                _ => {}
            }
        }
        Self {
            listeners,
            datagrams,
        }
    }

    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let listeners = self.listeners.iter().map(|one| Ok(one.try_clone()?.into()));
        let datagrams = self.datagrams.iter().map(|one| Ok(one.try_clone()?.into()));
        listeners.chain(datagrams).collect()
    }
}

/// Opens the sockets for these addresses. With a holder they stay open when this process exits. If the holder fails,
/// the server runs without one.
pub(crate) async fn open(
    listen: Vec<SocketAddr>,
    holder: Option<PathBuf>,
    context: &Context,
) -> Result<Sockets, Error> {
    let Some(path) = holder else {
        return Sockets::open(&listen, Vec::new());
    };
    let taken = blocking({
        let path = path.clone();
        move || Holder::take(&path)
    });
    match taken.await {
        Ok((holder, held)) => {
            let sockets = Sockets::open(&listen, held)?;
            match sockets.copies() {
                Ok(copies) => context.spawn("holder", keep(holder, path, copies)),
                Err(error) => warn!(%error, "cannot pass the DNS sockets to their holder"),
            }
            Ok(sockets)
        }
        Err(error) => {
            warn!(%error, "cannot pass the DNS sockets to their holder");
            Sockets::open(&listen, Vec::new())
        }
    }
}

/// Passes the sockets to the holder, and to a new holder whenever it exits.
async fn keep(mut holder: Holder, path: PathBuf, sockets: Vec<OwnedFd>) {
    loop {
        let kept = async {
            holder.give(&sockets)?;
            holder.ended().await
        };
        if let Err(error) = kept.await {
            warn!(%error, "cannot pass the DNS sockets to their holder");
            return;
        }
        let path = path.clone();
        match blocking(move || Holder::take(&path)).await {
            Ok((next, _)) => holder = next,
            Err(error) => return warn!(%error, "cannot pass the DNS sockets to their holder"),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

fn per_address() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Opens a UDP socket with `SO_REUSEPORT`, so that several sockets share the address.
fn bind_datagram(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(address, SocketType::DGRAM)?;
    net::sockopt::set_socket_reuseport(&socket, true)?;
    // The kernel caps this at `net.core.rmem_max`.
    net::sockopt::set_socket_recv_buffer_size(&socket, WAITING)?;
    net::bind(&socket, &address)?;
    Ok(socket.into())
}

fn bind_stream(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, SocketType::STREAM)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, STREAMS)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn socket(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let domain = if address.is_ipv4() {
        net::AddressFamily::INET
    } else {
        net::AddressFamily::INET6
    };
    Ok(net::socket_with(
        domain,
        kind,
        net::SocketFlags::CLOEXEC,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(sockets: &Sockets) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let listeners = sockets.listeners.iter();
        let datagrams = sockets.datagrams.iter();
        (
            listeners.map(|one| one.local_addr().unwrap()).collect(),
            datagrams.map(|one| one.local_addr().unwrap()).collect(),
        )
    }

    #[test]
    fn held_sockets_of_other_addresses_are_closed_and_missing_ones_are_made() {
        // Each socket gets its own port.
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (kept, gone) = (bind_stream(any).unwrap(), bind_stream(any).unwrap());
        let at = kept.local_addr().unwrap();
        let left = bind_datagram(any).unwrap();
        let held = vec![kept.into(), gone.into(), left.into()];
        let sockets = Sockets::open(&[at], held).unwrap();
        let (listeners, datagrams) = addresses(&sockets);
        assert_eq!(listeners, [at]);
        assert_eq!(datagrams, vec![at; per_address()]);
        // The next daemon opens no new sockets.
        let next = Sockets::open(&[at], sockets.copies().unwrap()).unwrap();
        assert_eq!(addresses(&next), addresses(&sockets));
    }
}
