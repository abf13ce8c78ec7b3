//! StorageClass: a way to make volumes.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column};
use crate::tree::{default_to, get, name, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "StorageClass",
    plural: "storageclasses",
    short_names: &["sc"],
    scope: Scope::Cluster,
    schema: "storage/v1.StorageClass",
    default: |object| {
        default_to(object, "reclaimPolicy", "Delete");
        default_to(object, "volumeBindingMode", "Immediate");
    },
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Provisioner", "string", "Who makes the volumes."),
    column(
        "ReclaimPolicy",
        "string",
        "What happens to them in the end.",
    ),
    column("VolumeBindingMode", "string", "When a claim gets one."),
    column("AllowVolumeExpansion", "string", "Whether they may grow."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let annotations = &get(object, "metadata")["annotations"];
    let is_default = annotations["storageclass.kubernetes.io/is-default-class"] == "true"
        || annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true";
    let mut shown = name(object).to_owned();
    if is_default {
        shown.push_str(" (default)");
    }
    vec![
        Value::from(shown),
        text(get(object, "provisioner")).into(),
        text(get(object, "reclaimPolicy")).into(),
        get(object, "volumeBindingMode")
            .as_str()
            .unwrap_or("<unset>")
            .into(),
        get(object, "allowVolumeExpansion")
            .as_bool()
            .unwrap_or_default()
            .into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let provisioner = text(get(object, "provisioner"));
    let at = Path::new("provisioner");
    if provisioner.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        let complaints = format::qualified_name(&provisioner.to_lowercase());
        check::form(complaints, provisioner, &at, &mut errors);
    }
    let policies = ["Delete", "Retain"];
    check::one_of(
        get(object, "reclaimPolicy"),
        &policies,
        &Path::new("reclaimPolicy"),
        &mut errors,
    );
    let modes = ["Immediate", "WaitForFirstConsumer"];
    let at = Path::new("volumeBindingMode");
    check::one_of(get(object, "volumeBindingMode"), &modes, &at, &mut errors);
    errors
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = validate(object);
    for name in ["parameters", "provisioner", "reclaimPolicy"] {
        if !crate::tree::same(get(object, name), get(old, name)) {
            let detail = format!("updates to {name} are forbidden.");
            errors.push(Error::forbidden(&Path::new(name), detail));
        }
    }
    let at = Path::new("volumeBindingMode");
    check::immutable(
        get(object, "volumeBindingMode"),
        get(old, "volumeBindingMode"),
        &at,
        &mut errors,
    );
    errors
}
