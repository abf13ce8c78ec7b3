//! The Pod Security Standards: labels of a namespace select the standard that its pods must meet
//! (enforce), and those that are audited or warned about. Pods are rejected; workloads that create
//! pods only give warnings.

mod checks;

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use serde::Deserialize;

use super::{Attributes, Plugin};

pub(crate) const NAME: &str = "PodSecurity";

const PREFIX: &str = "pod-security.kubernetes.io/";
const EXEMPT: &str = "pod-security.kubernetes.io/exempt";
/// The labels of each mode: its standard, and the standard's version.
const ENFORCE: (&str, &str) = (
    "pod-security.kubernetes.io/enforce",
    "pod-security.kubernetes.io/enforce-version",
);
const AUDIT: (&str, &str) = (
    "pod-security.kubernetes.io/audit",
    "pod-security.kubernetes.io/audit-version",
);
const WARN: (&str, &str) = (
    "pod-security.kubernetes.io/warn",
    "pod-security.kubernetes.io/warn-version",
);
/// How many pods of a namespace are checked when its standard changes.
const MOST_PODS: usize = 3000;

/// The path of the pod template in workload kinds.
const TEMPLATES: &[(&str, &str, &[&str])] = &[
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    (
        "batch",
        "cronjobs",
        &["spec", "jobTemplate", "spec", "template"],
    ),
    ("batch", "jobs", &["spec", "template"]),
];

/// The plugin with its configuration.
#[derive(Debug, Default)]
pub(crate) struct PodSecurity {
    defaults: Policy,
    exempt: Exemptions,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A standard at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standard {
    level: Level,
    version: String,
}

impl Default for Standard {
    fn default() -> Self {
        Self {
            level: Level::Privileged,
            version: "latest".to_owned(),
        }
    }
}

impl std::fmt::Display for Standard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        write!(f, "{name}:{}", self.version)
    }
}

/// The policy of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Policy {
    enforce: Standard,
    audit: Standard,
    warn: Standard,
}

/// The parts of a pod or template that are checked.
#[derive(Clone, Copy)]
struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

impl<'a> Pod<'a> {
    fn from_object(pod: &'a Object) -> Self {
        Self {
            metadata: tree::get(pod, "metadata"),
            spec: tree::get(pod, "spec"),
        }
    }

