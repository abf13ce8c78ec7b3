//! Servers that cannot be reached, in the words that upstream's users know.

use client::kube;
use rustls::{AlertDescription, CertificateError};

use crate::error::Plain;

/// A request that got no answer.
pub(crate) fn unreachable(error: kube::Error, server: &str) -> anyhow::Error {
    let host = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    Plain(match reason(&error) {
        None => format!(
            "The connection to the server {host} was refused - did you specify the right host or port?"
        ),
        Some(why) => format!("Unable to connect to the server: {why}"),
    })
    .into()
}

/// Why there is no answer; `None` if the connection was refused.
fn reason(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            if io.kind() == std::io::ErrorKind::ConnectionRefused {
                return None;
            }
            let inner = io.get_ref();
            if let Some(tls) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                return Some(tls_reason(tls));
            }
        }
        source = cause.source();
    }
    let refused = proxy_reason(&text).map(str::to_owned);
    Some(refused.or_else(|| lookup_reason(&text)).unwrap_or(text))
}

/// Why a proxy opens no tunnel: its status line without version and code.
fn proxy_reason(text: &str) -> Option<&str> {
    let line = text.strip_prefix("the proxy refused: HTTP/")?;
    Some(line.splitn(3, ' ').nth(2).unwrap_or("unknown status code"))
}

/// A host without an address: `"a" has no address`, or
/// `"a" has no address: lookup a: name server 10.0.0.1: no answer within 2 seconds`.
fn lookup_reason(text: &str) -> Option<String> {
    let (host, rest) = text.strip_prefix('"')?.split_once("\" has no address")?;
    let Some((server, reason)) = rest
        .split_once(": name server ")
        .and_then(|(_, rest)| rest.split_once(": "))
    else {
        let servers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let server = servers
            .lines()
            .find_map(|line| line.strip_prefix("nameserver "));
        let server = server.map_or("127.0.0.1", str::trim);
        return Some(format!(
            "dial tcp: lookup {host} on {server}:53: no such host"
        ));
    };
    let reason = match reason.split_once(" (os error") {
        Some((reason, _)) => format!("dial udp {server}:53: connect: {}", reason.to_lowercase()),
        None => reason.to_owned(),
    };
    Some(format!("dial tcp: lookup {host} on {server}:53: {reason}"))
}

fn tls_reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => format!(
            "tls: failed to verify certificate: x509: {}",
            certificate_reason(why)
        ),
        rustls::Error::InvalidMessage(_) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        other => format!("tls: {other}"),
    }
}

/// An alert in the words of Go's crypto/tls.
fn alert_text(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CloseNotify => "close notify",
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::RecordOverflow => "record overflow",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::InappropriateFallback => "inappropriate fallback",
        AlertDescription::UserCanceled => "user canceled",
        AlertDescription::NoRenegotiation => "no renegotiation",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::UnknownPSKIdentity => "unknown PSK identity",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    }
    .to_owned()
}

fn certificate_reason(error: &CertificateError) -> String {
    let expired = "certificate has expired or is not yet valid: current time";
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "{expired} {} is after {}",
            time_of(time.as_secs()),
            time_of(not_after.as_secs())
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "{expired} {} is before {}",
            time_of(time.as_secs()),
            time_of(not_before.as_secs())
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => wrong_name(&expected.to_str(), presented),
        other => other.to_string(),
    }
}

/// A certificate that is for others. Its names are `DnsName("a")` and `IpAddress(10.0.0.1)`.
fn wrong_name(expected: &str, presented: &[String]) -> String {
    let is_address = expected.parse::<std::net::IpAddr>().is_ok();
    let kind = if is_address { "IpAddress(" } else { "DnsName(" };
    let names: Vec<String> = presented
        .iter()
        .filter_map(|name| name.strip_prefix(kind))
        .map(|name| name.trim_end_matches(')').trim_matches('"'))
        // `0::1` as `::1`.
        .map(|name| match name.parse::<std::net::IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => name.to_owned(),
        })
        .collect();
    match (names.is_empty(), is_address) {
        (true, true) => format!(
            "cannot validate certificate for {expected} because it doesn't contain any IP SANs"
        ),
        (true, false) => {
            format!("certificate is not valid for any names, but wanted to match {expected}")
        }
        (false, _) => format!(
            "certificate is valid for {}, not {expected}",
            names.join(", ")
        ),
    }
}

