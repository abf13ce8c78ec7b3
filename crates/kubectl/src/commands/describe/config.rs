//! Secrets (never their content), config maps and service accounts.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::json::{entries, list, str_of};

use super::text::Text;

pub(super) fn secret(text: &mut Text, object: &Value) {
    text.head(object);
    text.maps(object);
    text.line(0, &format!("\nType:\t{}", str_of(&object["type"])));
    text.line(0, "\nData\n====");
    for (key, value) in entries(&object["data"]) {
        let bytes = BASE64_STANDARD.decode(str_of(value)).unwrap_or_default();
        // The token of a service account secret is shown.
        let is_token = key == "token" && object["type"] == "kubernetes.io/service-account-token";
        match is_token {
            true => text.field(0, key, &String::from_utf8_lossy(&bytes)),
            false => text.field(0, key, &format!("{} bytes", bytes.len())),
        }
    }
}

pub(super) fn config_map(text: &mut Text, object: &Value) {
    text.head(object);
    text.maps(object);
    text.line(0, "\nData\n====");
    for (key, value) in entries(&object["data"]) {
        text.line(0, &format!("{key}:\n----\n{}\n", str_of(value)));
    }
    text.line(0, "\nBinaryData\n====");
    for (key, value) in entries(&object["binaryData"]) {
        let size = BASE64_STANDARD
            .decode(str_of(value))
            .unwrap_or_default()
            .len();
        text.line(0, &format!("{key}: {size} bytes"));
    }
    text.line(0, "");
}

pub(super) fn service_account(text: &mut Text, object: &Value) {
    text.head(object);
    text.maps(object);
    let names: Vec<String> = list(&object["imagePullSecrets"])
        .map(|one| str_of(&one["name"]).to_owned())
        .collect();
    if names.is_empty() {
        return text.field(0, "Image pull secrets", "<none>");
    }
    for (at, name) in names.iter().enumerate() {
        let title = if at == 0 {
            "Image pull secrets:"
        } else {
            "                   "
        };
        text.line(0, &format!("{title}\t{name}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_shows_sizes_and_never_content() {
        let mut text = Text::default();
        let object = json!({
            "kind": "Secret", "metadata": {"name": "s", "namespace": "a"}, "type": "Opaque",
            "data": {"password": "aHVudGVyMg==", "token": "eHl6"}});
        secret(&mut text, &object);
        let text = text.finish();
        assert_eq!(
            text,
            "Name:         s\nNamespace:    a\nLabels:       <none>\nAnnotations:  <none>\n\nType:  Opaque\n\nData\n====\npassword:  7 bytes\ntoken:     3 bytes\n"
        );
    }
}
