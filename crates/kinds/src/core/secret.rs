//! Secret: confidential data, typed by use.

use super::config_map::{MAX_SIZE, check_frozen, decoded_size};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{child_or_new, default_empty, entries, get, text};
use crate::{Column, Subresource};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Secret",
    plural: "secrets",
    schema: "core/v1.Secret",
    default,
    validate_create: validate,
    validate_update,
    warnings,
    selectable: &["type"],
    selectable_fields: |o| vec![("type", text(get(o, "type")).to_owned())],
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "string", "What the secret is for."),
    column("Data", "string", "Number of entries."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let count = entries(get(object, "data")).count();
    let kind = text(get(object, "type"));
    vec![
        name_cell(object),
        Value::from(kind),
        Value::from(count),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    default_empty(object, "type", "Opaque");
    // stringData is moved to data.
    if let Some(Value::Object(plain)) = object.shift_remove("stringData") {
        let data = child_or_new(object, "data");
        for (key, value) in plain {
            data.insert(key, Value::from(BASE64.encode(text(&value))));
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("data");
    let data = get(object, "data");
    let mut size = 0;
    for (key, value) in entries(data) {
        check::form(format::config_key(key), key, &path.key(key), &mut errors);
        size += decoded_size(text(value));
    }
    if size > MAX_SIZE {
        errors.push(Error::too_long(&path, MAX_SIZE));
    }
    check_type(object, data, &path, &mut errors);
    errors
}

fn check_type(object: &Object, data: &Value, path: &Path, errors: &mut Errors) {
    let mut need = |key: &str| {
        if data.get(key).is_none() {
            errors.push(Error::required(&path.key(key), ""));
        }
    };
    match text(get(object, "type")) {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if text(&get(object, "metadata")["annotations"][key]).is_empty() {
                let at = Path::new("metadata.annotations");
                let at = at.key(key);
                errors.push(Error::required(&at, ""));
            }
        }
        "kubernetes.io/dockercfg" => check_json(data, ".dockercfg", path, errors),
        "kubernetes.io/dockerconfigjson" => check_json(data, ".dockerconfigjson", path, errors),
        "kubernetes.io/basic-auth" => {
            if data.get("username").is_none() && data.get("password").is_none() {
                need("username");
                need("password");
            }
        }
        "kubernetes.io/ssh-auth" => {
            if text(&data["ssh-privatekey"]).is_empty() {
                errors.push(Error::required(&path.key("ssh-privatekey"), ""));
            }
        }
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
}

fn check_json(data: &Value, key: &str, path: &Path, errors: &mut Errors) {
    match data.get(key) {
        None => errors.push(Error::required(&path.key(key), "")),
        Some(value) => {
            let bytes = BASE64.decode(text(value)).unwrap_or_default();
            if let Some(wrong) = no_json_object(&bytes) {
                let hidden = "<secret contents redacted>";
                errors.push(Error::invalid(&path.key(key), hidden, wrong));
            }
        }
    }
}

/// Why bytes are not a JSON object.
fn no_json_object(bytes: &[u8]) -> Option<String> {
    let what = match machinery::json::from_slice::<machinery::json::Value>(bytes) {
        Ok(machinery::json::Value::Object(_) | machinery::json::Value::Null) => return None,
        Ok(machinery::json::Value::Array(_)) => "array",
        Ok(machinery::json::Value::String(_)) => "string",
        Ok(machinery::json::Value::Number(_)) => "number",
        Ok(machinery::json::Value::Bool(_)) => "bool",
        Err(error) if error.is_eof() => return Some("unexpected end of JSON input".to_owned()),
        Err(error) => {
            let text = String::from_utf8_lossy(bytes);
            let first = text.trim_start().chars().next().unwrap_or_default();
            let begins = first.is_ascii_digit() || "{[\"-tfn".contains(first);
            return Some(if begins {
                error.to_string()
            } else {
                format!("invalid character {first:?} looking for beginning of value")
            });
        }
    };
    Some(format!(
        "json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
    ))
}

/// Warnings about a certificate and its key, as far as their PEM labels show.
fn warnings(object: &Object, _: Option<&Object>) -> Vec<String> {
    if get(object, "type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let data = get(object, "data");
    let blocks = |key: &str| {
        let bytes = BASE64.decode(text(&data[key])).unwrap_or_default();
        pem_labels(&String::from_utf8_lossy(&bytes))
    };
    let certificates = blocks("tls.crt");
    let is_key = |label: &String| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let wrong = match certificates.as_slice() {
        [] => Some("failed to find any PEM data in certificate input".to_owned()),
        all if all.iter().any(|label| label == "CERTIFICATE") => None,
        [one] if one.ends_with("PRIVATE KEY") => Some(
            "failed to find certificate PEM data in certificate input, but did find a private \
             key; PEM inputs may have been switched"
                .to_owned(),
        ),
        all => Some(format!(
            "failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM \
             blocks of the following types: [{}]",
            all.join(" ")
        )),
    };
    let wrong = wrong.or_else(|| match blocks("tls.key").as_slice() {
        [] => Some("failed to find any PEM data in key input".to_owned()),
        all if all.iter().any(is_key) => None,
        [one] if one == "CERTIFICATE" => {
            Some("found a certificate rather than a key in the PEM for the private key".to_owned())
        }
        all => Some(format!(
            "failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after \
             skipping PEM blocks of the following types: [{}]",
            all.join(" ")
        )),
    });
    wrong
        .map(|wrong| format!("tls: {wrong}"))
        .into_iter()
        .collect()
}

/// The labels of PEM blocks.
fn pem_labels(text: &str) -> Vec<String> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        rest = &rest[at + "-----BEGIN ".len()..];
        let Some((label, body)) = rest.split_once("-----") else {
            break;
        };
        if let Some(end) = body.find(&format!("-----END {label}-----")) {
            labels.push(label.to_owned());
            rest = &body[end..];
        }
    }
    labels
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    check::immutable(
        get(object, "type"),
        get(old, "type"),
        &Path::new("type"),
        &mut errors,
    );
    errors.extend(check_frozen(object, old, &["data"]));
    errors.extend(validate(object));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn text_becomes_data() {
        let mut secret = object(r#"{"stringData": {"a": "x"}, "data": {"b": "eQ=="}}"#);
        default(&mut secret);
        assert_eq!(
            Value::Object(secret).to_string(),
            r#"{"data":{"b":"eQ==","a":"eA=="},"type":"Opaque"}"#
        );
    }

    #[test]
    fn a_certificate_without_its_frame_is_warned_about() {
        let reported = |certificate: &str, key: &str| {
            let data = |text: &str| BASE64.encode(text);
            let secret = object(&format!(
                r#"{{"type": "kubernetes.io/tls", "data": {{"tls.crt": "{}", "tls.key": "{}"}}}}"#,
                data(certificate),
                data(key)
            ));
            warnings(&secret, None).join(" ")
        };
        let block = |label: &str| format!("-----BEGIN {label}-----\nAA==\n-----END {label}-----\n");
        let (certificate, key) = (block("CERTIFICATE"), block("EC PRIVATE KEY"));
        assert_eq!(reported(&certificate, &key), "");
        assert_eq!(
            reported("x", &key),
            "tls: failed to find any PEM data in certificate input"
        );
        assert!(reported(&key, &certificate).contains("PEM inputs may have been switched"));
        assert_eq!(
            reported(&certificate, "x"),
            "tls: failed to find any PEM data in key input"
        );
        assert!(
            reported(&certificate, &certificate).contains("found a certificate rather than a key")
        );
    }

    #[test]
    fn credentials_are_a_json_object() {
        assert_eq!(no_json_object(b"{}"), None);
        assert_eq!(no_json_object(b"").unwrap(), "unexpected end of JSON input");
        assert_eq!(
            no_json_object(b"x").unwrap(),
            "invalid character 'x' looking for beginning of value"
        );
        assert_eq!(
            no_json_object(b"[]").unwrap(),
            "json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
    }

    #[test]
    fn each_secret_type_requires_its_keys() {
        let missing = |kind: &str| lines(validate(&object(&format!(r#"{{"type": "{kind}"}}"#))));
        assert_eq!(
            missing("kubernetes.io/tls"),
            [
                "data[tls.crt]: Required value",
                "data[tls.key]: Required value"
            ]
        );
        assert_eq!(
            missing("kubernetes.io/dockerconfigjson"),
            ["data[.dockerconfigjson]: Required value"]
        );
        assert!(missing("Opaque").is_empty());
    }
}
