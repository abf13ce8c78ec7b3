//! Volumes and where containers see them.

use crate::check;
use crate::tree::{entries, int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Value, format};
use std::collections::BTreeSet;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks volumes; gives the names of those that are good.
pub(super) fn check_volumes<'a>(
    volumes: &'a Value,
    path: &Path,
    errors: &mut Errors,
) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (i, volume) in list(volumes).iter().enumerate() {
        let at = path.index(i);
        let before = errors.len();
        check_source(volume, &at, errors);
        let name = text(&volume["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        }
        if names.contains(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        if errors.len() == before {
            names.insert(name);
        }
    }
    names
}

fn check_source(volume: &Value, path: &Path, errors: &mut Errors) {
    let mut sources = entries(volume).filter(|(key, v)| *key != "name" && is_set(v));
    let Some((kind, source)) = sources.next() else {
        errors.push(Error::required(path, "must specify a volume type"));
        return;
    };
    let at = path.child(kind);
    match kind.as_str() {
        "emptyDir" => {
            let limit = text(&source["sizeLimit"]).parse::<Quantity>();
            if limit.is_ok_and(Quantity::is_negative) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(Error::forbidden(&at.child("sizeLimit"), detail));
            }
        }
        "hostPath" => check_host_path(source, &at, errors),
        "secret" => {
            check::required(&source["secretName"], &at.child("secretName"), errors);
            check_mode(&source["defaultMode"], &at.child("defaultMode"), errors);
            check_items(&source["items"], &at, errors);
        }
        "configMap" => {
            check::required(&source["name"], &at.child("name"), errors);
            check_mode(&source["defaultMode"], &at.child("defaultMode"), errors);
            check_items(&source["items"], &at, errors);
        }
        "persistentVolumeClaim" => {
            check::required(&source["claimName"], &at.child("claimName"), errors);
        }
        "nfs" => {
            check::required(&source["server"], &at.child("server"), errors);
            check::required(&source["path"], &at.child("path"), errors);
            if !text(&source["path"]).starts_with('/') {
                let detail = "must be an absolute path";
                errors.push(Error::invalid(
                    &at.child("path"),
                    text(&source["path"]),
                    detail,
                ));
            }
        }
        "csi" => check::required(&source["driver"], &at.child("driver"), errors),
        "image" => check::required(&source["reference"], &at.child("reference"), errors),
        "downwardAPI" => {
            check_mode(&source["defaultMode"], &at.child("defaultMode"), errors);
            check_downward(&source["items"], &at, errors);
        }
        "projected" => check_projected(source, &at, errors),
        "ephemeral" => {
            if !is_set(&source["volumeClaimTemplate"]) {
                errors.push(Error::required(&at.child("volumeClaimTemplate"), ""));
            }
        }
        _ => {}
    }
    for (kind, _) in sources {
        let detail = "may not specify more than 1 volume type";
        errors.push(Error::forbidden(&path.child(kind), detail));
    }
}

fn check_host_path(source: &Value, path: &Path, errors: &mut Errors) {
    let host = text(&source["path"]);
    if host.is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
        return;
    }
    no_backsteps(host, &path.child("path"), errors);
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if is_set(&source["type"]) {
        check::one_of(&source["type"], &kinds, &path.child("type"), errors);
    }
}

fn check_mode(mode: &Value, path: &Path, errors: &mut Errors) {
    if is_set(mode) && !(0..=0o777).contains(&int(mode)) {
        errors.push(Error::invalid(path, int(mode), MODE));
    }
}

fn check_items(items: &Value, path: &Path, errors: &mut Errors) {
    for (i, item) in list(items).iter().enumerate() {
        let at = path.child("items").index(i);
        check::required(&item["key"], &at.child("key"), errors);
        check::required(&item["path"], &at.child("path"), errors);
        local_path(text(&item["path"]), &at.child("path"), errors);
        check_mode(&item["mode"], &at.child("mode"), errors);
    }
}

fn check_downward(items: &Value, path: &Path, errors: &mut Errors) {
    for (i, item) in list(items).iter().enumerate() {
        let at = path.index(i);
        check::required(&item["path"], &at.child("path"), errors);
        local_path(text(&item["path"]), &at.child("path"), errors);
        let (field, resource) = (is_set(&item["fieldRef"]), is_set(&item["resourceFieldRef"]));
        if field && resource {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(Error::invalid(&at, "resource", detail));
        } else if !field && !resource {
            errors.push(Error::required(
                &at,
                "one of fieldRef and resourceFieldRef is required",
            ));
        }
        check_mode(&item["mode"], &at.child("mode"), errors);
    }
}

