//! Requests and limits of containers.

use crate::check;
use crate::tree::{entries, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::pod_resources::{Field, PodResources};
use machinery::quantity::Quantity;
use machinery::{Value, format};
use std::collections::{BTreeMap, BTreeSet};

/// The quantity of a field; zero if absent (invalid quantities are rejected before).
fn quantity(value: &Value) -> Quantity {
    text(value).parse().unwrap_or(Quantity::ZERO)
}

/// Whether a resource is in the kubernetes.io domain.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is an extended resource.
pub(crate) fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && format::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a resource may be overcommitted.
pub(crate) fn may_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Resources limited by object count.
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Other resources that a quota can limit.
const MEASURED: &[&str] = &[
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
];

/// Whether a quota may limit a resource that has no domain.
pub(crate) fn is_standard_quota(name: &str) -> bool {
    COUNTED.contains(&name)
        || MEASURED.contains(&name)
        || is_huge_page(name)
        || name.starts_with("requests.hugepages-")
}

/// Validates a resource's name; its use may have further rules.
pub(crate) fn check_name(name: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::qualified_name(name);
    if !complaints.is_empty() {
        check::form(complaints, name, path, errors);
    } else if !name.contains('/') && !is_standard_quota(name) && name != "storage" {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(Error::invalid(path, name, detail));
    }
}

/// Validates the name of a container's resource.
pub(crate) fn check_container_name(name: &str, path: &Path, errors: &mut Errors) {
    check_name(name, path, errors);
    if !name.contains('/') {
        let own = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
        if !own {
            let detail = "must be a standard resource for containers";
            errors.push(Error::invalid(path, name, detail));
        }
    } else if !is_native(name) && !is_extended(name) {
        let detail = "doesn't follow extended resource name standard";
        errors.push(Error::invalid(path, name, detail));
    }
}

/// Validates the name of a pod-level resource.
fn check_pod_name(name: &str, path: &Path, errors: &mut Errors) {
    let before = errors.len();
    check_name(name, path, errors);
    if errors.len() == before && !matches!(name, "cpu" | "memory") && !is_huge_page(name) {
        let supported = ["cpu", "hugepages-", "memory"];
        errors.push(Error::not_supported(path, name, &supported));
    }
}

/// Not negative, and an integer where required.
pub(crate) fn check_quantity(name: &str, value: &Value, path: &Path, errors: &mut Errors) {
    let amount = quantity(value);
    if amount.is_negative() {
        errors.push(Error::invalid(path, text(value), check::NEGATIVE));
    }
    let whole = COUNTED.contains(&name) || is_extended(name);
    if whole && !amount.is_integer() {
        errors.push(Error::invalid(path, text(value), "must be an integer"));
    }
}

/// Huge pages must be multiples of their size.
fn check_huge_page(name: &str, value: &Value, path: &Path, errors: &mut Errors) {
    let Some(size) = name.strip_prefix("hugepages-") else {
        return;
    };
    let fits = size.parse::<Quantity>().is_ok_and(|size| {
        size.value() > 0 && size.is_integer() && quantity(value).value() % size.value() == 0
    });
    if !fits {
        let detail = format!("{} is not positive integer multiple of {name}", text(value));
        errors.push(Error::invalid(path, text(value), detail));
    }
}

/// `resources` of a container; `claims` are the names of the pod's resource claims.
pub(crate) fn check_resources(
    resources: &Value,
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    check_requirements(resources, check_container_name, claims, path, errors);
}

fn check_requirements(
    resources: &Value,
    check_name: fn(&str, &Path, &mut Errors),
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let (limits, requests) = (&resources["limits"], &resources["requests"]);
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (name, value) in entries(limits) {
        let at = limits_path.key(name);
        check_name(name, &at, errors);
        check_quantity(name, value, &at, errors);
        check_huge_page(name, value, &at, errors);
    }
    for (name, value) in entries(requests) {
        let at = requests_path.key(name);
        check_name(name, &at, errors);
        check_quantity(name, value, &at, errors);
        let (request, limit) = (quantity(value), limits.get(name));
        let strict = !may_be_overcommitted(name);
        match limit.map(|limit| (text(limit), quantity(limit))) {
            Some((shown, limit)) if strict && request != limit => {
                let detail = format!("must be equal to {name} limit of {shown}");
                errors.push(Error::invalid(&requests_path, text(value), detail));
            }
            Some((shown, limit)) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {shown}");
                errors.push(Error::invalid(&requests_path, text(value), detail));
            }
            None if strict => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(Error::required(&limits_path, detail));
            }
            _ => {}
        }
        check_huge_page(name, value, &at, errors);
    }
    let has = |name: &str| limits.get(name).or(requests.get(name)).is_some();
    let huge = entries(limits)
        .chain(entries(requests))
        .any(|(name, _)| is_huge_page(name));
    if huge && !has("cpu") && !has("memory") {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    check_claims(&resources["claims"], claims, &path.child("claims"), errors);
}

