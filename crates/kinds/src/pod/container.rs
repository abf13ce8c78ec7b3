//! Containers: names, images, ports, environment, probes, security.

use super::resources::check_resources;
use super::volume::check_mounts;
use crate::check;
use crate::core::service::port_or_name;
use crate::tree::{int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::collections::BTreeSet;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// The containers that every pod has.
pub(super) fn check_containers(
    spec: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let at = path.child("containers");
    let containers = list(&spec["containers"]);
    if containers.is_empty() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = at.index(i);
        check_common(container, volumes, &at, errors);
        check_unique(container, &mut names, &at, errors);
        check_lifecycle(container, &at, errors);
        check_probes(container, &at, errors);
    }
    check_host_ports(containers, &at, errors);
    check_init(spec, volumes, &mut names, path, errors);
    check_ephemeral(spec, volumes, &mut names, path, errors);
}

fn check_unique<'a>(
    container: &'a Value,
    names: &mut BTreeSet<&'a str>,
    path: &Path,
    errors: &mut Errors,
) {
    let name = text(&container["name"]);
    if !names.insert(name) {
        errors.push(Error::duplicate(&path.child("name"), name));
    }
}

fn check_init<'a>(
    spec: &'a Value,
    volumes: &BTreeSet<&str>,
    names: &mut BTreeSet<&'a str>,
    path: &Path,
    errors: &mut Errors,
) {
    let at = path.child("initContainers");
    let containers = list(&spec["initContainers"]);
    for (i, container) in containers.iter().enumerate() {
        let at = at.index(i);
        check_common(container, volumes, &at, errors);
        check_unique(container, names, &at, errors);
        let policy = &container["restartPolicy"];
        if policy == "Always" {
            check_lifecycle(container, &at, errors);
            check_probes(container, &at, errors);
        } else {
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
        }
        if is_set(policy) {
            let policies = ["Always", "Never", "OnFailure"];
            check::one_of(policy, &policies, &at.child("restartPolicy"), errors);
        }
        if list(&container["resizePolicy"])
            .iter()
            .any(|_| policy != "Always")
        {
            let detail = "must not be set for init containers";
            errors.push(Error::invalid(
                &at.child("resizePolicy"),
                container["resizePolicy"].clone(),
                detail,
            ));
        }
        // Init containers run one after the other: ports may repeat between them, not within.
        check_host_ports(std::slice::from_ref(container), &at, errors);
    }
}

fn check_ephemeral<'a>(
    spec: &'a Value,
    volumes: &BTreeSet<&str>,
    names: &mut BTreeSet<&'a str>,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, container) in list(&spec["ephemeralContainers"]).iter().enumerate() {
        let at = path.child("ephemeralContainers").index(i);
        check_common(container, volumes, &at, errors);
        check_unique(container, names, &at, errors);
        let target = text(&container["targetContainerName"]);
        let exists = list(&spec["containers"])
            .iter()
            .chain(list(&spec["initContainers"]))
            .any(|c| c["name"] == target);
        if !target.is_empty() && !exists {
            errors.push(Error::not_found(&at.child("targetContainerName"), target));
        }
        for field in [
            "ports",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
            "resizePolicy",
        ] {
            if is_set(&container[field]) && !crate::tree::is_empty(&container[field]) {
                let detail = "cannot be set for an Ephemeral Container";
                errors.push(Error::forbidden(&at.child(field), detail));
            }
        }
        if !crate::tree::is_empty(&container["resources"]) {
            let detail = "cannot be set for an Ephemeral Container";
            errors.push(Error::forbidden(&at.child("resources"), detail));
        }
    }
}

fn check_common(container: &Value, volumes: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let name = text(&container["name"]);
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        check::form(
            format::dns1123_label(name),
            name,
            &path.child("name"),
            errors,
        );
    }
    let image = text(&container["image"]);
    if image.is_empty() {
        errors.push(Error::required(&path.child("image"), ""));
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.push(Error::invalid(&path.child("image"), image, detail));
    }
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = &container["terminationMessagePolicy"];
    check::one_of(
        policy,
        &policies,
        &path.child("terminationMessagePolicy"),
        errors,
    );
    check_ports(&container["ports"], &path.child("ports"), errors);
    check_env(&container["env"], &path.child("env"), errors);
    check_env_from(&container["envFrom"], &path.child("envFrom"), errors);
    check_mounts(container, volumes, path, errors);
    let pulls = ["Always", "IfNotPresent", "Never"];
    check::one_of(
        &container["imagePullPolicy"],
        &pulls,
        &path.child("imagePullPolicy"),
        errors,
    );
    check_resources(&container["resources"], &path.child("resources"), errors);
    check_security(
        &container["securityContext"],
        &path.child("securityContext"),
        errors,
    );
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
        check::one_of(&port["protocol"], PROTOCOLS, &at.child("protocol"), errors);
    }
}

