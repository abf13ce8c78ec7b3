//! Validation of a pod spec as a whole.

use super::container::{check_containers, check_id, check_profile};
use super::placement::{check_affinity, check_spread, check_tolerations};
use super::volume::check_volumes;
use crate::check;
use crate::tree::{get, int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A pod template under `path`.
pub fn validate_template(template: &Value, path: &Path, errors: &mut Errors) {
    let metadata = path.child("metadata");
    check::labels(
        &template["metadata"]["labels"],
        &metadata.child("labels"),
        errors,
    );
    check::annotations(
        &template["metadata"]["annotations"],
        &metadata.child("annotations"),
        errors,
    );
    validate_spec(&template["spec"], &path.child("spec"), errors);
    if !list(&template["spec"]["ephemeralContainers"]).is_empty() {
        let at = path.child("spec").child("ephemeralContainers");
        errors.push(Error::forbidden(
            &at,
            "ephemeral containers not allowed in pod template",
        ));
    }
}

/// A pod spec under `path`.
pub fn validate_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    let volumes = check_volumes(&spec["volumes"], &path.child("volumes"), errors);
    check_containers(spec, &volumes, path, errors);
    check_host_network(spec, path, errors);
    let restart = ["Always", "OnFailure", "Never"];
    check::one_of(
        &spec["restartPolicy"],
        &restart,
        &path.child("restartPolicy"),
        errors,
    );
    let dns = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    check::one_of(&spec["dnsPolicy"], &dns, &path.child("dnsPolicy"), errors);
    check::labels(&spec["nodeSelector"], &path.child("nodeSelector"), errors);
    check_security(spec, path, errors);
    check_affinity(&spec["affinity"], &path.child("affinity"), errors);
    check_dns(spec, path, errors);
    check_gates(spec, path, errors);
    let spread = path.child("topologySpreadConstraints");
    check_spread(&spec["topologySpreadConstraints"], &spread, errors);
    check_names(spec, path, errors);
    check_tolerations(&spec["tolerations"], &path.child("tolerations"), errors);
    check_numbers(spec, path, errors);
    check_hosts(spec, path, errors);
    check_claims(spec, path, errors);
}

fn check_host_network(spec: &Value, path: &Path, errors: &mut Errors) {
    if !truth(&spec["hostNetwork"]) {
        return;
    }
    for (i, container) in list(&spec["containers"]).iter().enumerate() {
        for (j, port) in list(&container["ports"]).iter().enumerate() {
            if port["hostPort"] != port["containerPort"] {
                let at = path.child("containers").index(i).child("ports").index(j);
                let detail = "must match `hostPort` when `hostNetwork` is true";
                let at = at.child("containerPort");
                errors.push(Error::invalid(&at, int(&port["containerPort"]), detail));
            }
        }
    }
}

fn check_security(spec: &Value, path: &Path, errors: &mut Errors) {
    let context = &spec["securityContext"];
    let at = path.child("securityContext");
    for name in ["runAsUser", "runAsGroup", "fsGroup"] {
        check_id(&context[name], &at.child(name), errors);
    }
    for (i, group) in list(&context["supplementalGroups"]).iter().enumerate() {
        check_id(group, &at.child("supplementalGroups").index(i), errors);
    }
    if is_set(&context["fsGroupChangePolicy"]) {
        let policies = ["Always", "OnRootMismatch"];
        let at = at.child("fsGroupChangePolicy");
        check::one_of(&context["fsGroupChangePolicy"], &policies, &at, errors);
    }
    if is_set(&context["supplementalGroupsPolicy"]) {
        let at = at.child("supplementalGroupsPolicy");
        check::one_of(
            &context["supplementalGroupsPolicy"],
            &["Merge", "Strict"],
            &at,
            errors,
        );
    }
    check_profile(
        &context["seccompProfile"],
        &at.child("seccompProfile"),
        errors,
    );
    check_sysctls(&context["sysctls"], &at.child("sysctls"), errors);
    if truth(&spec["shareProcessNamespace"]) && truth(&spec["hostPID"]) {
        let at = path.child("shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&at, true, detail));
    }
    if spec["hostUsers"] == false {
        for name in ["hostNetwork", "hostPID", "hostIPC"] {
            if truth(&spec[name]) {
                let detail = "when `hostUsers` is false";
                errors.push(Error::forbidden(&path.child(name), detail));
            }
        }
    }
}

fn check_sysctls(sysctls: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, sysctl) in list(sysctls).iter().enumerate() {
        let at = path.index(i).child("name");
        let name = text(&sysctl["name"]);
        let fits = name.len() <= 253 && name.split(['.', '/']).all(is_sysctl_segment);
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if !fits {
            let detail = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(Error::invalid(&at, name, detail));
        } else if !names.insert(name) {
            errors.push(Error::duplicate(&at, name));
        }
    }
}