fn check_claims(used: &Value, known: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let mut keys: BTreeSet<String> = BTreeSet::new();
    for (i, claim) in list(used).iter().enumerate() {
        let at = path.index(i);
        let (name, request) = (text(&claim["name"]), text(&claim["request"]));
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        if keys.contains(name) {
            errors.push(Error::duplicate(&at, name));
        } else {
            let key = if request.is_empty() {
                name.to_owned()
            } else {
                let complaints = format::dns1123_label(request);
                check::form(complaints, request, &at.child("request"), errors);
                format!("{name}/{request}")
            };
            let part = format!("{name}/");
            if keys.contains(&key) {
                errors.push(Error::duplicate(&at, key.as_str()));
            } else if request.is_empty() {
                for _ in keys.iter().filter(|k| k.starts_with(&part)) {
                    errors.push(Error::duplicate(&at, name));
                }
            }
            keys.insert(key);
        }
        if !known.contains(name) {
            let all: Vec<&str> = known.iter().copied().collect();
            let which = if all.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", all.join(", "))
            };
            let mut error = Error::not_found(&at, name);
            error.detail = format!("must be one of the names in pod.spec.resourceClaims{which}");
            errors.push(error);
        }
    }
}

/// Pod-level resources must cover those of the containers.
pub(super) fn check_pod_resources(
    spec: &Value,
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let resources = &spec["resources"];
    if !is_set(resources) {
        return;
    }
    let path = path.child("resources");
    if spec["os"]["name"] == "windows" {
        let detail = "may not be set for a windows pod";
        return errors.push(Error::forbidden(&path, detail));
    }
    if is_set(&resources["claims"]) {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(Error::forbidden(&path.child("claims"), detail));
    }
    check_requirements(resources, check_pod_name, claims, &path, errors);
    for field in [Field::Requests, Field::Limits] {
        let (field_name, containers) = (field.as_str(), PodResources::from_json(field, spec, None));
        for (name, sum) in containers.containers_total() {
            let value = &resources[field_name][name];
            let compared = field == Field::Requests || is_huge_page(name);
            if compared && is_set(value) && sum > quantity(value) {
                let detail = format!(
                    "must be greater than or equal to aggregate container {field_name} of {sum}"
                );
                let at = path.child(field_name);
                let at = at.key(name);
                errors.push(Error::invalid(&at, text(value), detail));
            }
        }
    }
    for (i, container) in list(&spec["containers"]).iter().enumerate() {
        for (name, limit) in entries(&container["resources"]["limits"]) {
            let whole = &resources["limits"][name.as_str()];
            if is_set(whole) && quantity(limit) > quantity(whole) {
                let detail = format!(
                    "must be less than or equal to pod limits of {}",
                    text(whole)
                );
                let at = path.child("containers");
                let at = at.index(i);
                let at = at.key(name);
                let at = at.child("limits");
                errors.push(Error::invalid(&at, text(limit), detail));
            }
        }
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, by requests and limits.
pub fn quality_of_service(spec: &Value) -> &'static str {
    // Pod-level resources take precedence.
    if is_set(&spec["resources"]) {
        let whole = machinery::json::json!({"containers": [{"resources": spec["resources"]}]});
        return quality_of_service(&whole);
    }
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
            if request > Quantity::ZERO {
                let sum = requests.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(request);
            }
            let limit = quantity(&resources["limits"][name]);
            if limit > Quantity::ZERO {
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
    use machinery::json::json;

    #[test]
    fn requests_stay_within_limits() {
        let mut errors = Vec::new();
        let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2", "foo": "1", "x.io/y": "1500m"}});
        check_resources(&resources, &BTreeSet::new(), &Path::new("r"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                "r.requests[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
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
