//! Containers: configuration, state, last state and reasons.

use machinery::quantity::Quantity;
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
        let host = match str_of(&get["host"]) {
            address if address.contains(':') => format!("[{address}]"),
            host => host.to_owned(),
        };
        return format!(
            "http-get {scheme}://{host}:{}{} {attributes}",
            plain(&get["port"]),
            url_path(str_of(&get["path"]))
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

/// A path in a URL, as Go writes it: a query in the path is part of it.
fn url_path(path: &str) -> String {
    let slash = match path.starts_with('/') || path.is_empty() {
        true => "",
        false => "/",
    };
    // These need no escapes in a path.
    format!("{slash}{}", stdx::percent::encode(path, "/$&+,:;=@"))
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
        let known = [
            "fieldRef",
            "resourceFieldRef",
            "secretKeyRef",
            "configMapKeyRef",
        ];
        if known.iter().any(|field| from[*field].is_object()) {
            let value = reference(from, container, pod);
            text.line(3, &format!("{name}:\t{value}"));
        }
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
        let value = resource_value(&from["resourceFieldRef"], container);
        let resource = str_of(&from["resourceFieldRef"]["resource"]);
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

/// The container's resource in units of the divisor, rounded up.
fn resource_value(from: &Value, container: &Value) -> String {
    let resource = str_of(&from["resource"]);
    let (kind, name) = resource.split_once('.').unwrap_or((resource, ""));
    let known = ["cpu", "memory", "ephemeral-storage"];
    if !(known.contains(&name) || name.starts_with("hugepages-")) {
        return String::new();
    }
    let quantity = |value: &Value| plain(value).parse().unwrap_or(Quantity::ZERO);
    let amount: Quantity = quantity(&container["resources"][kind][name]);
    let divisor: Quantity = quantity(&from["divisor"]);
    let (amount, one) = match name {
        "cpu" => (amount.millis(), 1000),
        _ => (amount.value(), 1),
    };
    let unit = match name {
        _ if divisor.is_zero() => one,
        "cpu" => divisor.millis(),
        _ => divisor.value(),
    };
    let amount = amount as f64 / unit as f64;
    match (amount.ceil() as i64, resource) {
        (0, "limits.cpu" | "limits.memory") => "node allocatable".to_owned(),
        (amount, _) => amount.to_string(),
    }
}

/// The value of a field of the pod; upstream knows these alone.
fn field_of(pod: &Value, path: &str) -> String {
    match path {
        "metadata.name" | "metadata.namespace" => {
            str_of(&pod["metadata"][path.trim_start_matches("metadata.")]).to_owned()
        }
        _ => String::new(),
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
    let mut devices: Vec<&Value> = list(&container["volumeDevices"]).collect();
    devices.sort_by_key(|device| str_of(&device["devicePath"]).to_owned());
    if !devices.is_empty() {
        // Upstream says here, too, that there are no mounts.
        match list(&container["volumeMounts"]).len() {
            0 => text.field(2, "Devices", "<none>"),
            _ => text.line(2, "Devices:"),
        }
        for device in devices {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_url_of_a_probe_has_escapes_and_brackets_as_go_writes_it() {
        for (host, path, expected) in [
            ("", "/healthz", "http://:8080/healthz"),
            ("", "/a?full=true", "http://:8080/a%3Ffull=true"),
            ("", "ready", "http://:8080/ready"),
            ("2001:db8::1", "/", "http://[2001:db8::1]:8080/"),
        ] {
            let shown = probe(&json!({"httpGet": {"host": host, "path": path, "port": 8080}}));
            assert!(
                shown.starts_with(&format!("http-get {expected} delay=0s")),
                "{shown}"
            );
        }
    }

    #[test]
    fn variables_have_the_values_that_upstream_knows() {
        let container = json!({"resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}});
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}});
        let resource = |name: &str, divisor: &str| json!({"resourceFieldRef": {"resource": name, "divisor": divisor}});
        let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
        for (from, expected) in [
            (resource("limits.cpu", "0"), "2 (limits.cpu)"),
            (resource("limits.cpu", "1m"), "1500 (limits.cpu)"),
            (resource("limits.memory", "0"), "67108864 (limits.memory)"),
            (resource("limits.memory", "1Mi"), "64 (limits.memory)"),
            (resource("requests.cpu", "0"), "0 (requests.cpu)"),
            (
                resource("limits.ephemeral-storage", "0"),
                "0 (limits.ephemeral-storage)",
            ),
            (field("metadata.name"), "p (v1:metadata.name)"),
            (field("metadata.uid"), " (v1:metadata.uid)"),
            (field("spec.nodeName"), " (v1:spec.nodeName)"),
        ] {
            assert_eq!(reference(&from, &container, Some(&pod)), expected);
        }
        let none = json!({});
        let from = resource("limits.memory", "0");
        let expected = "node allocatable (limits.memory)";
        assert_eq!(reference(&from, &none, Some(&pod)), expected);
    }

    #[test]
    fn devices_are_sorted() {
        let mut text = Text::default();
        let device = |path: &str| json!({"devicePath": path, "name": "d"});
        mounts(
            &mut text,
            &json!({"volumeDevices": [device("/dev/b"), device("/dev/a")]}),
        );
        assert_eq!(
            text.with_tabs(),
            "    Mounts:\t<none>\n    Devices:\t<none>\n      /dev/a from d\n      /dev/b from d\n"
        );
    }
}
