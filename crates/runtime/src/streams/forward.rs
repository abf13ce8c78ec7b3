//! Forwards connections to ports in a pod's network namespace.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use streaming::portforward::{Forward, Pending};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

use crate::{
    engine::Engine,
    error::{Error, Result},
};

/// The connect timeout.
const CONNECT: Duration = Duration::from_secs(10);

pub(super) async fn run(engine: Arc<Engine>, sandbox: String, pending: Pending) {
    let mut forwards = match pending.open().await {
        Ok(forwards) => forwards,
        Err(error) => {
            tracing::debug!(%error, "cannot open port-forward streams");
            return;
        }
    };
    // Connections end with their client.
    let mut connections = JoinSet::new();
    while let Some(forward) = forwards.next().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(engine.clone(), sandbox.clone(), forward));
    }
}

async fn carry(engine: Arc<Engine>, sandbox: String, forward: Forward) {
    match connect(&engine, &sandbox, forward.port).await {
        Ok(stream) => {
            if let Err(error) = forward.carry(stream).await {
                tracing::debug!(%error, "forwarded connection ended");
            }
        }
        Err(error) => {
            let message = format!("failed to forward to port {}: {error}", forward.port);
            forward.fail(&message).await;
        }
    }
}

/// Connects to a port at the pod's loopback. Only making the sockets needs a thread in the pod's network namespace: they
/// stay in it.
async fn connect(engine: &Engine, sandbox: &str, port: u16) -> Result<TcpStream> {
    let sandbox = engine.sandbox(sandbox)?;
    let make = || (TcpSocket::new_v4(), TcpSocket::new_v6());
    let (v4, v6) = match &sandbox.facts.pins.net {
        Some(netns) => {
            // The semaphore is never closed.
            let _turn = engine.entering.acquire().await.ok();
            network::netns::run(netns, make).await?
        }
        None => make(),
    };
    let stream = match dial(v4, (Ipv4Addr::LOCALHOST, port).into()).await {
        Err(error) => dial(v6, (Ipv6Addr::LOCALHOST, port).into())
            .await
            .map_err(|_| error),
        connected => connected,
    };
    stream.map_err(Error::system("connect"))
}

async fn dial(socket: io::Result<TcpSocket>, address: SocketAddr) -> io::Result<TcpStream> {
    match tokio::time::timeout(CONNECT, socket?.connect(address)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").unwrap().count()
    }

    #[tokio::test]
    async fn connections_that_are_not_accepted_wait_without_threads() {
        let open = || TcpSocket::new_v4();
        let listener = open().unwrap();
        listener.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let _listener = listener.listen(1).unwrap();
        let before = threads();
        let mut dials = JoinSet::new();
        for _ in 0..100 {
            dials.spawn(dial(open(), address));
        }
        // The kernel keeps a few connections; the others wait.
        let connected = dials.join_next().await.unwrap().unwrap();
        assert!(connected.is_ok());
        assert!(dials.len() > 50 && threads() <= before + 8, "{}", threads());
        drop(dials);
        let closed = dial(open(), (Ipv4Addr::LOCALHOST, 1).into()).await;
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
