//! The Pod Security Standards: a namespace's labels say which standard its pods must meet (enforce),
//! and which one they are warned about. Pods are refused; what makes pods is only warned about.

mod checks;

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};

pub const NAME: &str = "PodSecurity";

const PREFIX: &str = "pod-security.kubernetes.io/";

/// Where the pod template is in the kinds that make pods.
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

pub struct PodSecurity;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let pod = attributes.is_write_of("", "pods") && attributes.operation == Operation::Create;
        let debug = attributes.is("", "pods") && attributes.subresource == "ephemeralcontainers";
        pod || debug || template(attributes).is_some() || attributes.is_write_of("", "namespaces")
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if attributes.is("", "namespaces") {
            return labels_make_sense(attributes, object);
        }
        let namespace = attributes
            .reader
            .get("", "namespaces", "", attributes.namespace)
            .await?;
        let Some(namespace) = namespace else {
            return Ok(());
        };
        let policy = |mode: &str| {
            let label = |suffix: &str| namespace.label(&format!("{PREFIX}{mode}{suffix}"));
            let level = label("").and_then(level).unwrap_or(Level::Privileged);
            (level, label("-version").unwrap_or("latest").to_owned())
        };
        let (pod, makes_pods) = match template(attributes) {
            Some(path) => (
                path.iter()
                    .fold(Value::from(object.clone()), |v, k| v[*k].clone()),
                true,
            ),
            None => (Value::from(object.clone()), false),
        };
        let (enforced, warned) = (policy("enforce"), policy("warn"));
        if !makes_pods && let Some(why) = judge(&enforced, &pod) {
            return Err(attributes.forbidden(&format!("violates PodSecurity {why}")));
        }
        if let Some(why) = judge(&warned, &pod) {
            attributes
                .effects
                .warn(format!("would violate PodSecurity {why}"));
        }
        Ok(())
    }
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

/// What a pod violates, as it is told.
fn judge((level, version): &(Level, String), pod: &Value) -> Option<String> {
    let (name, checks) = match level {
        Level::Privileged => return None,
        Level::Baseline => ("baseline", checks::BASELINE),
        Level::Restricted => ("restricted", checks::RESTRICTED),
    };
    let violations = checks
        .iter()
        .filter_map(|check| check(&pod["metadata"], &pod["spec"]));
    let told: Vec<String> = violations
        .map(|(reason, detail)| format!("{reason} ({detail})"))
        .collect();
    (!told.is_empty()).then(|| format!("\"{name}:{version}\": {}", told.join(", ")))
}

fn labels_make_sense(attributes: &Attributes<'_>, namespace: &Object) -> Result<(), Status> {
    use machinery::field::{Error, Path};
    let labels = &tree::get(namespace, "metadata")["labels"];
    let mut errors = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let key = format!("{PREFIX}{mode}");
        let value = tree::text(&labels[&key]);
        let path = Path::new("metadata").child("labels").key(&key);
        if tree::is_set(&labels[&key]) && level(value).is_none() {
            let why = "must be one of privileged, baseline, restricted";
            errors.push(Error::invalid(&path, value, why));
        }
        let key = format!("{PREFIX}{mode}-version");
        let value = tree::text(&labels[&key]);
        let path = Path::new("metadata").child("labels").key(&key);
        if tree::is_set(&labels[&key]) && !version_makes_sense(value) {
            let why = "must be \"latest\" or \"v1.x\"";
            errors.push(Error::invalid(&path, value, why));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("", "Namespace", attributes.name, &errors))
}

fn version_makes_sense(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").map(str::parse::<u16>);
    text == "latest" || minor.is_some_and(|minor| minor.is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, object};

    fn told(level: Level, spec: Value) -> Option<String> {
        judge(&(level, "latest".to_owned()), &json!({ "spec": spec }))
    }

    #[test]
    fn a_plain_pod_meets_the_baseline_and_not_the_restricted_standard() {
        let plain = json!({"containers": [{"name": "a"}]});
        assert_eq!(told(Level::Privileged, plain.clone()), None);
        assert_eq!(told(Level::Baseline, plain.clone()), None);
        assert_eq!(
            told(Level::Restricted, plain).unwrap(),
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
        assert_eq!(told(Level::Restricted, careful), None);
    }

    #[test]
    fn each_rule_of_the_baseline_speaks_for_itself() {
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
            let told = told(Level::Baseline, spec).unwrap();
            assert_eq!(told, format!("\"baseline:latest\": {expected}"));
        }
        let root = json!({"containers": [], "securityContext": {"runAsUser": 0, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"}}, "volumes": [{"name": "v", "nfs": {}}]});
        assert_eq!(
            told(Level::Restricted, root).unwrap(),
            "\"restricted:latest\": restricted volume types (volume \"v\" uses restricted volume \
             type \"nfs\"), runAsUser=0 (pod must not set runAsUser=0)"
        );
    }

    #[tokio::test]
    async fn a_namespace_says_what_is_refused_and_what_is_only_warned_about() {
        let pod = Case::new(Operation::Create, "", "pods").named("team", "web");
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline",
                            "pod-security.kubernetes.io/warn": "restricted"});
        let namespace = json!({"metadata": {"name": "team", "labels": labels}});
        pod.world.put("", "namespaces", namespace).await;
        let plain = object(json!({"spec": {"containers": [{"name": "a"}]}}));
        PodSecurity
            .validate(&pod.attributes(), Some(&plain))
            .await
            .unwrap();
        let warnings = pod.effects.take_warnings();
        assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:latest\""));
        let host = object(json!({"spec": {"hostNetwork": true, "containers": []}}));
        let refused = PodSecurity
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
            let checked = PodSecurity
                .validate(&case.attributes(), Some(&namespace))
                .await;
            assert_eq!(checked.is_ok(), fine);
        }
    }
}
