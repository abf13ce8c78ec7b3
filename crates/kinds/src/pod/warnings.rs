//! What is allowed in a pod and still not what its writer wants.

use crate::tree::{entries, get, int, is_set, list, same, text};
use machinery::field::Path;
use machinery::quantity::Quantity;
use machinery::text::quote;
use machinery::{Object, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Warnings about a pod; only about what an update changes.
pub fn warn_pod(pod: &Object, old: Option<&Object>) -> Vec<String> {
    if old.is_some_and(|old| same(get(pod, "spec"), get(old, "spec"))) {
        return Vec::new();
    }
    warn(get(pod, "metadata"), get(pod, "spec"), &Path::default())
}

/// Warnings about the template in a workload's spec.
pub fn warn_template(workload: &Object, old: Option<&Object>) -> Vec<String> {
    let template = |object: &Object| get(object, "spec")["template"].clone();
    let path = Path::new("spec").child("template");
    warn_pods(&template(workload), old.map(template).as_ref(), &path)
}

/// Warnings about a template; only about what an update changes.
pub fn warn_pods(template: &Value, old: Option<&Value>, path: &Path) -> Vec<String> {
    if old.is_some_and(|old| same(template, old)) {
        return Vec::new();
    }
    warn(&template["metadata"], &template["spec"], path)
}

fn warn(metadata: &Value, spec: &Value, path: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let at = path.child("spec");
    labels(spec, &at, &mut out);
    annotations(metadata, path, &mut out);
    volumes(spec, &at, &mut out);
    repeated(
        &spec["hostAliases"],
        "ip",
        &at.child("hostAliases"),
        &mut out,
    );
    repeated(
        &spec["imagePullSecrets"],
        "name",
        &at.child("imagePullSecrets"),
        &mut out,
    );
    for (i, secret) in list(&spec["imagePullSecrets"]).iter().enumerate() {
        if text(&secret["name"]).is_empty() {
            let at = at.child("imagePullSecrets").index(i).child("name");
            out.push(format!("{at}: invalid empty name \"\""));
        }
    }
    containers(spec, &at, &mut out);
    ports(spec, &at, &mut out);
    if int(&spec["terminationGracePeriodSeconds"]) < 0 {
        let at = at.child("terminationGracePeriodSeconds");
        out.push(format!(
            "{at}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    out
}

/// Labels of nodes that have a newer name.
const RENAMED: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "v1.17",
        "topology.kubernetes.io/region",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "v1.17",
        "topology.kubernetes.io/zone",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "v1.17",
        "node.kubernetes.io/instance-type",
    ),
];

fn renamed(key: &str) -> Option<String> {
    let (_, since, instead) = RENAMED.iter().find(|r| r.0 == key)?;
    Some(format!(
        "deprecated since {since}; use {} instead",
        quote(instead)
    ))
}

fn labels(spec: &Value, path: &Path, out: &mut Vec<String>) {
    for (key, _) in entries(&spec["nodeSelector"]) {
        if let Some(message) = renamed(key) {
            out.push(format!(
                "{}: {message}",
                path.child("nodeSelector").key(key)
            ));
        }
    }
    for (i, constraint) in list(&spec["topologySpreadConstraints"]).iter().enumerate() {
        let at = path.child("topologySpreadConstraints").index(i);
        let key = text(&constraint["topologyKey"]);
        if let Some(message) = renamed(key) {
            out.push(format!("{}: {key} is {message}", at.child("topologyKey")));
        }
        if !is_set(&constraint["labelSelector"]) {
            let at = at.child("labelSelector");
            out.push(format!(
                "{at}: a null labelSelector results in matching no pod"
            ));
        }
    }
}

fn annotations(metadata: &Value, path: &Path, out: &mut Vec<String>) {
    let critical = "scheduler.alpha.kubernetes.io/critical-pod";
    let at = path.child("metadata").child("annotations");
    if is_set(&metadata["annotations"][critical]) {
        let message = "non-functional in v1.16+; use the \"priorityClassName\" field instead";
        out.push(format!("{}: {message}", at.key(critical)));
    }
}

/// Kinds of volumes that no longer work.
const GONE: &[(&str, &str)] = &[
    (
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn volumes(spec: &Value, path: &Path, out: &mut Vec<String>) {
    for (i, volume) in list(&spec["volumes"]).iter().enumerate() {
        for (kind, message) in GONE {
            if is_set(&volume[*kind]) {
                out.push(format!(
                    "{}: {message}",
                    path.child("volumes").index(i).child(kind)
                ));
            }
        }
    }
}

fn repeated(items: &Value, field: &str, path: &Path, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, item) in list(items).iter().enumerate() {
        let value = text(&item[field]);
        if !seen.insert(value) {
            let at = path.index(i).child(field);
            out.push(format!("{at}: duplicate {field} {}", quote(value)));
        }
    }
}

/// Every container with its path, init containers first.
fn all<'a>(spec: &'a Value, path: &Path) -> Vec<(Path, &'a Value)> {
    let mut out = Vec::new();
    for name in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in list(&spec[name]).iter().enumerate() {
            out.push((path.child(name).index(i), container));
        }
    }
    out
}

fn containers(spec: &Value, path: &Path, out: &mut Vec<String>) {
    for (at, container) in all(spec, path) {
        for (kind, name) in [
            ("limits", "memory"),
            ("requests", "memory"),
            ("limits", "ephemeral-storage"),
            ("requests", "ephemeral-storage"),
        ] {
            let value = text(&container["resources"][kind][name]);
            if value.parse::<Quantity>().is_ok_and(|q| !q.is_integer()) {
                let at = at.child("resources").child(kind).key(name);
                let value = quote(value);
                out.push(format!(
                    "{at}: fractional byte value {value} is invalid, must be an integer"
                ));
            }
        }
        let mut names = BTreeSet::new();
        for (i, variable) in list(&container["env"]).iter().enumerate() {
            let name = text(&variable["name"]);
            let value = text(&variable["value"]);
            let reference = format!("$({name})");
            // To add to what was defined before is a reason to define it again.
            let extends =
                !is_set(&variable["valueFrom"]) && value != reference && value.contains(&reference);
            if !names.insert(name) && !extends {
                let at = at.child("env").index(i);
                let name = quote(name);
                out.push(format!(
                    "{at}: hides previous definition of {name}, which may be dropped when using apply"
                ));
            }
        }
    }
}

fn ports(spec: &Value, path: &Path, out: &mut Vec<String>) {
    let mut seen: BTreeMap<(i64, &str), Vec<(Path, &Value)>> = BTreeMap::new();
    let mut names: BTreeMap<&str, Path> = BTreeMap::new();
    let mut named = Vec::new();
    for (at, container) in all(spec, path) {
        for (i, port) in list(&container["ports"]).iter().enumerate() {
            let at = at.child("ports").index(i);
            let others = seen
                .entry((int(&port["containerPort"]), text(&port["protocol"])))
                .or_default();
            for (other_at, other) in others.iter() {
                let (host, other_host) = (int(&port["hostPort"]), int(&other["hostPort"]));
                let (ip, other_ip) = (text(&port["hostIP"]), text(&other["hostIP"]));
                if ip == other_ip && host == other_host {
                    out.push(format!("{at}: duplicate port definition with {other_at}"));
                } else if host == 0 || other_host == 0 {
                    out.push(format!("{at}: overlapping port definition with {other_at}"));
                } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                    out.push(format!(
                        "{at}: dangerously ambiguous port definition with {other_at}"
                    ));
                }
            }
            others.push((at.clone(), port));
            let name = text(&port["name"]);
            match names.get(name) {
                _ if name.is_empty() => {}
                Some(first) => named.push(format!(
                    "{at}: duplicate port name {} with {first}, services and probes that select ports by name will use {first}",
                    quote(name)
                )),
                None => {
                    names.insert(name, at);
                }
            }
        }
    }
    out.append(&mut named);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn oddities_are_told_once() {
        let pod = object(
            r#"{"spec": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}, "containers": [
                {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "X", "value": "2"},
                    {"name": "X", "value": "$(X):3"}], "ports": [{"containerPort": 80, "protocol": "TCP"}]},
                {"name": "b", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}"#,
        );
        assert_eq!(
            warn_pod(&pod, None),
            [
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.containers[0].env[1]: hides previous definition of \"X\", which may be dropped when using apply",
                "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
            ]
        );
        assert!(warn_pod(&pod, Some(&pod)).is_empty());
    }
}
