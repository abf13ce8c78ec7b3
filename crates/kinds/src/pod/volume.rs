//! Volumes and their mounts.

use super::env::{check_field_ref, check_resource_ref};
use crate::check;
use crate::tree::{int, is_set, list, text, truth};
use crate::volume_source::{check_items, check_mode, check_pod_volume, descending, local_path};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::collections::{BTreeMap, BTreeSet};

/// The valid volumes of a pod, by name.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Value>;

/// Validates volumes; returns the valid ones. `pod` is the pod's name, `None` for a template.
pub(super) fn check_volumes<'a>(
    volumes: &'a Value,
    pod: Option<&str>,
    path: &Path,
    errors: &mut Errors,
) -> Volumes<'a> {
    let named = pod.filter(|name| !name.is_empty());
    let claims: BTreeSet<String> = list(volumes)
        .iter()
        .filter(|v| is_set(&v["ephemeral"]))
        .filter_map(|v| Some(format!("{}-{}", named?, text(&v["name"]))))
        .collect();
    let mut good = Volumes::new();
    for (i, volume) in list(volumes).iter().enumerate() {
        let at = path.index(i);
        let before = errors.len();
        check_pod_volume(volume, pod, &at, errors);
        let name = text(&volume["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        }
        if good.contains_key(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        if errors.len() == before {
            good.insert(name, volume);
        }
        let claim = text(&volume["persistentVolumeClaim"]["claimName"]);
        if claims.contains(claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            let at = at.child("persistentVolumeClaim.claimName");
            errors.push(Error::invalid(&at, claim, detail));
        }
    }
    good
}

const DOWNWARD: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Validates a downward API file: a field of the pod or a resource of a container.
pub(crate) fn check_downward(item: &Value, path: &Path, errors: &mut Errors) {
    check::required(&item["path"], &path.child("path"), errors);
    local_path(text(&item["path"]), &path.child("path"), errors);
    let (field, resource) = (&item["fieldRef"], &item["resourceFieldRef"]);
    if is_set(field) {
        check_field_ref(field, DOWNWARD, &path.child("fieldRef"), errors);
        if is_set(resource) {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(Error::invalid(path, "resource", detail));
        }
    } else if is_set(resource) {
        check_resource_ref(resource, true, &path.child("resourceFieldRef"), errors);
    } else {
        let detail = "one of fieldRef and resourceFieldRef is required";
        errors.push(Error::required(path, detail));
    }
    check_mode(&item["mode"], &path.child("mode"), errors);
}

/// Validates a projected volume: several sources in one directory, without conflicting paths.
pub(crate) fn check_projected(volume: &Value, path: &Path, errors: &mut Errors) {
    check_mode(&volume["defaultMode"], &path.child("defaultMode"), errors);
    let mut taken = BTreeSet::new();
    let mut take = |target: &str, value: &str, errors: &mut Errors| {
        if !target.is_empty() && !taken.insert(target.to_owned()) {
            errors.push(Error::invalid(path, value, "conflicting duplicate paths"));
        }
    };
    for (i, source) in list(&volume["sources"]).iter().enumerate() {
        let at = path.child("sources");
        let at = at.index(i);
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let inner = &source[kind];
            if !is_set(inner) {
                continue;
            }
            kinds += 1;
            let at = at.child(kind);
            check::required(&inner["name"], &at.child("name"), errors);
            check_items(&inner["items"], &at, errors);
            for item in list(&inner["items"]) {
                take(text(&item["path"]), text(&inner["name"]), errors);
            }
        }
        if is_set(&source["downwardAPI"]) {
            kinds += 1;
            for item in list(&source["downwardAPI"]["items"]) {
                check_downward(item, &at.child("downwardAPI"), errors);
                take(text(&item["path"]), text(&item["path"]), errors);
            }
        }
        let token = &source["serviceAccountToken"];
        if is_set(token) {
            kinds += 1;
            check_token(token, path, &at.child("serviceAccountToken"), errors);
        }
        if kinds > 1 {
            let detail = "may not specify more than 1 volume type per source";
            errors.push(Error::forbidden(&at, detail));
        }
    }
}

fn check_token(token: &Value, volume: &Path, path: &Path, errors: &mut Errors) {
    let seconds = int(&token["expirationSeconds"]);
    let at = path.child("expirationSeconds");
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.push(Error::invalid(&at, seconds, detail));
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.push(Error::invalid(&at, seconds, detail));
    }
    // Upstream reports the path at the volume, not at the source.
    match text(&token["path"]) {
        "" => errors.push(Error::required(&volume.child("path"), "")),
        target => local_path(target, &volume.child("path"), errors),
    }
}

