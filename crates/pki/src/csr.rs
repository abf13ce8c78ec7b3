//! Certificate requests, and the certificates signed from them. Only subject, names and key are
//! taken from a request.

use std::{net::IpAddr, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use rcgen::SigningKey;
use ring::signature;
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject};
use x509_parser::{
    oid_registry as oids,
    prelude::{
        AttributeTypeAndValue, FromDer, GeneralName, ParsedExtension, X509Certificate,
        X509CertificationRequest,
    },
};

use crate::{
    Authority, Error,
    authority::{certificates_from_pem, date, skew, tlv},
    common_name,
};

/// The default lifetime of certificates.
pub const LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The requested subject and names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestedCertificate {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
}

/// A request whose signature has been verified; derefs to its wish.
#[derive(Debug, Clone)]
pub struct Request {
    wish: RequestedCertificate,
    /// DER of the subject, of the names, if any, and of the key.
    subject: Vec<u8>,
    names: Option<Vec<u8>>,
    key: Vec<u8>,
}

impl std::ops::Deref for Request {
    type Target = RequestedCertificate;

    fn deref(&self) -> &RequestedCertificate {
        &self.wish
    }
}

impl Request {
    /// Parses a PEM block `CERTIFICATE REQUEST`.
    pub fn parse(pem: &[u8]) -> Result<Self, String> {
        let begin = b"-----BEGIN CERTIFICATE REQUEST-----";
        if !pem.windows(begin.len()).any(|window| window == begin) {
            return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem)
            .map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_owned())?;
        let (rest, parsed) = X509CertificationRequest::from_der(&der)
            .map_err(|_| "the request is malformed".to_owned())?;
        if !rest.is_empty() {
            return Err("trailing data behind the request".to_owned());
        }
        verify(&parsed)?;
        let info = &parsed.certification_request_info;
        let text = |value: &AttributeTypeAndValue<'_>| {
            value
                .as_str()
                .map(str::to_owned)
                .map_err(|_| "the subject is malformed".to_owned())
        };
        let mut wish = RequestedCertificate {
            common_name: common_name(&info.subject)
                .map(text)
                .transpose()?
                .unwrap_or_default(),
            organizations: info
                .subject
                .iter_organization()
                .map(text)
                .collect::<Result<_, _>>()?,
            ..RequestedCertificate::default()
        };
        let mut named = false;
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                // Two lists of names would be ambiguous.
                if std::mem::replace(&mut named, true) {
                    return Err("subjectAltName is requested twice".to_owned());
                }
                let mut names = names.general_names.iter();
                names.try_for_each(|name| wish.add(name))?;
            }
        }
        Ok(Self {
            names: named.then(|| wish.encode_names()),
            subject: info.subject.as_raw().to_vec(),
            key: info.subject_pki.raw.to_vec(),
            wish,
        })
    }
}

impl RequestedCertificate {
    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), String> {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let sixteen = || <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
                let address = four.or_else(|_| sixteen());
                self.addresses
                    .push(address.map_err(|_| "an IP address is malformed".to_owned())?);
            }
            _ => return Err("unknown type of subjectAltName".to_owned()),
        }
        Ok(())
    }
}

