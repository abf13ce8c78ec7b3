//! The spec of a claim: device requests, constraints between them, configuration.

use super::configuration::{check_configuration, check_selectors};
use super::names::{self, Requests};
use super::{check_items, check_set};
use crate::check;
use crate::tree::{child, default_empty, each, get, int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path, PathBuf};
use machinery::{Object, Value, format};

pub(super) const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const CONSTRAINTS_MAX: usize = 32;
pub(super) const CONFIG_MAX: usize = 32;

/// The effects of a taint.
pub(super) const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

/// Defaults of the requests in a claim's spec.
pub(super) fn default_claim_spec(spec: &mut Object) {
    let Some(devices) = child(spec, "devices") else {
        return;
    };
    let count = |request: &mut Object| {
        default_empty(request, "allocationMode", "ExactCount");
        if get(request, "allocationMode") == "ExactCount" {
            default_empty(request, "count", 1);
        }
        default_tolerations(request);
    };
    for request in each(devices, "requests") {
        if let Some(exactly) = child(request, "exactly") {
            count(exactly);
        }
        each(request, "firstAvailable").for_each(count);
    }
}

/// The default operator of a toleration is Equal.
pub(super) fn default_tolerations(of: &mut Object) {
    each(of, "tolerations").for_each(|toleration| default_empty(toleration, "operator", "Equal"));
}

/// Calls a function for every list of selectors in a claim's spec.
pub(super) fn visit_claim_selectors(
    spec: &Value,
    path: &Path,
    visit: &mut dyn FnMut(&Path<'_>, &Value),
) {
    let path = path.child("devices");
    let path = path.child("requests");
    for (i, request) in list(&spec["devices"]["requests"]).iter().enumerate() {
        let path = path.index(i);
        let exactly = path.child("exactly");
        let selectors = &request["exactly"]["selectors"];
        visit(&exactly.child("selectors"), selectors);
        let path = path.child("firstAvailable");
        for (i, alternative) in list(&request["firstAvailable"]).iter().enumerate() {
            let path = path.index(i);
            visit(&path.child("selectors"), &alternative["selectors"]);
        }
    }
}

/// The path of the request for administrative access, if there is one.
pub(super) fn requested_admin_access(devices: &Value) -> Option<PathBuf> {
    let requests = list(&devices["requests"]).iter();
    let i = requests
        .map(|request| &request["exactly"]["adminAccess"])
        .position(truth)?;
    let at = Path::new("spec.devices.requests");
    Some(at.index(i).child("adminAccess").to_path_buf())
}

pub(super) fn check_claim_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    let (devices, path) = (&spec["devices"], path.child("devices"));
    let requests = Requests::from_devices(devices);
    let name = |of: &Value| Value::from(text(&of["name"]));
    let (given, at) = (list(&devices["requests"]), path.child("requests"));
    check_set(given, REQUESTS_MAX, name, &at, errors, check_request);
    let (given, at) = (list(&devices["constraints"]), path.child("constraints"));
    check_items(
        given,
        CONSTRAINTS_MAX,
        &at,
        errors,
        |constraint, path, errors| {
            check_references(
                &constraint["requests"],
                &requests,
                &path.child("requests"),
                errors,
            );
            check_constraint(constraint, path, errors);
        },
    );
    let (given, at) = (list(&devices["config"]), path.child("config"));
    check_items(given, CONFIG_MAX, &at, errors, |config, path, errors| {
        check_references(
            &config["requests"],
            &requests,
            &path.child("requests"),
            errors,
        );
        check_configuration(config, false, path, errors);
    });
}

/// Validates references to requests.
pub(super) fn check_references(
    given: &Value,
    requests: &Requests<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    check_set(
        list(given),
        REQUESTS_MAX,
        Value::clone,
        path,
        errors,
        |name, path, errors| {
            requests.check(text(name), path, errors);
        },
    );
}

