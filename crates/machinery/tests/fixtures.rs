//! Every sample object of the reference data round-trips through the codecs. The data is not part
//! of the project: without it these tests are skipped.
#![allow(clippy::unwrap_used)]

use machinery::decode::{self, Findings, Format};
use machinery::schema::{self, Shape, Type};
use machinery::{Value, encode, normalise, protobuf};
use std::path::PathBuf;

fn fixtures(extension: &str) -> Vec<(String, PathBuf)> {
    let Some(directory) = reference::find("fixtures") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(directory).unwrap();
    let mut out: Vec<_> = entries
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .map(|p| (p.file_stem().unwrap().to_str().unwrap().to_owned(), p))
        .collect();
    out.sort();
    out
}

fn type_of(name: &str) -> Option<&'static Type> {
    let mut parts = name.rsplitn(3, '.');
    let (kind, version, group) = (parts.next()?, parts.next()?, parts.next()?);
    let group = if group == "core" { "" } else { group };
    schema::lookup_kind(group, version, kind)
}

/// The value without fields of disabled gates, which are dropped.
fn open_only(shape: Shape, value: &mut Value) {
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => {
            map.retain(|k, _| id.get().field(k).is_none_or(|f| f.off.is_none()));
            for (key, value) in map.iter_mut() {
                if let Some(field) = id.get().field(key) {
                    open_only(field.shape, value);
                }
            }
        }
        (Shape::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|v| open_only(*element, v));
        }
        (Shape::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|v| open_only(*element, v));
        }
        _ => {}
    }
}

fn expected(schema: &'static Type, json: &[u8]) -> Value {
    let mut value: Value = machinery::json::from_slice(json).unwrap();
    let map = value.as_object_mut().unwrap();
    map.retain(|k, _| schema.field(k).is_none_or(|f| f.off.is_none()));
    for (key, value) in map.iter_mut() {
        if let Some(field) = schema.field(key) {
            open_only(field.shape, value);
        }
    }
    value
}

fn without_version(mut value: Value) -> Value {
    if let Some(metadata) = value
        .pointer_mut("/metadata")
        .and_then(Value::as_object_mut)
    {
        metadata.shift_remove("resourceVersion");
    }
    value
}

#[test]
fn json_fixtures_round_trip() {
    let mut compared = 0;
    for (name, path) in fixtures("json") {
        let Some(schema) = type_of(&name) else {
            continue;
        };
        let json = std::fs::read(path).unwrap();
        let decoded = decode::object(Format::Json, &json, Some(schema)).unwrap();
        assert_eq!(decoded.findings, Findings::default(), "{name}");
        let bytes = encode::object(Some(schema), &decoded.object).bytes;
        let ours: Value = machinery::json::from_slice(&bytes).unwrap();
        assert_eq!(ours, without_version(expected(schema, &json)), "{name}");
        compared += 1;
    }
    assert!(compared == 0 || compared > 60, "{compared}");
}

#[test]
fn yaml_fixtures_are_the_same_objects_as_their_json() {
    for (name, path) in fixtures("yaml") {
        let Some(schema) = type_of(&name) else {
            continue;
        };
        let yaml = std::fs::read(&path).unwrap();
        let json = std::fs::read(path.with_extension("json")).unwrap();
        let from_yaml = decode::object(Format::Yaml, &yaml, Some(schema)).unwrap();
        let from_json = decode::object(Format::Json, &json, Some(schema)).unwrap();
        assert_eq!(from_yaml, from_json, "{name}");
    }
}

#[test]
fn protobuf_fixtures_are_the_same_objects_as_their_json() {
    let mut compared = 0;
    for (name, path) in fixtures("pb") {
        let Some(schema) = type_of(&name) else {
            continue;
        };
        let body = std::fs::read(&path).unwrap();
        let json = std::fs::read(path.with_extension("json")).unwrap();
        let opened = protobuf::decode(&body).unwrap();
        let tree = protobuf::decode_message(schema, &opened).unwrap();
        let mut findings = Findings::default();
        let ours = normalise::object(schema, Value::Object(tree), &mut findings).unwrap();
        let theirs = decode::object(Format::Json, &json, Some(schema))
            .unwrap()
            .object;
        assert_eq!(Value::Object(ours), Value::Object(theirs), "{name}");
        compared += 1;
    }
    assert!(compared == 0 || compared > 60, "{compared}");
}

#[test]
fn objects_become_the_bytes_of_their_protobuf_fixtures() {
    for (name, path) in fixtures("pb") {
        let Some(schema) = type_of(&name) else {
            continue;
        };
        let body = std::fs::read(&path).unwrap();
        let json = std::fs::read(path.with_extension("json")).unwrap();
        // The fixtures have fields of disabled gates, so the tree is used unchanged.
        let Value::Object(tree) = machinery::json::from_slice(&json).unwrap() else {
            panic!("{name}")
        };
        let ours = protobuf::encode(schema, &tree);
        assert_eq!(ours.len(), body.len(), "{name}");
        assert!(ours == body, "{name}");
    }
}
