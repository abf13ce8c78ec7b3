//! APIService: the server of a group and version.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{child, child_or_new, default_to, get, int, is_set, list, text, truth};
use crate::{Column, Scope, ServerSide, Subresource};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "apiregistration.k8s.io",
    kind: "APIService",
    plural: "apiservices",
    server_side: ServerSide {
        upstream_key: "apiregistration.k8s.io/apiservices",
        ..ServerSide::NONE
    },
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "apiregistration/v1.APIService",
    subresources: &[STATUS],
    has_status: true,
    validate_name: crate::metadata::path_segment,
    default: |object| {
        if let Some(service) = child(child_or_new(object, "spec"), "service") {
            default_to(service, "port", 443);
        }
    },
    prepare_create: |object, context| {
        // A local APIService is available at once.
        if !is_set(&get(object, "spec")["service"]) {
            let available = json!({
                "type": "Available",
                "status": "True",
                "lastTransitionTime": context.now,
                "reason": "Local",
                "message": "Local APIServices are always available",
            });
            object.insert("status", json!({"conditions": [available]}));
        }
    },
    validate_create: validate,
    validate_update: |object, _, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object)
        } else {
            check_status(get(object, "status"))
        }
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    status_resets: &[&["spec"], &["metadata"]],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Service", "string", "Service that serves the API."),
    column("Available", "string", "Whether the API is available."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let service = &get(object, "spec")["service"];
    let shown = if is_set(service) {
        format!("{}/{}", text(&service["namespace"]), text(&service["name"]))
    } else {
        "Local".to_owned()
    };
    let available = list(&get(object, "status")["conditions"])
        .iter()
        .find(|c| c["type"] == "Available");
    let available = match available {
        Some(c) if c["status"] == "True" => "True".to_owned(),
        Some(c) => format!("{} ({})", text(&c["status"]), text(&c["reason"])),
        None => "Unknown".to_owned(),
    };
    vec![
        name_cell(object),
        shown.into(),
        available.into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (group, version) = (text(&spec["group"]), text(&spec["version"]));
    let required = format!("{version}.{group}");
    let metadata = get(object, "metadata");
    for field in ["generateName", "name"] {
        let given = text(&metadata[field]);
        let sound = !given.is_empty() && format::path_segment(given).is_empty();
        if sound && given != required {
            let detail = format!("must be `spec.version+\".\"+spec.group`: \"{required}\"");
            let at = Path::new("metadata");
            let at = at.child(field);
            errors.push(Error::invalid(&at, given, detail));
        }
    }
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        errors.push(Error::required(&path.child("group"), detail));
    }
    let at = path.child("group");
    check::optional(format::dns1123_subdomain, &spec["group"], &at, &mut errors);
    check::form(
        format::dns1035_label(version),
        version,
        &path.child("version"),
        &mut errors,
    );
    for (field, limit) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let value = int(&spec[field]);
        if value <= 0 || value > limit {
            let detail = format!("must be positive and less than {limit}");
            errors.push(Error::invalid(&path.child(field), value, detail));
        }
    }
    let service = &spec["service"];
    if is_set(service) {
        let at = path.child("service");
        check::required(&service["namespace"], &at.child("namespace"), &mut errors);
        check::required(&service["name"], &at.child("name"), &mut errors);
        let port = int(&service["port"]);
        let complaints = format::port_number(port);
        if !complaints.is_empty() {
            let detail = format!("port is not valid: {}", complaints.join(", "));
            errors.push(Error::invalid(&at.child("port"), port, detail));
        }
        if truth(&spec["insecureSkipTLSVerify"]) && !text(&spec["caBundle"]).is_empty() {
            let detail = "may not be true if caBundle is present";
            errors.push(Error::invalid(
                &path.child("insecureSkipTLSVerify"),
                true,
                detail,
            ));
        }
    } else {
        let bundle = text(&spec["caBundle"]);
        let size = STANDARD.decode(bundle).unwrap_or_default().len();
        if size > 0 {
            let detail = "local APIServices may not have a caBundle";
            let printed = format!("{size} bytes");
            errors.push(Error::invalid(&path.child("caBundle"), printed, detail));
        }
        if truth(&spec["insecureSkipTLSVerify"]) {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            let at = path.child("insecureSkipTLSVerify");
            errors.push(Error::invalid(&at, true, detail));
        }
    }
    errors
}

fn check_status(status: &Value) -> Errors {
    let mut errors = Vec::new();
    for (i, condition) in list(&status["conditions"]).iter().enumerate() {
        let at = Path::new("status.conditions");
        let at = at.index(i);
        let at = at.child("status");
        let states = ["True", "False", "Unknown"];
        check::one_of(&condition["status"], &states, &at, &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    #[test]
    fn a_local_service_needs_no_trust() {
        let service = json!({"metadata": {"name": "v1.a.b"}, "spec": {"group": "a.b", "version": "v1",
            "groupPriorityMinimum": 1, "versionPriority": 1, "caBundle": "YQ=="}});
        assert_eq!(
            lines(validate(&object(&service.to_string()))),
            [
                "spec.caBundle: Invalid value: \"1 bytes\": local APIServices may not have a caBundle"
            ]
        );
        let status = json!({"conditions": [{"type": "Available", "status": "x"}]});
        assert_eq!(
            lines(check_status(&status)),
            [
                "status.conditions[0].status: Unsupported value: \"x\": supported values: \"True\", \"False\", \"Unknown\""
            ]
        );
    }
}