fn check_request(request: &Value, path: &Path, errors: &mut Errors) {
    names::label(text(&request["name"]), &path.child("name"), errors);
    let (exactly, first) = (&request["exactly"], list(&request["firstAvailable"]));
    match (is_set(exactly), first) {
        (false, []) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required";
            errors.push(Error::required(path, detail));
        }
        (true, []) => check_device_request(exactly, &path.child("exactly"), errors),
        (false, alternatives) => {
            let name = |of: &Value| Value::from(text(&of["name"]));
            let at = path.child("firstAvailable");
            check_set(
                alternatives,
                ALTERNATIVES_MAX,
                name,
                &at,
                errors,
                |request, path, errors| {
                    names::label(text(&request["name"]), &path.child("name"), errors);
                    check_device_request(request, path, errors);
                },
            );
        }
        (true, _) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(Error::invalid(path, Value::Null, detail));
        }
    }
}

fn check_device_request(request: &Value, path: &Path, errors: &mut Errors) {
    names::class(
        &request["deviceClassName"],
        &path.child("deviceClassName"),
        errors,
    );
    check_selectors(&request["selectors"], &path.child("selectors"), errors);
    let (count, at) = (int(&request["count"]), path.child("count"));
    match text(&request["allocationMode"]) {
        "All" if count != 0 => {
            let detail = "must not be specified when allocationMode is 'All'";
            errors.push(Error::invalid(&at, count, detail));
        }
        "ExactCount" => check::positive(&request["count"], &at, errors),
        "All" => {}
        other => {
            let at = path.child("allocationMode");
            errors.push(Error::not_supported(&at, other, &["All", "ExactCount"]));
        }
    }
    for (i, toleration) in list(&request["tolerations"]).iter().enumerate() {
        check_toleration(toleration, &path.child("tolerations").index(i), errors);
    }
}

fn check_toleration(toleration: &Value, path: &Path, errors: &mut Errors) {
    check::optional(
        format::qualified_name,
        &toleration["key"],
        &path.child("key"),
        errors,
    );
    let (value, at) = (text(&toleration["value"]), path.child("value"));
    match text(&toleration["operator"]) {
        "Exists" if !value.is_empty() => {
            errors.push(Error::invalid(
                &at,
                value,
                "must be empty for operator `Exists`",
            ));
        }
        "Exists" => {}
        "Equal" => check::form(format::label_value(value), value, &at, errors),
        _ => {
            let at = path.child("operator");
            check::known(&toleration["operator"], &["Equal", "Exists"], &at, errors);
        }
    }
    if !text(&toleration["effect"]).is_empty() {
        check::one_of(
            &toleration["effect"],
            EFFECTS,
            &path.child("effect"),
            errors,
        );
    }
}

