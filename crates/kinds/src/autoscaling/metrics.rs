//! The metrics that an autoscaler follows, and how fast it may scale by them.

use crate::check;
use crate::pod::check_container_name;
use crate::tree::{int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Value, format};

/// Maximum stabilization window in seconds.
const WINDOW: i64 = 3600;
/// Maximum period of a policy in seconds.
const PERIOD: i64 = 1800;

/// The rule for a reference's apiVersion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiVersion {
    /// Any value: it is unchanged.
    Any,
    /// A valid version, also of the core group.
    Valid,
    /// A valid version of a named group.
    Grouped,
}

/// Validates a reference: apiVersion, kind and name.
pub(super) fn check_reference(
    reference: &Value,
    wanted: ApiVersion,
    path: &Path,
    errors: &mut Errors,
) {
    for field in ["kind", "name"] {
        let at = path.child(field);
        match text(&reference[field]) {
            "" => errors.push(Error::required(&at, "")),
            value => check::form(format::path_segment(value), value, &at, errors),
        }
    }
    let version = text(&reference["apiVersion"]);
    if let Some(detail) = check_version(version, wanted) {
        errors.push(Error::invalid(&path.child("apiVersion"), version, detail));
    }
}

fn check_version(version: &str, wanted: ApiVersion) -> Option<String> {
    if wanted == ApiVersion::Any {
        return None;
    }
    if version.matches('/').count() > 1 {
        return Some(format!("unexpected GroupVersion string: {version}"));
    }
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let missing = wanted == ApiVersion::Grouped && group.is_empty();
    missing.then(|| "apiVersion must specify API group".to_owned())
}

/// The rule for objects that metrics describe: if any was invalid before, all may be.
pub(super) fn of_described(old: Option<&Value>) -> ApiVersion {
    let metrics = old.into_iter().flat_map(|old| list(&old["metrics"]));
    let mut versions = metrics
        .filter(|metric| metric["type"] == "Object")
        .map(|metric| text(&metric["object"]["describedObject"]["apiVersion"]));
    match versions.any(|version| check_version(version, ApiVersion::Valid).is_some()) {
        true => ApiVersion::Any,
        false => ApiVersion::Valid,
    }
}

