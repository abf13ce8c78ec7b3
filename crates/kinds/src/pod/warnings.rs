//! Warnings about valid but questionable pods.

use super::app_armor::app_armor_profile;
use super::path_warnings::overlapping_paths;
use super::spec::{container_lists, every_container};
use crate::address::ip_warnings;
use crate::equal::equal;
use crate::tree::{entries, get, int, is_set, list, same, text};
use machinery::field::Path;
use machinery::quantity::Quantity;
use machinery::text::{quote, same as same_text};
use machinery::{Object, Value, format};
use std::collections::{BTreeMap, BTreeSet};

/// Warnings about a new pod. Updates are mostly by controllers, and give none.
pub fn warn_pod(pod: &Object, old: Option<&Object>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut out = Vec::new();
    let complaints = format::dns1123_label(crate::tree::name(pod));
    if !complaints.is_empty() {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        ));
    }
    out.append(&mut warn(get(pod, "metadata"), get(pod, "spec"), None));
    out
}

/// Warnings about a workload's template, whenever its generation changes.
pub fn warn_template(workload: &Object, old: Option<&Object>) -> Vec<String> {
    if old.is_some_and(|old| same_generation(workload, old)) {
        return Vec::new();
    }
    let path = Path::new("spec.template");
    warn_pods(&get(workload, "spec")["template"], &path)
}

const TEMPLATE: &str = "core/v1.PodTemplateSpec";

/// Warnings about a workload's template, whenever it changes.
pub fn warn_changed_template(workload: &Object, old: Option<&Object>) -> Vec<String> {
    let template = |object: &Object| get(object, "spec")["template"].clone();
    let template = match old.map(template) {
        Some(old) if equal(TEMPLATE, &get(workload, "spec")["template"], &old) => {
            return Vec::new();
        }
        _ => template(workload),
    };
    warn_pods(&template, &Path::new("spec").child("template"))
}

/// Whether a write did not increment the generation.
pub fn same_generation(object: &Object, old: &Object) -> bool {
    get(object, "metadata")["generation"] == get(old, "metadata")["generation"]
}

/// Warnings about a template.
pub fn warn_pods(template: &Value, path: &Path) -> Vec<String> {
    warn(&template["metadata"], &template["spec"], Some(path))
}

/// `template` is the path of a template; `None` for a pod.
fn warn(metadata: &Value, spec: &Value, template: Option<&Path>) -> Vec<String> {
    let mut out = Vec::new();
    let path = &template.copied().unwrap_or_default();
    let at = path.child("spec");
    labels(spec, &at, &mut out);
    annotations(metadata, path, &mut out);
    volumes(spec, &at, &mut out);
    overlapping_paths(&spec["volumes"], &mut out);
    repeated(spec, "hostAliases", "ip", &at, &mut out);
    repeated(spec, "imagePullSecrets", "name", &at, &mut out);
    for (i, secret) in list(&spec["imagePullSecrets"]).iter().enumerate() {
        if text(&secret["name"]).is_empty() {
            let at = at.child("imagePullSecrets");
            let at = at.index(i);
            let at = at.child("name");
            out.push(format!("{at}: invalid empty name \"\""));
        }
    }
    if is_set(&spec["overhead"]) {
        fractions(&spec["overhead"], &BYTES, &at.child("overhead"), &mut out);
    }
    if !is_set(&spec["securityContext"]["seccompProfile"]) {
        seccomp(metadata, SECCOMP_OF_POD, path, &mut out);
    }
    containers(metadata, spec, template, &mut out);
    ports(spec, &at, &mut out);
    if int(&spec["terminationGracePeriodSeconds"]) < 0 {
        let at = at.child("terminationGracePeriodSeconds");
        out.push(format!(
            "{at}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    if is_set(&spec["affinity"]) {
        selectors(&spec["affinity"], &at.child("affinity"), &mut out);
    }
    for (i, server) in list(&spec["dnsConfig"]["nameservers"]).iter().enumerate() {
        let at = at.child("dnsConfig.nameservers");
        let at = at.index(i);
        out.append(&mut ip_warnings(text(server), &at));
    }
    for (i, alias) in list(&spec["hostAliases"]).iter().enumerate() {
        let at = at.child("hostAliases");
        let at = at.index(i);
        let at = at.child("ip");
        out.append(&mut ip_warnings(text(&alias["ip"]), &at));
    }
    out
}

const NO_POD: &str = "a null labelSelector results in matching no pod";

/// Affinity terms whose selectors match nothing.
fn selectors(affinity: &Value, path: &Path, out: &mut Vec<String>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (terms, at) = (&affinity[kind], path.child(kind));
        for (i, term) in list(&terms[REQUIRED]).iter().enumerate() {
            if !is_set(&term["labelSelector"]) {
                let at = at.child(REQUIRED);
                let at = at.index(i);
                let at = at.child("labelSelector");
                out.push(format!("{at}: {NO_POD}"));
            }
        }
        for (i, term) in list(&terms[PREFERRED]).iter().enumerate() {
            if !is_set(&term["podAffinityTerm"]["labelSelector"]) {
                let at = at.child(PREFERRED);
                let at = at.index(i);
                let at = at.child("podAffinityTerm");
                out.push(format!("{}: {NO_POD}", at.child("labelSelector")));
            }
        }
    }
}

/// Deprecated node labels with their warnings.
const RENAMED: &[(&str, &str)] = &[
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];

pub(crate) fn renamed(key: &str) -> Option<&'static str> {
    RENAMED.iter().find(|r| r.0 == key).map(|r| r.1)
}

