//! Persistent volume claims, persistent volumes and storage classes.

use anyhow::Result;
use serde_json::Value;

use crate::{
    json::{list, str_of},
    output::table,
    session::Session,
};

use super::{
    text::{Text, bracketed, plain, since},
    volume,
};

/// `RWO,RWX`
fn access_modes(value: &Value) -> String {
    let short = |mode: &Value| match str_of(mode) {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    let mut modes: Vec<&str> = Vec::new();
    for mode in list(value).map(short).filter(|mode| !mode.is_empty()) {
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    modes.join(",")
}

fn status(text: &mut Text, object: &Value) {
    match object["metadata"]["deletionTimestamp"].is_null() {
        true => text.field(0, "Status", str_of(&object["status"]["phase"])),
        false => text.field(
            0,
            "Status",
            &format!(
                "Terminating (lasts {})",
                since(&object["metadata"]["deletionTimestamp"])
            ),
        ),
    }
}

pub async fn claim(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text.head(object);
    text.field(0, "StorageClass", str_of(&spec["storageClassName"]));
    status(text, object);
    text.field(0, "Volume", str_of(&spec["volumeName"]));
    text.maps(object);
    text.field(0, "Finalizers", &bracketed(&metadata["finalizers"]));
    let is_bound = !str_of(&spec["volumeName"]).is_empty();
    let capacity = if is_bound {
        plain(&object["status"]["capacity"]["storage"])
    } else {
        String::new()
    };
    let modes = if is_bound {
        access_modes(&object["status"]["accessModes"])
    } else {
        String::new()
    };
    text.field(0, "Capacity", &capacity);
    text.field(0, "Access Modes", &modes);
    text.optional(0, "VolumeMode", &spec["volumeMode"]);
    if !spec["dataSource"].is_null() {
        text.line(0, "DataSource:");
        text.optional(1, "APIGroup", &spec["dataSource"]["apiGroup"]);
        text.field(1, "Kind", str_of(&spec["dataSource"]["kind"]));
        text.field(1, "Name", str_of(&spec["dataSource"]["name"]));
    }
    let pods = session
        .api
        .items(&format!(
            "/api/v1/namespaces/{}/pods",
            str_of(&metadata["namespace"])
        ))
        .await?;
    let uses = |pod: &&Value| {
        list(&pod["spec"]["volumes"])
            .any(|volume| volume["persistentVolumeClaim"]["claimName"] == metadata["name"])
    };
    let mut names: Vec<String> = pods
        .iter()
        .filter(uses)
        .map(|pod| str_of(&pod["metadata"]["name"]).to_owned())
        .collect();
    names.sort();
    text.lines("Used By", names);
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("LastProbeTime", "lastProbeTime"),
        ("LastTransitionTime", "lastTransitionTime"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    text.conditions(&object["status"]["conditions"], &columns, " ");
    Ok(())
}

pub fn volume(text: &mut Text, object: &Value) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text.field(0, "Name", str_of(&metadata["name"]));
    text.maps(object);
    text.field(0, "Finalizers", &bracketed(&metadata["finalizers"]));
    text.field(0, "StorageClass", str_of(&spec["storageClassName"]));
    status(text, object);
    let claim = match spec["claimRef"].is_null() {
        true => String::new(),
        false => format!(
            "{}/{}",
            str_of(&spec["claimRef"]["namespace"]),
            str_of(&spec["claimRef"]["name"])
        ),
    };
    text.field(0, "Claim", &claim);
    text.field(
        0,
        "Reclaim Policy",
        str_of(&spec["persistentVolumeReclaimPolicy"]),
    );
    text.field(0, "Access Modes", &access_modes(&spec["accessModes"]));
    text.optional(0, "VolumeMode", &spec["volumeMode"]);
    text.field(0, "Capacity", &plain(&spec["capacity"]["storage"]));
    node_affinity(text, &spec["nodeAffinity"]);
    text.field(0, "Message", str_of(&object["status"]["message"]));
    text.line(0, "Source:");
    volume::source(text, spec);
}

fn node_affinity(text: &mut Text, affinity: &Value) {
    let required = &affinity["required"];
    if required.is_null() {
        return text.field(0, "Node Affinity", "<none>");
    }
    text.line(0, "Node Affinity:");
    text.line(1, "Required Terms:");
    for (at, term) in list(&required["nodeSelectorTerms"]).enumerate() {
        let expression = |term: &Value| {
            let values: Vec<&str> = list(&term["values"]).map(str_of).collect();
            let operator = str_of(&term["operator"]).to_lowercase();
            match values.is_empty() {
                true => format!("{} {operator}", str_of(&term["key"])),
                false => format!(
                    "{} {operator} [{}]",
                    str_of(&term["key"]),
                    values.join(", ")
                ),
            }
        };
        let expressions: Vec<String> = list(&term["matchExpressions"]).map(expression).collect();
        if expressions.is_empty() {
            text.line(2, &format!("Term {at}:\t<none>"));
        }
        for (index, line) in expressions.iter().enumerate() {
            let title = if index == 0 {
                format!("Term {at}:")
            } else {
                String::new()
            };
            text.line(2, &format!("{title}\t{line}"));
        }
    }
}

pub fn class(text: &mut Text, object: &Value) {
    let is_default = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ]
    .iter()
    .any(|key| object["metadata"]["annotations"][*key] == "true");
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.field(0, "IsDefaultClass", if is_default { "Yes" } else { "No" });
    text.field(
        0,
        "Annotations",
        &table::labels(&object["metadata"]["annotations"]),
    );
    text.field(0, "Provisioner", str_of(&object["provisioner"]));
    text.field(0, "Parameters", &table::labels(&object["parameters"]));
    let expansion = match object["allowVolumeExpansion"].as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    text.field(0, "AllowVolumeExpansion", expansion);
    match list(&object["mountOptions"]).len() {
        0 => text.field(0, "MountOptions", "<none>"),
        _ => {
            text.line(0, "MountOptions:");
            list(&object["mountOptions"]).for_each(|option| text.line(1, str_of(option)));
        }
    }
    text.optional(0, "ReclaimPolicy", &object["reclaimPolicy"]);
    text.optional(0, "VolumeBindingMode", &object["volumeBindingMode"]);
}
