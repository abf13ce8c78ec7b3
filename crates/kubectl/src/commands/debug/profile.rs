//! The profiles of `kubectl debug`: what a debugging container may do, and what a copy of a pod
//! keeps.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::Debug;

/// How an object is debugged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// By an ephemeral container.
    Ephemeral,
    /// By a copy of the pod.
    Copy,
    /// By a pod on the node.
    Node,
}

/// A profile, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    Legacy,
    General,
    Baseline,
    Restricted,
    Netadmin,
    Sysadmin,
}

impl Profile {
    pub(super) fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "legacy" => Self::Legacy,
            "general" => Self::General,
            "baseline" => Self::Baseline,
            "restricted" => Self::Restricted,
            "netadmin" => Self::Netadmin,
            "sysadmin" => Self::Sysadmin,
            other => bail!("unknown profile: {other}"),
        })
    }

    /// Gives the debugging container its rights.
    pub(super) fn change_container(self, container: &mut Value, style: Style) {
        match (self, style) {
            (Self::Legacy, _) => {}
            (Self::General, Style::Node) | (Self::Baseline, _) => clear(container),
            (Self::General, _) => add_capabilities(container, &["SYS_PTRACE"]),
            (Self::Restricted, _) => {
                container["securityContext"] = json!({
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"}});
            }
            (Self::Netadmin, _) => add_capabilities(container, &["NET_ADMIN", "NET_RAW"]),
            (Self::Sysadmin, _) => container["securityContext"]["privileged"] = json!(true),
        }
    }

    /// Gives a pod on a node the node's namespaces and files.
    pub(super) fn change_node_pod(self, spec: &mut Value) {
        let has_namespaces = !matches!(self, Self::Baseline | Self::Restricted);
        let has_root = matches!(self, Self::Legacy | Self::General | Self::Sysadmin);
        if has_namespaces {
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                spec[field] = json!(true);
            }
        }
        if has_root {
            spec["volumes"] = json!([{"name": "host-root", "hostPath": {"path": "/"}}]);
            spec["containers"][0]["volumeMounts"] =
                json!([{"mountPath": "/host", "name": "host-root"}]);
        }
    }
}

impl Debug {
    /// Takes from the copy of a pod what is not to be kept.
    pub(super) fn change_copy(&self, profile: Profile, copy: &mut Value) {
        let keeps = |flag: bool| profile == Profile::Legacy || flag;
        if profile == Profile::Legacy || !self.keep_labels {
            remove(&mut copy["metadata"], "labels");
        }
        if !keeps(self.keep_annotations) {
            remove(&mut copy["metadata"], "annotations");
        }
        if !keeps(self.keep_init_containers) {
            remove(&mut copy["spec"], "initContainers");
        }
        for (keep, probe) in [
            (self.keep_liveness, "livenessProbe"),
            (self.keep_readiness, "readinessProbe"),
            (self.keep_startup, "startupProbe"),
        ] {
            let containers = copy.pointer_mut("/spec/containers");
            let containers = containers.and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter(|_| !keeps(keep)) {
                remove(container, probe);
            }
        }
        if profile != Profile::Legacy && copy["spec"]["shareProcessNamespace"].is_null() {
            copy["spec"]["shareProcessNamespace"] = json!(true);
        }
    }
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn clear(container: &mut Value) {
    remove(container, "securityContext");
}

fn add_capabilities(container: &mut Value, names: &[&str]) {
    let context = &mut container["securityContext"];
    if !context.is_object() {
        *context = Value::Object(Map::new());
    }
    let added = &mut context["capabilities"]["add"];
    let mut all = added.as_array().cloned().unwrap_or_default();
    all.extend(names.iter().map(|name| json!(name)));
    *added = json!(all);
}

/// Whether rights of the container have no effect, because the pod runs as another user than root.
pub(super) fn is_weakened(pod: &Value, container: &Value) -> bool {
    let user = |object: &Value| object["securityContext"]["runAsUser"].as_i64();
    let context = &container["securityContext"];
    let has_rights = context["privileged"] == true
        || context["capabilities"]["add"]
            .as_array()
            .is_some_and(|added| !added.is_empty());
    user(&pod["spec"]).is_some_and(|user| user != 0) && user(container) != Some(0) && has_rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_gives_the_container_its_rights() {
        let had = json!({"name": "c", "securityContext": {"runAsUser": 5}});
        for (name, style, expected) in [
            ("legacy", Style::Copy, json!({"runAsUser": 5})),
            (
                "general",
                Style::Copy,
                json!({"runAsUser": 5, "capabilities": {"add": ["SYS_PTRACE"]}}),
            ),
            ("general", Style::Node, Value::Null),
            ("baseline", Style::Ephemeral, Value::Null),
            (
                "restricted",
                Style::Node,
                json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"}}),
            ),
            (
                "netadmin",
                Style::Ephemeral,
                json!({"runAsUser": 5, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}),
            ),
            (
                "sysadmin",
                Style::Node,
                json!({"runAsUser": 5, "privileged": true}),
            ),
        ] {
            let mut container = had.clone();
            let profile = Profile::parse(name).unwrap();
            profile.change_container(&mut container, style);
            assert_eq!(container["securityContext"], expected, "{name}");
        }
        assert!(Profile::parse("x").is_err());
    }

    #[test]
    fn only_some_profiles_see_the_node() {
        for (name, namespaces, root) in [
            ("legacy", true, true),
            ("general", true, true),
            ("baseline", false, false),
            ("restricted", false, false),
            ("netadmin", true, false),
            ("sysadmin", true, true),
        ] {
            let mut spec = json!({"containers": [{"name": "c"}]});
            Profile::parse(name).unwrap().change_node_pod(&mut spec);
            assert_eq!(spec["hostPID"] == true, namespaces, "{name}");
            assert_eq!(spec["volumes"].is_array(), root, "{name}");
            assert_eq!(
                spec["containers"][0]["volumeMounts"].is_array(),
                root,
                "{name}"
            );
        }
    }

    #[test]
    fn a_pod_of_another_user_weakens_capabilities() {
        let pod = json!({"spec": {"securityContext": {"runAsUser": 1000}}});
        let traced = json!({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
        assert!(is_weakened(&pod, &traced));
        assert!(!is_weakened(&json!({"spec": {}}), &traced));
        assert!(!is_weakened(&pod, &json!({"name": "c"})));
        let root = json!({"securityContext": {"privileged": true, "runAsUser": 0}});
        assert!(!is_weakened(&pod, &root));
    }
}