fn check_number(port: i64, path: &Path, errors: &mut Errors) {
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
                let at = path.index(i).child("ports").index(j).child("hostPort");
                errors.push(Error::duplicate(&at, key));
            }
        }
    }
}

fn check_env(env: &Value, path: &Path, errors: &mut Errors) {
    for (i, variable) in list(env).iter().enumerate() {
        let at = path.index(i);
        let name = text(&variable["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(format::env_name(name), name, &at.child("name"), errors);
        }
        if is_set(&variable["valueFrom"]) {
            check_value_from(variable, &at.child("valueFrom"), errors);
        }
    }
}

fn check_value_from(variable: &Value, path: &Path, errors: &mut Errors) {
    let from = &variable["valueFrom"];
    let mut sources = 0;
    if is_set(&from["fieldRef"]) {
        sources += 1;
        check_field_ref(&from["fieldRef"], &path.child("fieldRef"), errors);
    }
    if is_set(&from["resourceFieldRef"]) {
        sources += 1;
        let at = path.child("resourceFieldRef").child("resource");
        check::required(&from["resourceFieldRef"]["resource"], &at, errors);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        if !is_set(&from[name]) {
            continue;
        }
        sources += 1;
        let at = path.child(name);
        check::required(&from[name]["name"], &at.child("name"), errors);
        match text(&from[name]["key"]) {
            "" => errors.push(Error::required(&at.child("key"), "")),
            key => check::form(format::config_key(key), key, &at.child("key"), errors),
        }
    }
    if is_set(&from["fileKeyRef"]) {
        sources += 1;
        let at = path.child("fileKeyRef");
        for name in ["key", "volumeName", "path"] {
            check::required(&from["fileKeyRef"][name], &at.child(name), errors);
        }
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(Error::invalid(path, "", detail));
    } else if !text(&variable["value"]).is_empty() {
        let detail = "may not be specified when `value` is not empty";
        errors.push(Error::invalid(path, "", detail));
    } else if sources > 1 {
        let detail = "may not have more than one field specified at a time";
        errors.push(Error::invalid(path, "", detail));
    }
}

const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn check_field_ref(reference: &Value, path: &Path, errors: &mut Errors) {
    let field = text(&reference["fieldPath"]);
    check::required(&reference["apiVersion"], &path.child("apiVersion"), errors);
    let at = path.child("fieldPath");
    if field.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if let Some((map, _)) = field.split_once("['") {
        if !matches!(map, "metadata.annotations" | "metadata.labels") || !field.ends_with("']") {
            errors.push(Error::invalid(&at, field, "does not support subscript"));
        }
    } else if matches!(field, "metadata.annotations" | "metadata.labels") {
        errors.push(Error::not_supported(&at, field, FIELDS));
    } else if !FIELDS.contains(&field) {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.push(Error::invalid(&at, field, detail));
    }
}

fn check_env_from(sources: &Value, path: &Path, errors: &mut Errors) {
    for (i, source) in list(sources).iter().enumerate() {
        let at = path.index(i);
        let prefix = text(&source["prefix"]);
        if !prefix.is_empty() {
            check::form(
                format::env_name(prefix),
                prefix,
                &at.child("prefix"),
                errors,
            );
        }
        let mut count = 0;
        for name in ["configMapRef", "secretRef"] {
            if is_set(&source[name]) {
                count += 1;
                let at = at.child(name).child("name");
                check::required(&source[name]["name"], &at, errors);
            }
        }
        if count == 0 {
            let detail = "must specify one of: `configMapRef` or `secretRef`";
            errors.push(Error::invalid(&path.child("envFrom"), "", detail));
        } else if count > 1 {
            let detail = "may not have more than one field specified at a time";
            errors.push(Error::invalid(&path.child("envFrom"), "", detail));
        }
    }
}

fn check_lifecycle(container: &Value, path: &Path, errors: &mut Errors) {
    for name in ["postStart", "preStop"] {
        let handler = &container["lifecycle"][name];
        if is_set(handler) {
            check_handler(handler, &path.child("lifecycle").child(name), errors);
        }
    }
}

fn check_probes(container: &Value, path: &Path, errors: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[name];
        if !is_set(probe) {
            continue;
        }
        let at = path.child(name);
        check_handler(probe, &at, errors);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            check::non_negative(&probe[field], &at.child(field), errors);
        }
        let grace = &probe["terminationGracePeriodSeconds"];
        let grace_path = at.child("terminationGracePeriodSeconds");
        if name == "readinessProbe" {
            if is_set(grace) {
                let detail = "must not be set for readinessProbes";
                errors.push(Error::invalid(&grace_path, int(grace), detail));
            }
        } else {
            if is_set(grace) && int(grace) <= 0 {
                errors.push(Error::invalid(
                    &grace_path,
                    int(grace),
                    "must be greater than 0",
                ));
            }
            let successes = int(&probe["successThreshold"]);
            if successes != 1 {
                let at = at.child("successThreshold");
                errors.push(Error::invalid(&at, successes, "must be 1"));
            }
        }
    }
}

