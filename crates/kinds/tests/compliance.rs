//! Properties of every kind. They are also compared with the reference data, which is not part of
//! the project; without it those tests are skipped.
#![allow(clippy::unwrap_used)]

use kinds::{Context, Kind};
use machinery::decode::{self, Findings, Format};
use machinery::{Object, Value, encode, normalise, schema};
use std::collections::{BTreeMap, BTreeSet};

fn label(kind: &dyn Kind) -> String {
    let names = kind.names();
    format!("{}/{} {}", names.group, names.version, names.kind)
}

/// The sample object of a kind, or an empty one with a name.
fn sample(kind: &dyn Kind) -> Object {
    let names = kind.names();
    let group = if names.group.is_empty() {
        "core"
    } else {
        &names.group
    };
    let schema = schema::lookup(kind.schema().unwrap());
    let file = format!("fixtures/{group}.{}.{}.json", names.version, names.kind);
    match reference::find(&file) {
        Some(path) => {
            decode::object(Format::Json, &std::fs::read(path).unwrap(), schema)
                .unwrap()
                .object
        }
        None => normalise::object(
            schema.unwrap(),
            machinery::json::json!({"metadata": {"name": "n"}}),
            &mut Findings::default(),
        )
        .unwrap(),
    }
}

#[test]
fn every_kind_has_its_type_in_the_schema_table() {
    for kind in kinds::all() {
        let schema = kind.schema().unwrap();
        let found = schema::lookup(schema);
        assert!(
            found.is_some_and(|t| t.name == kind.names().kind),
            "{}",
            label(*kind)
        );
        if let Some(stored) = kind.stored_as() {
            assert!(schema::lookup(stored).is_some(), "{stored}");
        }
    }
}

#[test]
fn names_are_unique_within_a_version() {
    let mut seen = BTreeSet::new();
    for kind in kinds::all() {
        let names = kind.names();
        let key = (
            names.group.clone(),
            names.version.clone(),
            names.plural.clone(),
        );
        assert!(seen.insert(key), "{}", label(*kind));
        assert!(kinds::find(&names.group, &names.version, &names.plural).is_some());
    }
}

#[test]
fn defaulting_twice_changes_nothing() {
    for kind in kinds::all() {
        for mut object in [sample(*kind), Object::new()] {
            kind.default(&mut object);
            let once = object.clone();
            kind.default(&mut object);
            assert_eq!(object, once, "{}", label(*kind));
        }
    }
}

#[test]
fn every_column_has_its_cell() {
    for kind in kinds::all() {
        for object in [sample(*kind), Object::new()] {
            let cells = kind.row(&object, 1_700_000_000);
            assert_eq!(cells.len(), kind.columns().len(), "{}", label(*kind));
        }
    }
}

#[test]
fn every_selectable_name_has_its_field() {
    for kind in kinds::all() {
        let fields = kind.selectable_fields(&sample(*kind));
        for name in kind.selectable_names() {
            assert!(
                fields.iter().any(|f| f.0 == name),
                "{} {name}",
                label(*kind)
            );
        }
    }
}

#[test]
fn an_update_to_itself_keeps_an_object_as_it_is() {
    let context = Context {
        now: "2024-01-01T00:00:00Z",
        user: "u",
    };
    for kind in kinds::all() {
        let mut old = sample(*kind);
        kind.default(&mut old);
        kind.prepare_create(&mut old, &context);
        let schema = schema::lookup(kind.schema().unwrap());
        for subresource in [None, Some("status")] {
            let mut new = old.clone();
            kind.prepare_update(&mut new, &old, subresource, &context);
            let bytes = |o: &Object| String::from_utf8(encode::object(schema, o).bytes).unwrap();
            assert_eq!(bytes(&new), bytes(&old), "{} {subresource:?}", label(*kind));
            // Validation accepts any input without panicking.
            kind.validate_create(&new);
            kind.validate_update(&new, &old, subresource);
        }
        kind.validate_create(&Object::new());
    }
}

#[test]
fn a_stored_version_round_trips() {
    for kind in kinds::all().iter().filter(|k| k.stored_as().is_some()) {
        let mut object = sample(*kind);
        kind.default(&mut object);
        // An older version may add absent fields: once, and not again.
        let there = kind.to_stored(kind.from_stored(kind.to_stored(object)));
        let back = kind.to_stored(kind.from_stored(there.clone()));
        assert_eq!(back, there, "{}", label(*kind));
    }
}

#[test]
fn discovery_is_that_of_the_reference() {
    let mut ours: BTreeMap<String, &dyn Kind> = BTreeMap::new();
    for kind in kinds::all() {
        let names = kind.names();
        ours.insert(
            format!("{}/{}/{}", names.group, names.version, names.plural),
            *kind,
        );
    }
    let mut compared = 0;
    for (group, version) in ours
        .values()
        .map(|k| (k.names().group.clone(), k.names().version.clone()))
        .collect::<BTreeSet<_>>()
    {
        let file = if group.is_empty() {
            format!("discovery/api__{version}.json")
        } else {
            format!("discovery/apis__{group}__{version}.json")
        };
        let Some(path) = reference::find(&file) else {
            continue;
        };
        let document: Value = machinery::json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for resource in document["resources"].as_array().unwrap() {
            compare(&ours, &group, &version, resource);
            compared += 1;
        }
    }
    assert!(compared == 0 || compared > 80, "{compared}");
}

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn compare(ours: &BTreeMap<String, &dyn Kind>, group: &str, version: &str, resource: &Value) {
    let name = resource["name"].as_str().unwrap();
    let (plural, sub) = name
        .split_once('/')
        .map_or((name, None), |(p, s)| (p, Some(s)));
    let Some(kind) = ours.get(&format!("{group}/{version}/{plural}")) else {
        panic!("{group}/{version} {name} is missing");
    };
    match sub {
        None => {
            let names = kind.names();
            assert_eq!(resource["kind"], names.kind.as_str());
            assert_eq!(resource["singularName"], names.singular.as_str(), "{name}");
            assert_eq!(texts(&resource["shortNames"]), names.short_names, "{name}");
            assert_eq!(texts(&resource["categories"]), names.categories, "{name}");
            let namespaced = kind.scope() == kinds::Scope::Namespaced;
            assert_eq!(resource["namespaced"], namespaced, "{name}");
            assert_eq!(texts(&resource["verbs"]), kind.verbs(), "{name}");
        }
        Some(sub) => {
            let Some(info) = kind.subresource_info(sub) else {
                panic!("{name} is missing")
            };
            assert_eq!(texts(&resource["verbs"]), info.verbs, "{name}");
            let own = if info.kind.is_empty() {
                kind.names().kind.as_str()
            } else {
                info.kind
            };
            assert_eq!(resource["kind"], own, "{name}");
            assert_eq!(
                resource["group"].as_str().unwrap_or_default(),
                info.group,
                "{name}"
            );
        }
    }
}