/// Metric sources: the value of `type`, and its field.
const SOURCES: &[(&str, &str)] = &[
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

const TYPES: &[&str] = &[
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];

pub(super) fn check_metric(
    metric: &Value,
    described: ApiVersion,
    path: &Path,
    errors: &mut Errors,
) {
    let (kind, at) = (text(&metric["type"]), path.child("type"));
    if kind.is_empty() {
        errors.push(Error::required(&at, "must specify a metric source type"));
    }
    check::one_of(&metric["type"], TYPES, &at, errors);
    let present: Vec<&str> = SOURCES
        .iter()
        .map(|s| s.1)
        .filter(|field| is_set(&metric[*field]))
        .collect();
    if let Some(first) = present.first() {
        let at = path.child(first);
        check_source(first, &metric[*first], described, &at, errors);
    }
    let expected = SOURCES.iter().find(|s| s.0 == kind).map(|s| s.1);
    match expected {
        Some(field) if !is_set(&metric[field]) => {
            let detail = "must populate information for the given metric source";
            errors.push(Error::required(&path.child(field), detail));
        }
        Some(_) => {}
        // Reported a second time, as upstream does.
        None => errors.push(Error::not_supported(&at, kind, TYPES)),
    }
    if present.len() > 1 {
        for field in present.iter().filter(|f| Some(**f) != expected) {
            let detail = "must populate the given metric source only";
            errors.push(Error::forbidden(&path.child(field), detail));
        }
    }
}

fn check_source(
    kind: &str,
    source: &Value,
    described: ApiVersion,
    path: &Path,
    errors: &mut Errors,
) {
    let resource = matches!(kind, "resource" | "containerResource");
    if kind == "object" {
        let at = path.child("describedObject");
        check_reference(&source["describedObject"], described, &at, errors);
    }
    if resource {
        let at = path.child("name");
        match text(&source["name"]) {
            "" => errors.push(Error::required(&at, "must specify a resource name")),
            name if kind == "containerResource" => check_container_name(name, &at, errors),
            _ => {}
        }
    } else {
        let at = path.child("metric.name");
        match text(&source["metric"]["name"]) {
            "" => errors.push(Error::required(&at, "must specify a metric name")),
            name => check::form(format::path_segment(name), name, &at, errors),
        }
    }
    if kind == "containerResource" {
        let at = path.child("container");
        match text(&source["container"]) {
            "" => errors.push(Error::required(&at, "must specify a container")),
            name => check::form(format::dns1123_label(name), name, &at, errors),
        }
    }
    let (target, at) = (&source["target"], path.child("target"));
    check_target(target, &at, errors);
    let has = |field: &str| is_set(&target[field]);
    let average = at.child("averageValue");
    let other = if resource {
        "averageUtilization"
    } else {
        "value"
    };
    match kind {
        "pods" => {
            if !has("averageValue") {
                let detail = "must specify a positive target averageValue";
                errors.push(Error::required(&average, detail));
            }
        }
        "object" => {
            if !has("value") && !has("averageValue") {
                let detail = "must set either a target value or averageValue";
                errors.push(Error::required(&average, detail));
            }
        }
        "external" => match (has(other), has("averageValue")) {
            (false, false) => {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.push(Error::required(&average, detail));
            }
            (true, true) => {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.push(Error::forbidden(&at.child("value"), detail));
            }
            _ => {}
        },
        _ => match (has(other), has("averageValue")) {
            (false, false) => {
                let detail = "must set either a target raw value or a target utilization";
                errors.push(Error::required(&at.child(other), detail));
            }
            (true, true) => {
                let detail = "may not set both a target raw value and a target utilization";
                errors.push(Error::forbidden(&average, detail));
            }
            _ => {}
        },
    }
}

fn check_target(target: &Value, path: &Path, errors: &mut Errors) {
    let (kind, at) = (text(&target["type"]), path.child("type"));
    if kind.is_empty() {
        errors.push(Error::required(&at, "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(Error::invalid(&at, kind, detail));
    }
    for field in ["value", "averageValue"] {
        let amount = text(&target[field]).parse::<Quantity>();
        if amount.is_ok_and(|q| q.is_zero() || q.is_negative()) {
            let shown = target[field].clone();
            errors.push(Error::invalid(
                &path.child(field),
                shown,
                "must be positive",
            ));
        }
    }
    let utilization = &target["averageUtilization"];
    if is_set(utilization) && int(utilization) < 1 {
        let at = path.child("averageUtilization");
        errors.push(Error::invalid(
            &at,
            int(utilization),
            "must be greater than 0",
        ));
    }
}

/// Validates the scaling rules of one direction.
pub(super) fn check_rules(rules: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(rules) {
        return;
    }
    let window = int(&rules["stabilizationWindowSeconds"]);
    let at = path.child("stabilizationWindowSeconds");
    if window < 0 {
        let detail = "must be greater than or equal to zero";
        errors.push(Error::invalid(&at, window, detail));
    }
    if window > WINDOW {
        let detail = format!("must be less than or equal to {WINDOW}");
        errors.push(Error::invalid(&at, window, detail));
    }
    let select = &rules["selectPolicy"];
    if is_set(select) {
        let policies = ["Disabled", "Max", "Min"];
        check::one_of(select, &policies, &path.child("selectPolicy"), errors);
    }
    let (policies, at) = (list(&rules["policies"]), path.child("policies"));
    if policies.is_empty() {
        errors.push(Error::required(&at, "must specify at least one Policy"));
    }
    for (i, policy) in policies.iter().enumerate() {
        let at = at.index(i);
        let types = ["Percent", "Pods"];
        check::one_of(&policy["type"], &types, &at.child("type"), errors);
        check::positive(&policy["value"], &at.child("value"), errors);
        let period = &policy["periodSeconds"];
        check::positive(period, &at.child("periodSeconds"), errors);
        if int(period) > PERIOD {
            let detail = format!("must be less than or equal to {PERIOD}");
            errors.push(Error::invalid(
                &at.child("periodSeconds"),
                int(period),
                detail,
            ));
        }
    }
    let tolerance = text(&rules["tolerance"]);
    if tolerance
        .parse::<Quantity>()
        .is_ok_and(Quantity::is_negative)
    {
        let at = path.child("tolerance");
        errors.push(Error::invalid(&at, tolerance, check::NEGATIVE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn a_metric_has_exactly_the_source_of_its_type() {
        let reported = |metric: Value| {
            let mut errors = Vec::new();
            check_metric(&metric, ApiVersion::Valid, &Path::new("m"), &mut errors);
            lines(errors)
        };
        let cpu =
            json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
        assert_eq!(
            reported(json!({"type": "Resource", "resource": cpu})),
            [""; 0]
        );
        assert_eq!(
            reported(json!({"type": "Pods", "resource": cpu})),
            ["m.pods: Required value: must populate information for the given metric source"]
        );
        assert_eq!(
            reported(
                json!({"type": "External", "external": {"metric": {"name": "x"}, "target": {"type": "Value", "value": "-1"}}})
            ),
            ["m.external.target.value: Invalid value: \"-1\": must be positive"]
        );
    }

    #[test]
    fn rules_have_policies_within_bounds() {
        let mut errors = Vec::new();
        let rules = json!({"stabilizationWindowSeconds": 4000, "policies": [{"type": "Pods", "value": 0, "periodSeconds": 1801}]});
        check_rules(&rules, &Path::new("r"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "r.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
                "r.policies[0].value: Invalid value: 0: must be greater than zero",
                "r.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
            ]
        );
    }

    #[test]
    fn a_target_names_its_group() {
        let mut errors = Vec::new();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "a/b"});
        check_reference(&pod, ApiVersion::Grouped, &Path::new("t"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "t.name: Invalid value: \"a/b\": may not contain '/'",
                "t.apiVersion: Invalid value: \"v1\": apiVersion must specify API group",
            ]
        );
    }
}
