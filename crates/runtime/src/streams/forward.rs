//! Forwards connections to ports in a pod's network namespace.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use streaming::portforward::{Forward, Pending};
use tokio::{net::TcpStream, task::JoinSet};

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

async fn connect(engine: &Engine, sandbox: &str, port: u16) -> Result<TcpStream> {
    let sandbox = engine.sandbox(sandbox)?;
    let dial = move || -> io::Result<std::net::TcpStream> {
        let try_one = |address: SocketAddr| std::net::TcpStream::connect_timeout(&address, CONNECT);
        let stream = try_one((Ipv4Addr::LOCALHOST, port).into())
            .or_else(|error| try_one((Ipv6Addr::LOCALHOST, port).into()).map_err(|_| error))?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let stream = match &sandbox.facts.pins.net {
        Some(netns) => network::netns::run(netns, dial).await?,
        None => engine.blocking(dial).await?,
    };
    stream
        .and_then(TcpStream::from_std)
        .map_err(Error::system("connect"))
}
