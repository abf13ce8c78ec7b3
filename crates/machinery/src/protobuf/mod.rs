//! Protobuf encoding and decoding by the schema table.
//!
//! A body is `k8s\0` and an envelope with apiVersion and kind around the object's message. Structs
//! inlined in JSON are separate messages here; apiVersion and kind are only in the envelope.

mod decode;
mod encode;
mod wire;

pub use decode::{Decoded, decode, decode_message};
pub use encode::{encode, envelope, list_frame, list_item, message, watch_event};

use crate::schema::{Field, Shape};

/// The prefix of every body.
pub const MAGIC: &[u8] = b"k8s\0";

/// Deeper messages are rejected.
const MAX_DEPTH: usize = 100;

/// Why a body is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Magic,
    #[error("empty data")]
    NoData,
    #[error("empty body")]
    NoBody,
    #[error("proto: Unknown: illegal tag 0 (wire type {0})")]
    Tag(u8),
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: illegal wireType {0}")]
    WireType(u8),
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WrongWireType { wire: u8, field: String },
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: invalid UTF-8 in field {0}")]
    Text(String),
    #[error("proto: {0}")]
    Value(String),
    #[error("proto: message nested too deeply")]
    Depth,
}

/// Whether a list is a message of its own (`items = 1`), because it is in a map or has a named
/// type.
fn is_wrapped_list(field: &Field) -> bool {
    field.type_name == "v1.Verbs" && matches!(field.shape, Shape::List(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Findings;
    use crate::json;
    use crate::{Object, Value, normalise, schema};
    use proptest::prelude::*;

    fn object(value: Value) -> Object {
        match value {
            Value::Object(map) => map,
            other => panic!("no object: {other}"),
        }
    }

    fn there_and_back(name: &str, value: Value) -> (Value, Value) {
        let schema = schema::lookup(name).unwrap();
        let mut findings = Findings::default();
        let sent = normalise::object(schema, value, &mut findings).unwrap();
        let body = encode(schema, &sent);
        let opened = decode(&body).unwrap();
        let tree = decode_message(schema, &opened).unwrap();
        let got = normalise::object(schema, Value::Object(tree), &mut findings).unwrap();
        (Value::Object(sent), Value::Object(got))
    }

    #[test]
    fn objects_go_there_and_back() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"b": "2", "a": "1"}, "creationTimestamp": "2024-01-02T03:04:05Z"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 3},
                "securityContext": {"runAsNonRoot": false}}],
                "volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 0}});
        let (sent, got) = there_and_back("core/v1.Pod", pod);
        assert_eq!(got, sent);
        let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"x": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
                    "y": {"additionalProperties": true}, "z": {"additionalProperties": {"type": "integer", "maximum": 1.5}}}}}}]}});
        let (sent, got) = there_and_back("apiextensions/v1.CustomResourceDefinition", crd);
        assert_eq!(got, sent);
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "status": {"user": {"extra": {"k": ["a", "b"]}}}});
        let (sent, got) = there_and_back("authentication/v1.TokenReview", review);
        assert_eq!(got, sent);
    }

    #[test]
    fn invalid_protobuf_is_refused() {
        assert_eq!(decode(b"{}"), Err(Error::Magic));
        assert_eq!(decode(b"k8s\0\x0a\x05x"), Err(Error::Truncated));
        let pod = schema::lookup("core/v1.Pod").unwrap();
        let deep = envelope("v1", "Pod", &[0x0a, 0x80]);
        assert!(decode_message(pod, &decode(&deep).unwrap()).is_err());
    }

    #[test]
    fn a_list_is_made_of_the_messages_of_its_items() {
        let (item, whole) = (
            schema::lookup("core/v1.ConfigMap").unwrap(),
            schema::lookup("core/v1.ConfigMapList").unwrap(),
        );
        let one = object(json!({"metadata": {"name": "a"}, "data": {"k": "v"}}));
        let raw = message(item, &one);
        let meta = object(json!({"resourceVersion": "7"}));
        let sizes = [raw.len(), raw.len()].into_iter();
        let (mut body, tail) = list_frame("v1", "ConfigMapList", &meta, sizes);
        list_item(&raw, &mut body);
        list_item(&raw, &mut body);
        body.extend_from_slice(&tail);
        let tree = decode_message(whole, &decode(&body).unwrap()).unwrap();
        assert_eq!(tree["items"], json!([one, one]));
        assert_eq!(tree["metadata"]["resourceVersion"], "7");
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut body = MAGIC.to_vec();
            body.extend_from_slice(&bytes);
            let _ = decode(&body);
            let opened = Decoded { api_version: "v1", kind: "Pod", raw: &bytes };
            let _ = decode_message(schema::lookup("core/v1.Pod").unwrap(), &opened);
        }
    }
}
