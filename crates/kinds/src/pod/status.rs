//! Validation of pod status updates.

use super::container_status::check_containers;
use super::security::check_annotations_update;
use crate::check;
use crate::shown::{GoField, GoType, each};
use crate::tree::{entries, get, int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

/// Keeps observedGeneration fields that a writer clears.
pub(crate) fn keep_observed(object: &mut Object, old: &Object) {
    let was = get(old, "status");
    let Some(Value::Object(status)) = object.get_mut("status") else {
        return;
    };
    let observed = |of: &Value| of["observedGeneration"].clone();
    if int(get(status, "observedGeneration")) == 0 && is_set(&observed(was)) {
        status.insert("observedGeneration".to_owned(), observed(was));
    }
    let mut before: Vec<&Value> = list(&was["conditions"]).iter().collect();
    let Some(Value::Array(conditions)) = status.get_mut("conditions") else {
        return;
    };
    for condition in conditions {
        let Some(at) = before.iter().position(|c| c["type"] == condition["type"]) else {
            continue;
        };
        let known = observed(before.remove(at));
        if int(&observed(condition)) == 0 && int(&known) != 0 {
            condition["observedGeneration"] = known;
        }
    }
}

/// Warnings about addresses in a status.
pub(crate) fn warn_status(pod: &Object) -> Vec<String> {
    let mut out = Vec::new();
    for field in ["podIPs", "hostIPs"] {
        for (i, address) in list(&get(pod, "status")[field]).iter().enumerate() {
            let at = Path::new("status");
            let at = at.child(field);
            let at = at.index(i);
            let at = at.child("ip");
            out.append(&mut crate::address::ip_warnings(text(&address["ip"]), &at));
        }
    }
    out
}

/// Validates a write to `pods/status`.
pub(crate) fn validate_status(pod: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let annotations = |o: &Object| get(o, "metadata")["annotations"].clone();
    let at = Path::new("metadata.annotations");
    check_annotations_update(&annotations(pod), &annotations(old), &at, &mut errors);
    let (new, was, spec) = (get(pod, "status"), get(old, "status"), get(old, "spec"));
    let path = Path::new("status");
    check_conditions(&new["conditions"], &path.child("conditions"), &mut errors);
    check_nominated(new, was, spec, &path, &mut errors);
    if int(&new["observedGeneration"]) < 0 {
        let at = path.child("observedGeneration");
        let detail = "must be a non-negative integer";
        errors.push(Error::invalid(&at, int(&new["observedGeneration"]), detail));
    }
    let at = path.child("qosClass");
    check::immutable(&new["qosClass"], &was["qosClass"], &at, &mut errors);
    check_transitions(new, was, spec, &path, &mut errors);
    check_claims(new, spec, &path, &mut errors);
    let at = path.child("extendedResourceClaimStatus");
    check_extended(&new["extendedResourceClaimStatus"], spec, &at, &mut errors);
    check_allocatable(new, spec, &path, &mut errors);
    check_addresses(new, was, "podIPs", &path, &mut errors);
    let hosts = list(&new["hostIPs"]);
    if let Some(first) = hosts.first().map(|h| text(&h["ip"]))
        && text(&new["hostIP"]) != first
    {
        let at = path.child("hostIPs");
        let at = at.index(0);
        let at = at.child("ip");
        errors.push(Error::invalid(&at, first, "must be equal to `hostIP`"));
    }
    check_addresses(new, was, "hostIPs", &path, &mut errors);
    check_containers(new, spec, &path, &mut errors);
    errors
}

/// A container that terminated for good cannot run again.
fn check_transitions(new: &Value, was: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    for (statuses, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        let at = path.child(statuses);
        let revived = |container: &Value, code| may_restart(container, spec, code);
        if !containers.is_empty() && all_may_restart(spec) {
            continue;
        }
        let of = list(&spec[containers]);
        for (i, status) in list(&was[statuses]).iter().enumerate() {
            let ended = &status["state"]["terminated"];
            if !is_set(ended) {
                continue;
            }
            let name = &status["name"];
            let runs = |s: &&Value| s["name"] == *name && !is_set(&s["state"]["terminated"]);
            let Some(_) = list(&new[statuses]).iter().find(runs) else {
                continue;
            };
            let container = of.iter().find(|c| c["name"] == *name);
            if !container.is_some_and(|c| revived(c, int(&ended["exitCode"]))) {
                let detail = "may not be transitioned to non-terminated state";
                errors.push(Error::forbidden(&at.index(i).child("state"), detail));
            }
        }
    }
}

fn check_conditions(conditions: &Value, path: &Path, errors: &mut Errors) {
    for (i, condition) in list(conditions).iter().enumerate() {
        let generation = int(&condition["observedGeneration"]);
        if generation < 0 {
            let at = path.index(i);
            let at = at.child("observedGeneration");
            let detail = "must be a non-negative integer";
            errors.push(Error::invalid(&at, generation, detail));
        }
        let kind = text(&condition["type"]);
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let at = path.index(i);
            let at = at.child("Type");
            check::form(format::qualified_name(kind), kind, &at, errors);
        }
    }
}

