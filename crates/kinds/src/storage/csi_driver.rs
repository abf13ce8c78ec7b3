//! CSIDriver: what a storage driver can do.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child_or_new, default_empty, default_to, get, is_set, list, text, truth};
use crate::{Column, Scope, Subresource};
use machinery::field::{Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSIDriver",
    plural: "csidrivers",
    scope: Scope::Cluster,
    schema: "storage/v1.CSIDriver",
    has_generation: false,
    unconditional_update: false,
    default,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        let at = Path::new("spec").child("attachedRequired");
        let attach = |o: &Object| get(o, "spec")["attachRequired"].clone();
        check::immutable(&attach(object), &attach(old), &at, &mut errors);
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column(
        "AttachRequired",
        "boolean",
        "Whether volumes are attached first.",
    ),
    column(
        "PodInfoOnMount",
        "boolean",
        "Whether it hears about the pod.",
    ),
    column(
        "StorageCapacity",
        "boolean",
        "Whether it tells its capacity.",
    ),
    column(
        "TokenRequests",
        "string",
        "Audiences of the tokens it gets.",
    ),
    column(
        "RequiresRepublish",
        "boolean",
        "Whether it is called again and again.",
    ),
    column("Modes", "string", "Lifecycles of volumes it supports."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let join = |items: Vec<&str>, none: &str| {
        if items.is_empty() {
            none.to_owned()
        } else {
            items.join(",")
        }
    };
    let tokens = list(&spec["tokenRequests"])
        .iter()
        .map(|t| text(&t["audience"]))
        .collect();
    let modes = list(&spec["volumeLifecycleModes"])
        .iter()
        .map(text)
        .collect();
    vec![
        name_cell(object),
        spec["attachRequired"].as_bool().unwrap_or(true).into(),
        truth(&spec["podInfoOnMount"]).into(),
        truth(&spec["storageCapacity"]).into(),
        Value::from(join(tokens, "<unset>")),
        truth(&spec["requiresRepublish"]).into(),
        Value::from(join(modes, "<none>")),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "attachRequired", true);
    default_to(spec, "podInfoOnMount", false);
    default_to(spec, "storageCapacity", false);
    default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    default_empty(spec, "volumeLifecycleModes", json!(["Persistent"]));
    default_to(spec, "requiresRepublish", false);
    default_to(spec, "seLinuxMount", false);
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if is_set(&spec["fsGroupPolicy"]) {
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        check::one_of(
            &spec["fsGroupPolicy"],
            &policies,
            &path.child("fsGroupPolicy"),
            &mut errors,
        );
    }
    for mode in list(&spec["volumeLifecycleModes"]) {
        let at = path.child("volumeLifecycleModes");
        check::one_of(mode, &["Ephemeral", "Persistent"], &at, &mut errors);
    }
    errors
}
