//! PersistentVolume: storage that can be bound to a claim.

use super::persistent_volume_claim::{access_modes, check_modes};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, wide};
use crate::diff::unified;
use crate::internal::internal;
use crate::metadata::Check;
use crate::pod::{check_node_selector, default_source, warn_term};
use crate::tree::{
    child_or_new, default_empty, default_to, entries, get, is_set, list, name, same, text,
};
use crate::volume_source::{check_persistent, persistent_fields};
use crate::{Column, Context, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    returns_deleted: true,
    short_names: &["pv"],
    scope: Scope::Cluster,
    schema: "core/v1.PersistentVolume",
    subresources: &[STATUS],
    has_status: true,
    default,
    prepare_create: |object, context: &Context<'_>| {
        let status = child_or_new(object, "status");
        status.insert("phase".to_owned(), Value::from("Pending"));
        status.insert(CHANGED.to_owned(), Value::from(context.now));
    },
    prepare_update,
    validate_create: validate,
    validate_update,
    warnings: |object, _| warnings(object),
    status_warnings: Some(|_| Vec::new()),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Whole],
    ..Builtin::EMPTY
};

const CHANGED: &str = "lastPhaseTransitionTime";

/// A new phase gets its transition time, unless the writer sets one.
fn prepare_update(
    object: &mut Object,
    old: &Object,
    subresource: Subresource<'_>,
    context: &Context<'_>,
) {
    if subresource != Some("status") {
        return;
    }
    let was = get(old, "status");
    let status = child_or_new(object, "status");
    let unsaid = !is_set(get(status, CHANGED));
    if get(status, "phase") == &was["phase"] {
        if unsaid && is_set(&was[CHANGED]) {
            status.insert(CHANGED.to_owned(), was[CHANGED].clone());
        }
    } else if unsaid || get(status, CHANGED) == &was[CHANGED] {
        status.insert(CHANGED.to_owned(), Value::from(context.now));
    }
}

/// Annotations that became fields, with their warnings.
const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "volume.beta.kubernetes.io/storage-class",
        "deprecated since v1.8; use \"storageClassName\" attribute instead",
    ),
    (
        "volume.beta.kubernetes.io/mount-options",
        "deprecated since v1.31; use \"mountOptions\" attribute instead",
    ),
];

/// Volume sources that are no longer supported: field, name in warnings, version.
const OLD_SOURCES: &[(&str, &str, &str)] = &[
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

fn warnings(object: &Object) -> Vec<String> {
    let (annotations, spec) = (&get(object, "metadata")["annotations"], get(object, "spec"));
    let mut out = Vec::new();
    for (key, message) in OLD_ANNOTATIONS {
        if is_set(&annotations[*key]) {
            let at = Path::new("metadata.annotations");
            let at = at.key(key);
            out.push(format!("{at}: {message}"));
        }
    }
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    let required = Path::new("spec.nodeAffinity.required");
    let terms = list(&spec["nodeAffinity"]["required"]["nodeSelectorTerms"]);
    for (i, term) in terms.iter().enumerate() {
        let at = required.child("nodeSelectorTerms");
        let at = at.index(i);
        warn_term(term, false, &at, &mut out);
    }
    for (field, shown, message) in OLD_SOURCES {
        if is_set(&spec[*field]) {
            out.push(format!("spec.{shown}: {message}"));
        }
    }
    out
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Capacity", "string", "Size."),
    column("Access Modes", "string", "How it can be mounted."),
    column(
        "Reclaim Policy",
        "string",
        "What happens when its claim goes.",
    ),
    column("Status", "string", "Phase of the volume."),
    column("Claim", "string", "Claim that is bound to the volume."),
    column("StorageClass", "string", "Class it belongs to."),
    column(
        "VolumeAttributesClass",
        "string",
        "Class of its attributes.",
    ),
    column("Reason", "string", "Why it failed."),
    AGE,
    wide("VolumeMode", "string", "File system or block device."),
];

/// A text, or `<unset>`.
pub(super) fn or_unset(value: &Value) -> Value {
    Value::from(value.as_str().unwrap_or("<unset>"))
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let phase = if ending {
        "Terminating"
    } else {
        text(&status["phase"])
    };
    let claim = &spec["claimRef"];
    let claim = if is_set(claim) {
        format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]))
    } else {
        String::new()
    };
    let size = text(&spec["capacity"]["storage"]);
    vec![
        name_cell(object),
        Value::from(if size.is_empty() { "0" } else { size }),
        Value::from(access_modes(&spec["accessModes"])),
        text(&spec["persistentVolumeReclaimPolicy"]).into(),
        phase.into(),
        Value::from(claim),
        text(&spec["storageClassName"]).into(),
        or_unset(&spec["volumeAttributesClassName"]),
        text(&status["reason"]).into(),
        age(object, now),
        or_unset(&spec["volumeMode"]),
    ]
}