fn check_nominated(new: &Value, was: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let name = text(&new["nominatedNodeName"]);
    if name.is_empty() || name == text(&was["nominatedNodeName"]) {
        return;
    }
    let at = path.child("nominatedNodeName");
    check::form(format::dns1123_subdomain(name), name, &at, errors);
    if !text(&spec["nodeName"]).is_empty() {
        let detail = "may not be set on pods that are already bound to a node";
        errors.push(Error::forbidden(&at, detail));
    }
}

/// Whether a restart rule restarts all containers of the pod.
fn all_may_restart(spec: &Value) -> bool {
    list(&spec["containers"])
        .iter()
        .chain(list(&spec["initContainers"]))
        .flat_map(|c| list(&c["restartPolicyRules"]))
        .any(|rule| rule["action"] == "RestartAllContainers")
}

/// Whether a container that exited with this code is restarted.
fn may_restart(container: &Value, spec: &Value, code: i64) -> bool {
    let Some(own) = container["restartPolicy"].as_str() else {
        return match text(&spec["restartPolicy"]) {
            "Always" => true,
            "OnFailure" => code != 0,
            _ => false,
        };
    };
    for rule in list(&container["restartPolicyRules"]) {
        let codes = &rule["exitCodes"];
        let listed = list(&codes["values"]).iter().any(|v| int(v) == code);
        if is_set(codes) && listed == (codes["operator"] == "In") {
            return rule["action"] == "Restart";
        }
    }
    match own {
        "Always" => true,
        "OnFailure" => code != 0,
        _ => false,
    }
}

fn check_claims(status: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("resourceClaimStatuses");
    let mut seen = BTreeSet::new();
    for (i, claim) in list(&status["resourceClaimStatuses"]).iter().enumerate() {
        let at = at.index(i);
        let name = text(&claim["name"]);
        let known = list(&spec["resourceClaims"])
            .iter()
            .any(|c| text(&c["name"]) == name);
        if !known {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(Error::invalid(&at.child("name"), name, detail));
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        if let Some(object) = claim["resourceClaimName"].as_str() {
            let complaints = format::dns1123_subdomain(object);
            check::form(complaints, object, &at.child("resourceClaimName"), errors);
        }
    }
}

/// Validates the claim created for extended resources: its request mappings.
fn check_extended(status: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(status) {
        return;
    }
    let mappings = list(&status["requestMappings"]);
    let at = path.child("requestMappings");
    if mappings.is_empty() {
        let detail = "at least one request mapping is required";
        errors.push(Error::required(&at, detail));
    }
    let mut seen = BTreeSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let at = at.index(i);
        let field = |name: &str| text(&mapping[name]);
        let container = ["containers", "initContainers"].iter().find_map(|kind| {
            let named = |c: &&Value| text(&c["name"]) == field("containerName");
            list(&spec[*kind]).iter().rfind(named)
        });
        match container {
            None => {
                let detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                let (at, name) = (at.child("containerName"), field("containerName"));
                errors.push(Error::invalid(&at, name, detail));
            }
            Some(c) if !is_set(&c["resources"]["requests"][field("resourceName")]) => {
                let detail = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                let (at, name) = (at.child("resourceName"), field("resourceName"));
                errors.push(Error::invalid(&at, name, detail));
            }
            Some(_) => {}
        }
        // Upstream's path omits the mapping.
        let (form, request) = (path.child("requestName"), field("requestName"));
        check::form(format::dns1123_label(request), request, &form, errors);
        let names = ["containerName", "resourceName", "requestName"];
        if !seen.insert(names.map(field)) {
            errors.extend(names.map(|name| Error::duplicate(&at.child(name), field(name))));
        }
    }
    let claim = &status["resourceClaimName"];
    let at = path.child("resourceClaimName");
    check::required(claim, &at, errors);
    check::optional(format::dns1123_subdomain, claim, &at, errors);
}

