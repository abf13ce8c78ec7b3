//! PersistentVolumeClaim: a request for storage.

use super::persistent_volume::or_unset;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, wide};
use crate::diff::unified;
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::{Check, validate_template_metadata};
use crate::pod::is_native;
use crate::tree::{child_or_new, default_empty, default_to, entries, get, is_set, list, text};
use crate::{Column, Context, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    returns_deleted: true,
    short_names: &["pvc"],
    schema: "core/v1.PersistentVolumeClaim",
    subresources: &[STATUS],
    has_status: true,
    default,
    prepare_create: |object, _: &Context<'_>| {
        default_empty(child_or_new(object, "status"), "phase", "Pending");
        let spec = child_or_new(object, "spec");
        drop_foreign_source(spec);
        agree_on_source(spec, false);
    },
    prepare_update: |object, old, subresource, _| {
        if subresource.is_none() {
            let had = |name: &str| is_set(&get(old, "spec")[name]);
            let spec = child_or_new(object, "spec");
            if !had("dataSourceRef") {
                drop_foreign_source(spec);
            }
            agree_on_source(spec, had("dataSource") || had("dataSourceRef"));
        }
    },
    validate_create: validate,
    validate_update,
    warnings: |object, _| warnings(object),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

/// Drops cross-namespace data sources, whose feature gate is off.
fn drop_foreign_source(spec: &mut Object) {
    if is_foreign(get(spec, "dataSourceRef")) {
        spec.shift_remove("dataSourceRef");
    }
}

fn is_foreign(source: &Value) -> bool {
    !text(&source["namespace"]).is_empty()
}

/// Makes the two data source fields agree. The older one accepts only claims and snapshots, unless
/// it `had` something else before.
fn agree_on_source(spec: &mut Object, had: bool) {
    let source = get(spec, "dataSource");
    let known = match (text(&source["kind"]), text(&source["apiGroup"])) {
        ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io") => true,
        _ => had || is_set(get(spec, "dataSourceRef")),
    };
    if !known {
        spec.shift_remove("dataSource");
    }
    for (from, to) in [
        ("dataSource", "dataSourceRef"),
        ("dataSourceRef", "dataSource"),
    ] {
        let source = get(spec, from);
        if is_set(source) && !is_foreign(source) && !is_set(get(spec, to)) {
            let mut copy = Object::new();
            for field in ["apiGroup", "kind", "name"] {
                copy.insert(field.to_owned(), source[field].clone());
            }
            spec.insert(to.to_owned(), Value::Object(copy));
        }
    }
}

/// Warns of fractional bytes.
fn warnings(object: &Object) -> Vec<String> {
    let resources = &get(object, "spec")["resources"];
    let mut out = Vec::new();
    for kind in ["requests", "limits"] {
        let amount = &resources[kind]["storage"];
        if !self::amount(amount).is_integer() {
            out.push(format!(
                "spec.resources.{kind}[storage]: fractional byte value {:?} is invalid, \
                 must be an integer",
                text(amount)
            ));
        }
    }
    out
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "string", "Phase of the claim."),
    column("Volume", "string", "Volume that is bound to the claim."),
    column("Capacity", "string", "Size of the volume."),
    column("Access Modes", "string", "How it can be mounted."),
    column("StorageClass", "string", "Class it asks for."),
    column(
        "VolumeAttributesClass",
        "string",
        "Class of its attributes.",
    ),
    AGE,
    wide("VolumeMode", "string", "File system or block device."),
];

/// `RWO,ROX,RWX,RWOP`
pub(super) fn access_modes(modes: &Value) -> String {
    let mut out: Vec<&str> = Vec::new();
    for (mode, short) in [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ] {
        if list(modes).iter().any(|m| m == mode) {
            out.push(short);
        }
    }
    out.join(",")
}

