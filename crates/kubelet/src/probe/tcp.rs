//! A TCP probe: succeeds if the port accepts a connection.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, sync::Semaphore};

use super::Answer;

/// How many host names are resolved at a time.
const PARALLEL_LOOKUPS: usize = 64;
static LOOKUPS: Semaphore = Semaphore::const_new(PARALLEL_LOOKUPS);

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
    let addresses = addresses(host)
        .await
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

/// The addresses of a host. Resolving has no timeout of its own; the caller sets the deadline, and the thread of a lookup
/// goes on after it. So only some run at a time: the host of a probe may be a name that no server answers for.
async fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(vec![address]);
    }
    let slot = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let name = host.to_owned();
    let lookup = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        stdx::resolve::resolve(&name)
    });
    lookup.await.map_err(io::Error::other)?
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
        // Lookups that hang hold up other host names, but no address.
        let _hanging = LOOKUPS.acquire_many(PARALLEL_LOOKUPS as u32).await.unwrap();
        let by_address = probe("127.0.0.1", port, Duration::from_secs(1)).await;
        assert_eq!(by_address, Answer::Ok);
        let by_name = probe("localhost", port, Duration::from_millis(1)).await;
        assert!(matches!(by_name, Answer::Failed(_)), "{by_name:?}");
        drop(listener);
        assert!(matches!(
            probe("127.0.0.1", port, Duration::from_secs(1)).await,
            Answer::Failed(_)
        ));
    }
}
