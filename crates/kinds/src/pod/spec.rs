//! Validation of a pod spec as a whole.

use super::container::{Surroundings, check_containers, check_image_space};
use super::env::check_file_volumes;
use super::placement::{check_affinity, check_spread, check_tolerations};
use super::resources::{check_pod_resources, check_resources};
use super::security::{
    check_annotations, check_host_process, check_host_users, check_os, check_pod_security,
    check_profiles_agree,
};
use super::volume::check_volumes;
use crate::check;
use crate::tree::{get, int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

/// Validates a pod, except for the metadata rules of all kinds.
pub fn validate_pod(pod: &Object) -> Errors {
    let mut errors = Vec::new();
    let (metadata, spec) = (get(pod, "metadata"), pod_spec(pod));
    let path = Path::new("spec");
    let lists = container_lists(&path);
    let containers = every_container(spec, &lists);
    let annotations = Path::new("metadata.annotations");
    check_annotations(
        &metadata["annotations"],
        spec,
        &containers,
        &annotations,
        &mut errors,
    );
    validate_spec(spec, Some(text(&metadata["name"])), &path, &mut errors);
    check_tokens(spec, &path, &mut errors);
    for list_name in ["containers", "initContainers"] {
        for (i, container) in list(&spec[list_name]).iter().enumerate() {
            check_image_space(container, &path.child(list_name).index(i), &mut errors);
        }
    }
    errors
}

/// Token projections require a service account.
fn check_tokens(spec: &Value, path: &Path, errors: &mut Errors) {
    if !text(&spec["serviceAccountName"]).is_empty() {
        return;
    }
    for (i, volume) in list(&spec["volumes"]).iter().enumerate() {
        for (j, source) in list(&volume["projected"]["sources"]).iter().enumerate() {
            if is_set(&source["serviceAccountToken"]) {
                let at = path.child("volumes");
                let at = at.index(i);
                let at = at.child("projected");
                let at = at.child("sources");
                let at = at.index(j);
                let at = at.child("serviceAccountToken");
                let detail = "must not be specified when serviceAccountName is not set";
                errors.push(Error::forbidden(&at, detail));
            }
        }
    }
}

/// A pod template under `path`.
pub fn validate_template(template: &Value, path: &Path, errors: &mut Errors) {
    // The paths of a template's metadata leave `metadata` out.
    let (annotations, labels) = (path.child("annotations"), path.child("labels"));
    check::labels(&template["metadata"]["labels"], &labels, errors);
    check::annotations(&template["metadata"]["annotations"], &annotations, errors);
    let (spec, at) = (&template["spec"], path.child("spec"));
    check_annotations(
        &template["metadata"]["annotations"],
        spec,
        &every_container(spec, &container_lists(&at)),
        &annotations,
        errors,
    );
    validate_spec(spec, None, &at, errors);
    check_profiles_agree(&template["metadata"], spec, &at, errors);
    if !list(&spec["ephemeralContainers"]).is_empty() {
        errors.push(Error::forbidden(
            &at.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
}

/// The container lists of a pod spec.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The paths of the lists of containers, for [`every_container`].
pub(super) fn container_lists<'a>(path: &'a Path<'a>) -> [Path<'a>; 3] {
    CONTAINER_LISTS.map(|name| path.child(name))
}

/// All containers with their paths, list by list.
pub(super) fn every_container<'a>(
    spec: &'a Value,
    lists: &'a [Path<'a>; 3],
) -> Vec<(Path<'a>, &'a Value)> {
    let mut out = Vec::new();
    for (name, path) in CONTAINER_LISTS.iter().zip(lists) {
        for (i, container) in list(&spec[*name]).iter().enumerate() {
            out.push((path.index(i), container));
        }
    }
    out
}

/// Validates a pod spec; `pod` is the pod's name, `None` for a template.
fn validate_spec(spec: &Value, pod: Option<&str>, path: &Path, errors: &mut Errors) {
    if !is_set(&spec["terminationGracePeriodSeconds"]) {
        let at = path.child("terminationGracePeriodSeconds");
        errors.push(Error::required(&at, ""));
    }
    let volumes = check_volumes(&spec["volumes"], pod, &path.child("volumes"), errors);
    check_claims(spec, path, errors);
    let around = Surroundings {
        spec,
        volumes,
        claims: claims(spec),
    };
    let lists = container_lists(path);
    let containers = every_container(spec, &lists);
    check_containers(&around, path, errors);
    check_pod_resources(spec, &around.claims, path, errors);
    check_host_network(spec, pod.is_some(), path, errors);
    let restart = ["Always", "OnFailure", "Never"];
    let at = path.child("restartPolicy");
    check::known(&spec["restartPolicy"], &restart, &at, errors);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    check::known(&spec["dnsPolicy"], &dns, &path.child("dnsPolicy"), errors);
    check::labels(&spec["nodeSelector"], &path.child("nodeSelector"), errors);
    check_pod_security(spec, path, errors);
    check_affinity(&spec["affinity"], &path.child("affinity"), errors);
    check_dns(spec, &path.child("dnsConfig"), errors);
    check_gates(spec, path, errors);
    let spread = path.child("topologySpreadConstraints");
    check_spread(&spec["topologySpreadConstraints"], &spread, errors);
    check_host_process(spec, &containers, path, errors);
    check_host_users(spec, &containers, path, errors);
    check_host_name(spec, &path.child("hostnameOverride"), errors);
    check_names(spec, path, errors);
    if is_set(&spec["overhead"]) {
        let limits = json!({"limits": spec["overhead"]});
        let at = path.child("overhead");
        check_resources(&limits, &BTreeSet::new(), &at, errors);
    }
    check_os(spec, &containers, path, errors);
    check_file_volumes(&containers, &spec["volumes"], errors);
}

fn check_host_network(spec: &Value, is_pod: bool, path: &Path, errors: &mut Errors) {
    if !truth(&spec["hostNetwork"]) {
        return;
    }
    for (i, container) in list(&spec["containers"]).iter().enumerate() {
        for (j, port) in list(&container["ports"]).iter().enumerate() {
            let host = int(&port["hostPort"]);
            if (is_pod || host != 0) && host != int(&port["containerPort"]) {
                let at = path.child("containers");
                let at = at.index(i);
                let at = at.child("ports");
                let at = at.index(j);
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(Error::invalid(&at.child("hostPort"), host, detail));
            }
        }
    }
}

fn check_dns(spec: &Value, path: &Path, errors: &mut Errors) {
    let config = &spec["dnsConfig"];
    let servers = list(&config["nameservers"]);
    if spec["dnsPolicy"] == "None" {
        if !is_set(config) {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            return errors.push(Error::required(path, detail));
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.push(Error::required(&path.child("nameservers"), detail));
        }
    }
    let at = path.child("nameservers");
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        errors.push(Error::invalid(&at, config["nameservers"].clone(), detail));
    }
    for (i, server) in servers.iter().enumerate() {
        check::ip(text(server), &at.index(i), errors);
    }
    let (searches, at) = (list(&config["searches"]), path.child("searches"));
    if searches.len() > 32 {
        let detail = "must not have more than 32 search paths";
        errors.push(Error::invalid(&at, config["searches"].clone(), detail));
    }
    let length: usize = searches.iter().map(|s| text(s).len() + 1).sum();
    if length > 2049 {
        let detail =
            "must not have more than 2048 characters (including spaces) in the search list";
        errors.push(Error::invalid(&at, config["searches"].clone(), detail));
    }
    for (i, search) in searches.iter().enumerate() {
        let search = text(search);
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            let complaints = format::dns1123_subdomain_with_underscore(search);
            check::form(complaints, search, &at.index(i), errors);
        }
    }
    for (i, option) in list(&config["options"]).iter().enumerate() {
        if text(&option["name"]).is_empty() {
            let at = path.child("options");
            let at = at.index(i);
            errors.push(Error::required(&at, "must not be empty"));
        }
    }
}

