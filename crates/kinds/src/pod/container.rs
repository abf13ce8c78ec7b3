//! Containers: names, images, ports, restart rules.

use super::env::{check_env, check_env_from};
use super::probe::{check_lifecycle, check_probes};
use super::resources::check_resources;
use super::security::check_container_security;
use super::volume::{Volumes, check_devices, check_mounts};
use crate::check;
use crate::tree::{int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::collections::BTreeSet;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const RULES_WITHOUT_POLICY: &str = "must specify restartPolicy when restart rules are used";
const RESTARTS: &[&str] = &["Always", "Never", "OnFailure"];

/// The parts of the pod that container validation needs.
pub(super) struct Surroundings<'a> {
    pub(super) spec: &'a Value,
    pub(super) volumes: Volumes<'a>,
    /// Names of the pod's resource claims.
    pub(super) claims: BTreeSet<&'a str>,
}

/// Validates the containers of a pod: main, init and ephemeral ones.
pub(super) fn check_containers(around: &Surroundings<'_>, path: &Path, errors: &mut Errors) {
    check_main(around, &path.child("containers"), errors);
    check_init(around, &path.child("initContainers"), errors);
    check_ephemeral(around, &path.child("ephemeralContainers"), errors);
}

fn check_main(around: &Surroundings<'_>, path: &Path, errors: &mut Errors) {
    let containers = list(&around.spec["containers"]);
    if containers.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = path.index(i);
        check_common(container, around, &at, errors);
        if !names.insert(text(&container["name"])) {
            let at = at.child("name");
            errors.push(Error::duplicate(&at, text(&container["name"])));
        }
        check_lifecycle(container, around.spec, &at, errors);
        check_probes(container, around.spec, &at, errors);
        check_restart(container, &at, errors);
    }
    check_host_ports(containers, path, errors);
}

fn check_init(around: &Surroundings<'_>, path: &Path, errors: &mut Errors) {
    let mut names: BTreeSet<&str> = list(&around.spec["containers"])
        .iter()
        .map(|c| text(&c["name"]))
        .collect();
    for (i, container) in list(&around.spec["initContainers"]).iter().enumerate() {
        let at = path.index(i);
        check_common(container, around, &at, errors);
        if is_set(&container["restartPolicy"]) {
            check_restart(container, &at, errors);
        } else if !list(&container["restartPolicyRules"]).is_empty() {
            let at = at.child("restartPolicy");
            errors.push(Error::required(&at, RULES_WITHOUT_POLICY));
        }
        let name = text(&container["name"]);
        if names.contains(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        } else if !name.is_empty() {
            names.insert(name);
        }
        // Init containers run one after the other, so host ports may repeat between them.
        check_host_ports(std::slice::from_ref(container), path, errors);
        let sidecar = container["restartPolicy"] == "Always";
        if sidecar {
            check_lifecycle(container, around.spec, &at, errors);
            check_probes(container, around.spec, &at, errors);
            continue;
        }
        for field in [
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
        ] {
            if is_set(&container[field]) {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.push(Error::forbidden(&at.child(field), detail));
            }
        }
        for (j, policy) in list(&container["resizePolicy"]).iter().enumerate() {
            if policy["restartPolicy"] == "RestartContainer" {
                let at = at.child("resizePolicy");
                let at = at.index(j);
                let at = at.child("restartPolicy");
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.push(Error::invalid(&at, "RestartContainer", detail));
            }
        }
    }
}

/// Fields that an ephemeral container may not have.
const NOT_EPHEMERAL: &[&str] = &[
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn check_ephemeral(around: &Surroundings<'_>, path: &Path, errors: &mut Errors) {
    let detail = "cannot be set for an Ephemeral Container";
    let others: BTreeSet<&str> = list(&around.spec["containers"])
        .iter()
        .chain(list(&around.spec["initContainers"]))
        .map(|c| text(&c["name"]))
        .collect();
    let mut names = others.clone();
    for (i, container) in list(&around.spec["ephemeralContainers"]).iter().enumerate() {
        let at = path.index(i);
        check_common(container, around, &at, errors);
        check_image_space(container, &at, errors);
        let name = text(&container["name"]);
        if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        let target = text(&container["targetContainerName"]);
        if !target.is_empty() && !others.contains(target) {
            errors.push(Error::not_found(&at.child("targetContainerName"), target));
        }
        for field in NOT_EPHEMERAL {
            let value = &container[*field];
            // An empty struct counts as absent; an empty list does not.
            let there = match value {
                Value::Object(map) if *field == "resources" => !map.is_empty(),
                value => is_set(value),
            };
            if there {
                errors.push(Error::forbidden(&at.child(field), detail));
            }
        }
        for (j, mount) in list(&container["volumeMounts"]).iter().enumerate() {
            for field in ["subPath", "subPathExpr"] {
                if !text(&mount[field]).is_empty() {
                    let at = at.child("volumeMounts");
                    let at = at.index(j);
                    let at = at.child(field);
                    errors.push(Error::forbidden(&at, detail));
                }
            }
        }
    }
}

/// Image name rules of pods that do not apply to templates.
pub(super) fn check_image_space(container: &Value, path: &Path, errors: &mut Errors) {
    let image = text(&container["image"]);
    if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.push(Error::invalid(&path.child("image"), image, detail));
    }
}