fn default(object: &mut Object) {
    default_empty(child_or_new(object, "status"), "phase", "Pending");
    let spec = child_or_new(object, "spec");
    default_empty(spec, "persistentVolumeReclaimPolicy", "Retain");
    default_to(spec, "volumeMode", "Filesystem");
    default_source(spec);
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = get(object, "spec");
    if list(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&path.child("accessModes"), ""));
    }
    let at = path.child("accessModes");
    check_modes(&spec["accessModes"], &at, &mut errors);
    check_capacity(&spec["capacity"], &path.child("capacity"), &mut errors);
    let policy = &spec["persistentVolumeReclaimPolicy"];
    let at = path.child("persistentVolumeReclaimPolicy");
    if !text(policy).is_empty() {
        check::one_of(policy, &["Delete", "Recycle", "Retain"], &at, &mut errors);
    }
    check_affinity(
        &spec["nodeAffinity"],
        &path.child("nodeAffinity"),
        &mut errors,
    );
    check_persistent(spec, name(object), &path, &mut errors);
    let host = text(&spec["hostPath"]["path"]);
    let is_root = host.starts_with('/') && host.split('/').all(|p| matches!(p, "" | "." | ".."));
    if is_root && policy == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(Error::forbidden(&at, detail));
    }
    check_classes(spec, &path, &mut errors);
    errors
}

/// Validates an inline volume: only the fields needed to mount it are allowed.
pub(crate) fn check_inline(spec: &Value, path: &Path, errors: &mut Errors) {
    let forbid = |name: &str, detail: &str| {
        let detail = format!("{detail} in the context of inline volumes");
        Error::forbidden(&path.child(name), detail)
    };
    let nothing = "may not be specified";
    if is_set(&spec["claimRef"]) {
        errors.push(forbid("claimRef", nothing));
    }
    if entries(&spec["capacity"]).next().is_some() {
        errors.push(forbid("capacity", nothing));
    }
    if !is_set(&spec["csi"]) {
        let detail = "has to be specified in the context of inline volumes";
        errors.push(Error::required(&path.child("csi"), detail));
    }
    let at = path.child("accessModes");
    if list(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&at, ""));
    }
    check_modes(&spec["accessModes"], &at, errors);
    let policy = text(&spec["persistentVolumeReclaimPolicy"]);
    if !matches!(policy, "" | "Retain") {
        errors.push(forbid(
            "persistentVolumeReclaimPolicy",
            "may only be Retain",
        ));
    }
    if is_set(&spec["nodeAffinity"]) {
        errors.push(forbid("nodeAffinity", nothing));
    }
    check_persistent(spec, "", path, errors);
    if !text(&spec["storageClassName"]).is_empty() {
        errors.push(forbid("storageClassName", nothing));
    }
    let mode = &spec["volumeMode"];
    if is_set(mode) && mode != "Filesystem" {
        errors.push(forbid(
            "volumeMode",
            "may not specify volumeMode other than Filesystem",
        ));
    }
}