fn check_gates(spec: &Value, path: &Path, errors: &mut Errors) {
    for (i, gate) in list(&spec["readinessGates"]).iter().enumerate() {
        let at = path.child("readinessGates");
        let at = at.index(i);
        let at = at.child("conditionType");
        let name = text(&gate["conditionType"]);
        check::form(format::qualified_name(name), name, &at, errors);
    }
    let mut names = BTreeSet::new();
    for (i, gate) in list(&spec["schedulingGates"]).iter().enumerate() {
        let at = path.child("schedulingGates");
        let at = at.index(i);
        let name = text(&gate["name"]);
        check::form(format::qualified_name(name), name, &at, errors);
        if !names.insert(name) {
            errors.push(Error::duplicate(&at, name));
        }
    }
}

fn check_host_name(spec: &Value, path: &Path, errors: &mut Errors) {
    let Some(name) = spec["hostnameOverride"].as_str() else {
        return;
    };
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if truth(&spec[field]) {
            let detail = format!("may not be specified when {field} is true");
            errors.push(Error::forbidden(path, detail));
        }
    }
    if name.len() > 64 {
        errors.push(Error::too_long(path, 64));
    }
    check::form(format::dns1123_subdomain(name), name, path, errors);
}

fn check_names(spec: &Value, path: &Path, errors: &mut Errors) {
    let subdomain = format::dns1123_subdomain;
    let name = |field: &str, form: fn(&str) -> Vec<String>, errors: &mut Errors| {
        check::optional(form, &spec[field], &path.child(field), errors);
    };
    name("serviceAccountName", subdomain, errors);
    name("nodeName", subdomain, errors);
    let deadline = &spec["activeDeadlineSeconds"];
    if is_set(deadline) {
        for complaint in format::in_range(int(deadline), 1, i64::from(i32::MAX)) {
            let at = path.child("activeDeadlineSeconds");
            errors.push(Error::invalid(&at, int(deadline), complaint));
        }
    }
    name("hostname", format::dns1123_label, errors);
    name("subdomain", format::dns1123_label, errors);
    check_tolerations(&spec["tolerations"], &path.child("tolerations"), errors);
    check_hosts(spec, path, errors);
    name("priorityClassName", subdomain, errors);
    if let Some(class) = spec["runtimeClassName"].as_str() {
        let at = path.child("runtimeClassName");
        check::form(subdomain(class), class, &at, errors);
    }
    let policy = &spec["preemptionPolicy"];
    if is_set(policy) {
        let at = path.child("preemptionPolicy");
        check::known(policy, &["PreemptLowerPriority", "Never"], &at, errors);
    }
}