/// Validates access modes: ReadWriteOncePod excludes all others.
pub(super) fn check_modes(modes: &Value, path: &Path, errors: &mut Errors) {
    let supported = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    for mode in list(modes) {
        check::one_of(mode, &supported, path, errors);
    }
    let alone = |mode: &&Value| *mode == "ReadWriteOncePod";
    let known = |mode: &&Value| supported.contains(&text(mode));
    let mut known = list(modes).iter().filter(known);
    if list(modes).iter().any(|m| alone(&m)) && known.any(|m| !alone(&m)) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(Error::forbidden(path, detail));
    }
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let phase = if ending {
        "Terminating"
    } else {
        text(&status["phase"])
    };
    let volume = text(&spec["volumeName"]);
    let (capacity, modes) = if volume.is_empty() {
        (String::new(), String::new())
    } else {
        (
            text(&status["capacity"]["storage"]).to_owned(),
            access_modes(&status["accessModes"]),
        )
    };
    vec![
        name_cell(object),
        phase.into(),
        volume.into(),
        Value::from(capacity),
        Value::from(modes),
        text(&spec["storageClassName"]).into(),
        or_unset(&spec["volumeAttributesClassName"]),
        age(object, now),
        or_unset(&spec["volumeMode"]),
    ]
}

fn default(object: &mut Object) {
    default_empty(child_or_new(object, "status"), "phase", "Pending");
    default_to(child_or_new(object, "spec"), "volumeMode", "Filesystem");
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    validate_spec(get(object, "spec"), false, &Path::new("spec"), &mut errors);
    errors
}

/// Validates a claim template, whose metadata is restricted.
pub(crate) fn validate_template(template: &Value, path: &Path, errors: &mut Errors) {
    validate_template_metadata(&template["metadata"], &path.child("metadata"), errors);
    validate_spec(&template["spec"], false, &path.child("spec"), errors);
}

/// Validates a claim's spec; `lax` accepts data source groups that were there before.
pub(crate) fn validate_spec(spec: &Value, lax: bool, path: &Path, errors: &mut Errors) {
    let at = path.child("accessModes");
    if list(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&at, "at least 1 access mode is required"));
    }
    check::label_selector(&spec["selector"], &path.child("selector"), errors);
    check_modes(&spec["accessModes"], &at, errors);
    let storage = &spec["resources"]["requests"]["storage"];
    let at = path.child("resources");
    let at = at.key("storage");
    match text(storage).parse::<Quantity>() {
        Err(_) => errors.push(Error::required(&at, "")),
        Ok(q) if q.is_zero() || q.is_negative() => {
            errors.push(Error::invalid(&at, text(storage), check::POSITIVE));
        }
        Ok(_) => {}
    }
    let subdomain = format::dns1123_subdomain;
    let at = path.child("storageClassName");
    check::optional(subdomain, &spec["storageClassName"], &at, errors);
    if is_set(&spec["volumeMode"]) {
        let at = path.child("volumeMode");
        check::one_of(&spec["volumeMode"], &["Block", "Filesystem"], &at, errors);
    }
    check_sources(spec, lax, path, errors);
    let at = path.child("volumeAttributesClassName");
    check::optional(subdomain, &spec["volumeAttributesClassName"], &at, errors);
}

fn check_sources(spec: &Value, lax: bool, path: &Path, errors: &mut Errors) {
    for field in ["dataSource", "dataSourceRef"] {
        let (source, at) = (&spec[field], path.child(field));
        if !is_set(source) {
            continue;
        }
        check::required(&source["name"], &at.child("name"), errors);
        check::required(&source["kind"], &at.child("kind"), errors);
        let group = text(&source["apiGroup"]);
        if group.is_empty() && source["kind"] != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Error::invalid(&at, text(&source["kind"]), detail));
        }
        if !group.is_empty() && !lax {
            let at = at.child("apiGroup");
            check::form(format::dns1123_subdomain(group), group, &at, errors);
        }
        if is_foreign(source) {
            let namespace = text(&source["namespace"]);
            let at = at.child("namespace");
            check::form(format::dns1123_label(namespace), namespace, &at, errors);
        }
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if !is_set(source) || !is_set(reference) {
        return;
    }
    let fields = ["apiGroup", "kind", "name"];
    let detail = if is_foreign(reference) {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if fields.iter().any(|f| source[*f] != reference[*f]) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream prints the path as a struct without public fields.
    let nothing = Value::Object(Object::new());
    errors.push(Error::invalid(path, nothing, detail));
}

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource.is_some() {
        return validate_status(object);
    }
    let mut errors = Vec::new();
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let lax = ["dataSource", "dataSourceRef"]
        .iter()
        .any(|f| is_set(&was[*f]["apiGroup"]));
    validate_spec(new, lax, &Path::new("spec"), &mut errors);
    check_class_annotation(object, old, &mut errors);
    let munged = with_old_mutable_fields(object, old);
    const SPEC: &str = "core/v1.PersistentVolumeClaimSpec";
    if !equal(SPEC, &munged, was) {
        // A newly set volumeName is shown in both sides of the diff.
        let spec = |spec: &Value| {
            let mut shown = internal(SPEC, spec);
            if text(&was["volumeName"]).is_empty() {
                shown["VolumeName"] = text(&new["volumeName"]).into();
            }
            shown
        };
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{}",
            unified(&spec(was), &spec(&munged))
        );
        errors.push(Error::forbidden(&Path::new("spec"), detail));
    }
    check_size(object, old, &mut errors);
    let at = Path::new("volumeMode");
    check::immutable(&new["volumeMode"], &was["volumeMode"], &at, &mut errors);
    let class = "volumeAttributesClassName";
    if new[class] != was[class] && is_set(&get(old, "status")["currentVolumeAttributesClassName"]) {
        let to = match new[class].as_str() {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return errors,
        };
        let detail = format!(
            "update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
        );
        errors.push(Error::forbidden(&Path::new("spec").child(class), detail));
    }
    errors
}

