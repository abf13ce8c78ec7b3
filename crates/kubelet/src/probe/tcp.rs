//! A TCP probe: succeeds if the port accepts a connection.

use std::{net::SocketAddr, time::Duration};

use tokio::net::TcpStream;

use super::Answer;

/// Common errors in Go's wording, which users know from Kubernetes.
fn go_words(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".into(),
        ErrorKind::HostUnreachable => "no route to host".into(),
        ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        ErrorKind::ConnectionReset => "connection reset by peer".into(),
        ErrorKind::TimedOut => "connection timed out".into(),
        _ => error.to_string(),
    }
}

/// Connects to an address or a host name, trying all of its addresses in turn.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let name = host.to_owned();
    // Resolving has no timeout of its own; the caller sets the deadline.
    let resolved = tokio::task::spawn_blocking(move || stdx::resolve::resolve(&name)).await;
    let addresses = resolved
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("dial tcp: lookup {host}: {error}"))?;
    let mut failure = format!("dial tcp: lookup {host}: no such host");
    for ip in addresses {
        let address = SocketAddr::from((ip, port));
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = format!("dial tcp {address}: connect: {}", go_words(&error)),
        }
    }
    Err(failure)
}

/// Connects and closes the connection.
pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> Answer {
    match tokio::time::timeout(timeout, connect(host, port)).await {
        Ok(Ok(_)) => Answer::Ok,
        Ok(Err(message)) => Answer::Failed(message),
        Err(_) => Answer::Failed(format!("dial tcp {host}:{port}: i/o timeout")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_succeeds_only_if_the_port_is_open() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(
            probe("127.0.0.1", port, Duration::from_secs(1)).await,
            Answer::Ok
        );
        // Host names are resolved; this one is in every hosts file.
        let by_name = probe("localhost", port, Duration::from_secs(1)).await;
        assert_eq!(by_name, Answer::Ok);
        drop(listener);
        assert!(matches!(
            probe("127.0.0.1", port, Duration::from_secs(1)).await,
            Answer::Failed(_)
        ));
    }
}
