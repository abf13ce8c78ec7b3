//! Environment variables, and references to fields and resources.

use super::no_backsteps;
use crate::check;
use crate::tree::{is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Value, format};

pub(super) fn check_env(env: &Value, path: &Path, errors: &mut Errors) {
    for (i, variable) in list(env).iter().enumerate() {
        let at = path.index(i);
        let name = text(&variable["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::env_name(name), name, &at.child("name"), errors);
        }
        if is_set(&variable["valueFrom"]) {
            check_value_from(variable, &at.child("valueFrom"), errors);
        }
    }
}

fn check_value_from(variable: &Value, path: &Path, errors: &mut Errors) {
    let from = &variable["valueFrom"];
    let mut sources = 0;
    for name in [
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ] {
        let reference = &from[name];
        if !is_set(reference) {
            continue;
        }
        sources += 1;
        let at = path.child(name);
        match name {
            "fieldRef" => check_field_ref(reference, FIELDS, &at, errors),
            "resourceFieldRef" => check_resource_ref(reference, false, &at, errors),
            "fileKeyRef" => check_file_key(reference, &at, errors),
            _ => {
                let object = text(&reference["name"]);
                let complaints = format::dns1123_subdomain(object);
                check::form(complaints, object, &at.child("name"), errors);
                match text(&reference["key"]) {
                    "" => errors.push(Error::required(&at.child("key"), "")),
                    key => check::form(format::config_key(key), key, &at.child("key"), errors),
                }
            }
        }
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(Error::invalid(path, "", detail));
    } else if !text(&variable["value"]).is_empty() {
        let detail = "may not be specified when `value` is not empty";
        errors.push(Error::invalid(path, "", detail));
    } else if sources > 1 {
        let detail = "may not have more than one field specified at a time";
        errors.push(Error::invalid(path, "", detail));
    }
}

fn check_file_key(reference: &Value, path: &Path, errors: &mut Errors) {
    match text(&reference["key"]) {
        "" => errors.push(Error::required(&path.child("key"), "")),
        key => check::form(format::env_name(key), key, &path.child("key"), errors),
    }
    let at = path.child("volumeName");
    match text(&reference["volumeName"]) {
        "" => errors.push(Error::required(&at, "")),
        name => check::form(format::dns1123_label(name), name, &at, errors),
    }
    match text(&reference["path"]) {
        "" => errors.push(Error::required(&path.child("path"), "")),
        file => no_backsteps(file, &path.child("path"), errors),
    }
}

/// The pod fields that a variable may reference.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Every pod field that can be referenced.
const KNOWN: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "spec.host",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];

/// `metadata.labels['key']` as field and key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    let (map, key) = field.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

pub(super) fn check_field_ref(
    reference: &Value,
    supported: &[&str],
    path: &Path,
    errors: &mut Errors,
) {
    let version = text(&reference["apiVersion"]);
    let (field, at) = (text(&reference["fieldPath"]), path.child("fieldPath"));
    if version.is_empty() {
        errors.push(Error::required(&path.child("apiVersion"), ""));
        return;
    }
    if field.is_empty() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let unknown = if version != "v1" {
        Some(format!("unsupported pod version: {version}"))
    } else {
        match subscript(field) {
            Some(("metadata.annotations", key)) => {
                let key = key.to_lowercase();
                check::form(format::qualified_name(&key), &key, path, errors);
                return;
            }
            Some(("metadata.labels", key)) => {
                check::form(format::qualified_name(key), key, path, errors);
                return;
            }
            Some(_) => Some(format!("field label does not support subscript: {field}")),
            None if FIELDS.contains(&field) || KNOWN.contains(&field) => None,
            None => Some(format!("field label not supported: {field}")),
        }
    };
    if let Some(why) = unknown {
        let detail = format!("error converting fieldPath: {why}");
        errors.push(Error::invalid(&at, field, detail));
        return;
    }
    // The deprecated name of the field.
    let field = if field == "spec.host" {
        "spec.nodeName"
    } else {
        field
    };
    if !supported.contains(&field) {
        errors.push(Error::not_supported(&at, field, supported));
    }
}

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-")
}