fn check_capacity(capacity: &Value, path: &Path, errors: &mut Errors) {
    if entries(capacity).next().is_none() {
        errors.push(Error::required(path, ""));
    }
    if !is_set(&capacity["storage"]) || entries(capacity).count() > 1 {
        errors.push(Error::not_supported(path, capacity.clone(), &["storage"]));
    }
    for (name, value) in entries(capacity) {
        let amount = text(value).parse::<Quantity>().unwrap_or(Quantity::ZERO);
        if amount.is_negative() {
            let detail = "must be a valid resource quantity";
            errors.push(Error::invalid(&path.key(name), amount.value(), detail));
        }
        if amount.is_negative() || amount.is_zero() {
            errors.push(Error::invalid(
                &path.key(name),
                text(value),
                check::POSITIVE,
            ));
        }
    }
}

fn check_affinity(affinity: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(affinity) {
        return;
    }
    let at = path.child("required");
    if is_set(&affinity["required"]) {
        check_node_selector(&affinity["required"], &at, errors);
    } else {
        let detail = "must specify required node constraints";
        errors.push(Error::required(&at, detail));
    }
}

fn check_classes(spec: &Value, path: &Path, errors: &mut Errors) {
    let subdomain = format::dns1123_subdomain;
    let at = path.child("storageClassName");
    check::optional(subdomain, &spec["storageClassName"], &at, errors);
    if is_set(&spec["volumeMode"]) {
        let at = path.child("volumeMode");
        check::one_of(&spec["volumeMode"], &["Block", "Filesystem"], &at, errors);
    }
    let Some(class) = spec["volumeAttributesClassName"].as_str() else {
        return;
    };
    let at = path.child("volumeAttributesClassName");
    if class.is_empty() {
        errors.push(Error::required(&at, "an empty string is disallowed"));
    } else {
        check::form(subdomain(class), class, &at, errors);
    }
    if !is_set(&spec["csi"]) {
        let detail = "has to be specified when using volumeAttributesClassName";
        errors.push(Error::required(&path.child("csi"), detail));
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource.is_some() {
        return Vec::new();
    }
    // Upstream validates twice, so errors are reported twice.
    let mut errors = validate(object);
    errors.extend(validate(object));
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let mut munged = new.clone();
    let secret = "controllerExpandSecretRef";
    // The expansion secret may be added later.
    if is_set(&was["csi"])
        && !is_set(&was["csi"][secret])
        && let Some(Value::Object(csi)) = munged.get_mut("csi")
    {
        csi.shift_remove(secret);
    }
    let same_source = {
        let (a, b) = (persistent_fields(&munged), persistent_fields(was));
        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.0 == b.0 && same(a.1, b.1))
    };
    if !same_source {
        let source = |spec: &Value| internal("core/v1.PersistentVolumeSource", spec);
        let detail = format!(
            "spec.persistentvolumesource is immutable after creation\n{}",
            unified(&source(was), &source(&munged))
        );
        let at = Path::new("spec.persistentvolumesource");
        errors.push(Error::forbidden(&at, detail));
    }
    let at = Path::new("volumeMode");
    check::immutable(&new["volumeMode"], &was["volumeMode"], &at, &mut errors);
    if is_set(&was["nodeAffinity"]) && !same_affinity(&new["nodeAffinity"], &was["nodeAffinity"]) {
        let detail = "field is immutable, except for updating from beta label to GA";
        let at = Path::new("nodeAffinity");
        let shown = internal("core/v1.VolumeNodeAffinity", &new["nodeAffinity"]);
        errors.push(Error::invalid(&at, shown, detail));
    }
    let class = "volumeAttributesClassName";
    if is_set(&was[class]) && !is_set(&new[class]) {
        let detail = "update from non-nil value to nil is forbidden";
        let at = Path::new("spec");
        let at = at.child(class);
        errors.push(Error::forbidden(&at, detail));
    }
    errors
}

/// Beta node labels and their new names.
const RENAMED: &[(&str, &str)] = &[
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    (
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
    ),
];