/// Validates statuses of claims on node-allocatable resources.
fn check_allocatable(status: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let statuses = list(&status["nodeAllocatableResourceClaimStatuses"]);
    for (i, item) in statuses.iter().enumerate() {
        let at = path.child("nodeAllocatableResourceClaimStatuses");
        let at = at.index(i);
        let claim = text(&item["resourceClaimName"]);
        if claim.is_empty() {
            let at = at.child("resourceClaimName");
            errors.push(Error::required(&at, "must not be empty"));
        }
        let known = |c: &Value| c["resourceClaimName"].as_str() == Some(claim);
        if !list(&spec["resourceClaims"]).iter().any(known)
            && !list(&status["resourceClaimStatuses"]).iter().any(known)
        {
            let at = at.child("resourceClaimName");
            let detail = "no mapping found in pod reference";
            errors.push(Error::invalid(&at, claim, detail));
        }
        if list(&item["containers"]).is_empty() {
            errors.push(Error::required(
                &at.child("containers"),
                "must not be empty",
            ));
        }
        let at = at.child("resources");
        if entries(&item["resources"]).next().is_none() {
            errors.push(Error::required(&at, "must not be empty"));
        }
        for (name, amount) in entries(&item["resources"]) {
            let at = at.key(name);
            if !super::is_native(name) {
                let detail = "must be a node allocatable resource name";
                errors.push(Error::invalid(&at, name.as_str(), detail));
            }
            let parsed = text(amount).parse::<Quantity>();
            if parsed.is_ok_and(Quantity::is_negative) {
                errors.push(Error::invalid(&at, text(amount), "must be non-negative"));
            }
        }
    }
}

const ADDRESS: &[GoField] = &[GoField("ip", "IP", GoType::Text)];

