//! CSINode: the storage drivers of a node.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::shown::{GoField, GoType, shown};
use crate::tree::{get, list, text};
use crate::volume_source::csi_driver_name;
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSINode",
    plural: "csinodes",
    returns_deleted: true,
    scope: Scope::Cluster,
    schema: "storage/v1.CSINode",
    allows_unconditional_update: false,
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("Drivers", "integer", "How many drivers."), AGE];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let count = list(&get(object, "spec")["drivers"]).len();
    vec![name_cell(object), count.into(), age(object, now)]
}

const ID_MAX: usize = 256;

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let drivers = list(&get(object, "spec")["drivers"]);
    for (i, driver) in drivers.iter().enumerate() {
        let at = Path::new("spec.drivers");
        let at = at.index(i);
        check_driver(driver, &drivers[..i], &at, &mut errors);
    }
    errors
}

fn check_driver(driver: &Value, before: &[Value], path: &Path, errors: &mut Errors) {
    let name = text(&driver["name"]);
    csi_driver_name(name, &path.child("name"), errors);
    let (id, at) = (text(&driver["nodeID"]), path.child("nodeID"));
    if id.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    if id.len() > ID_MAX {
        let detail = format!("must be {ID_MAX} characters or less");
        errors.push(Error::invalid(&at, id, detail));
    }
    let at = path.child("allocatable.count");
    check::non_negative(&driver["allocatable"]["count"], &at, errors);
    if before.iter().any(|d| text(&d["name"]) == name) {
        errors.push(Error::duplicate(&path.child("name"), name));
    }
    let keys = list(&driver["topologyKeys"]);
    for (i, key) in keys.iter().enumerate() {
        let given = text(key);
        if given.is_empty() {
            errors.push(Error::required(path, ""));
        }
        if keys[..i].contains(key) {
            errors.push(Error::duplicate(path, given));
        }
        check::form(format::qualified_name(given), given, path, errors);
    }
}

const DRIVER: &[GoField] = &[
    GoField("name", "Name", GoType::Text),
    GoField("nodeID", "NodeID", GoType::Text),
    GoField("topologyKeys", "TopologyKeys", GoType::Plain),
    GoField("", "Allocatable", GoType::Plain),
];

/// A driver is immutable except for its volume limit.
fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = validate(object);
    let drivers = |o: &Object| list(&get(o, "spec")["drivers"]).to_vec();
    for was in drivers(old) {
        for driver in drivers(object).iter().filter(|d| d["name"] == was["name"]) {
            if shown(driver, DRIVER) != shown(&was, DRIVER) {
                let at = Path::new("spec.drivers");
                errors.push(Error::invalid(&at, shown(driver, DRIVER), check::IMMUTABLE));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn drivers_of_a_csi_node_are_immutable() {
        let node = |id: &str, count: i64| {
            object(&format!(
                r#"{{"spec": {{"drivers": [{{"name": "a.b", "nodeID": "{id}", "topologyKeys": null, "allocatable": {{"count": {count}}}}}]}}}}"#
            ))
        };
        let none: [&str; 0] = [];
        assert_eq!(
            lines(validate_update(&node("n", 2), &node("n", 1), None)),
            none
        );
        assert_eq!(
            lines(validate_update(&node("m", 1), &node("n", 1), None)),
            [
                "spec.drivers: Invalid value: {\"Name\":\"a.b\",\"NodeID\":\"m\",\"TopologyKeys\":null,\"Allocatable\":null}: field is immutable"
            ]
        );
    }
}
