//! IPAddress: an allocated address and its owner. Its name is the address.

use crate::address::strict_ip;
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{NAME, column, name_cell};
use crate::metadata::Check;
use crate::tree::{get, is_set, same, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "IPAddress",
    plural: "ipaddresses",
    short_names: &["ip"],
    scope: Scope::Cluster,
    schema: "networking/v1.IPAddress",
    validate_name: |name, _| {
        let mut errors = Vec::new();
        strict_ip(name, &Path::new(""), &mut errors);
        errors.into_iter().map(|error| error.detail).collect()
    },
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        let (new, was) = (parent(object), parent(old));
        if !same(new, was) {
            let at = Path::new("spec.parentRef");
            errors.push(Error::invalid(&at, printed(new), check::IMMUTABLE));
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
    column("ParentRef", "string", "Object that uses the address."),
];

fn row(object: &Object, _: i64) -> Vec<Value> {
    let parent = &get(object, "spec")["parentRef"];
    if !is_set(parent) {
        return vec![name_cell(object), "<none>".into()];
    }
    let (group, resource) = (text(&parent["group"]), text(&parent["resource"]));
    let mut shown = if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    };
    shown = shown.to_lowercase();
    if !text(&parent["namespace"]).is_empty() {
        shown = format!("{shown}/{}", text(&parent["namespace"]));
    }
    vec![
        name_cell(object),
        format!("{shown}/{}", text(&parent["name"])).into(),
    ]
}

fn parent(object: &Object) -> &Value {
    &get(object, "spec")["parentRef"]
}

/// With the field names of upstream's internal type.
fn printed(parent: &Value) -> Value {
    if !is_set(parent) {
        return Value::Null;
    }
    let field = |name: &str| text(&parent[name]).to_owned();
    json!({"Group": field("group"), "Resource": field("resource"),
        "Namespace": field("namespace"), "Name": field("name")})
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let parent = parent(object);
    let at = Path::new("spec.parentRef");
    if !is_set(parent) {
        errors.push(Error::required(&at, ""));
        return errors;
    }
    let group = at.child("group");
    check::optional(
        format::dns1123_subdomain,
        &parent["group"],
        &group,
        &mut errors,
    );
    for field in ["resource", "name"] {
        check::needed_segment(&parent[field], &at.child(field), &mut errors);
    }
    let namespace = at.child("namespace");
    check::optional(
        format::path_segment,
        &parent["namespace"],
        &namespace,
        &mut errors,
    );
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn the_name_is_a_canonical_address() {
        let reported = |name: &str| (KIND.validate_name)(name, false).join(" ");
        assert_eq!(reported("10.0.0.1"), "");
        assert_eq!(
            reported("2001:DB8::1"),
            r#"must be in canonical form ("2001:db8::1")"#
        );
        assert_eq!(reported("010.0.0.1"), "must not have leading 0s");
        assert!(reported("x").starts_with("must be a valid IP address"));
    }

    #[test]
    fn the_owner_is_named_and_stays() {
        let of = |parent: &str| object(&format!(r#"{{"spec": {{"parentRef": {parent}}}}}"#));
        assert_eq!(
            lines(validate(&object("{}"))),
            ["spec.parentRef: Required value"]
        );
        assert_eq!(
            lines(validate(&of(r#"{"resource": "a/b"}"#))),
            [
                "spec.parentRef.resource: Invalid value: \"a/b\": may not contain '/'",
                "spec.parentRef.name: Required value",
            ]
        );
        let (old, new) = (
            of(r#"{"resource": "a", "name": "b"}"#),
            of(r#"{"resource": "a", "name": "c"}"#),
        );
        assert_eq!(
            lines((KIND.validate_update)(&new, &old, None)),
            [
                r#"spec.parentRef: Invalid value: {"Group":"","Resource":"a","Namespace":"","Name":"c"}: field is immutable"#
            ]
        );
    }
}
