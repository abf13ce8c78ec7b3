//! PEM-encoded certificates and certificate requests. Unreadable blocks are skipped, as Go does.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::text::quote;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// One PEM block: its label, whether it has headers, and its content.
pub(crate) struct Block<'a> {
    pub kind: &'a str,
    pub has_headers: bool,
    pub content: Vec<u8>,
}

/// The first readable block, and the text after it.
pub(crate) fn decode(text: &str) -> Option<(Block<'_>, &str)> {
    let mut rest = text;
    loop {
        let start = match rest.strip_prefix("-----BEGIN ") {
            Some(after) => after,
            None => &rest[rest.find("\n-----BEGIN ")? + 12..],
        };
        if let Some(found) = block(start) {
            return Some(found);
        }
        rest = start;
    }
}

fn block(text: &str) -> Option<(Block<'_>, &str)> {
    let (first, mut body) = text.split_once('\n')?;
    let kind = first.trim_end().strip_suffix("-----")?;
    let mut has_headers = false;
    while let Some((line, after)) = body.split_once('\n')
        && line.contains(':')
    {
        has_headers = true;
        body = after;
    }
    let end = format!("-----END {kind}-----");
    let at = if body.starts_with(&end) {
        0
    } else {
        body.find(&format!("\n{end}"))? + 1
    };
    let (content, after) = (&body[..at], &body[at + end.len()..]);
    let after = match after.split_once('\n') {
        Some((line, after)) if line.trim().is_empty() => after,
        None if after.trim().is_empty() => "",
        _ => return None,
    };
    let packed: String = content.split_ascii_whitespace().collect();
    let content = STANDARD.decode(packed).ok()?;
    let block = Block {
        kind,
        has_headers,
        content,
    };
    Some((block, after))
}

/// Validates a certificate request.
pub(crate) fn check_request(text: &str) -> Result<(), String> {
    let block = decode(text)
        .map(|found| found.0)
        .filter(|block| block.kind == "CERTIFICATE REQUEST")
        .ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (rest, request) = X509CertificationRequest::from_der(&block.content)
        .map_err(|_| "asn1: structure error: tags don't match".to_owned())?;
    if !rest.is_empty() {
        return Err("asn1: syntax error: trailing data".to_owned());
    }
    match request.verify_signature() {
        // The signer rejects unsupported algorithms.
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(_) => {
            let key = request.certification_request_info.subject_pki.parsed();
            let rsa = matches!(key, Ok(x509_parser::public_key::PublicKey::RSA(_)));
            Err(if rsa {
                "crypto/rsa: verification error".to_owned()
            } else {
                "x509: ECDSA verification failure".to_owned()
            })
        }
    }
}

/// Validates a chain of certificates.
pub(crate) fn check_certificates(text: &str) -> Result<(), String> {
    let mut rest = text;
    let mut found = false;
    while let Some((block, after)) = decode(rest) {
        found = true;
        rest = after;
        if block.kind != "CERTIFICATE" {
            let kind = quote(block.kind);
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {kind}"
            ));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if block.content.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        let mut der = block.content.as_slice();
        while !der.is_empty() {
            (der, _) = X509Certificate::from_der(der)
                .map_err(|_| "x509: malformed certificate".to_owned())?;
        }
    }
    if found {
        Ok(())
    } else {
        Err("must contain at least one CERTIFICATE PEM block".to_owned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A request by Jane, with a key of the curve P-256.
    pub(crate) const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----\n\
MIHXMH8CAQAwHTEMMAoGA1UECgwDZGV2MQ0wCwYDVQQDDARqYW5lMFkwEwYHKoZI\n\
zj0CAQYIKoZIzj0DAQcDQgAEt7EoTLGM+iHHILoji8Y2RyvWVG/j9HT4YjNS4Gf8\n\
sDvn3NpqrxSzqmsJKb30Ub8EboYSd+qn+VqvEneJ6vIaRKAAMAoGCCqGSM49BAMC\n\
A0gAMEUCIEr25HNUWuB/R69fokSwBeqlgVlgmZbT30pxdCSmx+ThAiEAw/34Zzso\n\
LDE7Z/f02ZQ4nUnWs3XukyAW8SDWXCMPBe8=\n\
-----END CERTIFICATE REQUEST-----\n";
    /// A CA certificate that nothing trusts.
    pub(crate) const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBeDCCAR+gAwIBAgIUYcq4BllD3I5JubmNpqKquLKNChgwCgYIKoZIzj0EAwIw\n\
ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTExNjA0NTEzNFoYDzIxMjYxMDIzMDQ1\n\
MTM0WjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
AAS3sShMsYz6IccguiOLxjZHK9ZUb+P0dPhiM1LgZ/ywO+fc2mqvFLOqawkpvfRR\n\
vwRuhhJ36qf5Wq8Sd4nq8hpEo1MwUTAdBgNVHQ4EFgQUFP5FLvKIzotbPdlqUv45\n\
RR061GIwHwYDVR0jBBgwFoAUFP5FLvKIzotbPdlqUv45RR061GIwDwYDVR0TAQH/\n\
BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiAg5CMUStbPogxmUWVDA7/Sxfd/bl6G\n\
XZ1G1jfHqdxRigIgLW1Q0zEa8lLqk8p88xvzlePDpGt9rreEjfHRvj1d//U=\n\
-----END CERTIFICATE-----\n";

    #[test]
    fn requests_are_read_and_their_signature_checked() {
        assert_eq!(check_request(REQUEST), Ok(()));
        assert_eq!(check_request(&format!("Jane's\n{REQUEST}")), Ok(()));
        let kind = "PEM block type must be CERTIFICATE REQUEST";
        for bad in ["", "x", AUTHORITY] {
            assert_eq!(check_request(bad), Err(kind.to_owned()));
        }
        // Another name, the same signature.
        let other = REQUEST.replace("DARqYW5l", "DARqYW5m");
        assert_ne!(other, REQUEST);
        let said = "x509: ECDSA verification failure";
        assert_eq!(check_request(&other), Err(said.to_owned()));
    }

    #[test]
    fn chains_hold_certificates_and_nothing_else() {
        assert_eq!(check_certificates(AUTHORITY), Ok(()));
        assert_eq!(
            check_certificates(&format!("{AUTHORITY}{AUTHORITY}")),
            Ok(())
        );
        let said = |text: &str| check_certificates(text).unwrap_err();
        assert_eq!(said("x"), "must contain at least one CERTIFICATE PEM block");
        assert!(said(REQUEST).starts_with("only CERTIFICATE PEM blocks are allowed"));
        let headers = AUTHORITY.replacen("-----\n", "-----\na: b\n\n", 1);
        assert_eq!(said(&headers), "no PEM block headers are permitted");
    }
}
