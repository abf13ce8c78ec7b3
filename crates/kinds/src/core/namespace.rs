//! Namespace: a scope for names. It is removed once the namespace controller has removed its
//! finalizers.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata;
use crate::metadata::Check;
use crate::tree::{child_or_new, default_empty, get, keep, list, name, text};
use crate::{Column, Context, Scope, ServerSide, Subresource, SubresourceInfo};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "Namespace",
    plural: "namespaces",
    server_side: ServerSide {
        is_namespace: true,
        ..ServerSide::NONE
    },
    returns_deleted: true,
    short_names: &["ns"],
    scope: Scope::Cluster,
    schema: "core/v1.Namespace",
    verbs: &[
        "create", "delete", "get", "list", "patch", "update", "watch",
    ],
    subresources: &[
        SubresourceInfo {
            name: "finalize",
            group: "",
            version: "",
            kind: "",
            verbs: &["update"],
        },
        STATUS,
    ],
    has_status: true,
    validate_name: metadata::label,
    default,
    prepare_create,
    prepare_update,
    validate_create: |object| check_finalizers(object, false),
    validate_update,
    selectable: &["status.phase"],
    selectable_fields: |o| vec![("status.phase", text(&get(o, "status")["phase"]).to_owned())],
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    mark_terminating: |object| {
        // A namespace has no deletionGracePeriodSeconds, not even zero.
        child_or_new(object, "metadata").shift_remove("deletionGracePeriodSeconds");
        child_or_new(object, "status").insert("phase".to_owned(), "Terminating".into());
    },
    // It stays until its finalizers are removed; the first delete only marks it as terminating.
    is_held: |object| {
        !list(&get(object, "spec")["finalizers"]).is_empty()
            || text(&get(object, "metadata")["deletionTimestamp"]).is_empty()
    },
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column(
        "Status",
        "string",
        "Whether the namespace is in use or ending.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let phase = text(&get(object, "status")["phase"]);
    vec![name_cell(object), Value::from(phase), age(object, now)]
}

fn default(object: &mut Object) {
    let own = name(object).to_owned();
    if !own.is_empty() {
        let labels = child_or_new(child_or_new(object, "metadata"), "labels");
        labels.insert("kubernetes.io/metadata.name".to_owned(), Value::from(own));
    }
    default_empty(child_or_new(object, "status"), "phase", "Active");
}

fn prepare_create(object: &mut Object, _: &Context<'_>) {
    default_empty(child_or_new(object, "status"), "phase", "Active");
    let spec = child_or_new(object, "spec");
    let finalizers = spec
        .entry("finalizers")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = finalizers
        && !list.iter().any(|f| f == "kubernetes")
    {
        list.push(Value::from("kubernetes"));
    }
}

fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    _: &Context<'_>,
) {
    match subresource {
        None => keep(object, old, "spec"),
        Some("finalize") => keep(object, old, "status"),
        _ => {}
    }
}

/// On create the error names the whole list, on finalize the item.
fn check_finalizers(object: &Object, each_apart: bool) -> Errors {
    const STANDARD: [&str; 3] = ["kubernetes", "foregroundDeletion", "orphan"];
    let mut errors = Vec::new();
    let path = Path::new("spec.finalizers");
    for (i, finalizer) in list(&get(object, "spec")["finalizers"]).iter().enumerate() {
        let finalizer = text(finalizer);
        let at = if each_apart { path.index(i) } else { path };
        check::form(
            format::qualified_name(finalizer),
            finalizer,
            &at,
            &mut errors,
        );
        if !finalizer.contains('/') && !STANDARD.contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&at, finalizer, detail));
        }
    }
    errors
}

fn validate_update(object: &Object, _: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = if subresource == Some("finalize") {
        check_finalizers(object, true)
    } else {
        Vec::new()
    };
    if subresource == Some("status") {
        let phase = text(&get(object, "status")["phase"]);
        let at = Path::new("status.Phase");
        let ending = get(object, "metadata")["deletionTimestamp"].is_string();
        if !ending && phase != "Active" {
            let detail = "may only be 'Active' if `deletionTimestamp` is empty";
            errors.push(Error::invalid(&at, phase, detail));
        } else if ending && phase != "Terminating" {
            let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            errors.push(Error::invalid(&at, phase, detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn finalizers_have_full_names() {
        let namespace = object(r#"{"spec": {"finalizers": ["kubernetes", "a.b/c", "a"]}}"#);
        let wrong = "Invalid value: \"a\": name is neither a standard finalizer name nor is it fully qualified";
        assert_eq!(
            lines(check_finalizers(&namespace, false)),
            [format!("spec.finalizers: {wrong}")]
        );
        assert_eq!(
            lines(validate_update(&namespace, &namespace, Some("finalize"))),
            [format!("spec.finalizers[2]: {wrong}")]
        );
    }

    #[test]
    fn a_new_namespace_is_active_labelled_and_guarded() {
        let mut namespace = object(r#"{"metadata": {"name": "n"}}"#);
        default(&mut namespace);
        prepare_create(&mut namespace, &Context { now: "", user: "" });
        assert_eq!(get(&namespace, "spec")["finalizers"][0], "kubernetes");
        assert_eq!(get(&namespace, "status")["phase"], "Active");
        assert_eq!(
            get(&namespace, "metadata")["labels"]["kubernetes.io/metadata.name"],
            "n"
        );
    }
}
