//! Defaults of pod specs.

use crate::tree::{
    child, child_or_new, default_empty, default_to, each, entries, get, is_empty, is_set, text,
    truth,
};
use machinery::json::json;
use machinery::pod_resources::{Field, PodResources, ResourceList};
use machinery::{Object, Value};

/// Defaults of a pod template.
pub fn default_template(template: &mut Object) {
    default_spec(child_or_new(template, "spec"));
}

/// Defaults of pods only, not of templates.
pub fn default_pod(pod: &mut Object) {
    let spec = child_or_new(pod, "spec");
    default_spec(spec);
    if get(spec, "terminationGracePeriodSeconds")
        .as_i64()
        .is_some_and(|s| s < 0)
    {
        spec.insert("terminationGracePeriodSeconds", Value::from(1));
    }
    for list in ["containers", "initContainers"] {
        for container in each(spec, list) {
            default_requests(container);
        }
    }
    default_pod_level_huge_pages(spec);
    default_pod_level_requests(spec);
    default_to(spec, "enableServiceLinks", true);
    default_addresses(pod);
}

fn default_requests(container: &mut Object) {
    let Some(resources) = child(container, "resources") else {
        return;
    };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return;
    };
    let requests = child_or_new(resources, "requests");
    for (name, quantity) in limits {
        requests.entry(name).or_insert(quantity);
    }
}

fn containers_total(field: Field, spec: &Value) -> ResourceList<'_> {
    PodResources::from_json(field, spec, None).containers_total()
}

/// Pod-level resources get the huge pages of the containers, unless set.
fn default_pod_level_huge_pages(spec: &mut Object) {
    let own = get(spec, "resources");
    if is_empty(&own["limits"]) && is_empty(&own["requests"]) {
        return;
    }
    let holder = Value::Object(spec.clone());
    let Some(resources) = child(spec, "resources") else {
        return;
    };
    for (name, amount) in containers_total(Field::Limits, &holder) {
        if name.starts_with("hugepages-") && !is_set(&holder["resources"]["requests"][name]) {
            let limits = child_or_new(resources, "limits");
            default_to(limits, name, amount.to_string());
        }
    }
}

/// Pod-level requests default to the containers' requests, or to the pod-level limits.
fn default_pod_level_requests(spec: &mut Object) {
    if entries(&get(spec, "resources")["limits"]).next().is_none() {
        return;
    }
    let holder = Value::Object(spec.clone());
    let limits = &holder["resources"]["limits"];
    let Some(resources) = child(spec, "resources") else {
        return;
    };
    let requests = child_or_new(resources, "requests");
    for (name, amount) in containers_total(Field::Requests, &holder) {
        if matches!(name, "cpu" | "memory") {
            default_to(requests, name, amount.to_string());
        }
    }
    for (name, limit) in entries(limits) {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            default_to(requests, name, limit.clone());
        }
    }
    if requests.is_empty() {
        resources.shift_remove("requests");
    }
}

fn default_addresses(pod: &mut Object) {
    let Some(status) = child(pod, "status") else {
        return;
    };
    let one = text(get(status, "podIP")).to_owned();
    let first = text(&get(status, "podIPs")[0]["ip"]).to_owned();
    if !one.is_empty() && one != first {
        status.insert("podIPs", json!([{"ip": one}]));
    } else if one.is_empty() && !first.is_empty() {
        status.insert("podIP", Value::from(first));
    }
}

/// Defaults of a pod spec in any kind.
pub fn default_spec(spec: &mut Object) {
    let old_name = text(get(spec, "serviceAccount")).to_owned();
    if text(get(spec, "serviceAccountName")).is_empty() && !old_name.is_empty() {
        spec.insert("serviceAccountName", Value::from(old_name));
    }
    let account = get(spec, "serviceAccountName").clone();
    if is_set(&account) {
        spec.insert("serviceAccount", account);
    }
    default_empty(spec, "dnsPolicy", "ClusterFirst");
    default_empty(spec, "restartPolicy", "Always");
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_empty(spec, "schedulerName", "default-scheduler");
    for volume in each(spec, "volumes") {
        default_volume(volume);
    }
    let host_network = truth(get(spec, "hostNetwork"));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in each(spec, list) {
            default_container(container);
            if host_network && list != "ephemeralContainers" {
                for port in each(container, "ports") {
                    let number = get(port, "containerPort").clone();
                    default_empty(port, "hostPort", number);
                }
            }
        }
    }
}