/// Warns of deprecated labels in a term's expressions, and in preferred terms also of invalid
/// values.
pub(crate) fn warn_term(term: &Value, is_preferred: bool, path: &Path, out: &mut Vec<String>) {
    for (i, expression) in list(&term["matchExpressions"]).iter().enumerate() {
        let at = path.child("matchExpressions");
        let at = at.index(i);
        let key = text(&expression["key"]);
        if let Some(message) = renamed(key) {
            out.push(format!("{}: {key} is {message}", at.child("key")));
        }
        if !is_preferred {
            continue;
        }
        for (j, value) in list(&expression["values"]).iter().enumerate() {
            for complaint in format::label_value(text(value)) {
                let at = at.child("values");
                let at = at.index(j);
                out.push(format!("{at}: {} is invalid, {complaint}", text(value)));
            }
        }
    }
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
    let affinity = &spec["affinity"]["nodeAffinity"];
    if is_set(affinity) {
        node_labels(affinity, &path.child("affinity").child("nodeAffinity"), out);
    }
    for (i, constraint) in list(&spec["topologySpreadConstraints"]).iter().enumerate() {
        let at = path.child("topologySpreadConstraints");
        let at = at.index(i);
        let key = text(&constraint["topologyKey"]);
        if let Some(message) = renamed(key) {
            out.push(format!("{}: {key} is {message}", at.child("topologyKey")));
        }
        if !is_set(&constraint["labelSelector"]) {
            let at = at.child("labelSelector");
            out.push(format!("{at}: {NO_POD}"));
        }
    }
}

/// Deprecated labels in required and preferred node affinity.
fn node_labels(affinity: &Value, path: &Path, out: &mut Vec<String>) {
    let (required, preferred) = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    );
    let terms = list(&affinity[required]["nodeSelectorTerms"]);
    for (i, term) in terms.iter().enumerate() {
        let at = path.child(required);
        let at = at.child("nodeSelectorTerms");
        let at = at.index(i);
        warn_term(term, false, &at, out);
    }
    for (i, term) in list(&affinity[preferred]).iter().enumerate() {
        let at = path.child(preferred);
        let at = at.index(i);
        let at = at.child("preference");
        warn_term(&term["preference"], true, &at, out);
    }
}

fn annotations(metadata: &Value, path: &Path, out: &mut Vec<String>) {
    const SYSCTLS: &str = "non-functional in v1.11+; use the \"sysctls\" field instead";
    if !is_set(&metadata["annotations"]) {
        return;
    }
    let at = path.child("metadata.annotations");
    for (key, message) in [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            "non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
        ("security.alpha.kubernetes.io/sysctls", SYSCTLS),
        ("security.alpha.kubernetes.io/unsafe-sysctls", SYSCTLS),
    ] {
        if is_set(&metadata["annotations"][key]) {
            out.push(format!("{}: {message}", at.key(key)));
        }
    }
}