/// Lower-case letters and digits at both ends, dashes and underscores also between them.
fn is_sysctl_segment(segment: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = segment.as_bytes();
    bytes.first().is_some_and(|b| plain(*b))
        && bytes.last().is_some_and(|b| plain(*b))
        && bytes.iter().all(|b| plain(*b) || b"-_".contains(b))
}

fn check_dns(spec: &Value, path: &Path, errors: &mut Errors) {
    let config = &spec["dnsConfig"];
    let at = path.child("dnsConfig");
    let servers = list(&config["nameservers"]);
    if spec["dnsPolicy"] == "None" && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        let at = if is_set(config) {
            at.child("nameservers")
        } else {
            at.clone()
        };
        errors.push(Error::required(&at, detail));
    }
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        let at = at.child("nameservers");
        errors.push(Error::invalid(&at, config["nameservers"].clone(), detail));
    }
    for (i, server) in servers.iter().enumerate() {
        if text(server).parse::<IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(Error::invalid(
                &at.child("nameservers").index(i),
                text(server),
                detail,
            ));
        }
    }
    let searches = list(&config["searches"]);
    if searches.len() > 32 {
        let detail = "must not have more than 32 search paths";
        errors.push(Error::invalid(
            &at.child("searches"),
            config["searches"].clone(),
            detail,
        ));
    }
    for (i, option) in list(&config["options"]).iter().enumerate() {
        if text(&option["name"]).is_empty() {
            errors.push(Error::required(
                &at.child("options").index(i),
                "must not be empty",
            ));
        }
    }
}

fn check_gates(spec: &Value, path: &Path, errors: &mut Errors) {
    for (i, gate) in list(&spec["readinessGates"]).iter().enumerate() {
        let at = path.child("readinessGates").index(i).child("conditionType");
        let name = text(&gate["conditionType"]);
        check::form(format::qualified_name(name), name, &at, errors);
    }
    let mut names = BTreeSet::new();
    for (i, gate) in list(&spec["schedulingGates"]).iter().enumerate() {
        let at = path.child("schedulingGates").index(i);
        let name = text(&gate["name"]);
        check::form(format::qualified_name(name), name, &at, errors);
        if !names.insert(name) {
            errors.push(Error::duplicate(&at, name));
        }
    }
}

fn check_names(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in [
        "serviceAccountName",
        "nodeName",
        "priorityClassName",
        "runtimeClassName",
    ] {
        let value = text(&spec[name]);
        if !value.is_empty() {
            check::form(
                format::dns1123_subdomain(value),
                value,
                &path.child(name),
                errors,
            );
        }
    }
    for name in ["hostname", "subdomain"] {
        let value = text(&spec[name]);
        if !value.is_empty() {
            check::form(
                format::dns1123_label(value),
                value,
                &path.child(name),
                errors,
            );
        }
    }
    if is_set(&spec["preemptionPolicy"]) {
        let policies = ["Never", "PreemptLowerPriority"];
        check::one_of(
            &spec["preemptionPolicy"],
            &policies,
            &path.child("preemptionPolicy"),
            errors,
        );
    }
    if is_set(&spec["os"]) {
        let at = path.child("os").child("name");
        check::one_of(&spec["os"]["name"], &["linux", "windows"], &at, errors);
    }
}

