//! Where the server listens: the sockets that the daemon before this one left with the [holder](crate::holder), and
//! new ones where there are none.

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

/// What may wait in a socket: a burst of all pods of a node.
const WAITING: usize = 4 << 20;
/// Streams that may wait for the server.
const STREAMS: i32 = 1024;

/// All sockets of a server.
pub(crate) struct Sockets {
    pub listeners: Vec<TcpListener>,
    /// For each address one for each core at least: the kernel spreads clients over them.
    pub datagrams: Vec<UdpSocket>,
}

impl Sockets {
    /// At all of these addresses.
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

    /// Those of the held ones that are still wanted. The others are closed.
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

/// Sockets at these addresses. The holder at the path keeps them open when this process ends; without it the server
/// works as well.
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
                Err(error) => warn!(%error, "the sockets of the DNS are not held"),
            }
            Ok(sockets)
        }
        Err(error) => {
            warn!(%error, "the sockets of the DNS are not held");
            Sockets::open(&listen, Vec::new())
        }
    }
}

/// Leaves the sockets with the holder, and with a new one when it has ended.
async fn keep(mut holder: Holder, path: PathBuf, sockets: Vec<OwnedFd>) {
    loop {
        let kept = async {
            holder.give(&sockets)?;
            holder.ended().await
        };
        if let Err(error) = kept.await {
            warn!(%error, "the sockets of the DNS are not held");
            return;
        }
        let path = path.clone();
        match blocking(move || Holder::take(&path)).await {
            Ok((next, _)) => holder = next,
            Err(error) => return warn!(%error, "the sockets of the DNS are not held"),
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

/// A datagram socket at an address that several of ours listen on.
fn bind_datagram(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(address, SocketType::DGRAM)?;
    net::sockopt::set_socket_reuseport(&socket, true)?;
    // As much as the kernel's limit allows.
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
        // Addresses with ports of their own.
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (kept, gone) = (bind_stream(any).unwrap(), bind_stream(any).unwrap());
        let at = kept.local_addr().unwrap();
        let left = bind_datagram(any).unwrap();
        let held = vec![kept.into(), gone.into(), left.into()];
        let sockets = Sockets::open(&[at], held).unwrap();
        let (listeners, datagrams) = addresses(&sockets);
        assert_eq!(listeners, [at]);
        assert_eq!(datagrams, vec![at; per_address()]);
        // The next daemon makes nothing new.
        let next = Sockets::open(&[at], sockets.copies().unwrap()).unwrap();
        assert_eq!(addresses(&next), addresses(&sockets));
    }
}