/// Whether the request was signed with its own key.
fn verify(request: &X509CertificationRequest<'_>) -> Result<(), String> {
    let algorithm = &request.signature_algorithm.algorithm;
    let known: &[(&oids::Oid<'_>, &dyn signature::VerificationAlgorithm)] = &[
        (
            &oids::OID_SIG_ECDSA_WITH_SHA256,
            &signature::ECDSA_P256_SHA256_ASN1,
        ),
        (
            &oids::OID_SIG_ECDSA_WITH_SHA256,
            &signature::ECDSA_P384_SHA256_ASN1,
        ),
        (
            &oids::OID_SIG_ECDSA_WITH_SHA384,
            &signature::ECDSA_P256_SHA384_ASN1,
        ),
        (
            &oids::OID_SIG_ECDSA_WITH_SHA384,
            &signature::ECDSA_P384_SHA384_ASN1,
        ),
        (
            &oids::OID_PKCS1_SHA256WITHRSA,
            &signature::RSA_PKCS1_2048_8192_SHA256,
        ),
        (
            &oids::OID_PKCS1_SHA384WITHRSA,
            &signature::RSA_PKCS1_2048_8192_SHA384,
        ),
        (
            &oids::OID_PKCS1_SHA512WITHRSA,
            &signature::RSA_PKCS1_2048_8192_SHA512,
        ),
        (&oids::OID_SIG_ED25519, &signature::ED25519),
    ];
    let info = &request.certification_request_info;
    let key = &info.subject_pki.subject_public_key.data;
    let good = known
        .iter()
        .filter(|(oid, _)| *oid == algorithm)
        .any(|(_, algorithm)| {
            signature::UnparsedPublicKey::new(*algorithm, key)
                .verify(info.raw, &request.signature_value.data)
                .is_ok()
        });
    if good {
        return Ok(());
    }
    Err("invalid signature, or unknown signature algorithm".to_owned())
}

impl RequestedCertificate {
    /// The names as an extension's value.
    fn encode_names(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let texts = [
            (0x81, &self.emails),
            (0x82, &self.dns_names),
            (0x86, &self.uris),
        ];
        for (tag, list) in texts {
            all.extend(list.iter().map(|name| tlv(tag, &[name.as_bytes()])));
        }
        for address in &self.addresses {
            all.push(match address {
                IpAddr::V4(address) => tlv(0x87, &[&address.octets()]),
                IpAddr::V6(address) => tlv(0x87, &[&address.octets()]),
            });
        }
        let parts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        tlv(0x30, &parts)
    }
}

/// What a certificate may be used for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usages {
    /// The bits of the key usage, most significant first.
    key: u16,
    /// Object identifiers, in DER.
    extended: Vec<Vec<u8>>,
}

/// Kubernetes' names of key usages.
const KEY_USAGES: &[(&str, u16)] = &[
    ("signing", 0x8000),
    ("digital signature", 0x8000),
    ("content commitment", 0x4000),
    ("key encipherment", 0x2000),
    ("data encipherment", 0x1000),
    ("key agreement", 0x0800),
    ("cert sign", 0x0400),
    ("crl sign", 0x0200),
    ("encipher only", 0x0100),
    ("decipher only", 0x0080),
];

const PURPOSES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3];

/// Kubernetes' names of extended usages, and the last part of their identifiers.
const EXTENDED_USAGES: &[(&str, u8)] = &[
    ("server auth", 1),
    ("client auth", 2),
    ("code signing", 3),
    ("email protection", 4),
    ("s/mime", 4),
    ("ipsec end system", 5),
    ("ipsec tunnel", 6),
    ("ipsec user", 7),
    ("timestamping", 8),
    ("ocsp signing", 9),
];

impl Usages {
    /// From Kubernetes' names.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        let mut usages = Self::default();
        for name in names.iter().map(AsRef::as_ref) {
            if let Some((_, bit)) = KEY_USAGES.iter().find(|(known, _)| *known == name) {
                usages.key |= bit;
                continue;
            }
            let purpose = EXTENDED_USAGES.iter().find(|(known, _)| *known == name);
            let oid = match (purpose, name) {
                (Some((_, last)), _) => tlv(6, &[PURPOSES, &[*last]]),
                (None, "any") => vec![6, 4, 0x55, 0x1d, 0x25, 0],
                (None, "microsoft sgc") => {
                    vec![6, 10, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3]
                }
                (None, "netscape sgc") => {
                    vec![6, 9, 0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1]
                }
                _ => return Err(format!("unrecognized usage value: {name:?}")),
            };
            if !usages.extended.contains(&oid) {
                usages.extended.push(oid);
            }
        }
        Ok(usages)
    }

    /// The key usage as a string of bits.
    fn key_bits(&self) -> Option<Vec<u8>> {
        let [first, second] = self.key.to_be_bytes();
        match (first, second) {
            (0, 0) => None,
            (_, 0) => Some(tlv(3, &[&[first.trailing_zeros() as u8, first]])),
            _ => Some(tlv(3, &[&[second.trailing_zeros() as u8, first, second]])),
        }
    }
}