/// At most one address of each family, in strict form unless unchanged.
fn check_addresses(new: &Value, was: &Value, field: &str, path: &Path, errors: &mut Errors) {
    let at = path.child(field);
    let old: Vec<&str> = list(&was[field]).iter().map(|a| text(&a["ip"])).collect();
    let all: Vec<&str> = list(&new[field]).iter().map(|a| text(&a["ip"])).collect();
    for (i, address) in all.iter().enumerate() {
        if !old.contains(address) {
            check::ip(address, &at.index(i), errors);
        }
    }
    if all.len() < 2 {
        return;
    }
    let parsed: Vec<_> = all.iter().map(|a| check::loose_ip(a)).collect();
    let is_dual = match parsed.iter().position(Option::is_none) {
        Some(i) => {
            let detail = format!(
                "failed to check for dual stack with error:invalid IP[{i}]: {}",
                all[i]
            );
            errors.push(Error::internal(&at, detail));
            false
        }
        None => {
            let has = |v4: bool| parsed.iter().flatten().any(|a| a.is_ipv4() == v4);
            has(true) && has(false)
        }
    };
    if !is_dual || all.len() > 2 {
        let detail = "may specify no more than one IP for each IP family";
        errors.push(Error::invalid(&at, each(&new[field], ADDRESS), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_container_that_ended_for_good_stays_ended() {
        let pod = |state: &str| {
            object(&format!(
                r#"{{"spec": {{"restartPolicy": "OnFailure", "containers": [{{"name": "c"}}]}},
                    "status": {{"containerStatuses": [{{"name": "c", "state": {state}}}]}}}}"#
            ))
        };
        let running = pod(r#"{"running": {}}"#);
        let done = pod(r#"{"terminated": {"exitCode": 0}}"#);
        let failed = pod(r#"{"terminated": {"exitCode": 1}}"#);
        assert_eq!(
            lines(validate_status(&running, &done)),
            [
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
            ]
        );
        assert_eq!(lines(validate_status(&running, &failed)), [""; 0]);
    }

    #[test]
    fn addresses_are_one_of_each_family() {
        let pod = |ips: &str| object(&format!(r#"{{"status": {{"podIPs": {ips}}}}}"#));
        let none = pod("[]");
        let both = pod(r#"[{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]"#);
        assert_eq!(lines(validate_status(&both, &none)), [""; 0]);
        let twice = pod(r#"[{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]"#);
        assert!(lines(validate_status(&twice, &none))[0].ends_with("for each IP family"));
        let odd = pod(r#"[{"ip": "10.0.0.1"}, {"ip": "x"}]"#);
        assert_eq!(
            lines(validate_status(&odd, &none))[1..],
            [
                "status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
                r#"status.podIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"x"}]: may specify no more than one IP for each IP family"#,
            ]
        );
    }

    #[test]
    fn extended_resource_claims_match_requests_of_the_pod() {
        let pod = |status: &str| {
            object(&format!(
                r#"{{"spec": {{"containers": [{{"name": "c", "resources": {{"requests": {{"e.io/x": "1"}}}}}}]}},
                    "status": {{"extendedResourceClaimStatus": {status}}}}}"#
            ))
        };
        let mapping = |container: &str, resource: &str, request: &str| {
            format!(
                r#"{{"containerName": "{container}", "resourceName": "{resource}", "requestName": "{request}"}}"#
            )
        };
        let reported = |mappings: &[String], claim: &str| {
            let all = mappings.join(",");
            let new = pod(&format!(
                r#"{{"requestMappings": [{all}], "resourceClaimName": "{claim}"}}"#
            ));
            lines(validate_status(&new, &new))
        };
        assert_eq!(reported(&[mapping("c", "e.io/x", "r")], "z"), [""; 0]);
        assert_eq!(
            reported(&[], ""),
            [
                "status.extendedResourceClaimStatus.requestMappings: Required value: at least one request mapping is required",
                "status.extendedResourceClaimStatus.resourceClaimName: Required value",
            ]
        );
        assert_eq!(
            reported(
                &[mapping("c", "e.io/y", "r"), mapping("d", "e.io/x", "r")],
                "z"
            ),
            [
                "status.extendedResourceClaimStatus.requestMappings[0].resourceName: Invalid value: \"e.io/y\": must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
                "status.extendedResourceClaimStatus.requestMappings[1].containerName: Invalid value: \"d\": must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ]
        );
        let twice = [mapping("c", "e.io/x", "r"), mapping("c", "e.io/x", "r")];
        assert_eq!(reported(&twice, "z").len(), 3);
    }

    #[test]
    fn generations_seen_before_are_kept() {
        let old = object(
            r#"{"status": {"observedGeneration": 3, "conditions": [{"type": "Ready", "observedGeneration": 2}]}}"#,
        );
        let mut new = object(r#"{"status": {"conditions": [{"type": "Ready"}, {"type": "X"}]}}"#);
        keep_observed(&mut new, &old);
        assert_eq!(get(&new, "status")["observedGeneration"], 3);
        assert_eq!(
            get(&new, "status")["conditions"][0]["observedGeneration"],
            2
        );
        assert!(get(&new, "status")["conditions"][1]["observedGeneration"].is_null());
    }
}
