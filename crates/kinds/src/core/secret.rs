//! Secret: confidential data, typed by its use.

use super::config_map::{MAX_SIZE, check_frozen, decoded_size};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
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
    selectable: &["type"],
    selectable_fields: |o| vec![("type", text(get(o, "type")).to_owned())],
    columns: COLUMNS,
    row,
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
    // What is written as text is kept as data and nowhere else.
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
                let at = Path::new("metadata").child("annotations").key(key);
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
            if let Err(error) = machinery::json::from_slice::<serde::de::IgnoredAny>(&bytes) {
                let at = path.key(key);
                errors.push(Error::invalid(
                    &at,
                    "<secret contents redacted>",
                    error.to_string(),
                ));
            }
        }
    }
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
    fn each_type_asks_for_its_keys() {
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