fn check_hosts(spec: &Value, path: &Path, errors: &mut Errors) {
    for (i, alias) in list(&spec["hostAliases"]).iter().enumerate() {
        let at = path.child("hostAliases");
        let at = at.index(i);
        check::ip(text(&alias["ip"]), &at.child("ip"), errors);
        for (j, name) in list(&alias["hostnames"]).iter().enumerate() {
            let complaints = format::dns1123_subdomain(text(name));
            let at = at.child("hostnames");
            let at = at.index(j);
            check::form(complaints, text(name), &at, errors);
        }
    }
}

fn claims(spec: &Value) -> BTreeSet<&str> {
    list(&spec["resourceClaims"])
        .iter()
        .map(|c| text(&c["name"]))
        .filter(|name| !name.is_empty())
        .collect()
}

fn check_claims(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, claim) in list(&spec["resourceClaims"]).iter().enumerate() {
        let at = path.child("resourceClaims");
        let at = at.index(i);
        let name = text(&claim["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        } else {
            check::form(format::dns1123_label(name), name, &at.child("name"), errors);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let detail = match sources.map(|s| is_set(&claim[s])) {
            [true, true] => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            [false, false] => {
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            }
            _ => "",
        };
        if !detail.is_empty() {
            let printed = json!({"Name": name, "ResourceClaimName": claim[sources[0]],
                "ResourceClaimTemplateName": claim[sources[1]]});
            errors.push(Error::invalid(&at, printed, detail));
        }
        for source in sources {
            if let Some(name) = claim[source].as_str() {
                let complaints = format::dns1123_subdomain(name);
                check::form(complaints, name, &at.child(source), errors);
            }
        }
    }
}

/// The spec of a whole pod.
pub(super) fn pod_spec(pod: &Object) -> &Value {
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
        lines(validate_pod(&pod))
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
    fn some_lists_that_were_sent_empty_are_refused() {
        let pod = |fields: &str| {
            found(&format!(
                r#"{{"spec": {{"containers": [{{"name": "c", "image": "i"}}], {fields}}}}}"#
            ))
        };
        assert_eq!(
            pod(
                r#""ephemeralContainers": [{"name": "e", "image": "i", "ports": [], "resources": {"limits": {}}, "resizePolicy": []}]"#
            ),
            [
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].resizePolicy: Forbidden: cannot be set for an Ephemeral Container",
            ]
        );
        assert_eq!(
            pod(r#""resources": {"claims": []}"#),
            ["spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level"]
        );
        assert_eq!(
            pod(r#""os": {"name": "windows"}, "securityContext": {"supplementalGroups": []}"#),
            ["spec.securityContext.supplementalGroups: Forbidden: cannot be set for a windows pod"]
        );
    }

    #[test]
    fn a_contradictory_security_context_is_printed_in_full() {
        let reported = found(
            r#"{"spec": {"containers": [{"name": "c", "image": "i",
                "securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}]}}"#,
        );
        assert_eq!(
            reported,
            [
                r#"spec.containers[0].securityContext: Invalid value: {"Capabilities":null,"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"#
            ]
        );
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