/// Whether two node affinities are equal except for renamed labels.
fn same_affinity(new: &Value, old: &Value) -> bool {
    let mut old = old.clone();
    let terms = |v: &Value| v["required"]["nodeSelectorTerms"].clone();
    let mut old_terms = terms(&old);
    let new_terms = terms(new);
    for (i, term) in old_terms.as_array_mut().into_iter().flatten().enumerate() {
        for field in ["matchExpressions", "matchFields"] {
            let requirements = term.get_mut(field).and_then(Value::as_array_mut);
            for (j, requirement) in requirements.into_iter().flatten().enumerate() {
                let now = &new_terms[i][field][j]["key"];
                let pair = (text(&requirement["key"]), text(now));
                // Upstream maps any other label to an empty name, so an empty key matches it.
                let unnamed = pair.1.is_empty() && RENAMED.iter().all(|r| r.0 != pair.0);
                if unnamed || RENAMED.contains(&pair) {
                    requirement["key"] = now.clone();
                }
            }
        }
    }
    if is_set(&old_terms) {
        old["required"]["nodeSelectorTerms"] = old_terms;
    }
    same(new, &old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_volume_keeps_its_source_and_its_nodes() {
        let volume = |source: &str, label: &str| {
            object(&format!(
                r#"{{"metadata": {{"name": "v"}}, "spec": {{"capacity": {{"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem", {source},
                    "nodeAffinity": {{"required": {{"nodeSelectorTerms": [{{"matchExpressions": [
                        {{"key": "{label}", "operator": "In", "values": ["a"]}}]}}]}}}}}}}}"#
            ))
        };
        let old = volume(r#""hostPath": {"path": "/a"}"#, "beta.kubernetes.io/os");
        let renamed = volume(r#""hostPath": {"path": "/a"}"#, "kubernetes.io/os");
        assert_eq!(lines(validate_update(&renamed, &old, None)), [""; 0]);
        assert!(
            lines(validate_update(&old, &renamed, None))[0].starts_with("nodeAffinity: Invalid")
        );
        let moved = volume(r#""hostPath": {"path": "/b"}"#, "beta.kubernetes.io/os");
        let messages = lines(validate_update(&moved, &old, None)).join(" ");
        assert!(messages.starts_with("spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ -2,7 +2,7 @@\n"), "{messages}");
        assert!(
            messages.contains("\n  \"HostPath\": {\n-  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n"),
            "{messages}"
        );
    }

    #[test]
    fn a_volume_is_of_one_kind_though_flex_may_come_second() {
        let volume = |sources: &str| {
            object(&format!(
                r#"{{"metadata": {{"name": "v"}}, "spec": {{"accessModes": ["ReadWriteOnce"], "capacity": {{"storage": "1Gi"}}, {sources}}}}}"#
            ))
        };
        let (flex, csi) = (
            r#""flexVolume": {"driver": "d"}"#,
            r#""csi": {"driver": "d", "volumeHandle": "h"}"#,
        );
        let cases = [
            (
                format!("{flex}, {csi}"),
                "spec.csi: Forbidden: may not specify more than 1 volume type",
            ),
            (
                format!(r#""nfs": {{"server": "s", "path": "/"}}, {flex}"#),
                "",
            ),
            (
                r#""local": {"path": "/"}"#.to_owned(),
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ),
        ];
        for (sources, expected) in cases {
            assert_eq!(
                lines(validate(&volume(&sources))).join(" "),
                expected,
                "{sources}"
            );
        }
    }

    #[test]
    fn deprecated_volume_fields_are_warned_about() {
        let volume = |metadata: &str, spec: &str| {
            warnings(&object(&format!(
                r#"{{"metadata": {metadata}, "spec": {spec}}}"#
            )))
        };
        assert_eq!(volume("{}", r#"{"hostPath": {"path": "/a"}}"#), [""; 0]);
        assert_eq!(
            volume(
                r#"{"annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}}"#,
                r#"{"rbd": {"image": "i"}, "persistentVolumeReclaimPolicy": "Recycle", "nodeAffinity": {"required": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}]}}}"#
            ),
            [
                "metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use \"mountOptions\" attribute instead",
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            ]
        );
    }
}