fn time_of(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds)
        .map(|time| format!("{time:.0}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    #[test]
    fn certificates_are_refused_in_the_words_of_go() {
        let at = |seconds: u64| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let name = |text: &str| ServerName::try_from(text.to_owned()).unwrap();
        let presented = vec![
            "DnsName(\"kubernetes\")".to_owned(),
            "IpAddress(10.96.0.1)".to_owned(),
            "IpAddress(0::1)".to_owned(),
        ];
        let not_for =
            |expected: &str, presented: Vec<String>| CertificateError::NotValidForNameContext {
                expected: name(expected),
                presented,
            };
        for (error, expected) in [
            (
                CertificateError::UnknownIssuer,
                "certificate signed by unknown authority",
            ),
            (
                CertificateError::ExpiredContext {
                    time: at(60),
                    not_after: at(0),
                },
                "certificate has expired or is not yet valid: current time 1970-01-01T00:01:00Z is after 1970-01-01T00:00:00Z",
            ),
            (
                not_for("example.com", presented.clone()),
                "certificate is valid for kubernetes, not example.com",
            ),
            (
                not_for("10.1.1.1", presented),
                "certificate is valid for 10.96.0.1, ::1, not 10.1.1.1",
            ),
            (
                not_for("10.1.1.1", Vec::new()),
                "cannot validate certificate for 10.1.1.1 because it doesn't contain any IP SANs",
            ),
        ] {
            assert_eq!(certificate_reason(&error), expected);
        }
        for (alert, expected) in [
            (AlertDescription::BadCertificate, "bad certificate"),
            (
                AlertDescription::CertificateRequired,
                "certificate required",
            ),
            (AlertDescription::Unknown(200), "alert(200)"),
        ] {
            assert_eq!(
                tls_reason(&rustls::Error::AlertReceived(alert)),
                format!("remote error: tls: {expected}")
            );
        }
        assert_eq!(
            tls_reason(&CertificateError::UnknownIssuer.into()),
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
        );
    }

    #[test]
    fn a_proxy_that_refuses_is_quoted() {
        for (text, expected) in [
            (
                "the proxy refused: HTTP/1.1 407 Proxy Authentication Required",
                Some("Proxy Authentication Required"),
            ),
            (
                "the proxy refused: HTTP/1.1 403",
                Some("unknown status code"),
            ),
            ("the proxy refused: host unreachable", None),
        ] {
            assert_eq!(proxy_reason(text), expected);
        }
    }

    #[test]
    fn hosts_without_an_address_are_reported_in_the_words_of_go() {
        assert_eq!(
            lookup_reason(
                "\"nope\" has no address: lookup nope: name server 10.0.0.1: Network is unreachable (os error 101)"
            )
            .unwrap(),
            "dial tcp: lookup nope on 10.0.0.1:53: dial udp 10.0.0.1:53: connect: network is unreachable"
        );
        assert_eq!(
            lookup_reason(
                "\"nope\" has no address: lookup nope: name server 10.0.0.1: no answer within 2 seconds"
            )
            .unwrap(),
            "dial tcp: lookup nope on 10.0.0.1:53: no answer within 2 seconds"
        );
        let unknown = lookup_reason("\"nope\" has no address").unwrap();
        assert!(
            unknown.starts_with("dial tcp: lookup nope on "),
            "{unknown}"
        );
        assert!(unknown.ends_with(":53: no such host"), "{unknown}");
        assert_eq!(lookup_reason("connection reset"), None);
    }
}