fn annotation<'a>(object: &'a Object, name: &str) -> &'a Value {
    &get(object, "metadata")["annotations"][name]
}

/// Whether the class moves from the old annotation into its field.
fn class_moves(object: &Object, old: &Object) -> bool {
    let (new, was) = (annotation(object, CLASS), annotation(old, CLASS));
    let class = |o: &Object| get(o, "spec")["storageClassName"].clone();
    is_set(was) && !is_set(&class(old)) && class(object) == *was && (!is_set(new) || new == was)
}

fn check_class_annotation(object: &Object, old: &Object, errors: &mut Errors) {
    let (new, was) = (annotation(object, CLASS), annotation(old, CLASS));
    if !class_moves(object, old) && text(new) != text(was) {
        let at = Path::new("metadata.annotations");
        let at = at.child(CLASS);
        errors.push(Error::invalid(&at, text(new), check::IMMUTABLE));
    }
}

/// The new spec with all mutable fields reset to their old values.
fn with_old_mutable_fields(object: &Object, old: &Object) -> Value {
    let was = get(old, "spec");
    let mut spec = get(object, "spec").clone();
    let bound = get(object, "status")["phase"] == "Bound";
    let keep = |spec: &mut Value, field: &str| {
        if let Value::Object(map) = spec {
            map.insert(field.to_owned(), was[field].clone());
        }
    };
    if text(&was["volumeName"]).is_empty() {
        keep(&mut spec, "volumeName");
    }
    let mark = annotation(old, CLASS);
    let named = !is_set(&was["storageClassName"])
        && is_set(&spec["storageClassName"])
        && (!is_set(mark) || spec["storageClassName"] == *mark);
    if named || class_moves(object, old) {
        keep(&mut spec, "storageClassName");
    }
    if bound {
        keep(&mut spec, "volumeAttributesClassName");
        if is_set(&spec["resources"]["requests"]) {
            spec["resources"]["requests"]["storage"] =
                was["resources"]["requests"]["storage"].clone();
        }
    }
    spec
}

fn amount(value: &Value) -> Quantity {
    text(value).parse().unwrap_or(Quantity::ZERO)
}

/// A claim may grow, and shrink again until its volume was resized.
fn check_size(object: &Object, old: &Object, errors: &mut Errors) {
    let size = |o: &Object| amount(&get(o, "spec")["resources"]["requests"]["storage"]);
    let has = amount(&get(old, "status")["capacity"]["storage"]);
    if size(object) < size(old) && size(object) <= has {
        let detail = "field can not be less than status.capacity";
        let at = Path::new("spec.resources");
        errors.push(Error::forbidden(
            &at.child("requests").child("storage"),
            detail,
        ));
    }
}

const RESIZES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

fn validate_status(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let status = get(object, "status");
    let path = Path::new("status");
    let check_amount = |value: &Value, at: &Path, errors: &mut Errors| {
        let amount = amount(value);
        if amount.is_negative() {
            let detail = "must be a valid resource quantity";
            errors.push(Error::invalid(at, amount.value(), detail));
        }
    };
    for (name, value) in entries(&status["capacity"]) {
        check_amount(value, &path.child("capacity").key(name), &mut errors);
    }
    let at = path.child("allocatedResourceStatuses");
    for (name, state) in entries(&status["allocatedResourceStatuses"]) {
        check_resource_key(name, &at, &mut errors);
        if !RESIZES.contains(&text(state)) {
            errors.push(Error::not_supported(&at, name.as_str(), RESIZES));
        }
    }
    let at = path.child("allocatedResources");
    for (name, value) in entries(&status["allocatedResources"]) {
        let before = errors.len();
        check_resource_key(name, &at, &mut errors);
        if errors.len() == before {
            check_amount(value, &at.key(name), &mut errors);
        }
    }
    errors
}

