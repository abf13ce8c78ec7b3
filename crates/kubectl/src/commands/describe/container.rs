//! Containers: configuration, state, last state and reasons.

use serde_json::Value;

use crate::json::{entries, list, str_of};

use super::text::{Text, number, plain, time};

/// The containers of a list. `running`: their statuses, and the pod for fields in variables.
pub(super) fn all(
    text: &mut Text,
    title: &str,
    containers: &Value,
    running: Option<(&Value, &Value)>,
    space: &str,
) {
    let none = if list(containers).len() == 0 {
        " <none>"
    } else {
        ""
    };
    text.line(0, &format!("{space}{title}:{none}"));
    for container in list(containers) {
        let status = running.and_then(|(statuses, _)| {
            list(statuses).find(|status| status["name"] == container["name"])
        });
        let indent = if space.is_empty() { "" } else { " " };
        text.line(1, &format!("{indent}{}:", str_of(&container["name"])));
        basics(text, container, status);
        for (name, field) in [("Command", "command"), ("Args", "args")] {
            if list(&container[field]).len() > 0 {
                text.line(2, &format!("{name}:"));
                for word in list(&container[field]) {
                    str_of(word).split('\n').for_each(|line| text.line(3, line));
                }
            }
        }
        if let Some(status) = status {
            state(text, "State", &status["state"]);
            if !status["lastState"]["terminated"].is_null() {
                state(text, "Last State", &status["lastState"]);
            }
            text.field(
                2,
                "Ready",
                if status["ready"] == true {
                    "True"
                } else {
                    "False"
                },
            );
            text.field(
                2,
                "Restart Count",
                &number(&status["restartCount"]).to_string(),
            );
        }
        resources(text, &container["resources"], 2);
        for (name, field) in [
            ("Liveness", "livenessProbe"),
            ("Readiness", "readinessProbe"),
            ("Startup", "startupProbe"),
        ] {
            if !container[field].is_null() {
                text.field(2, name, &probe(&container[field]));
            }
        }
        environment(text, container, running.map(|(_, pod)| pod));
        mounts(text, container);
    }
}

fn basics(text: &mut Text, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        text.field(2, "Container ID", str_of(&status["containerID"]));
    }
    text.field(2, "Image", str_of(&container["image"]));
    if let Some(status) = status {
        text.field(2, "Image ID", str_of(&status["imageID"]));
    }
    let port = |port: &Value| {
        let mut line = format!(
            "{}/{}",
            number(&port["containerPort"]),
            port["protocol"].as_str().unwrap_or("TCP")
        );
        if !str_of(&port["name"]).is_empty() {
            line.push_str(&format!(" ({})", str_of(&port["name"])));
        }
        line
    };
    let host_port = |port: &Value| {
        let mut line = format!(
            "{}/{}",
            number(&port["hostPort"]),
            port["protocol"].as_str().unwrap_or("TCP")
        );
        if !str_of(&port["name"]).is_empty() {
            line.push_str(&format!(" ({})", str_of(&port["name"])));
        }
        line
    };
    for (name, ports) in [
        (
            "Port",
            list(&container["ports"]).map(port).collect::<Vec<_>>(),
        ),
        (
            "Host Port",
            list(&container["ports"]).map(host_port).collect::<Vec<_>>(),
        ),
    ] {
        match ports.as_slice() {
            [] => text.field(2, name, "<none>"),
            [one] => text.field(2, name, one),
            many => text.field(2, &format!("{name}s"), &many.join(", ")),
        }
    }
    let seccomp = &container["securityContext"]["seccompProfile"];
    text.optional(2, "SeccompProfile", &seccomp["type"]);
    if seccomp["type"] == "Localhost" {
        text.field(3, "LocalhostProfile", str_of(&seccomp["localhostProfile"]));
    }
}

fn state(text: &mut Text, title: &str, state: &Value) {
    if !state["running"].is_null() {
        text.field(2, title, "Running");
        return text.field(3, "Started", &time(&state["running"]["startedAt"]));
    }
    if !state["terminated"].is_null() {
        let ended = &state["terminated"];
        text.field(2, title, "Terminated");
        text.optional(3, "Reason", &ended["reason"]);
        text.optional(3, "Message", &ended["message"]);
        text.field(3, "Exit Code", &number(&ended["exitCode"]).to_string());
        if number(&ended["signal"]) > 0 {
            text.field(3, "Signal", &number(&ended["signal"]).to_string());
        }
        text.field(3, "Started", &time(&ended["startedAt"]));
        return text.field(3, "Finished", &time(&ended["finishedAt"]));
    }
    text.field(2, title, "Waiting");
    text.optional(3, "Reason", &state["waiting"]["reason"]);
}

/// Limits and requests.
pub(super) fn resources(text: &mut Text, resources: &Value, level: usize) {
    for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let amounts = entries(&resources[field]);
        if !amounts.is_empty() {
            text.line(level, &format!("{title}:"));
        }
        for (name, amount) in amounts {
            text.field(level + 1, name, &plain(amount));
        }
    }
}