const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

fn seccomp(metadata: &Value, key: &str, path: &Path, out: &mut Vec<String>) {
    if is_set(&metadata["annotations"][key]) {
        let at = path.child("metadata.annotations");
        let at = at.key(key);
        out.push(format!(
            "{at}: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
}

/// Warns of a template's container with only the deprecated AppArmor annotation.
fn app_armor(
    metadata: &Value,
    spec: &Value,
    container: &Value,
    path: &Path,
    out: &mut Vec<String>,
) {
    let key = format!(
        "container.apparmor.security.beta.kubernetes.io/{}",
        text(&container["name"])
    );
    let Some(annotation) = metadata["annotations"][key.as_str()].as_str() else {
        return;
    };
    let of_pod = &spec["securityContext"]["appArmorProfile"];
    let is_told = is_set(&container["securityContext"]["appArmorProfile"])
        || (is_set(of_pod) && app_armor_profile(annotation).is_some_and(|p| same(&p, of_pod)));
    if !is_told {
        let at = path.child("metadata.annotations");
        let at = at.key(&key);
        out.push(format!(
            "{at}: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        ));
    }
}

/// Volume sources that no longer work.
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
        let at = path.child("volumes");
        let at = at.index(i);
        let is_gone = |kind: &&(&str, &str)| is_set(&volume[kind.0]);
        let (before, behind) = GONE.split_at(GONE.len() - 2);
        for (kind, message) in before.iter().filter(is_gone) {
            let at = at.child(if *kind == "storageos" {
                "storageOS"
            } else {
                kind
            });
            out.push(format!("{at}: {message}"));
        }
        let claim = &volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"];
        let claim_at = at.child("ephemeral.volumeClaimTemplate.spec");
        for kind in ["requests", "limits"] {
            let at = claim_at.child("resources");
            let at = at.child(kind);
            fractions(&claim[kind], &["storage"], &at, out);
        }
        for (kind, message) in behind.iter().filter(is_gone) {
            out.push(format!("{}: {message}", at.child(kind)));
        }
    }
}

const BYTES: [&str; 2] = ["memory", "ephemeral-storage"];

/// Warns of fractional bytes.
fn fractions(amounts: &Value, names: &[&str], path: &Path, out: &mut Vec<String>) {
    for name in names {
        let value = text(&amounts[*name]);
        if value.parse::<Quantity>().is_ok_and(|q| !q.is_integer()) {
            let (at, value) = (path.key(name), quote(value));
            out.push(format!(
                "{at}: fractional byte value {value} is invalid, must be an integer"
            ));
        }
    }
}

fn repeated(spec: &Value, items: &str, field: &str, path: &Path, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, item) in list(&spec[items]).iter().enumerate() {
        let value = text(&item[field]);
        if !seen.insert(value) {
            let at = path.child(items);
            let at = at.index(i);
            let at = at.child(field);
            out.push(format!("{at}: duplicate {field} {}", quote(value)));
        }
    }
}

fn containers(metadata: &Value, spec: &Value, template: Option<&Path>, out: &mut Vec<String>) {
    let path = template.copied().unwrap_or_default();
    let is_annotated = is_set(&metadata["annotations"]);
    let spec_at = path.child("spec");
    for (at, container) in every_container(spec, &container_lists(&spec_at)) {
        if is_annotated && !is_set(&container["securityContext"]["seccompProfile"]) {
            let key = format!(
                "container.seccomp.security.alpha.kubernetes.io/{}",
                text(&container["name"])
            );
            seccomp(metadata, &key, &path, out);
        }
        if is_annotated && template.is_some() {
            app_armor(metadata, spec, container, &path, out);
        }
        for name in BYTES {
            for kind in ["limits", "requests"] {
                let amounts = &container["resources"][kind];
                if is_set(amounts) {
                    let at = at.child("resources");
                    let at = at.child(kind);
                    fractions(amounts, &[name], &at, out);
                }
            }
        }
        let mut names = BTreeSet::new();
        for (i, variable) in list(&container["env"]).iter().enumerate() {
            let name = text(&variable["name"]);
            // Redefining a variable to extend its previous value is legitimate.
            let extends = || {
                let (value, reference) = (text(&variable["value"]), format!("$({name})"));
                !is_set(&variable["valueFrom"]) && value != reference && value.contains(&reference)
            };
            if !names.insert(name) && !extends() {
                let at = at.child("env");
                let at = at.index(i);
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
    let lists = container_lists(path);
    let containers = every_container(spec, &lists);
    let ports = containers
        .iter()
        .map(|(at, container)| (at.child("ports"), list(&container["ports"])))
        .collect::<Vec<_>>();
    for (at, ports) in &ports {
        for (i, port) in ports.iter().enumerate() {
            let at = at.index(i);
            if !text(&port["hostIP"]).is_empty() && int(&port["hostPort"]) == 0 {
                let field = |name: &str| text(&port[name]);
                out.push(format!(
                    "{at}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{}}}",
                    field("name"),
                    int(&port["containerPort"]),
                    field("protocol"),
                    field("hostIP")
                ));
            }
            let others = seen
                .entry((int(&port["containerPort"]), text(&port["protocol"])))
                .or_default();
            for (other_at, other) in others.iter() {
                let (host, other_host) = (int(&port["hostPort"]), int(&other["hostPort"]));
                let (ip, other_ip) = (text(&port["hostIP"]), text(&other["hostIP"]));
                if host == other_host && same_text(ip, other_ip) {
                    out.push(format!("{at}: duplicate port definition with {other_at}"));
                } else if host == 0 || other_host == 0 {
                    out.push(format!("{at}: overlapping port definition with {other_at}"));
                } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                    out.push(format!(
                        "{at}: dangerously ambiguous port definition with {other_at}"
                    ));
                }
            }
            others.push((at, port));
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
    fn each_warning_of_a_pod_is_returned_once() {
        let pod = object(
            r#"{"metadata": {"name": "n"}, "spec": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}, "containers": [
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

    #[test]
    fn each_questionable_pod_field_has_its_warning() {
        let reported = |metadata: &str, spec: &str| {
            warn_pod(
                &object(&format!(
                    r#"{{"metadata": {{"name": "n", {metadata}}}, "spec": {{{spec}}}}}"#
                )),
                None,
            )
        };
        let plain = r#""labels": {}"#;
        let term = r#"[{"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}]"#;
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let rows = [
            (
                plain,
                r#""containers": [{"name": "c", "ports": [{"containerPort": 1, "protocol": "TCP", "hostIP": "1.2.3.4"}]}]"#.to_owned(),
                "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:1 Protocol:TCP HostIP:1.2.3.4}",
            ),
            (
                plain,
                format!(r#""affinity": {{"podAffinity": {{"{preferred}": {term}}}}}"#),
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
            ),
            (
                plain,
                r#""volumes": [{"name": "v", "storageos": {}}]"#.to_owned(),
                "spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                r#""annotations": {"seccomp.security.alpha.kubernetes.io/pod": "x"}"#,
                String::new(),
                "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            ),
            (
                plain,
                r#""hostAliases": [{"ip": "::0001"}]"#.to_owned(),
                "spec.hostAliases[0].ip: IPv6 address \"::0001\" should be in RFC 5952 canonical format (\"::1\")",
            ),
            (
                plain,
                format!(
                    r#""affinity": {{"nodeAffinity": {{"{preferred}": [{{"preference": {{"matchExpressions": [{{"key": "k", "values": ["-"]}}]}}}}]}}}}"#
                ),
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[0]: - is invalid, a valid label must be",
            ),
        ];
        for (metadata, spec, line) in rows {
            let all = reported(metadata, &spec);
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(all[0].starts_with(line), "{all:?}");
        }
        assert!(
            reported(r#""name": "a.b""#, "")[0]
                .ends_with("a DNS label is recommended: [must not contain dots]")
        );
    }
}
