//! Verifies certificates of servers as rustls does, and reports what upstream's users read first if a certificate has
//! several faults: that it is not valid now, then that it is for other names, then its issuer. It accepts nothing that
//! rustls refuses.

use std::{sync::Arc, time::Duration};

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// The verifier of a connection.
#[derive(Debug)]
pub(super) struct Verifier(Arc<WebPkiServerVerifier>);

impl Verifier {
    /// Trusts these CAs; `None` if there are none.
    pub(super) fn new(authorities: RootCertStore) -> Option<Self> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        verifier.ok().map(Self)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .0
            .verify_server_cert(certificate, intermediates, name, stapled, now);
        verified.map_err(|error| match error {
            Error::InvalidCertificate(_) => first_fault(certificate, name, now).unwrap_or(error),
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// What is wrong with a certificate itself, whoever issued it.
fn first_fault(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Option<Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    let time = |at: i64| {
        let seconds = u64::try_from(at).unwrap_or_default();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    };
    let not_before = time(validity.not_before.timestamp());
    let not_after = time(validity.not_after.timestamp());
    if now < not_before {
        return Some(
            CertificateError::NotValidYetContext {
                time: now,
                not_before,
            }
            .into(),
        );
    }
    if now > not_after {
        return Some(
            CertificateError::ExpiredContext {
                time: now,
                not_after,
            }
            .into(),
        );
    }
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    verify_server_name(&certificate, name).err()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate for `a.example`, valid in 2026, which issued itself.
    fn certificate() -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn the_time_is_reported_before_the_name_and_the_name_before_the_issuer() {
        let (served, other) = (certificate(), certificate());
        let [mut trusting, mut distrusting] = [RootCertStore::empty(), RootCertStore::empty()];
        trusting.add(served.clone()).unwrap();
        distrusting.add(other).unwrap();
        let at = |text: &str| {
            let second = text.parse::<jiff::Timestamp>().unwrap().as_second();
            UnixTime::since_unix_epoch(Duration::from_secs(second.unsigned_abs()))
        };
        let verified = |authorities: &RootCertStore, name: &'static str, now: &str| {
            let verifier = Verifier::new(authorities.clone()).unwrap();
            let name = ServerName::try_from(name).unwrap();
            match verifier.verify_server_cert(&served, &[], &name, &[], at(now)) {
                Ok(_) => "valid",
                Err(Error::InvalidCertificate(why)) => match why {
                    CertificateError::NotValidYetContext { .. } => "too early",
                    CertificateError::ExpiredContext { .. } => "too late",
                    CertificateError::NotValidForNameContext { .. } => "another name",
                    // Both certificates have the same name as issuer.
                    CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                        "unknown issuer"
                    }
                    other => panic!("{other}"),
                },
                Err(other) => panic!("{other}"),
            }
        };
        for (authorities, name, now, expected) in [
            (&trusting, "a.example", "2026-07-01T00:00:00Z", "valid"),
            (
                &trusting,
                "b.example",
                "2026-07-01T00:00:00Z",
                "another name",
            ),
            (
                &distrusting,
                "a.example",
                "2025-07-01T00:00:00Z",
                "too early",
            ),
            (
                &distrusting,
                "b.example",
                "2027-07-01T00:00:00Z",
                "too late",
            ),
            (
                &distrusting,
                "b.example",
                "2026-07-01T00:00:00Z",
                "another name",
            ),
            (
                &distrusting,
                "a.example",
                "2026-07-01T00:00:00Z",
                "unknown issuer",
            ),
        ] {
            assert_eq!(verified(authorities, name, now), expected, "{name} {now}");
        }
        assert!(Verifier::new(RootCertStore::empty()).is_none());
    }
}
