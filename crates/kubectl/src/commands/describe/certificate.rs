//! Certificate signing requests: requester and subject.

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
    let subject = request(str_of(&spec["request"])).unwrap_or_default();
    let all = |kind: &[u8]| -> Vec<&str> {
        let same = subject.iter().filter(|(oid, _)| oid == kind);
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
        for (at, value) in all(&[0x55, 4, kind]).iter().enumerate() {
            let name = if at == 0 {
                format!("{name}:")
            } else {
                String::new()
            };
            text.line(0, &format!("\t{name}\t{value}"));
        }
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

/// The subject of a PEM request, as pairs of object identifier and value.
fn request(encoded: &str) -> Option<Vec<(Vec<u8>, String)>> {
    let pem = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    let body: String = pem
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    let der = BASE64_STANDARD.decode(body.trim()).ok()?;
    let (outer, _) = element(&der)?;
    let (info, _) = element(outer)?;
    // The version, then the subject.
    let (_, rest) = element(info)?;
    let (mut names, _) = element(rest)?;
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

    #[test]
    fn broken_requests_have_no_subject() {
        assert_eq!(request("nonsense"), None);
        assert_eq!(request(""), None);
        assert_eq!(element(&[0x30, 0x82, 0xff]), None);
        assert_eq!(element(&[0x30, 2, 1, 2, 9]), Some((&[1, 2][..], &[9][..])));
    }
}