fn probe(probe: &Value) -> String {
    let seconds = |field: &str, default: i64| probe[field].as_i64().unwrap_or(default);
    let attributes = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        seconds("initialDelaySeconds", 0),
        seconds("timeoutSeconds", 1),
        seconds("periodSeconds", 10),
        seconds("successThreshold", 1),
        seconds("failureThreshold", 3)
    );
    if !probe["exec"].is_null() {
        return format!(
            "exec {} {attributes}",
            super::text::bracketed(&probe["exec"]["command"])
        );
    }
    if !probe["httpGet"].is_null() {
        let get = &probe["httpGet"];
        let scheme = get["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
        return format!(
            "http-get {scheme}://{}:{}{} {attributes}",
            str_of(&get["host"]),
            plain(&get["port"]),
            str_of(&get["path"])
        );
    }
    if !probe["tcpSocket"].is_null() {
        let socket = &probe["tcpSocket"];
        return format!(
            "tcp-socket {}:{} {attributes}",
            str_of(&socket["host"]),
            plain(&socket["port"])
        );
    }
    if !probe["grpc"].is_null() {
        return format!(
            "grpc <pod>:{} {} {attributes}",
            plain(&probe["grpc"]["port"]),
            str_of(&probe["grpc"]["service"])
        );
    }
    format!("unknown {attributes}")
}

fn environment(text: &mut Text, container: &Value, pod: Option<&Value>) {
    if list(&container["envFrom"]).len() > 0 {
        text.line(2, "Environment Variables from:");
        for source in list(&container["envFrom"]) {
            let (kind, reference) = match source["configMapRef"].is_null() {
                true => ("Secret", &source["secretRef"]),
                false => ("ConfigMap", &source["configMapRef"]),
            };
            let prefix = match str_of(&source["prefix"]) {
                "" => String::new(),
                prefix => format!(" with prefix '{prefix}'"),
            };
            let optional = reference["optional"] == true;
            text.line(
                3,
                &format!(
                    "{}\t{kind}{prefix}\tOptional: {optional}",
                    str_of(&reference["name"])
                ),
            );
        }
    }
    if list(&container["env"]).len() == 0 {
        return text.field(2, "Environment", "<none>");
    }
    text.line(2, "Environment:");
    for variable in list(&container["env"]) {
        let name = str_of(&variable["name"]);
        let from = &variable["valueFrom"];
        if from.is_null() {
            for (at, line) in str_of(&variable["value"]).split('\n').enumerate() {
                let name = if at == 0 {
                    format!("{name}:")
                } else {
                    String::new()
                };
                text.line(3, &format!("{name}\t{line}"));
            }
            continue;
        }
        let value = reference(from, container, pod);
        text.line(3, &format!("{name}:\t{value}"));
    }
}

/// The source of a variable's value, and the value if known.
fn reference(from: &Value, container: &Value, pod: Option<&Value>) -> String {
    if !from["fieldRef"].is_null() {
        let (version, path) = (
            str_of(&from["fieldRef"]["apiVersion"]),
            str_of(&from["fieldRef"]["fieldPath"]),
        );
        let value = pod.map(|pod| field_of(pod, path)).unwrap_or_default();
        return format!("{value} ({version}:{path})");
    }
    if !from["resourceFieldRef"].is_null() {
        let resource = str_of(&from["resourceFieldRef"]["resource"]);
        let (kind, name) = resource.split_once('.').unwrap_or((resource, ""));
        let value = match &container["resources"][kind][name] {
            Value::Null if resource.starts_with("limits.") => "node allocatable".to_owned(),
            Value::Null => "0".to_owned(),
            value => plain(value),
        };
        return format!("{value} ({resource})");
    }
    let of = |what: &str, kind: &str, reference: &Value| {
        let optional = reference["optional"] == true;
        format!(
            "<set to the key '{}' {what} {kind} '{}'>\tOptional: {optional}",
            str_of(&reference["key"]),
            str_of(&reference["name"])
        )
    };
    match from["secretKeyRef"].is_null() {
        false => of("in", "secret", &from["secretKeyRef"]),
        true => of("of", "config map", &from["configMapKeyRef"]),
    }
}

/// The value of a pod field that the downward API supports.
fn field_of(pod: &Value, path: &str) -> String {
    if let Some((map, key)) = path.split_once("['") {
        let field = map.rsplit('.').next().unwrap_or_default();
        return str_of(&pod["metadata"][field][key.trim_end_matches("']")]).to_owned();
    }
    let value = path.split('.').fold(pod, |value, field| &value[field]);
    match path {
        "status.podIPs" => list(value)
            .map(|ip| str_of(&ip["ip"]))
            .collect::<Vec<_>>()
            .join(","),
        _ => plain(value),
    }
}

fn mounts(text: &mut Text, container: &Value) {
    let mut mounts: Vec<&Value> = list(&container["volumeMounts"]).collect();
    mounts.sort_by_key(|mount| str_of(&mount["mountPath"]).to_owned());
    match mounts.is_empty() {
        true => text.field(2, "Mounts", "<none>"),
        false => text.line(2, "Mounts:"),
    }
    for mount in mounts {
        let mut flags = if mount["readOnly"] == true {
            "ro".to_owned()
        } else {
            "rw".to_owned()
        };
        if !str_of(&mount["subPath"]).is_empty() {
            flags.push_str(&format!(",path={:?}", str_of(&mount["subPath"])));
        }
        text.line(
            3,
            &format!(
                "{} from {} ({flags})",
                str_of(&mount["mountPath"]),
                str_of(&mount["name"])
            ),
        );
    }
    if list(&container["volumeDevices"]).len() > 0 {
        text.line(2, "Devices:");
        for device in list(&container["volumeDevices"]) {
            text.line(
                3,
                &format!(
                    "{} from {}",
                    str_of(&device["devicePath"]),
                    str_of(&device["name"])
                ),
            );
        }
    }
}