fn check_resource_key(name: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::qualified_name(name);
    if !complaints.is_empty() {
        check::form(complaints, name, path, errors);
    } else if is_native(name) && name != "storage" {
        errors.push(Error::not_supported(path, name, &["storage"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn claim(phase: &str, size: &str) -> Object {
        object(&format!(
            r#"{{"spec": {{"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "resources": {{"requests": {{"storage": "{size}"}}}}}},
                "status": {{"phase": "{phase}", "capacity": {{"storage": "2Gi"}}}}}}"#
        ))
    }

    #[test]
    fn a_bound_claim_may_grow_but_not_below_what_it_has() {
        let old = claim("Bound", "3Gi");
        assert_eq!(
            lines(validate_update(&claim("Bound", "4Gi"), &old, None)),
            [""; 0]
        );
        assert_eq!(
            lines(validate_update(&claim("Bound", "1Gi"), &old, None)),
            [
                "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
            ]
        );
        let pending = claim("Pending", "3Gi");
        assert!(
            lines(validate_update(&claim("Pending", "4Gi"), &pending, None))[0]
                .starts_with("spec: Forbidden: spec is immutable after creation")
        );
    }

    #[test]
    fn parts_of_bytes_are_warned_about() {
        assert!(warnings(&claim("Pending", "1Gi")).is_empty());
        assert_eq!(
            warnings(&claim("Pending", "100m")),
            [
                "spec.resources.requests[storage]: fractional byte value \"100m\" is invalid, must be an integer"
            ]
        );
    }

    #[test]
    fn the_class_may_be_filled_in_later() {
        let old = claim("Pending", "3Gi");
        let mut new = old.clone();
        new["spec"]["storageClassName"] = Value::from("x");
        assert_eq!(lines(validate_update(&new, &old, None)), [""; 0]);
        assert!(!lines(validate_update(&old, &new, None)).is_empty());
    }

    #[test]
    fn data_of_another_namespace_are_not_taken() {
        let source = r#"{"apiGroup": "a.b", "kind": "K", "name": "n", "namespace": "o"}"#;
        let made = |spec: &str| {
            let mut claim = object(&format!(r#"{{"spec": {spec}}}"#));
            (KIND.prepare_create)(&mut claim, &Context { now: "", user: "" });
            get(&claim, "spec").clone()
        };
        assert_eq!(
            made(&format!(r#"{{"dataSourceRef": {source}}}"#)),
            json!({})
        );
        let own = r#"{"kind": "PersistentVolumeClaim", "name": "n", "namespace": ""}"#;
        let spec = made(&format!(r#"{{"dataSourceRef": {own}}}"#));
        assert_eq!(spec["dataSource"]["name"], "n");
        // The cross-namespace source is dropped, which is a change of the immutable spec.
        let old =
            object(r#"{"spec": {"dataSourceRef": {"apiGroup": "a.b", "kind": "K", "name": "n"}}}"#);
        let mut new = object(&format!(r#"{{"spec": {{"dataSourceRef": {source}}}}}"#));
        (KIND.prepare_update)(&mut new, &old, None, &Context { now: "", user: "" });
        let reported = lines(validate_update(&new, &old, None));
        assert!(
            reported
                .iter()
                .any(|line| line.starts_with("spec: Forbidden: spec is immutable"))
        );
    }

    #[test]
    fn the_namespace_of_a_data_source_is_validated() {
        let mut errors = Vec::new();
        let spec = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "n"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "n", "namespace": "a.b"}});
        check_sources(&spec, false, &Path::new("spec"), &mut errors);
        let reported = lines(errors);
        assert!(reported[0].starts_with("spec.dataSourceRef.namespace: Invalid value: \"a.b\""));
        assert_eq!(
            reported[1],
            "spec: Invalid value: {}: may not be specified when dataSourceRef.namespace is specified"
        );
    }
}