fn check_numbers(spec: &Value, path: &Path, errors: &mut Errors) {
    let deadline = &spec["activeDeadlineSeconds"];
    if is_set(deadline) {
        for complaint in format::in_range(int(deadline), 1, i64::from(i32::MAX)) {
            let at = path.child("activeDeadlineSeconds");
            errors.push(Error::invalid(&at, int(deadline), complaint));
        }
    }
    for (name, quantity) in crate::tree::entries(&spec["overhead"]) {
        let at = path.child("overhead").key(name);
        super::check_quantity(name, quantity, &at, errors);
    }
    if is_set(&spec["resources"]) {
        super::check_resources(&spec["resources"], &path.child("resources"), errors);
    }
}

fn check_hosts(spec: &Value, path: &Path, errors: &mut Errors) {
    for (i, alias) in list(&spec["hostAliases"]).iter().enumerate() {
        let at = path.child("hostAliases").index(i);
        if text(&alias["ip"]).parse::<IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(Error::invalid(&at.child("ip"), text(&alias["ip"]), detail));
        }
        for name in list(&alias["hostnames"]) {
            let complaints = format::dns1123_subdomain(text(name));
            check::form(complaints, text(name), &at.child("hostnames"), errors);
        }
    }
}

fn check_claims(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, claim) in list(&spec["resourceClaims"]).iter().enumerate() {
        let at = path.child("resourceClaims").index(i);
        let name = text(&claim["name"]);
        check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        let named = is_set(&claim["resourceClaimName"]);
        let template = is_set(&claim["resourceClaimTemplateName"]);
        if named == template {
            let detail = if named {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            } else {
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            };
            errors.push(Error::invalid(&at, claim.clone(), detail));
        }
    }
}

/// The spec of a whole pod.
pub(super) fn of(pod: &Object) -> &Value {
    get(pod, "spec")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::default_pod;
    use crate::testing::{lines, object};

    fn found(json: &str) -> Vec<String> {
        let mut pod = object(json);
        default_pod(&mut pod);
        let mut errors = Vec::new();
        validate_spec(of(&pod), &Path::new("spec"), &mut errors);
        lines(errors)
    }

    #[test]
    fn a_plain_pod_is_valid() {
        let all = found(
            r#"{"spec": {"containers": [{"name": "c", "image": "i",
                "ports": [{"containerPort": 80, "name": "http"}],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "livenessProbe": {"httpGet": {"port": "http"}}}],
                "volumes": [{"name": "v", "configMap": {"name": "m"}}],
                "tolerations": [{"operator": "Exists"}]}}"#,
        );
        assert_eq!(all, Vec::<String>::new());
    }

    #[test]
    fn each_mistake_is_named_with_its_path() {
        let container = |fields: &str| {
            format!(r#"{{"spec": {{"containers": [{{"name": "c", "image": "i", {fields}}}]}}}}"#)
        };
        let cases = [
            (
                r#"{"spec": {"containers": []}}"#.to_owned(),
                "spec.containers: Required value",
            ),
            (
                r#"{"spec": {"containers": [{"name": "C", "image": "i"}]}}"#.to_owned(),
                "spec.containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label",
            ),
            (
                r#"{"spec": {"containers": [{"name": "c"}]}}"#.to_owned(),
                "spec.containers[0].image: Required value",
            ),
            (
                container(r#""ports": [{"containerPort": 70000}]"#),
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                container(r#""volumeMounts": [{"name": "x", "mountPath": "/"}]"#),
                "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
            ),
            (
                container(r#""imagePullPolicy": "x""#),
                "spec.containers[0].imagePullPolicy: Unsupported value: \"x\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ),
            (
                container(r#""livenessProbe": {}"#),
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            ),
            (
                container(r#""env": [{"name": "A=B"}]"#),
                "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name",
            ),
            (
                r#"{"spec": {"restartPolicy": "x", "containers": [{"name": "c", "image": "i"}]}}"#
                    .to_owned(),
                "spec.restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ),
        ];
        for (pod, line) in cases {
            let all = found(&pod);
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(all[0].starts_with(line), "{all:?}\n{line}");
        }
    }
}