    fn of_value(template: &'a Value) -> Self {
        Self {
            metadata: &template["metadata"],
            spec: &template["spec"],
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Configuration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    defaults: std::collections::BTreeMap<String, String>,
    exemptions: Exemptions,
}

impl PodSecurity {
    /// From the plugin's part of the admission configuration.
    pub(super) fn new(config: &Value) -> Result<Self, String> {
        if config.is_null() {
            return Ok(Self::default());
        }
        let config: Configuration = machinery::json::from_value(config.clone())
            .map_err(|error| format!("{NAME}: {error}"))?;
        let mut defaults = Policy::default();
        for (key, value) in &config.defaults {
            let (mode, version) = match key.strip_suffix("-version") {
                Some(mode) => (mode, true),
                None => (key.as_str(), false),
            };
            let standard = match mode {
                "enforce" => &mut defaults.enforce,
                "audit" => &mut defaults.audit,
                "warn" => &mut defaults.warn,
                _ => return Err(format!("{NAME}: unknown default {key:?}")),
            };
            match level(value) {
                _ if version && version_makes_sense(value) => standard.version.clone_from(value),
                Some(level) if !version => standard.level = level,
                _ => return Err(format!("{NAME}: defaults.{key}: invalid value {value:?}")),
            }
        }
        Ok(Self {
            defaults,
            exempt: config.exemptions,
        })
    }

    /// The policy of a namespace by its labels; an invalid level enforces the strictest one.
    fn policy<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> Policy {
        let mut policy = self.defaults.clone();
        let read = |(mode, version): (&str, &str), standard: &mut Standard, wrong: Level| {
            let given = label(mode);
            if let Some(given) = given {
                standard.level = level(given).unwrap_or(wrong);
            }
            let version = label(version);
            if let Some(version) = version {
                let known = version_makes_sense(version);
                standard.version = if known { version } else { "latest" }.to_owned();
            }
            (
                given.and_then(level).is_some(),
                given.is_some(),
                version.is_some(),
            )
        };
        let (enforced, ..) = read(ENFORCE, &mut policy.enforce, Level::Restricted);
        read(AUDIT, &mut policy.audit, Level::Privileged);
        let (_, warns, at) = read(WARN, &mut policy.warn, Level::Privileged);
        // With an enforced level and no warn label, warnings are at least as strict as enforcement.
        if !warns && enforced && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !at {
                policy.warn.version.clone_from(&policy.enforce.version);
            }
        }
        policy
    }

    fn evaluate(
        &self,
        attributes: &Attributes<'_>,
        policy: &Policy,
        pod: Pod<'_>,
        enforce: bool,
    ) -> Result<(), Status> {
        let note = |key: &str, value: &str| {
            let key = format!("{PREFIX}{key}");
            attributes.effects.annotate(&key, value);
        };
        if has(
            &self.exempt.runtime_classes,
            tree::text(&pod.spec["runtimeClassName"]),
        ) {
            note("exempt", "runtimeClass");
            return Ok(());
        }
        if enforce && attributes.effects.is_audited() {
            note("enforce-policy", &policy.enforce.to_string());
        }
        if let Some(why) = evaluate_standard(&policy.audit, pod) {
            note(
                "audit-violations",
                &format!("would violate PodSecurity {why}"),
            );
        }
        if enforce && let Some(why) = evaluate_standard(&policy.enforce, pod) {
            return Err(attributes.forbidden(&format!("violates PodSecurity {why}")));
        }
        if let Some(why) = evaluate_standard(&policy.warn, pod) {
            let warning = format!("would violate PodSecurity {why}");
            attributes.effects.warn(warning);
        }
        Ok(())
    }

    /// Warns of existing pods that the new standard would reject.
    async fn warn_of_existing(
        &self,
        attributes: &Attributes<'_>,
        enforce: &Standard,
    ) -> Result<(), Status> {
        let name = attributes.name;
        let (_, pods) = attributes.reader.list("", "pods", name).await?;
        let mut reported: std::collections::BTreeMap<String, Vec<String>> = Default::default();
        for pod in pods.iter().take(MOST_PODS) {
            let pod = Value::Object(pod.parse());
            let class = tree::text(&pod["spec"]["runtimeClassName"]);
            if has(&self.exempt.runtime_classes, class) {
                continue;
            }
            let reasons = violations(enforce, Pod::of_value(&pod)).map(|(reason, _)| reason);
            let reasons: Vec<String> = reasons.collect();
            if !reasons.is_empty() {
                let who = tree::text(&pod["metadata"]["name"]).to_owned();
                reported.entry(reasons.join(", ")).or_default().push(who);
            }
        }
        if pods.len() > MOST_PODS {
            attributes.effects.warn(format!(
                "new PodSecurity enforce level only checked against the first {MOST_PODS} of {} existing pods",
                pods.len()
            ));
        }
        if reported.is_empty() {
            return Ok(());
        }
        attributes.effects.warn(format!(
            "existing pods in namespace {name:?} violate the new PodSecurity enforce level \"{enforce}\""
        ));
        let mut lines: Vec<String> = reported
            .into_iter()
            .map(|(reason, pods)| {
                let first = pods.iter().min().cloned().unwrap_or_default();
                match pods.len() - 1 {
                    0 => format!("{first}: {reason}"),
                    1 => format!("{first} (and 1 other pod): {reason}"),
                    others => format!("{first} (and {others} other pods): {reason}"),
                }
            })
            .collect();
        lines.sort();
        lines
            .into_iter()
            .for_each(|line| attributes.effects.warn(line));
        Ok(())
    }

    async fn validate_namespace(
        &self,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), Status> {
        let errors = label_errors(object);
        let was = attributes.old.map(label_errors).unwrap_or_default();
        if !errors.is_empty() && errors != was {
            return Err(Status::invalid("", "Namespace", attributes.name, &errors));
        }
        let Some(old) = attributes.old else {
            return Ok(());
        };
        let of = |namespace: &Object| {
            let labels = &tree::get(namespace, "metadata")["labels"];
            self.policy(|key| labels[key].as_str()).enforce
        };
        let (before, after) = (of(old), of(object));
        let laxer = after.version == before.version && after.level <= before.level;
        if after.level == Level::Privileged
            || laxer
            || has(&self.exempt.namespaces, attributes.name)
        {
            return Ok(());
        }
        self.warn_of_existing(attributes, &after).await
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    !wanted.is_empty() && list.iter().any(|item| item == wanted)
}

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let debug = attributes.is("", "pods")
            && matches!(attributes.subresource, "ephemeralcontainers" | "resize");
        attributes.is_write_of("", "pods")
            || debug
            || template(attributes).is_some()
            || attributes.is_write_of("", "namespaces")
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if attributes.is("", "namespaces") {
            return self.validate_namespace(attributes, object).await;
        }
        let exempt = EXEMPT;
        if has(&self.exempt.namespaces, attributes.namespace) {
            attributes.effects.annotate(exempt, "namespace");
            return Ok(());
        }
        if has(&self.exempt.usernames, &attributes.user.name) {
            attributes.effects.annotate(exempt, "user");
            return Ok(());
        }
        let reader = attributes.reader;
        let namespace = reader
            .get("", "namespaces", "", attributes.namespace)
            .await?;
        let Some(namespace) = namespace else {
            return Ok(());
        };
        let policy = self.policy(|key| namespace.label(key));
        let (pod, enforce) = match template(attributes) {
            Some([first, rest @ ..]) => {
                let start = tree::get(object, first);
                let template = rest.iter().fold(start, |value, key| &value[*key]);
                (Pod::of_value(template), false)
            }
            _ => (Pod::from_object(object), true),
        };
        let same = attributes.old.filter(|_| enforce);
        if same.is_some_and(|old| !has_new_images(pod.spec, tree::get(old, "spec"))) {
            return Ok(());
        }
        self.evaluate(attributes, &policy, pod, enforce)
    }
}

