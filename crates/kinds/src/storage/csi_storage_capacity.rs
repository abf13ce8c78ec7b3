//! CSIStorageCapacity: how much storage there is, and where.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{NAME, column, name_cell};
use crate::metadata::Check;
use crate::tree::{get, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSIStorageCapacity",
    plural: "csistoragecapacities",
    schema: "storage/v1.CSIStorageCapacity",
    unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        for name in ["nodeTopology", "storageClassName"] {
            check::immutable(
                get(object, name),
                get(old, name),
                &Path::new(name),
                &mut errors,
            );
        }
        errors
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("StorageClassName", "string", "The class it is about."),
    column("Capacity", "string", "How much there is."),
];

fn row(object: &Object, _: i64) -> Vec<Value> {
    let capacity = get(object, "capacity").as_str().unwrap_or("<unset>");
    vec![
        name_cell(object),
        text(get(object, "storageClassName")).into(),
        capacity.into(),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let (topology, at) = (get(object, "nodeTopology"), Path::new("nodeTopology"));
    check::label_selector(topology, &at, &mut errors);
    let class = text(get(object, "storageClassName"));
    let at = Path::new("storageClassName");
    check::form(format::dns1123_subdomain(class), class, &at, &mut errors);
    let capacity = text(get(object, "capacity"));
    let amount = capacity.parse::<Quantity>();
    if amount.is_ok_and(Quantity::is_negative) {
        let at = Path::new("capacity");
        errors.push(Error::invalid(&at, capacity, check::NEGATIVE));
    }
    errors
}