/// No `..` in a path.
pub(crate) fn no_backsteps(target: &str, path: &Path, errors: &mut Errors) {
    if target.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(path, target, "must not contain '..'"));
    }
}

/// Mounts and devices of one container.
pub(super) fn check_mounts(
    container: &Value,
    volumes: &Volumes<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    let (mounts, devices) = (
        list(&container["volumeMounts"]),
        list(&container["volumeDevices"]),
    );
    let path = &path.child("volumeMounts");
    let mut points = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let at = path.index(i);
        let (name, point) = (text(&mount["name"]), text(&mount["mountPath"]));
        check::required(&mount["name"], &at.child("name"), errors);
        if !volumes.contains_key(name) {
            errors.push(Error::not_found(&at.child("name"), name));
        }
        check::required(&mount["mountPath"], &at.child("mountPath"), errors);
        if !points.insert(point) {
            let at = at.child("mountPath");
            errors.push(Error::invalid(&at, point, "must be unique"));
        }
        if devices.iter().any(|d| text(&d["name"]) == name) {
            let detail = "must not already exist in volumeDevices";
            errors.push(Error::invalid(&at.child("name"), name, detail));
        }
        if devices.iter().any(|d| text(&d["devicePath"]) == point) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(Error::invalid(&at.child("mountPath"), point, detail));
        }
        check_sub_path(mount, &at, path, errors);
        check_propagation(mount, container, &path.child("mountPropagation"), errors);
        check_recursive(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn check_sub_path(mount: &Value, at: &Path, path: &Path, errors: &mut Errors) {
    let (sub, expression) = (text(&mount["subPath"]), text(&mount["subPathExpr"]));
    if !sub.is_empty() {
        descending(sub, &path.child("subPath"), errors);
    }
    if !expression.is_empty() {
        if !sub.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(Error::invalid(&at.child("subPathExpr"), expression, detail));
        }
        descending(expression, &path.child("subPathExpr"), errors);
    }
}

fn check_propagation(mount: &Value, container: &Value, path: &Path, errors: &mut Errors) {
    let propagation = &mount["mountPropagation"];
    if !is_set(propagation) {
        return;
    }
    let supported = ["Bidirectional", "HostToContainer", "None"];
    check::one_of(propagation, &supported, path, errors);
    if propagation == "Bidirectional" && !truth(&container["securityContext"]["privileged"]) {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(Error::forbidden(path, detail));
    }
}

fn check_recursive(mount: &Value, path: &Path, errors: &mut Errors) {
    match mount["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !truth(&mount["readOnly"]) {
                let detail = "may only be specified when readOnly is true";
                errors.push(Error::forbidden(path, detail));
            }
            let propagation = &mount["mountPropagation"];
            if is_set(propagation) && propagation != "None" {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(Error::forbidden(path, detail));
            }
        }
        Some(other) => {
            let supported = ["Disabled", "Enabled", "IfPossible"];
            errors.push(Error::not_supported(path, other, &supported));
        }
    }
}

/// Block devices of one container.
pub(super) fn check_devices(
    container: &Value,
    volumes: &Volumes<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    let mounts = list(&container["volumeMounts"]);
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in list(&container["volumeDevices"]).iter().enumerate() {
        let at = path.child("volumeDevices");
        let at = at.index(i);
        let (name, target) = (text(&device["name"]), text(&device["devicePath"]));
        let (name_at, path_at) = (at.child("name"), at.child("devicePath"));
        check::required(&device["name"], &name_at, errors);
        if names.contains(name) {
            errors.push(Error::invalid(&name_at, name, "must be unique"));
        }
        match volumes.get(name) {
            Some(volume) => {
                if !is_set(&volume["persistentVolumeClaim"]) && !is_set(&volume["ephemeral"]) {
                    let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    errors.push(Error::invalid(&name_at, name, detail));
                }
            }
            None => errors.push(Error::not_found(&name_at, name)),
        }
        check::required(&device["devicePath"], &path_at, errors);
        if paths.contains(target) {
            errors.push(Error::invalid(&path_at, target, "must be unique"));
        }
        if target.split('/').any(|part| part == "..") {
            let detail = "can not contain backsteps ('..')";
            errors.push(Error::invalid(&path_at, target, detail));
        } else {
            paths.insert(target);
        }
        if mounts.iter().any(|m| text(&m["name"]) == name) {
            let detail = "must not already exist in volumeMounts";
            errors.push(Error::invalid(&name_at, name, detail));
        }
        if mounts.iter().any(|m| text(&m["mountPath"]) == target) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.push(Error::invalid(&path_at, target, detail));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