/// The default imagePullPolicy: Always for `latest`, IfNotPresent otherwise and for invalid
/// references.
fn pull_policy(image: &str) -> &'static str {
    match tag_of(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of an image, `latest` if there is neither tag nor digest; `None` if the reference is
/// invalid.
fn tag_of(image: &str) -> Option<&str> {
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    // A colon after the last slash starts the tag.
    let last = named.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match named[last..].find(':') {
        Some(colon) => (&named[..last + colon], Some(&named[last + colon + 1..])),
        None => (named, None),
    };
    let sound = is_image_name(name)
        && !is_identifier(image)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    let otherwise = if digest.is_some() { "" } else { "latest" };
    sound.then_some(tag.unwrap_or(otherwise))
}

/// Whether an image's name is valid: upper case is not.
fn is_image_name(name: &str) -> bool {
    let (host, path) = match name.split_once('/') {
        Some((host, path))
            if host.contains(['.', ':'])
                || host == "localhost"
                || host.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (Some(host), path)
        }
        _ => (None, name),
    };
    // A name without a path is in `library/`, which counts towards the length.
    let library = if name.contains('/') {
        0
    } else {
        "library/".len()
    };
    host.is_none_or(is_registry)
        && path.len() + library <= 255
        && path.split('/').all(is_path_component)
}

/// A host name or an address in brackets, with a port or without.
fn is_registry(host: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        return !address.is_empty()
            && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
            && (port.is_empty() || port.strip_prefix(':').is_some_and(digits));
    }
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let component = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.split('.').all(component) && port.is_none_or(digits)
}