/// Whether an update changes images: other relevant fields are immutable.
fn has_new_images(spec: &Value, old: &Value) -> bool {
    let images = |spec: &Value, key: &str| -> Vec<(String, String)> {
        let of = |c: &Value| [&c["name"], &c["image"]].map(|v| tree::text(v).to_owned());
        let list = tree::list(&spec[key]).iter();
        list.map(of).map(|[name, image]| (name, image)).collect()
    };
    let changed = |key: &&str| images(spec, key) != images(old, key);
    ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .any(changed)
}

fn template(attributes: &Attributes<'_>) -> Option<&'static [&'static str]> {
    let found = TEMPLATES
        .iter()
        .find(|(group, resource, _)| attributes.is_write_of(group, resource));
    found.map(|(_, _, path)| *path)
}

fn level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

/// The violations of a pod: reason and detail.
fn violations<'a>(
    standard: &Standard,
    pod: Pod<'a>,
) -> impl Iterator<Item = (String, String)> + 'a {
    let checks = match standard.level {
        Level::Privileged => &[],
        Level::Baseline => checks::BASELINE,
        Level::Restricted => checks::RESTRICTED,
    };
    let subject = checks::Subject {
        metadata: pod.metadata,
        spec: pod.spec,
        minor: minor(&standard.version).unwrap_or(checks::LATEST),
    };
    checks.iter().filter_map(move |rule| rule.ask(&subject))
}

/// The violations of a pod as a message.
fn evaluate_standard(standard: &Standard, pod: Pod<'_>) -> Option<String> {
    let reported: Vec<String> = violations(standard, pod)
        .map(|(reason, detail)| format!("{reason} ({detail})"))
        .collect();
    (!reported.is_empty()).then(|| format!("\"{standard}\": {}", reported.join(", ")))
}

fn label_errors(namespace: &Object) -> Vec<machinery::field::Error> {
    use machinery::field::{Error, Path};
    let labels = &tree::get(namespace, "metadata")["labels"];
    let mut errors = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let key = format!("{PREFIX}{mode}");
        let value = tree::text(&labels[&key]);
        let path = Path::new("metadata.labels");
        let path = path.key(&key);
        if tree::is_set(&labels[&key]) && level(value).is_none() {
            let why = "must be one of privileged, baseline, restricted";
            errors.push(Error::invalid(&path, value, why));
        }
        let key = format!("{PREFIX}{mode}-version");
        let value = tree::text(&labels[&key]);
        let path = Path::new("metadata.labels");
        let path = path.key(&key);
        if tree::is_set(&labels[&key]) && !version_makes_sense(value) {
            let why = "must be \"latest\" or \"v1.x\"";
            errors.push(Error::invalid(&path, value, why));
        }
    }
    errors
}

/// The minor version: 36 for `v1.36`.
fn minor(version: &str) -> Option<u16> {
    version.strip_prefix("v1.")?.parse().ok()
}