fn check_common(container: &Value, around: &Surroundings<'_>, path: &Path, errors: &mut Errors) {
    match text(&container["name"]) {
        "" => errors.push(Error::required(&path.child("name"), "")),
        name => {
            let at = path.child("name");
            check::form(format::dns1123_label(name), name, &at, errors);
        }
    }
    check::required(&container["image"], &path.child("image"), errors);
    check::known(
        &container["terminationMessagePolicy"],
        &["File", "FallbackToLogsOnError"],
        &path.child("terminationMessagePolicy"),
        errors,
    );
    check_ports(&container["ports"], &path.child("ports"), errors);
    check_env(&container["env"], &path.child("env"), errors);
    check_env_from(&container["envFrom"], &path.child("envFrom"), errors);
    check_mounts(container, &around.volumes, path, errors);
    check_devices(container, &around.volumes, path, errors);
    check::known(
        &container["imagePullPolicy"],
        &["Always", "IfNotPresent", "Never"],
        &path.child("imagePullPolicy"),
        errors,
    );
    let at = path.child("resources");
    check_resources(&container["resources"], &around.claims, &at, errors);
    let at = path.child("resizePolicy");
    check_resize(&container["resizePolicy"], around.spec, &at, errors);
    check_container_security(
        &container["securityContext"],
        around.spec,
        &path.child("securityContext"),
        errors,
    );
}

fn check_resize(policies: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, policy) in list(policies).iter().enumerate() {
        let name = text(&policy["resourceName"]);
        if !names.insert(name) {
            errors.push(Error::duplicate(&path.index(i), name));
        }
        check::known(&policy["resourceName"], &["cpu", "memory"], path, errors);
        let supported = ["NotRequired", "RestartContainer"];
        check::known(&policy["restartPolicy"], &supported, path, errors);
        let restart = text(&policy["restartPolicy"]);
        if spec["restartPolicy"] == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(Error::invalid(path, restart, detail));
        }
    }
}

fn check_restart(container: &Value, path: &Path, errors: &mut Errors) {
    let (policy, rules) = (
        &container["restartPolicy"],
        list(&container["restartPolicyRules"]),
    );
    let at = path.child("restartPolicy");
    if is_set(policy) {
        check::one_of(policy, RESTARTS, &at, errors);
    } else if rules.is_empty() {
        return;
    } else {
        errors.push(Error::required(&at, RULES_WITHOUT_POLICY));
    }
    let at = path.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.push(Error::too_many(&at, rules.len(), 20));
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = at.index(i);
        let actions = ["Restart", "RestartAllContainers"];
        check::one_of(&rule["action"], &actions, &at.child("action"), errors);
        let (codes, at) = (&rule["exitCodes"], at.child("exitCodes"));
        if !is_set(codes) {
            errors.push(Error::required(&at, "must be specified"));
            continue;
        }
        let operators = ["In", "NotIn"];
        check::one_of(
            &codes["operator"],
            &operators,
            &at.child("operator"),
            errors,
        );
        let values = list(&codes["values"]).len();
        if values > 255 {
            errors.push(Error::too_many(&at.child("values"), values, 255));
        }
    }
}

fn check_ports(ports: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, port) in list(ports).iter().enumerate() {
        let at = path.index(i);
        let name = text(&port["name"]);
        if !name.is_empty() {
            let complaints = format::port_name(name);
            if !complaints.is_empty() {
                check::form(complaints, name, &at.child("name"), errors);
            } else if !names.insert(name) {
                errors.push(Error::duplicate(&at.child("name"), name));
            }
        }
        match int(&port["containerPort"]) {
            0 => errors.push(Error::required(&at.child("containerPort"), "")),
            number => check_number(number, &at.child("containerPort"), errors),
        }
        if int(&port["hostPort"]) != 0 {
            check_number(int(&port["hostPort"]), &at.child("hostPort"), errors);
        }
        check::known(&port["protocol"], PROTOCOLS, &at.child("protocol"), errors);
    }
}

/// Validates a port number.
pub(super) fn check_number(port: i64, path: &Path, errors: &mut Errors) {
    errors.extend(
        format::port_number(port)
            .into_iter()
            .map(|m| Error::invalid(path, port, m)),
    );
}

fn check_host_ports(containers: &[Value], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in list(&container["ports"]).iter().enumerate() {
            let number = int(&port["hostPort"]);
            if number == 0 {
                continue;
            }
            let key = format!(
                "{}/{}/{number}",
                text(&port["protocol"]),
                text(&port["hostIP"])
            );
            if !seen.insert(key.clone()) {
                let at = path.index(i);
                let at = at.child("ports");
                let at = at.index(j);
                let at = at.child("hostPort");
                errors.push(Error::duplicate(&at, key));
            }
        }
    }
}