fn check_handler(handler: &Value, path: &Path, errors: &mut Errors) {
    let mut found = 0;
    for name in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let action = &handler[name];
        if !is_set(action) {
            continue;
        }
        let at = path.child(name);
        found += 1;
        if found > 1 {
            errors.push(Error::forbidden(
                &at,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        match name {
            "exec" => {
                if list(&action["command"]).is_empty() {
                    errors.push(Error::required(&at.child("command"), ""));
                }
            }
            "httpGet" => {
                check::required(&action["path"], &at.child("path"), errors);
                port_or_name(&action["port"], &at.child("port"), errors);
                check::one_of(
                    &action["scheme"],
                    &["HTTP", "HTTPS"],
                    &at.child("scheme"),
                    errors,
                );
                for header in list(&action["httpHeaders"]) {
                    let name = text(&header["name"]);
                    let complaints = format::http_header(name);
                    check::form(complaints, name, &at.child("httpHeaders"), errors);
                }
            }
            "tcpSocket" => port_or_name(&action["port"], &at.child("port"), errors),
            "grpc" => check_number(int(&action["port"]), &at.child("port"), errors),
            _ => check::non_negative(&action["seconds"], &at.child("seconds"), errors),
        }
    }
    if found == 0 {
        errors.push(Error::required(path, "must specify a handler type"));
    }
}

/// A user or group id.
pub(super) fn check_id(value: &Value, path: &Path, errors: &mut Errors) {
    if is_set(value) {
        for complaint in format::in_range(int(value), 0, i64::from(i32::MAX)) {
            errors.push(Error::invalid(path, int(value), complaint));
        }
    }
}

/// A seccomp or AppArmor profile.
pub(super) fn check_profile(profile: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(profile) {
        return;
    }
    let (kind, local) = (text(&profile["type"]), &profile["localhostProfile"]);
    let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
    match kind {
        "" => errors.push(Error::required(
            &path.child("type"),
            "type is required when seccompProfile is set",
        )),
        _ => check::one_of(&profile["type"], &kinds, &path.child("type"), errors),
    }
    let at = path.child("localhostProfile");
    if kind == "Localhost" && text(local).is_empty() {
        let detail = "must be set when seccomp type is Localhost";
        errors.push(Error::required(&at, detail));
    } else if kind != "Localhost" && is_set(local) {
        let detail = "can only be set when seccomp type is Localhost";
        errors.push(Error::invalid(&at, text(local), detail));
    }
}

fn check_security(context: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(context) {
        return;
    }
    check_id(&context["runAsUser"], &path.child("runAsUser"), errors);
    check_id(&context["runAsGroup"], &path.child("runAsGroup"), errors);
    if is_set(&context["procMount"]) {
        let mounts = ["Default", "Unmasked"];
        check::one_of(
            &context["procMount"],
            &mounts,
            &path.child("procMount"),
            errors,
        );
    }
    check_profile(
        &context["seccompProfile"],
        &path.child("seccompProfile"),
        errors,
    );
    let escalation = &context["allowPrivilegeEscalation"];
    if escalation == false {
        if truth(&context["privileged"]) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(Error::invalid(path, context.clone(), detail));
        }
        if list(&context["capabilities"]["add"])
            .iter()
            .any(|c| c == "CAP_SYS_ADMIN")
        {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(Error::invalid(path, context.clone(), detail));
        }
    }
}