fn check_constraint(constraint: &Value, path: &Path, errors: &mut Errors) {
    for field in ["matchAttribute", "distinctAttribute"] {
        if let Some(name) = constraint[field].as_str() {
            return names::fully_qualified(name, &path.child(field), errors);
        }
    }
    // Upstream's message, although none is set.
    let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
    errors.push(Error::required(path, detail));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    fn messages(devices: Value) -> Vec<String> {
        let mut errors = Vec::new();
        let mut spec = json!({"devices": devices});
        default_claim_spec(spec.as_object_mut().unwrap());
        check_claim_spec(&spec, &Path::new("spec"), &mut errors);
        lines(errors)
    }

    #[test]
    fn administrative_access_is_found_where_it_begins() {
        let devices = json!({"requests": [{"exactly": {}}, {"exactly": {"adminAccess": true}}]});
        let path = requested_admin_access(&devices).map(|path| path.to_string());
        assert_eq!(
            path.as_deref(),
            Some("spec.devices.requests[1].adminAccess")
        );
    }

    #[test]
    fn a_request_asks_for_one_device_unless_it_says_otherwise() {
        let mut spec = json!({"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "c"}},
            {"name": "b", "firstAvailable": [{"name": "x", "allocationMode": "All"}, {"name": "y", "count": 3}]}
        ]}});
        default_claim_spec(spec.as_object_mut().unwrap());
        assert_eq!(
            spec["devices"]["requests"].to_string(),
            concat!(
                r#"[{"name":"a","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1}},"#,
                r#"{"name":"b","firstAvailable":[{"name":"x","allocationMode":"All"},{"name":"y","count":3,"allocationMode":"ExactCount"}]}]"#
            )
        );
    }

    #[test]
    fn invalid_device_requests_are_rejected_with_field_paths() {
        let at = "spec.devices.requests[0]";
        let label = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        let exactly = |fields: Value| {
            let mut exactly = json!({"deviceClassName": "c"});
            for (key, value) in fields.as_object().unwrap() {
                exactly
                    .as_object_mut()
                    .unwrap()
                    .insert(key.clone(), value.clone());
            }
            json!({"name": "r", "exactly": exactly})
        };
        let cases = [
            (exactly(json!({})), vec![]),
            (
                json!({"name": "r"}),
                vec![format!(
                    "{at}: Required value: exactly one of `exactly` or `firstAvailable` is required"
                )],
            ),
            (
                json!({"name": "r", "exactly": {}, "firstAvailable": [{}]}),
                vec![format!(
                    "{at}: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
                )],
            ),
            (
                json!({"name": "r", "exactly": {}}),
                vec![format!("{at}.exactly.deviceClassName: Required value")],
            ),
            (
                exactly(json!({"allocationMode": "Some"})),
                vec![format!(
                    "{at}.exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\""
                )],
            ),
            (
                exactly(json!({"allocationMode": "All", "count": 1})),
                vec![format!(
                    "{at}.exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'"
                )],
            ),
            (
                exactly(json!({"count": -1})),
                vec![format!(
                    "{at}.exactly.count: Invalid value: -1: must be greater than zero"
                )],
            ),
            (
                exactly(json!({"tolerations": [
                    {"operator": "Exists", "value": "v"}, {"key": "k", "value": "-"}, {"operator": "Is", "effect": "All"}
                ]})),
                vec![
                    format!(
                        "{at}.exactly.tolerations[0].value: Invalid value: \"v\": must be empty for operator `Exists`"
                    ),
                    format!("{at}.exactly.tolerations[1].value: Invalid value: \"-\": {label}"),
                    format!(
                        "{at}.exactly.tolerations[2].operator: Unsupported value: \"Is\": supported values: \"Equal\", \"Exists\""
                    ),
                    format!(
                        "{at}.exactly.tolerations[2].effect: Unsupported value: \"All\": supported values: \"NoExecute\", \"NoSchedule\", \"None\""
                    ),
                ],
            ),
        ];
        for (request, expected) in cases {
            assert_eq!(
                messages(json!({"requests": [request]})),
                expected,
                "{request}"
            );
        }
    }

    #[test]
    fn constraints_and_configurations_must_refer_to_existing_requests() {
        let requests = json!([
            {"name": "r", "exactly": {"deviceClassName": "c"}},
            {"name": "r", "exactly": {"deviceClassName": "c"}},
            {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}
        ]);
        let constraints = json!([
            {"requests": ["r", "f/s", "r"], "matchAttribute": "a.b/c"},
            {"requests": ["f/x", "a/b/c"], "distinctAttribute": "c"},
            {}
        ]);
        let at = "spec.devices.constraints";
        let unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        assert_eq!(
            messages(json!({"requests": requests, "constraints": constraints})),
            [
                "spec.devices.requests[1]: Duplicate value: \"r\"".to_owned(),
                format!("{at}[0].requests[2]: Duplicate value: \"r\""),
                format!("{at}[1].requests[0]: Invalid value: \"f/x\": {unknown}"),
                format!("{at}[1].requests[1]: Invalid value: \"a/b/c\": {unknown}"),
                format!(
                    "{at}[1].distinctAttribute: Invalid value: \"c\": a fully qualified name must be a domain and a name separated by a slash"
                ),
                format!(
                    "{at}[2]: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set"
                ),
            ]
        );
        let many: Vec<_> = (0..33).map(|_| json!({})).collect();
        assert_eq!(
            messages(json!({"config": many})),
            ["spec.devices.config: Too many: 33: must have at most 32 items"]
        );
    }
}