fn version_makes_sense(text: &str) -> bool {
    text == "latest" || minor(text).is_some()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    fn violations(level: Level, spec: Value) -> Option<String> {
        let version = "latest".to_owned();
        let pod = json!({ "spec": spec });
        evaluate_standard(&Standard { level, version }, Pod::of_value(&pod))
    }

    #[test]
    fn pod_security_checks_depend_on_the_version() {
        let judged = |level, version: &str, pod: Value| {
            let version = version.to_owned();
            evaluate_standard(&Standard { level, version }, Pod::of_value(&pod)).is_none()
        };
        let sysctl = |name: &str| json!({"spec": {"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}});
        let probe = json!({"spec": {"containers": [
            {"name": "a", "livenessProbe": {"tcpSocket": {"port": 1, "host": "10.0.0.1"}}}]}});
        let engine = json!({"spec": {"securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}}});
        let annotated = json!({"spec": {},
            "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}});
        let root = json!({"spec": {"hostUsers": false,
            "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}});
        let cases = [
            (
                Level::Baseline,
                sysctl("net.ipv4.tcp_rmem"),
                "v1.31",
                false,
                "v1.32",
                true,
            ),
            (
                Level::Baseline,
                sysctl("net.ipv4.tcp_fin_timeout"),
                "v1.28",
                false,
                "v1.29",
                true,
            ),
            (Level::Baseline, probe, "v1.33", true, "v1.34", false),
            (Level::Baseline, engine, "v1.30", false, "v1.31", true),
            (Level::Baseline, annotated, "v1.18", false, "v1.19", true),
            (Level::Restricted, root, "v1.34", false, "latest", true),
        ];
        for (level, pod, before, was, after, is) in cases {
            assert_eq!(judged(level, before, pod.clone()), was, "{before} {pod}");
            assert_eq!(judged(level, after, pod.clone()), is, "{after} {pod}");
        }
    }

    #[test]
    fn a_plain_pod_meets_the_baseline_and_not_the_restricted_standard() {
        let plain = json!({"containers": [{"name": "a"}]});
        assert_eq!(violations(Level::Privileged, plain.clone()), None);
        assert_eq!(violations(Level::Baseline, plain.clone()), None);
        assert_eq!(
            violations(Level::Restricted, plain).unwrap(),
            "\"restricted:latest\": allowPrivilegeEscalation != false (container \"a\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \
             \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod \
             or container \"a\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or \
             container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\")"
        );
    }

    #[test]
    fn a_careful_pod_meets_the_restricted_standard() {
        let careful = json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "t", "projected": {}}],
        });
        assert_eq!(violations(Level::Restricted, careful), None);
    }

    #[test]
    fn each_baseline_check_has_its_message() {
        let context =
            |context: Value| json!({"containers": [{"name": "a", "securityContext": context}]});
        for (spec, expected) in [
            (
                json!({"hostNetwork": true, "hostPID": true}),
                "host namespaces (hostNetwork=true, hostPID=true)",
            ),
            (
                context(json!({"privileged": true})),
                "privileged (container \"a\" must not set securityContext.privileged=true)",
            ),
            (
                context(json!({"capabilities": {"add": ["NET_ADMIN"]}})),
                "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in \
              securityContext.capabilities.add)",
            ),
            (
                json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
                "hostPath volumes (volume \"v\")",
            ),
            (
                json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}]}),
                "hostPort (container \"a\" uses hostPort 80)",
            ),
            (
                json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "x.com"}}}]}),
                "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"x.com\")",
            ),
            (
                context(json!({"procMount": "Unmasked"})),
                "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                context(json!({"seccompProfile": {"type": "Unconfined"}})),
                "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \
              \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {"user": "root"}}}),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set)",
            ),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
                "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
            ),
        ] {
            let reported = violations(Level::Baseline, spec).unwrap();
            assert_eq!(reported, format!("\"baseline:latest\": {expected}"));
        }
        let root = json!({"containers": [], "securityContext": {"runAsUser": 0, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"}}, "volumes": [{"name": "v", "nfs": {}}]});
        assert_eq!(
            violations(Level::Restricted, root).unwrap(),
            "\"restricted:latest\": restricted volume types (volume \"v\" uses restricted volume \
             type \"nfs\"), runAsUser=0 (pod must not set runAsUser=0)"
        );
    }

    #[tokio::test]
    async fn namespace_labels_choose_enforce_and_warn_levels() {
        let pod = Case::new(Operation::Create, "", "pods").named("team", "web");
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline",
                            "pod-security.kubernetes.io/warn": "restricted"});
        let namespace = json!({"metadata": {"name": "team", "labels": labels}});
        pod.world.put("", "namespaces", namespace).await;
        let plain = object(json!({"spec": {"containers": [{"name": "a"}]}}));
        PodSecurity::default()
            .validate(&pod.attributes(), Some(&plain))
            .await
            .unwrap();
        let warnings = pod.effects.take_warnings();
        assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:latest\""));
        let host = object(json!({"spec": {"hostNetwork": true, "containers": []}}));
        let refused = PodSecurity::default()
            .validate(&pod.attributes(), Some(&host))
            .await
            .unwrap_err();
        assert_eq!(
            refused.message,
            "pods \"web\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces \
             (hostNetwork=true)"
        );
    }

    #[tokio::test]
    async fn labels_that_mean_nothing_are_refused() {
        let case = Case::new(Operation::Create, "", "namespaces").named("team", "team");
        let namespace =
            |labels: Value| object(json!({"metadata": {"name": "team", "labels": labels}}));
        for (labels, fine) in [
            (
                json!({"pod-security.kubernetes.io/enforce": "restricted"}),
                true,
            ),
            (
                json!({"pod-security.kubernetes.io/enforce": "strict"}),
                false,
            ),
            (
                json!({"pod-security.kubernetes.io/enforce-version": "v1.30"}),
                true,
            ),
            (
                json!({"pod-security.kubernetes.io/enforce-version": "newest"}),
                false,
            ),
        ] {
            let namespace = namespace(labels);
            let checked = PodSecurity::default()
                .validate(&case.attributes(), Some(&namespace))
                .await;
            assert_eq!(checked.is_ok(), fine);
        }
    }

    #[tokio::test]
    async fn the_operator_sets_defaults_and_exempts() {
        let plugin = PodSecurity::new(&json!({
            "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "baseline", "enforce-version": "v1.30"},
            "exemptions": {"usernames": ["ops"], "namespaces": ["free"], "runtimeClasses": ["vm"]},
        }))
        .unwrap();
        let mut case = Case::new(Operation::Create, "", "pods").named("team", "web");
        for name in ["team", "free"] {
            let namespace = json!({"metadata": {"name": name}});
            case.world.put("", "namespaces", namespace).await;
        }
        let host = |class: &str| {
            object(
                json!({"spec": {"hostNetwork": true, "containers": [], "runtimeClassName": class}}),
            )
        };
        let refused = plugin.validate(&case.attributes(), Some(&host(""))).await;
        assert!(refused.unwrap_err().message.contains("\"baseline:v1.30\""));
        plugin
            .validate(&case.attributes(), Some(&host("vm")))
            .await
            .unwrap();
        case.user = crate::User::new("ops", [""; 0]);
        plugin
            .validate(&case.attributes(), Some(&host("")))
            .await
            .unwrap();
        case.user = crate::User::new("eve", [""; 0]);
        let case = case.named("free", "web");
        plugin
            .validate(&case.attributes(), Some(&host("")))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_new_image_is_judged_again_and_other_updates_are_not() {
        let plugin = PodSecurity::default();
        let mut case = Case::new(Operation::Update, "", "pods").named("team", "web");
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
        let namespace = json!({"metadata": {"name": "team", "labels": labels}});
        case.world.put("", "namespaces", namespace).await;
        let pod = |image: &str| {
            let container = json!({"name": "a", "image": image});
            object(json!({"spec": {"hostNetwork": true, "containers": [container]}}))
        };
        case.old = Some(pod("a:1"));
        plugin
            .validate(&case.attributes(), Some(&pod("a:1")))
            .await
            .unwrap();
        plugin
            .validate(&case.attributes(), Some(&pod("a:2")))
            .await
            .unwrap_err();
    }

    #[tokio::test]
    async fn enforcing_a_stricter_level_warns_about_violating_pods() {
        let plugin = PodSecurity::default();
        let mut case = Case::new(Operation::Update, "", "namespaces").named("", "team");
        for name in ["b", "a"] {
            let pod = json!({"metadata": {"name": name, "namespace": "team"},
                             "spec": {"hostNetwork": true, "containers": []}});
            case.world.put("", "pods", pod).await;
        }
        let namespace =
            |labels: Value| object(json!({"metadata": {"name": "team", "labels": labels}}));
        case.old = Some(namespace(json!({})));
        let strict = namespace(json!({"pod-security.kubernetes.io/enforce": "baseline"}));
        plugin
            .validate(&case.attributes(), Some(&strict))
            .await
            .unwrap();
        assert_eq!(
            case.effects.take_warnings(),
            [
                "existing pods in namespace \"team\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 1 other pod): host namespaces",
            ]
        );
    }

    #[test]
    fn a_wrong_label_enforces_the_strictest_standard_and_enforcing_warns() {
        let plugin = PodSecurity::default();
        let policy = |enforce: &'static str| {
            plugin.policy(|key| (key == "pod-security.kubernetes.io/enforce").then_some(enforce))
        };
        assert_eq!(policy("nonsense").enforce.level, Level::Restricted);
        assert_eq!(policy("nonsense").warn.level, Level::Privileged);
        assert_eq!(policy("baseline").warn.level, Level::Baseline);
    }
}
