//! Our OpenAPI definitions compared with those of the reference data, which is not part of the
//! project: without it this test is skipped.
#![allow(clippy::unwrap_used)]

use machinery::openapi::{self, Dialect};
use machinery::{Value, schema};

fn reference(path: &str) -> Option<Value> {
    let file = reference::find(&format!("openapi/{path}"))?;
    Some(machinery::json::from_slice(&std::fs::read(file).unwrap()).unwrap())
}

/// Removes what the table does not have.
fn bare(value: &mut Value, is_definition: bool) {
    match value {
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.shift_remove("description");
            }
            if map.get("enum").is_some_and(Value::is_array) {
                map.shift_remove("enum");
            }
            if is_definition {
                map.shift_remove("x-kubernetes-group-version-kind");
            }
            for (key, below) in map.iter_mut() {
                let names = key == "properties";
                if let (true, Value::Object(properties)) = (names, &mut *below) {
                    properties.values_mut().for_each(|v| bare(v, false));
                } else {
                    bare(below, false);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|v| bare(v, false)),
        _ => {}
    }
}

/// A reference alone may be in `allOf` or not, depending on whether it has a description.
fn unwrap(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let (1, Some(Value::Array(all))) = (map.len(), map.get("allOf")) {
                *value = all[0].clone();
                return;
            }
            map.values_mut().for_each(unwrap);
        }
        Value::Array(list) => list.iter_mut().for_each(unwrap),
        _ => {}
    }
}

fn compare(dialect: Dialect, definitions: &Value) -> usize {
    let mut compared = 0;
    for schema in schema::all() {
        let name = openapi::name(schema);
        let Some(theirs) = definitions.get(&name) else {
            continue;
        };
        let mut theirs = theirs.clone();
        bare(&mut theirs, true);
        if theirs["properties"]
            .as_object()
            .is_some_and(|p| p.is_empty())
        {
            theirs.as_object_mut().unwrap().shift_remove("properties");
        }
        let mut ours = openapi::definition(dialect, schema);
        // The reference was generated without enumerations; servers include them.
        bare(&mut ours, true);
        unwrap(&mut ours);
        unwrap(&mut theirs);
        assert_eq!(ours, theirs, "{name}");
        compared += 1;
    }
    compared
}

#[test]
fn version_2_is_that_of_the_reference() {
    let Some(document) = reference("swagger.json") else {
        return;
    };
    assert!(compare(Dialect::V2, &document["definitions"]) > 400);
}

#[test]
fn version_3_is_that_of_the_reference() {
    for group in [
        "api__v1",
        "apis__apps__v1",
        "apis__batch__v1",
        "apis__networking.k8s.io__v1",
    ] {
        let Some(document) = reference(&format!("v3/{group}_openapi.json")) else {
            return;
        };
        assert!(
            compare(Dialect::V3, &document["components"]["schemas"]) > 30,
            "{group}"
        );
    }
}