/// Lower-case letters and digits, separated by a dot, one or two underscores, or dashes.
fn is_path_component(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = [part.bytes().next(), part.bytes().next_back()];
    edges.into_iter().all(|b| b.is_some_and(word))
        && part
            .split(|c: char| u8::try_from(c).is_ok_and(word))
            .all(|between| {
                matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-')
            })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// A known algorithm with its number of digits.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == length && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A 64-digit hexadecimal image ID is not a name.
fn is_identifier(name: &str) -> bool {
    let hexadecimal = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 64 && name.bytes().all(hexadecimal)
}

fn default_container(container: &mut Object) {
    let policy = pull_policy(text(get(container, "image")));
    default_empty(container, "imagePullPolicy", policy);
    default_empty(container, "terminationMessagePath", "/dev/termination-log");
    default_empty(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", json!({}));
    for port in each(container, "ports") {
        default_empty(port, "protocol", "TCP");
    }
    for variable in each(container, "env") {
        let Some(source) = child(variable, "valueFrom") else {
            continue;
        };
        if let Some(reference) = child(source, "fieldRef") {
            default_empty(reference, "apiVersion", "v1");
        }
        if let Some(reference) = child(source, "fileKeyRef") {
            default_to(reference, "optional", false);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = child(container, name) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = child(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(handler) = child(lifecycle, name) {
                default_http(handler);
            }
        }
    }
}

fn default_probe(probe: &mut Object) {
    default_http(probe);
    if let Some(grpc) = child(probe, "grpc") {
        default_to(grpc, "service", "");
    }
    default_empty(probe, "timeoutSeconds", 1);
    default_empty(probe, "periodSeconds", 10);
    default_empty(probe, "successThreshold", 1);
    default_empty(probe, "failureThreshold", 3);
}

fn default_http(handler: &mut Object) {
    if let Some(http) = child(handler, "httpGet") {
        default_empty(http, "path", "/");
        default_empty(http, "scheme", "HTTP");
    }
}

/// Defaults of one volume.
pub(crate) fn default_volume(volume: &mut Object) {
    if volume
        .iter()
        .all(|(key, value)| key == "name" || value.is_null())
    {
        volume.insert("emptyDir", json!({}));
        return;
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = child(volume, name) {
            default_to(source, "defaultMode", 0o644);
        }
    }
    if let Some(source) = child(volume, "downwardAPI") {
        default_field_refs(source);
    }
    if let Some(projected) = child(volume, "projected") {
        for source in each(projected, "sources") {
            if let Some(token) = child(source, "serviceAccountToken") {
                default_to(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = child(source, "downwardAPI") {
                default_field_refs(downward);
            }
        }
    }
    if let Some(image) = child(volume, "image") {
        let policy = pull_policy(text(get(image, "reference")));
        default_empty(image, "pullPolicy", policy);
    }
    default_source(volume);
    if let Some(claim) = child(volume, "ephemeral").and_then(|e| child(e, "volumeClaimTemplate"))
        && let Some(spec) = child(claim, "spec")
    {
        default_to(spec, "volumeMode", "Filesystem");
    }
}

/// Defaults of sources that pods and PersistentVolumes share.
pub(crate) fn default_source(holder: &mut Object) {
    if let Some(host) = child(holder, "hostPath") {
        default_to(host, "type", "");
    }
    if let Some(iscsi) = child(holder, "iscsi") {
        default_empty(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = child(holder, "rbd") {
        default_empty(rbd, "pool", "rbd");
        default_empty(rbd, "user", "admin");
        default_empty(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = child(holder, "azureDisk") {
        default_to(disk, "cachingMode", "ReadWrite");
        default_to(disk, "kind", "Shared");
        default_to(disk, "fsType", "ext4");
        default_to(disk, "readOnly", false);
    }
    if let Some(scale_io) = child(holder, "scaleIO") {
        default_empty(scale_io, "storageMode", "ThinProvisioned");
        default_empty(scale_io, "fsType", "xfs");
    }
}

fn default_field_refs(source: &mut Object) {
    for item in each(source, "items") {
        if let Some(reference) = child(item, "fieldRef") {
            default_empty(reference, "apiVersion", "v1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn a_minimal_pod_gets_the_defaults() {
        let mut pod = object(
            r#"{"spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}}}], "volumes": [{"name": "v"}]}}"#,
        );
        default_pod(&mut pod);
        let once = Value::Object(pod.clone());
        let spec = &once["spec"];
        assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(spec["containers"][0]["ports"][0]["protocol"], "TCP");
        assert_eq!(spec["containers"][0]["resources"]["requests"]["cpu"], "1");
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
        assert_eq!(spec["restartPolicy"], "Always");
        assert_eq!(spec["enableServiceLinks"], true);
        default_pod(&mut pod);
        assert_eq!(Value::Object(pod), once);
    }

    #[test]
    fn images_are_pulled_always_only_when_latest() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("host:5000/nginx", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
            ("nginx:", "IfNotPresent"),
            ("../x", "IfNotPresent"),
            ("a..b", "IfNotPresent"),
            ("a__b/c--d", "Always"),
            ("[fd00::1]:5000/a", "Always"),
            ("UPPER/a", "Always"),
            ("a/UPPER", "IfNotPresent"),
            (&"a".repeat(64), "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn a_pod_as_a_whole_has_the_huge_pages_of_its_containers() {
        let pod = |own: &str| {
            let mut pod = object(&format!(
                r#"{{"spec": {{"resources": {own}, "containers": [{{"name": "c", "image": "i",
                    "resources": {{"limits": {{"hugepages-2Mi": "2Mi"}}}}}}]}}}}"#
            ));
            default_pod(&mut pod);
            get(&pod, "spec")["resources"].clone()
        };
        assert_eq!(pod("{}"), json!({}));
        let huge = json!({"cpu": "1", "hugepages-2Mi": "2Mi"});
        assert_eq!(
            pod(r#"{"limits": {"cpu": "1"}}"#),
            json!({"limits": huge, "requests": huge})
        );
        assert_eq!(
            pod(r#"{"requests": {"hugepages-2Mi": "4Mi"}}"#),
            json!({"requests": {"hugepages-2Mi": "4Mi"}})
        );
    }
}