const KEY_USAGE: &[u8] = &[6, 3, 0x55, 0x1d, 0x0f];
const EXTENDED_KEY_USAGE: &[u8] = &[6, 3, 0x55, 0x1d, 0x25];
const BASIC_CONSTRAINTS: &[u8] = &[6, 3, 0x55, 0x1d, 0x13];
const AUTHORITY_KEY: &[u8] = &[6, 3, 0x55, 0x1d, 0x23];
const ALT_NAMES: &[u8] = &[6, 3, 0x55, 0x1d, 0x11];
/// For shorter certificates, the start in the past does not shorten the lifetime.
const SHORT: Duration = Duration::from_secs(8 * 3600);
const CRITICAL: &[u8] = &[1, 1, 0xff];

impl Authority {
    /// Signs a request: PEM of a certificate that is not a CA and does not outlive ours. The
    /// certificate is encoded by hand because the builder supports one organization only.
    pub fn sign(
        &self,
        request: &Request,
        usages: &Usages,
        now: Timestamp,
        life: Duration,
    ) -> Result<String, Error> {
        let (_, own) = X509Certificate::from_der(self.certificate())
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let key = self.issuer().key();
        let algorithm = algorithm(key)?;
        let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        let begin = date(now) - skew(life);
        let counted = if life < SHORT { date(now) } else { begin };
        let end = counted.saturating_add(time::Duration::seconds(seconds));
        let last = own.validity().not_after.to_datetime();
        if date(now) >= last {
            return Err(Error::Certificate("the signer has expired".to_owned()));
        }
        let end = end.min(last);
        let mut serial: [u8; 16] = [0; 16];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut serial)
            .map_err(|_| Error::Certificate("cannot generate random numbers".to_owned()))?;
        serial[0] = serial[0] & 0x7f | 0x40;
        let extensions = extensions(request, usages, &own);
        let body = tlv(
            0x30,
            &[
                &[0xa0, 3, 2, 1, 2],
                &tlv(2, &[&serial]),
                &algorithm,
                own.subject().as_raw(),
                &tlv(0x30, &[&moment(begin), &moment(end)]),
                &request.subject,
                &request.key,
                &tlv(0xa3, &[&tlv(0x30, &[&extensions])]),
            ],
        );
        let signature = key.sign(&body)?;
        let whole = tlv(0x30, &[&body, &algorithm, &tlv(3, &[&[0], &signature])]);
        Ok(pem(&whole))
    }
}

/// The begin and the end of the validity of the first certificate of a PEM.
pub fn validity(pem: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let certificates = certificates_from_pem(pem).ok()?;
    let (_, parsed) = X509Certificate::from_der(certificates.first()?).ok()?;
    let validity = parsed.validity();
    let begin = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
    let end = Timestamp::from_second(validity.not_after.timestamp()).ok()?;
    Some((begin, end))
}

/// The expiry of the first certificate of a PEM.
pub fn not_after(pem: &[u8]) -> Option<Timestamp> {
    validity(pem).map(|(_, end)| end)
}

