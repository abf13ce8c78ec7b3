//! Certificate signing requests: requester and subject.

use std::net::IpAddr;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::json::{list, str_of};

use super::text::{Text, format_labels, time};

pub(super) fn describe(text: &mut Text, object: &Value) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text.field(0, "Name", str_of(&metadata["name"]));
    text.field(0, "Labels", &format_labels(&metadata["labels"]));
    text.field(0, "Annotations", &format_labels(&metadata["annotations"]));
    text.field(
        0,
        "CreationTimestamp",
        &time(&metadata["creationTimestamp"]),
    );
    text.field(0, "Requesting User", str_of(&spec["username"]));
    text.optional(0, "Signer", &spec["signerName"]);
    if let Some(seconds) = spec["expirationSeconds"].as_i64() {
        let duration = machinery::time::age(Some("1970-01-01T00:00:00Z"), seconds);
        text.field(0, "Requested Duration", &duration);
    }
    text.field(0, "Status", &status(object));
    let request = Request::read(str_of(&spec["request"])).unwrap_or_default();
    let all = |kind: &[u8]| -> Vec<&str> {
        let same = request.subject.iter().filter(|(oid, _)| oid == kind);
        same.map(|(_, value)| value.as_str()).collect()
    };
    let last = |kind: &[u8]| all(kind).last().copied().unwrap_or_default();
    text.line(0, "Subject:");
    text.line(0, &format!("\tCommon Name:\t{}", last(&[0x55, 4, 3])));
    text.line(0, &format!("\tSerial Number:\t{}", last(&[0x55, 4, 5])));
    for (name, kind) in [
        ("Organization", 10),
        ("Organizational Unit", 11),
        ("Country", 6),
        ("Locality", 7),
        ("Province", 8),
        ("StreetAddress", 9),
        ("PostalCode", 17),
    ] {
        listed(text, name, &all(&[0x55, 4, kind]));
    }
    if !request.names.is_empty() {
        text.line(0, "Subject Alternative Names:");
    }
    for (name, kind) in [
        ("DNS Names", DNS),
        ("Email Addresses", EMAIL),
        ("URIs", URI),
        ("IP Addresses", IP),
    ] {
        let same = request.names.iter().filter(|(tag, _)| *tag == kind);
        let values: Vec<&str> = same.map(|(_, value)| value.as_str()).collect();
        listed(text, name, &values);
    }
}

/// Values one below the other.
fn listed(text: &mut Text, name: &str, values: &[&str]) {
    for (at, value) in values.iter().enumerate() {
        let name = if at == 0 {
            format!("{name}:")
        } else {
            String::new()
        };
        text.line(0, &format!("\t{name}\t{value}"));
    }
}

/// `Approved,Issued`, as in the table.
fn status(object: &Value) -> String {
    let has = |kind: &str| {
        list(&object["status"]["conditions"]).any(|condition| condition["type"] == kind)
    };
    let mut parts = Vec::new();
    match (has("Denied"), has("Approved")) {
        (true, _) => parts.push("Denied"),
        (false, true) => parts.push("Approved"),
        (false, false) => parts.push("Pending"),
    }
    if has("Failed") {
        parts.push("Failed");
    }
    if !str_of(&object["status"]["certificate"]).is_empty() {
        parts.push("Issued");
    }
    parts.join(",")
}

/// Tags of alternative names.
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;

/// The object identifier of a request's extensions: 1.2.840.113549.1.9.14.
const EXTENSIONS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
/// That of the alternative names: 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 17];

/// What a PEM request is for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    /// Pairs of object identifier and value.
    subject: Vec<(Vec<u8>, String)>,
    /// Alternative names with their tags.
    names: Vec<(u8, String)>,
}

impl Request {
    fn read(encoded: &str) -> Option<Self> {
        let pem = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
        // The first block.
        let lines = pem.lines().skip_while(|line| line.starts_with("-----"));
        let body: String = lines
            .take_while(|line| !line.starts_with("-----"))
            .collect();
        let der = BASE64_STANDARD.decode(body.trim()).ok()?;
        let (outer, _) = element(&der)?;
        let (info, _) = element(outer)?;
        // The version, the subject, the public key, and the attributes.
        let (_, rest) = element(info)?;
        let (subject, rest) = element(rest)?;
        let (_, rest) = element(rest)?;
        let attributes = element(rest).map_or(&[][..], |(attributes, _)| attributes);
        Some(Self {
            subject: pairs(subject)?,
            names: alternative_names(attributes).unwrap_or_default(),
        })
    }
}