/// A container's resource; a volume must name the container.
pub(super) fn check_resource_ref(
    reference: &Value,
    in_volume: bool,
    path: &Path,
    errors: &mut Errors,
) {
    let resource = text(&reference["resource"]);
    if in_volume && text(&reference["containerName"]).is_empty() {
        errors.push(Error::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(Error::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !is_huge_page(resource) {
        let at = path.child("resource");
        errors.push(Error::not_supported(&at, resource, RESOURCES));
    }
    check_divisor(resource, &reference["divisor"], path, errors);
}

fn check_divisor(resource: &str, divisor: &Value, path: &Path, errors: &mut Errors) {
    let zero = text(divisor)
        .parse::<Quantity>()
        .map_or(true, Quantity::is_zero);
    let divisor = text(divisor);
    if zero {
        return;
    }
    let bytes = [
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    let wrong = match resource {
        "limits.cpu" | "requests.cpu" => (!matches!(divisor, "1" | "1m"))
            .then(|| "1m and 1 are supported with the cpu resource".to_owned()),
        _ if bytes.contains(&divisor) => None,
        _ => {
            let what = match resource {
                "limits.memory" | "requests.memory" => "memory",
                "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
                    "local ephemeral storage"
                }
                _ if is_huge_page(resource) => "hugepages",
                _ => return,
            };
            let all = bytes.join(", ");
            Some(format!("{all} are supported with the {what} resource"))
        }
    };
    if let Some(wrong) = wrong {
        let detail = format!("only divisor's values {wrong}");
        errors.push(Error::invalid(&path.child("divisor"), resource, detail));
    }
}

pub(super) fn check_env_from(sources: &Value, path: &Path, errors: &mut Errors) {
    for (i, source) in list(sources).iter().enumerate() {
        let at = path.index(i);
        let prefix = text(&source["prefix"]);
        if !prefix.is_empty() {
            let at = at.child("prefix");
            check::form(format::env_name(prefix), prefix, &at, errors);
        }
        let mut count = 0;
        for name in ["configMapRef", "secretRef"] {
            if is_set(&source[name]) {
                count += 1;
                let at = at.child(name);
                let at = at.child("name");
                match text(&source[name]["name"]) {
                    "" => errors.push(Error::required(&at, "")),
                    // A trailing dash is accepted, as in a generateName.
                    object => {
                        let complaints = crate::metadata::subdomain(object, true);
                        check::form(complaints, object, &at, errors);
                    }
                }
            }
        }
        if count == 0 {
            let detail = "must specify one of: `configMapRef` or `secretRef`";
            errors.push(Error::invalid(path, "", detail));
        } else if count > 1 {
            let detail = "may not have more than one field specified at a time";
            errors.push(Error::invalid(path, "", detail));
        }
    }
}

/// Variables from files must name an emptyDir volume of the pod.
pub(super) fn check_file_volumes(
    containers: &[(Path, &Value)],
    volumes: &Value,
    errors: &mut Errors,
) {
    for (path, container) in containers {
        for (i, variable) in list(&container["env"]).iter().enumerate() {
            let reference = &variable["valueFrom"]["fileKeyRef"];
            if !is_set(reference) {
                continue;
            }
            let name = text(&reference["volumeName"]);
            let at = path.child("env");
            let at = at.index(i);
            let at = at.child("valueFrom");
            let at = at.child("fileKeyRef.volumeName");
            let volume = list(volumes).iter().rfind(|v| text(&v["name"]) == name);
            match volume {
                None => errors.push(Error::not_found(&at, name)),
                Some(volume) if !is_set(&volume["emptyDir"]) => {
                    let detail = "referenced volume must be of type emptyDir";
                    errors.push(Error::invalid(&at, name, detail));
                }
                Some(_) => {}
            }
        }
    }
}
