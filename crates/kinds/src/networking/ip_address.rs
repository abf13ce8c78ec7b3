//! IPAddress: an address that is taken, and by whom. Its name is the address.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{NAME, column, name_cell};
use crate::tree::{get, is_set, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};
use std::net::IpAddr;

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "IPAddress",
    plural: "ipaddresses",
    short_names: &["ip"],
    scope: Scope::Cluster,
    schema: "networking/v1.IPAddress",
    name_format: |name, _| match name.parse::<IpAddr>() {
        Ok(address) if address.to_string() == name => Vec::new(),
        Ok(_) => vec!["must be an IP address in canonical form".to_owned()],
        Err(_) => vec!["must be a valid IP address".to_owned()],
    },
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        let at = Path::new("spec").child("parentRef");
        let parent = |o: &Object| get(o, "spec")["parentRef"].clone();
        check::immutable(&parent(object), &parent(old), &at, &mut errors);
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("ParentRef", "string", "Who has the address.")];

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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let parent = &get(object, "spec")["parentRef"];
    let at = Path::new("spec").child("parentRef");
    if !is_set(parent) {
        errors.push(Error::required(&at, ""));
        return errors;
    }
    for field in ["resource", "name"] {
        check::required(&parent[field], &at.child(field), &mut errors);
    }
    errors
}
