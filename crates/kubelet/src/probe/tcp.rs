//! A TCP probe: does anybody answer?

use std::{net::IpAddr, time::Duration};

use tokio::net::TcpStream;

use super::Answer;

/// The usual reasons in the words that users know from Kubernetes.
pub fn go_words(error: &std::io::Error) -> String {
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

/// Connects and hangs up.
pub async fn probe(host: &str, port: u16, timeout: Duration) -> Answer {
    let Ok(ip) = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
    else {
        return Answer::Failed(format!("dial tcp: lookup {host}: not an IP address"));
    };
    match tokio::time::timeout(timeout, TcpStream::connect((ip, port))).await {
        Ok(Ok(_)) => Answer::Ok,
        Ok(Err(error)) => Answer::Failed(format!(
            "dial tcp {ip}:{port}: connect: {}",
            go_words(&error)
        )),
        Err(_) => Answer::Failed(format!("dial tcp {ip}:{port}: i/o timeout")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_is_alive_and_nobody_is_not() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(
            probe("127.0.0.1", port, Duration::from_secs(1)).await,
            Answer::Ok
        );
        drop(listener);
        assert!(matches!(
            probe("127.0.0.1", port, Duration::from_secs(1)).await,
            Answer::Failed(_)
        ));
    }
}