fn extensions(request: &Request, usages: &Usages, own: &X509Certificate<'_>) -> Vec<u8> {
    let extension = |oid: &[u8], critical: bool, value: &[u8]| {
        let critical: &[u8] = if critical { CRITICAL } else { &[] };
        tlv(0x30, &[oid, critical, &tlv(4, &[value])])
    };
    let mut all = Vec::new();
    if let Some(bits) = usages.key_bits() {
        all.extend(extension(KEY_USAGE, true, &bits));
    }
    if !usages.extended.is_empty() {
        let purposes: Vec<&[u8]> = usages.extended.iter().map(Vec::as_slice).collect();
        all.extend(extension(EXTENDED_KEY_USAGE, false, &tlv(0x30, &purposes)));
    }
    all.extend(extension(BASIC_CONSTRAINTS, true, &tlv(0x30, &[])));
    let own_key =
        own.extensions()
            .iter()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
                _ => None,
            });
    if let Some(id) = own_key {
        all.extend(extension(
            AUTHORITY_KEY,
            false,
            &tlv(0x30, &[&tlv(0x80, &[id])]),
        ));
    }
    if let Some(names) = &request.names {
        // Critical if there is no subject.
        let alone = request.common_name.is_empty() && request.organizations.is_empty();
        all.extend(extension(ALT_NAMES, alone, names));
    }
    all
}

/// The algorithm identifier of the key's signatures.
fn algorithm(key: &rcgen::KeyPair) -> Result<Vec<u8>, Error> {
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3];
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    let is = |known: &rcgen::SignatureAlgorithm| key.algorithm() == known;
    let (family, last, null): (&[u8], u8, &[u8]) = match () {
        () if is(&rcgen::PKCS_ECDSA_P256_SHA256) => (ECDSA, 2, &[]),
        () if is(&rcgen::PKCS_ECDSA_P384_SHA384) => (ECDSA, 3, &[]),
        () if is(&rcgen::PKCS_RSA_SHA256) => (RSA, 11, &[5, 0]),
        () if is(&rcgen::PKCS_RSA_SHA384) => (RSA, 12, &[5, 0]),
        () if is(&rcgen::PKCS_RSA_SHA512) => (RSA, 13, &[5, 0]),
        () if is(&rcgen::PKCS_ED25519) => (&[0x2b, 0x65], 112, &[]),
        () => {
            return Err(Error::Certificate("unknown type of CA key".to_owned()));
        }
    };
    Ok(tlv(0x30, &[&tlv(6, &[family, &[last]]), null]))
}

/// A time in certificate format: two digits of the year until 2049.
fn moment(at: time::OffsetDateTime) -> Vec<u8> {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    let month = u8::from(month);
    let rest = format!("{month:02}{day:02}{hour:02}{minute:02}{second:02}Z");
    if (1950..2050).contains(&year) {
        tlv(0x17, &[format!("{:02}{rest}", year % 100).as_bytes()])
    } else {
        tlv(0x18, &[format!("{year:04}{rest}").as_bytes()])
    }
}

fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;
    use crate::{Names, Pki, Signer};

    fn asked(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "ops");
        let second = DnType::CustomDnType(vec![2, 5, 4, 10]);
        params.distinguished_name.push(second, "dev");
        params.distinguished_name.push(DnType::CommonName, "eve");
        change(&mut params);
        params
            .serialize_request(&key)
            .unwrap()
            .pem()
            .unwrap()
            .into_bytes()
    }

    #[test]
    fn a_signed_request_names_its_user_and_every_group() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(directory.path(), &Names::default()).unwrap();
        let names = ["a.example".to_owned(), "10.0.0.7".to_owned()];
        let pem = asked(|params| {
            params.subject_alt_names = CertificateParams::new(names).unwrap().subject_alt_names;
        });
        let request = Request::parse(&pem).unwrap();
        assert_eq!(request.common_name, "eve");
        assert_eq!(request.organizations, ["ops", "dev"]);
        assert_eq!(request.dns_names, ["a.example"]);
        assert_eq!(request.addresses, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        let usages =
            Usages::parse(&["digital signature", "key encipherment", "client auth"]).unwrap();
        let now = Timestamp::now();
        let signed = pki
            .ca()
            .sign(&request, &usages, now, Duration::from_secs(3600))
            .unwrap();
        let chain = crate::authority::certificates_from_pem(signed.as_bytes()).unwrap();
        let peer = pki.identify(&chain, now).unwrap();
        assert_eq!((peer.signer, peer.user.as_str()), (Signer::Cluster, "eve"));
        assert_eq!(peer.groups, ["ops", "dev"]);
        assert_eq!(peer.not_after.as_second() - now.as_second(), 3600);
        let day = Duration::from_secs(86400);
        let longer = pki.ca().sign(&request, &usages, now, day).unwrap();
        let longer = crate::authority::certificates_from_pem(longer.as_bytes()).unwrap();
        let until = pki.identify(&longer, now).unwrap().not_after;
        assert_eq!(until.as_second() - now.as_second(), 86400 - 300);
        let (_, parsed) = X509Certificate::from_der(&chain[0]).unwrap();
        assert!(!parsed.is_ca());
        let key_usage = parsed.key_usage().unwrap().unwrap().value;
        assert!(key_usage.digital_signature() && key_usage.key_encipherment());
        assert!(!key_usage.key_cert_sign());
        Usages::parse(&["no such usage"]).unwrap_err();
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 2);
    }

    #[test]
    fn the_last_of_several_common_names_is_the_user_for_all_readers() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(directory.path(), &Names::default()).unwrap();
        let pem = asked(|params| {
            let second = DnType::CustomDnType(vec![2, 5, 4, 3]);
            params.distinguished_name.push(second, "system:node:one");
        });
        let request = Request::parse(&pem).unwrap();
        assert_eq!(request.common_name, "system:node:one");
        let usages = Usages::parse(&["client auth"]).unwrap();
        let now = Timestamp::now();
        let signed = pki.ca().sign(&request, &usages, now, LIFE).unwrap();
        let chain = crate::authority::certificates_from_pem(signed.as_bytes()).unwrap();
        assert_eq!(pki.identify(&chain, now).unwrap().user, "system:node:one");
    }

    #[test]
    fn a_request_for_an_authority_gets_an_ordinary_certificate_that_ends_with_ours() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(directory.path(), &Names::default()).unwrap();
        let pem = asked(|params| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        });
        let request = Request::parse(&pem).unwrap();
        let (now, long) = (Timestamp::now(), Duration::from_secs(100 * 365 * 24 * 3600));
        let signed = pki
            .ca()
            .sign(&request, &Usages::default(), now, long)
            .unwrap();
        let chain = crate::authority::certificates_from_pem(signed.as_bytes()).unwrap();
        let (_, parsed) = X509Certificate::from_der(&chain[0]).unwrap();
        let (_, own) = X509Certificate::from_der(pki.ca().certificate()).unwrap();
        assert!(!parsed.is_ca());
        assert_eq!(parsed.validity().not_after, own.validity().not_after);
        // Without client usage it does not authenticate a client.
        let server = Usages::parse(&["server auth"]).unwrap();
        let signed = pki.ca().sign(&request, &server, now, LIFE).unwrap();
        let chain = crate::authority::certificates_from_pem(signed.as_bytes()).unwrap();
        pki.identify(&chain, now).unwrap_err();
    }

    #[test]
    fn invalid_signing_requests_are_refused() {
        let good = asked(|_| ());
        let text = String::from_utf8(good).unwrap();
        let other = text.replace("CERTIFICATE REQUEST", "CERTIFICATE");
        assert!(
            Request::parse(other.as_bytes())
                .unwrap_err()
                .contains("PEM block type")
        );
        Request::parse(b"nonsense").unwrap_err();
        let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        let mut der = BASE64_STANDARD.decode(body).unwrap();
        let last = der.len() - 1;
        der[last] ^= 1;
        let body = BASE64_STANDARD.encode(der);
        let forged = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"
        );
        assert!(
            Request::parse(forged.as_bytes())
                .unwrap_err()
                .contains("invalid signature")
        );
    }
}
