//! Requests and limits of containers.

use crate::check;
use crate::tree::{entries, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Value, format};
use std::collections::BTreeMap;

/// The quantity of a field; zero when absent (normalising refused what is no quantity).
fn quantity(value: &Value) -> Quantity {
    text(value).parse().unwrap_or(Quantity::ZERO)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_standard(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name)
}

/// Whether more may be promised than there is.
fn may_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

fn check_name(name: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::qualified_name(name);
    if !complaints.is_empty() {
        check::form(complaints, name, path, errors);
        return;
    }
    if !name.contains('/') {
        if !is_standard(name) {
            errors.push(Error::invalid(
                path,
                name,
                "must be a standard resource for containers",
            ));
        }
    } else if !is_native(name) && name.starts_with("requests.") {
        let detail = "doesn't follow extended resource name standard";
        errors.push(Error::invalid(path, name, detail));
    }
}

/// Not negative, and whole where only whole ones make sense.
pub(crate) fn check_quantity(name: &str, value: &Value, path: &Path, errors: &mut Errors) {
    let amount = quantity(value);
    if amount.is_negative() {
        errors.push(Error::invalid(path, text(value), check::NEGATIVE));
    }
    let whole = !is_native(name)
        || matches!(
            name,
            "pods"
                | "services"
                | "replicationcontrollers"
                | "resourcequotas"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "services.nodeports"
                | "services.loadbalancers"
        );
    if whole && !amount.is_integer() {
        errors.push(Error::invalid(path, text(value), "must be an integer"));
    }
}

/// `resources` of a container.
pub(crate) fn check_resources(resources: &Value, path: &Path, errors: &mut Errors) {
    let (limits, requests) = (&resources["limits"], &resources["requests"]);
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (name, value) in entries(limits) {
        let at = limits_path.key(name);
        check_name(name, &at, errors);
        check_quantity(name, value, &at, errors);
    }
    for (name, value) in entries(requests) {
        let at = requests_path.key(name);
        check_name(name, &at, errors);
        check_quantity(name, value, &at, errors);
        match limits.get(name) {
            Some(limit) => {
                let (request, limit_amount) = (quantity(value), quantity(limit));
                if !may_be_overcommitted(name) && request != limit_amount {
                    let detail = format!("must be equal to {name} limit of {}", text(limit));
                    errors.push(Error::invalid(&requests_path, text(value), detail));
                } else if request > limit_amount {
                    let detail = format!(
                        "must be less than or equal to {name} limit of {}",
                        text(limit)
                    );
                    errors.push(Error::invalid(&requests_path, text(value), detail));
                }
            }
            None if !may_be_overcommitted(name) => errors.push(Error::required(
                &limits_path,
                "Limit must be set for non overcommitable resources",
            )),
            None => {}
        }
    }
    let has = |name: &str| {
        let set = |v: &Value| v.get(name).is_some();
        set(limits) || set(requests)
    };
    let huge = entries(limits)
        .chain(entries(requests))
        .any(|(name, _)| is_huge_page(name));
    if huge && !has("cpu") && !has("memory") {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    check_claims(resources, path, errors);
}

fn check_claims(resources: &Value, path: &Path, errors: &mut Errors) {
    for (i, claim) in list(&resources["claims"]).iter().enumerate() {
        let at = path.child("claims").index(i).child("name");
        check::required(&claim["name"], &at, errors);
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, by what the containers ask for.
pub fn quality_of_service(spec: &Value) -> &'static str {
    let mut requests: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut guaranteed = true;
    let all = list(&spec["containers"])
        .iter()
        .chain(list(&spec["initContainers"]));
    for container in all {
        let resources = &container["resources"];
        let mut limited = 0;
        for name in ["cpu", "memory"] {
            let request = quantity(&resources["requests"][name]);
            if !request.is_zero() {
                let sum = requests.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(request);
            }
            let limit = quantity(&resources["limits"][name]);
            if !limit.is_zero() {
                limited += 1;
                let sum = limits.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(limit);
            }
        }
        guaranteed &= limited == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use serde_json::json;

    #[test]
    fn requests_stay_within_limits() {
        let mut errors = Vec::new();
        let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2", "foo": "1", "x.io/y": "1500m"}});
        check_resources(&resources, &Path::new("r"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                "r.requests[foo]: Invalid value: \"foo\": must be a standard resource for containers",
                "r.requests[x.io/y]: Invalid value: \"1500m\": must be an integer",
                "r.limits: Required value: Limit must be set for non overcommitable resources",
            ]
        );
    }

    #[test]
    fn quality_follows_requests_and_limits() {
        let pod = |resources: Value| json!({"containers": [{"resources": resources}]});
        assert_eq!(quality_of_service(&pod(json!({}))), "BestEffort");
        assert_eq!(
            quality_of_service(&pod(json!({"requests": {"cpu": "1"}}))),
            "Burstable"
        );
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        assert_eq!(quality_of_service(&pod(full)), "Guaranteed");
    }
}
