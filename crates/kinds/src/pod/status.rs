//! What the status of a pod may become.

use super::security::check_annotations_update;
use crate::check;
use crate::tree::{get, int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::net::IpAddr;

/// Checks a write to `pods/status`.
pub(crate) fn validate_status(pod: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let annotations = |o: &Object| get(o, "metadata")["annotations"].clone();
    let at = Path::new("metadata").child("annotations");
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
            let now = list(&new[statuses]).iter().find(|s| s["name"] == *name);
            if now.is_none_or(|now| is_set(&now["state"]["terminated"])) {
                continue;
            }
            let container = of.iter().find(|c| c["name"] == *name);
            if !container.is_some_and(|c| revived(c, int(&ended["exitCode"]))) {
                let detail = "may not be transitioned to non-terminated state";
                errors.push(Error::forbidden(&at.index(i).child("state"), detail));
            }
        }
    }
    check_claims(new, get(pod, "spec"), &path, &mut errors);
    check_addresses(new, was, "podIPs", &path, &mut errors);
    let hosts = list(&new["hostIPs"]);
    if let Some(first) = hosts.first().map(|h| text(&h["ip"]))
        && text(&new["hostIP"]) != first
    {
        let at = path.child("hostIPs").index(0).child("ip");
        errors.push(Error::invalid(&at, first, "must be equal to `hostIP`"));
    }
    check_addresses(new, was, "hostIPs", &path, &mut errors);
    errors
}

fn check_conditions(conditions: &Value, path: &Path, errors: &mut Errors) {
    for (i, condition) in list(conditions).iter().enumerate() {
        let generation = int(&condition["observedGeneration"]);
        if generation < 0 {
            let at = path.index(i).child("observedGeneration");
            let detail = "must be a non-negative integer";
            errors.push(Error::invalid(&at, generation, detail));
        }
        let kind = text(&condition["type"]);
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let at = path.index(i).child("Type");
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

/// Whether some rule restarts every container of the pod.
fn all_may_restart(spec: &Value) -> bool {
    list(&spec["containers"])
        .iter()
        .chain(list(&spec["initContainers"]))
        .flat_map(|c| list(&c["restartPolicyRules"]))
        .any(|rule| rule["action"] == "RestartAllContainers")
}

/// Whether a container that ended with this code runs again.
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
    let mut seen = std::collections::BTreeSet::new();
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

/// At most one address of each family, in strict form unless it was there before.
fn check_addresses(new: &Value, was: &Value, field: &str, path: &Path, errors: &mut Errors) {
    let at = path.child(field);
    let old: Vec<&str> = list(&was[field]).iter().map(|a| text(&a["ip"])).collect();
    let all: Vec<&str> = list(&new[field]).iter().map(|a| text(&a["ip"])).collect();
    for (i, address) in all.iter().enumerate() {
        if !old.contains(address) {
            check::ip(address, &at.index(i), errors);
        }
    }
    if all.len() > 1 {
        let families: Vec<bool> = all
            .iter()
            .filter_map(|a| a.parse::<IpAddr>().ok())
            .map(|a| a.is_ipv4())
            .collect();
        if all.len() > 2 || families.len() != 2 || families[0] == families[1] {
            let detail = "may specify no more than one IP for each IP family";
            errors.push(Error::invalid(&at, new[field].clone(), detail));
        }
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
    }
}