fn check_projected(source: &Value, path: &Path, errors: &mut Errors) {
    check_mode(&source["defaultMode"], &path.child("defaultMode"), errors);
    for (i, projection) in list(&source["sources"]).iter().enumerate() {
        let at = path.child("sources").index(i);
        let mut kinds = entries(projection).filter(|(_, v)| is_set(v));
        let Some((kind, inner)) = kinds.next() else {
            continue;
        };
        let below = at.child(kind);
        match kind.as_str() {
            "secret" | "configMap" => {
                check::required(&inner["name"], &below.child("name"), errors);
                check_items(&inner["items"], &below, errors);
            }
            "downwardAPI" => check_downward(&inner["items"], &below, errors),
            "serviceAccountToken" => {
                let seconds = int(&inner["expirationSeconds"]);
                if seconds < 600 {
                    let detail = "may not specify a duration less than 10 minutes";
                    let at = below.child("expirationSeconds");
                    errors.push(Error::invalid(&at, seconds, detail));
                }
                check::required(&inner["path"], &below.child("path"), errors);
            }
            _ => {}
        }
        if kinds.next().is_some() {
            let detail = "may not specify more than 1 volume type";
            errors.push(Error::forbidden(&at, detail));
        }
    }
}

fn no_backsteps(target: &str, path: &Path, errors: &mut Errors) {
    if target.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(path, target, "must not contain '..'"));
    }
}

/// A path below something, that does not climb out of it.
pub(super) fn local_path(target: &str, path: &Path, errors: &mut Errors) {
    if target.starts_with('/') {
        errors.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") && target != ".." {
        errors.push(Error::invalid(path, target, "must not start with '..'"));
    }
}

/// Mounts of one container.
pub(super) fn check_mounts(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let mut points = BTreeSet::new();
    let devices = list(&container["volumeDevices"]);
    for (i, mount) in list(&container["volumeMounts"]).iter().enumerate() {
        let at = path.child("volumeMounts").index(i);
        let (name, point) = (text(&mount["name"]), text(&mount["mountPath"]));
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(Error::not_found(&at.child("name"), name));
        }
        if point.is_empty() {
            errors.push(Error::required(&at.child("mountPath"), ""));
        }
        if !points.insert(point) {
            errors.push(Error::invalid(
                &at.child("mountPath"),
                point,
                "must be unique",
            ));
        }
        if devices.iter().any(|d| d["name"] == name) {
            let detail = "must not already exist in volumeDevices";
            errors.push(Error::invalid(&at.child("name"), name, detail));
        }
        check_sub_path(mount, &at, errors);
        check_propagation(mount, container, &at, errors);
    }
    for (i, device) in devices.iter().enumerate() {
        let at = path.child("volumeDevices").index(i);
        let name = text(&device["name"]);
        check::required(&device["name"], &at.child("name"), errors);
        if !volumes.contains(name) {
            errors.push(Error::not_found(&at.child("name"), name));
        }
        check::required(&device["devicePath"], &at.child("devicePath"), errors);
    }
}

fn check_sub_path(mount: &Value, path: &Path, errors: &mut Errors) {
    let (sub, expression) = (text(&mount["subPath"]), text(&mount["subPathExpr"]));
    if !sub.is_empty() {
        local_path(sub, &path.child("subPath"), errors);
    }
    if !expression.is_empty() {
        if !sub.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(Error::invalid(
                &path.child("subPathExpr"),
                expression,
                detail,
            ));
        }
        local_path(expression, &path.child("subPathExpr"), errors);
    }
}

fn check_propagation(mount: &Value, container: &Value, path: &Path, errors: &mut Errors) {
    let propagation = &mount["mountPropagation"];
    if !is_set(propagation) {
        return;
    }
    let at = path.child("mountPropagation");
    check::one_of(
        propagation,
        &["Bidirectional", "HostToContainer", "None"],
        &at,
        errors,
    );
    if propagation == "Bidirectional" && !truth(&container["securityContext"]["privileged"]) {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(Error::forbidden(&at, detail));
    }
}
