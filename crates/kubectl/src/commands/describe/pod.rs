//! Pods: where they run, what their containers do and did, and why.

use serde_json::Value;

use super::text::{Text, plain};

/// The pod's own part, after its name.
pub fn body(text: &mut Text, pod: &Value) {
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    text.field("Priority", spec.get("priority").unwrap_or(&Value::from(0)));
    text.field("Service Account", &spec["serviceAccountName"]);
    let node = match (spec["nodeName"].as_str(), status["hostIP"].as_str()) {
        (Some(name), Some(address)) => format!("{name}/{address}"),
        (Some(name), None) => name.to_owned(),
        _ => "<none>".into(),
    };
    text.at(0, "Node", &node);
    text.field("Start Time", &status["startTime"]);
    text.map("Labels", &metadata["labels"]);
    text.map("Annotations", &metadata["annotations"]);
    let deleted = metadata["deletionTimestamp"].as_str();
    let phase = status["phase"].as_str().unwrap_or("Pending");
    match deleted {
        Some(at) => text.at(0, "Status", &format!("Terminating (since {at})")),
        None => text.at(0, "Status", phase),
    }
    for (name, field) in [("Reason", "reason"), ("Message", "message")] {
        if !status[field].is_null() {
            text.field(name, &status[field]);
        }
    }
    text.field("IP", &status["podIP"]);
    if let Some(owner) =
        list(&metadata["ownerReferences"]).find(|owner| owner["controller"] == true)
    {
        text.at(
            0,
            "Controlled By",
            &format!("{}/{}", plain(&owner["kind"]), plain(&owner["name"])),
        );
    }
    containers(
        text,
        "Init Containers",
        &spec["initContainers"],
        &status["initContainerStatuses"],
    );
    containers(
        text,
        "Containers",
        &spec["containers"],
        &status["containerStatuses"],
    );
    conditions(text, &status["conditions"]);
    volumes(text, &spec["volumes"]);
    text.field("QoS Class", &status["qosClass"]);
}

fn containers(text: &mut Text, title: &str, specs: &Value, statuses: &Value) {
    if list(specs).next().is_none() {
        return;
    }
    text.line(0, &format!("{title}:"));
    for spec in list(specs) {
        let empty = Value::Null;
        let status = list(statuses)
            .find(|status| status["name"] == spec["name"])
            .unwrap_or(&empty);
        container(text, spec, status);
    }
}

fn container(text: &mut Text, spec: &Value, status: &Value) {
    text.line(1, &format!("{}:", plain(&spec["name"])));
    text.at(2, "Container ID", &plain(&status["containerID"]));
    text.at(2, "Image", &plain(&spec["image"]));
    text.at(2, "Image ID", &plain(&status["imageID"]));
    let ports: Vec<String> = list(&spec["ports"])
        .map(|port| {
            format!(
                "{}/{}",
                plain(&port["containerPort"]),
                plain(&port["protocol"])
            )
        })
        .collect();
    text.at(
        2,
        "Port",
        &if ports.is_empty() {
            "<none>".into()
        } else {
            ports.join(", ")
        },
    );
    for (name, field) in [("Command", "command"), ("Args", "args")] {
        if list(&spec[field]).next().is_some() {
            text.line(2, &format!("{name}:"));
            list(&spec[field]).for_each(|word| text.line(3, &plain(word)));
        }
    }
    state(text, "State", &status["state"]);
    if status["lastState"]
        .as_object()
        .is_some_and(|state| !state.is_empty())
    {
        state(text, "Last State", &status["lastState"]);
    }
    text.at(
        2,
        "Ready",
        if status["ready"] == true {
            "True"
        } else {
            "False"
        },
    );
    text.at(
        2,
        "Restart Count",
        &plain(status.get("restartCount").unwrap_or(&Value::from(0))),
    );
    for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let Some(amounts) = spec["resources"][field].as_object() else {
            continue;
        };
        text.line(2, &format!("{title}:"));
        amounts
            .iter()
            .for_each(|(name, amount)| text.at(3, name, &plain(amount)));
    }
    if list(&spec["env"]).next().is_none() {
        text.at(2, "Environment", "<none>");
    } else {
        text.line(2, "Environment:");
        list(&spec["env"]).for_each(|env| text.at(3, &plain(&env["name"]), &variable(env)));
    }
    text.line(2, "Mounts:");
    for mount in list(&spec["volumeMounts"]) {
        let mode = if mount["readOnly"] == true {
            "ro"
        } else {
            "rw"
        };
        let (path, name) = (plain(&mount["mountPath"]), plain(&mount["name"]));
        text.line(3, &format!("{path} from {name} ({mode})"));
    }
}

fn variable(env: &Value) -> String {
    let from = &env["valueFrom"];
    let key = |what: &str, reference: &Value| {
        format!(
            "<set to the key '{}' in {what} '{}'>",
            plain(&reference["key"]),
            plain(&reference["name"])
        )
    };
    match () {
        () if !from["configMapKeyRef"].is_null() => key("config map", &from["configMapKeyRef"]),
        () if !from["secretKeyRef"].is_null() => key("secret", &from["secretKeyRef"]),
        () if !from["fieldRef"].is_null() => plain(&from["fieldRef"]["fieldPath"]),
        () => env["value"].as_str().unwrap_or_default().to_owned(),
    }
}

fn state(text: &mut Text, title: &str, state: &Value) {
    let known = [
        ("waiting", "Waiting"),
        ("running", "Running"),
        ("terminated", "Terminated"),
    ];
    let found = known
        .into_iter()
        .find(|(field, _)| state[*field].is_object());
    let Some((field, name)) = found else {
        return text.at(2, title, "Waiting");
    };
    text.at(2, title, name);
    for (label, field) in [
        ("Reason", &state[field]["reason"]),
        ("Message", &state[field]["message"]),
        ("Exit Code", &state[field]["exitCode"]),
        ("Started", &state[field]["startedAt"]),
        ("Finished", &state[field]["finishedAt"]),
    ] {
        if !field.is_null() {
            text.at(3, label, &plain(field));
        }
    }
}

fn conditions(text: &mut Text, conditions: &Value) {
    if list(conditions).next().is_none() {
        return;
    }
    text.line(0, "Conditions:");
    text.line(1, &format!("{:<28}{}", "Type", "Status"));
    for condition in list(conditions) {
        text.line(
            1,
            &format!(
                "{:<28}{}",
                plain(&condition["type"]),
                plain(&condition["status"])
            ),
        );
    }
}

fn volumes(text: &mut Text, volumes: &Value) {
    if list(volumes).next().is_none() {
        return text.at(0, "Volumes", "<none>");
    }
    text.line(0, "Volumes:");
    for volume in list(volumes) {
        text.line(1, &format!("{}:", plain(&volume["name"])));
        let source = volume
            .as_object()
            .into_iter()
            .flatten()
            .find(|(key, _)| *key != "name");
        if let Some((kind, source)) = source {
            text.at(2, "Type", kind);
            let scalars = source.as_object().into_iter().flatten();
            for (key, value) in scalars.filter(|(_, value)| !value.is_object() && !value.is_array())
            {
                text.at(2, key, &plain(value));
            }
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