fn pairs(mut names: &[u8]) -> Option<Vec<(Vec<u8>, String)>> {
    let mut subject = Vec::new();
    while !names.is_empty() {
        let (mut set, more) = element(names)?;
        names = more;
        while !set.is_empty() {
            let (pair, more) = element(set)?;
            set = more;
            let (oid, value) = element(pair)?;
            let (value, _) = element(value)?;
            subject.push((oid.to_vec(), String::from_utf8_lossy(value).into_owned()));
        }
    }
    Some(subject)
}

/// The value of a sequence that begins with this object identifier.
fn value_of<'a>(mut sequences: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    while !sequences.is_empty() {
        let (sequence, more) = element(sequences)?;
        sequences = more;
        let (oid, value) = element(sequence)?;
        if oid == wanted {
            return Some(value);
        }
    }
    None
}

fn alternative_names(attributes: &[u8]) -> Option<Vec<(u8, String)>> {
    let (set, _) = element(value_of(attributes, EXTENSIONS)?)?;
    let (extensions, _) = element(set)?;
    let mut value = value_of(extensions, ALTERNATIVE_NAMES)?;
    // Whether the extension is critical may come first.
    if value.first() == Some(&1) {
        (_, value) = element(value)?;
    }
    let (octets, _) = element(value)?;
    let (mut names, _) = element(octets)?;
    let mut found = Vec::new();
    while let Some(&tag) = names.first() {
        let (name, more) = element(names)?;
        names = more;
        let text = match tag {
            DNS | EMAIL | URI => String::from_utf8_lossy(name).into_owned(),
            IP => address(name)?.to_string(),
            _ => continue,
        };
        found.push((tag, text));
    }
    Some(found)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.ok().map(|address| address.to_canonical())
}

/// The content of the first DER element, and the rest.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = der.get(1..)?.split_first()?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(short), rest),
        long => {
            let count = usize::from(long & 0x7f);
            let (digits, rest) = rest.split_at_checked(count)?;
            let length = digits.iter().try_fold(0usize, |sum, digit| {
                sum.checked_mul(256)?.checked_add(usize::from(*digit))
            })?;
            (length, rest)
        }
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl req -new -subj /O=dev/CN=jane -addext subjectAltName=…`
    const REQUEST: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBVzCB/gIBADAdMQwwCgYDVQQKDANkZXYxDTALBgNVBAMMBGphbmUwWTATBgcq\n\
hkjOPQIBBggqhkjOPQMBBwNCAASfpAXtuqpOD3c3gTi2nIlMXw7CQXzhuRY/Yit9\n\
1bdiRhXwIYMvyuGXmPAyA/qKafm1ze7h51s1dqrI7QBBXK7KoH8wfQYJKoZIhvcN\n\
AQkOMXAwbjBsBgNVHREEZTBjgg1hLmV4YW1wbGUuY29thwTAAAIBgRBqYW5lQGV4\n\
YW1wbGUuY29tgg1iLmV4YW1wbGUuY29thhlzcGlmZmU6Ly9leGFtcGxlLmNvbS9q\n\
YW5lhxAgAQ24AAAAAAAAAAAAAAABMAoGCCqGSM49BAMCA0gAMEUCIQCkKEJC9q4q\n\
gklYOp42miOaTh5qnoohCwjz0xWbPJLqVQIgQL3OTfau53XMV728xma8OjpcVW88\n\
dfYF/khmaic3bSM=\n\
-----END CERTIFICATE REQUEST-----\n\
";

    #[test]
    fn broken_requests_have_no_subject() {
        assert_eq!(Request::read("nonsense"), None);
        assert_eq!(Request::read(""), None);
        assert_eq!(element(&[0x30, 0x82, 0xff]), None);
        assert_eq!(element(&[0x30, 2, 1, 2, 9]), Some((&[1, 2][..], &[9][..])));
    }

    #[test]
    fn alternative_names_are_shown_by_kind() {
        let request = BASE64_STANDARD.encode(REQUEST);
        let mut text = Text::default();
        describe(
            &mut text,
            &serde_json::json!({"spec": {"request": request}}),
        );
        let text = text.with_tabs();
        let expected = "Subject:\n\tCommon Name:\tjane\n\tSerial Number:\t\n\tOrganization:\tdev\n\
            Subject Alternative Names:\n\tDNS Names:\ta.example.com\n\t\tb.example.com\n\
            \tEmail Addresses:\tjane@example.com\n\tURIs:\tspiffe://example.com/jane\n\
            \tIP Addresses:\t192.0.2.1\n\t\t2001:db8::1\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
