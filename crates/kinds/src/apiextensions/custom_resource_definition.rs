//! CustomResourceDefinition: a kind that users bring. Its objects go through the same interface as
//! built-in ones, with the schema that stands here.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{NAME_CREATED, name_created};
use crate::tree::{
    child, child_or_new, default_empty, default_to, get, is_set, list, name, text, truth,
};
use crate::{Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use serde_json::json;
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "apiextensions.k8s.io",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "apiextensions/v1.CustomResourceDefinition",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    prepare_create: |object, _| default_stored(object),
    validate_create: validate,
    validate_update,
    columns: NAME_CREATED,
    row: name_created,
    ..Builtin::EMPTY
};

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    let names = child_or_new(spec, "names");
    let kind = text(get(names, "kind")).to_owned();
    default_empty(names, "singular", kind.to_lowercase());
    if !kind.is_empty() {
        default_empty(names, "listKind", format!("{kind}List"));
    }
    default_to(spec, "conversion", json!({"strategy": "None"}));
    let service = child(spec, "conversion")
        .and_then(|c| child(c, "webhook"))
        .and_then(|w| child(w, "clientConfig"))
        .and_then(|c| child(c, "service"));
    if let Some(service) = service {
        default_to(service, "port", 443);
    }
    default_stored(object);
}

/// The version that objects are kept in is one that they have been kept in.
fn default_stored(object: &mut Object) {
    let stored = list(&get(object, "spec")["versions"])
        .iter()
        .find(|v| truth(&v["storage"]))
        .map(|v| v["name"].clone());
    if let Some(stored) = stored {
        default_empty(
            child_or_new(object, "status"),
            "storedVersions",
            json!([stored]),
        );
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let required = format!("{plural}.{group}");
    if name(object) != required {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(Error::invalid(
            &Path::new("metadata").child("name"),
            name(object),
            detail,
        ));
    }
    if group.is_empty() {
        errors.push(Error::required(&path.child("group"), ""));
    } else {
        check::form(
            format::dns1123_subdomain(group),
            group,
            &path.child("group"),
            &mut errors,
        );
        if !group.contains('.') {
            let detail = "should be a domain with at least one dot";
            errors.push(Error::invalid(&path.child("group"), group, detail));
        }
    }
    match text(&spec["scope"]) {
        "" => errors.push(Error::required(&path.child("scope"), "")),
        _ => {
            let at = path.child("scope");
            check::one_of(&spec["scope"], &["Cluster", "Namespaced"], &at, &mut errors);
        }
    }
    check_names(&spec["names"], &path.child("names"), &mut errors);
    check_versions(&spec["versions"], &path.child("versions"), &mut errors);
    check_conversion(&spec["conversion"], &path.child("conversion"), &mut errors);
    errors
}

fn check_names(names: &Value, path: &Path, errors: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(&names[field]);
        let at = path.child(field);
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
        } else {
            // Kinds may have capitals, everything else is a DNS label as it stands.
            let lower = value.to_lowercase();
            let checked = if field.to_lowercase().contains("kind") {
                &lower
            } else {
                value
            };
            let complaints = format::dns1035_label(checked);
            if !complaints.is_empty() {
                let detail = complaints.join(",");
                let prefix = if field.to_lowercase().contains("kind") {
                    "may have mixed case, but should otherwise match: "
                } else {
                    ""
                };
                errors.push(Error::invalid(&at, value, format!("{prefix}{detail}")));
            }
        }
    }
    for field in ["shortNames", "categories"] {
        for (i, value) in list(&names[field]).iter().enumerate() {
            let at = path.child(field).index(i);
            check::form(format::dns1035_label(text(value)), text(value), &at, errors);
        }
    }
    if !text(&names["listKind"]).is_empty() && names["kind"] == names["listKind"] {
        let detail = "kind and listKind may not be the same";
        errors.push(Error::invalid(
            &path.child("listKind"),
            text(&names["listKind"]),
            detail,
        ));
    }
}

fn check_versions(versions: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    let mut stored = 0;
    for (i, version) in list(versions).iter().enumerate() {
        let at = path.index(i);
        let name = text(&version["name"]);
        check::form(format::dns1035_label(name), name, &at.child("name"), errors);
        if !names.insert(name) {
            errors.push(Error::invalid(
                path,
                versions.clone(),
                "must contain unique version names",
            ));
        }
        stored += usize::from(truth(&version["storage"]));
        let schema = &version["schema"]["openAPIV3Schema"];
        let schema_path = at.child("schema").child("openAPIV3Schema");
        if is_set(schema) {
            if schema["type"] != "object" {
                let detail = "must be object at the root";
                errors.push(Error::invalid(
                    &schema_path.child("type"),
                    text(&schema["type"]),
                    detail,
                ));
            }
        } else {
            errors.push(Error::required(&schema_path, "schemas are required"));
        }
        check_scale(&version["subresources"]["scale"], &at, errors);
        for (j, column) in list(&version["additionalPrinterColumns"])
            .iter()
            .enumerate()
        {
            let at = at.child("additionalPrinterColumns").index(j);
            check::required(&column["name"], &at.child("name"), errors);
            check::required(&column["jsonPath"], &at.child("jsonPath"), errors);
            let types = ["boolean", "date", "integer", "number", "string"];
            check::one_of(&column["type"], &types, &at.child("type"), errors);
        }
    }
    if stored != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(Error::invalid(path, versions.clone(), detail));
    }
}

fn check_scale(scale: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(scale) {
        return;
    }
    let at = path.child("subresources").child("scale");
    for (field, root) in [
        ("specReplicasPath", ".spec."),
        ("statusReplicasPath", ".status."),
    ] {
        let value = text(&scale[field]);
        if value.is_empty() {
            errors.push(Error::required(&at.child(field), ""));
        } else if !value.starts_with(root) {
            let detail = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.push(Error::invalid(&at.child(field), value, detail));
        }
    }
}

fn check_conversion(conversion: &Value, path: &Path, errors: &mut Errors) {
    check::one_of(
        &conversion["strategy"],
        &["None", "Webhook"],
        &path.child("strategy"),
        errors,
    );
    if conversion["strategy"] == "Webhook" && !is_set(&conversion["webhook"]) {
        let detail = "required when strategy is set to Webhook";
        errors.push(Error::required(
            &path.child("webhook").child("clientConfig"),
            detail,
        ));
    }
    if conversion["strategy"] == "None" && is_set(&conversion["webhook"]) {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.push(Error::forbidden(&path.child("webhook"), detail));
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource.is_some() {
        return Vec::new();
    }
    let mut errors = validate(object);
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    check::immutable(
        &new["group"],
        &was["group"],
        &path.child("group"),
        &mut errors,
    );
    let established = list(&get(old, "status")["conditions"])
        .iter()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    if established {
        check::immutable(
            &new["scope"],
            &was["scope"],
            &path.child("scope"),
            &mut errors,
        );
        for field in ["kind", "plural"] {
            let at = path.child("names").child(field);
            check::immutable(&new["names"][field], &was["names"][field], &at, &mut errors);
        }
    }
    // Objects may still be kept in these.
    for (i, stored) in list(&get(object, "status")["storedVersions"])
        .iter()
        .enumerate()
    {
        if !list(&new["versions"]).iter().any(|v| v["name"] == *stored) {
            let at = Path::new("status").child("storedVersions").index(i);
            let detail = format!(
                "missing from spec.versions; {} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions",
                text(stored)
            );
            errors.push(Error::invalid(&at, text(stored), detail));
        }
    }
    errors
}
