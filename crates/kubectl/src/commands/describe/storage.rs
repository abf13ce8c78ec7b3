//! Persistent volume claims, persistent volumes, their classes, and the drivers of a node.

use anyhow::Result;
use serde_json::Value;

use crate::{
    json::{list, str_of},
    session::Session,
};

use super::{
    text::{Text, bracketed, format_labels, plain, since, time},
    volume,
};

/// `RWO,RWX`, in upstream's order.
fn access_modes(value: &Value) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| list(value).any(|one| one == mode);
    let modes = SHORT.iter().filter(|(mode, _)| has(mode));
    let short: Vec<&str> = modes.map(|(_, short)| *short).collect();
    short.join(",")
}

/// The class of a claim or a volume: the deprecated annotation takes precedence.
pub(super) fn class_name(object: &Value) -> &str {
    let annotations = &object["metadata"]["annotations"];
    match str_of(&annotations["volume.beta.kubernetes.io/storage-class"]) {
        "" => str_of(&object["spec"]["storageClassName"]),
        named => named,
    }
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

pub(super) async fn claim(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text.head(object);
    text.field(0, "StorageClass", class_name(object));
    status(text, object);
    text.field(0, "Volume", str_of(&spec["volumeName"]));
    text.maps(object);
    text.field(0, "Finalizers", &bracketed(&metadata["finalizers"]));
    let is_bound = !str_of(&spec["volumeName"]).is_empty();
    let capacity = if is_bound {
        capacity_of(&object["status"])
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
    data_source(text, 0, &spec["dataSource"]);
    let pods = session
        .api
        .items(&format!(
            "/api/v1/namespaces/{}/pods",
            str_of(&metadata["namespace"])
        ))
        .await?;
    // Pods own the claims of their ephemeral volumes.
    let owns = |pod: &Value| {
        let mut owners = list(&metadata["ownerReferences"]);
        owners.any(|owner| owner["kind"] == "Pod" && owner["uid"] == pod["metadata"]["uid"])
    };
    let uses = |pod: &&Value| {
        let mut volumes = list(&pod["spec"]["volumes"]);
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == metadata["name"])
            || owns(pod)
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

/// What a claim is filled with.
pub(super) fn data_source(text: &mut Text, level: usize, source: &Value) {
    if !source.is_null() {
        text.line(level, "DataSource:");
        text.optional(level + 1, "APIGroup", &source["apiGroup"]);
        text.field(level + 1, "Kind", str_of(&source["kind"]));
        text.field(level + 1, "Name", str_of(&source["name"]));
    }
}

/// The capacity of a volume; none is 0.
fn capacity_of(from: &Value) -> String {
    match &from["capacity"]["storage"] {
        Value::Null => "0".to_owned(),
        storage => plain(storage),
    }
}

pub(super) fn volume(text: &mut Text, object: &Value) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text.field(0, "Name", str_of(&metadata["name"]));
    text.maps(object);
    text.field(0, "Finalizers", &bracketed(&metadata["finalizers"]));
    text.field(0, "StorageClass", class_name(object));
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
    text.field(0, "Capacity", &capacity_of(spec));
    node_affinity(text, &spec["nodeAffinity"]);
    text.field(0, "Message", str_of(&object["status"]["message"]));
    text.line(0, "Source:");
    volume::persistent(text, spec);
}

fn node_affinity(text: &mut Text, affinity: &Value) {
    let required = &affinity["required"];
    if required.is_null() {
        return text.field(0, "Node Affinity", "<none>");
    }
    text.field(0, "Node Affinity", "");
    text.field(1, "Required Terms", "");
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

pub(super) fn class(text: &mut Text, object: &Value) {
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
        &format_labels(&object["metadata"]["annotations"]),
    );
    text.field(0, "Provisioner", str_of(&object["provisioner"]));
    text.field(0, "Parameters", &format_labels(&object["parameters"]));
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
    allowed_topologies(text, &object["allowedTopologies"]);
}

fn allowed_topologies(text: &mut Text, terms: &Value) {
    if terms.is_null() {
        return;
    }
    if list(terms).len() == 0 {
        return text.field(0, "AllowedTopologies", "<none>");
    }
    text.field(0, "AllowedTopologies", "");
    for (at, term) in list(terms).enumerate() {
        let expression = |term: &Value| {
            let values: Vec<&str> = list(&term["values"]).map(str_of).collect();
            format!("{} in [{}]", str_of(&term["key"]), values.join(", "))
        };
        let expressions: Vec<String> = list(&term["matchLabelExpressions"])
            .map(expression)
            .collect();
        if expressions.is_empty() {
            text.field(1, &format!("Term {at}"), "<none>");
        }
        for (index, line) in expressions.iter().enumerate() {
            match index {
                0 => text.field(1, &format!("Term {at}"), line),
                _ => text.line(1, &format!("\t{line}")),
            }
        }
    }
}

pub(super) fn attributes_class(text: &mut Text, object: &Value) {
    let metadata = &object["metadata"];
    text.field(0, "Name", str_of(&metadata["name"]));
    text.field(0, "Annotations", &format_labels(&metadata["annotations"]));
    text.field(0, "DriverName", str_of(&object["driverName"]));
    text.field(0, "Parameters", &format_labels(&object["parameters"]));
}

/// The CSI drivers of a node.
pub(super) fn csi_node(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    let created = &object["metadata"]["creationTimestamp"];
    text.field(0, "CreationTimestamp", &time(created));
    text.line(0, "Spec:");
    let drivers = &object["spec"]["drivers"];
    if drivers.is_null() {
        return;
    }
    text.line(1, "Drivers:");
    for driver in list(drivers) {
        text.line(2, &format!("{}:", str_of(&driver["name"])));
        text.field(3, "Node ID", str_of(&driver["nodeID"]));
        let count = &driver["allocatable"]["count"];
        if !count.is_null() {
            text.line(3, "Allocatables:");
            text.field(4, "Count", &plain(count));
        }
        if !driver["topologyKeys"].is_null() {
            text.field(3, "Topology Keys", &bracketed(&driver["topologyKeys"]));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described(describe: fn(&mut Text, &Value), object: Value) -> String {
        let mut text = Text::default();
        describe(&mut text, &object);
        text.finish()
    }

    #[test]
    fn a_csi_node_shows_its_drivers_with_limits_and_topology() {
        let object = json!({"metadata": {"name": "n1", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"drivers": [
                {"name": "a.io", "nodeID": "n", "allocatable": {"count": 10},
                 "topologyKeys": ["t/rack", "t/zone"]},
                {"name": "b.io", "nodeID": "n", "topologyKeys": null}]}});
        assert_eq!(
            described(csi_node, object),
            "Name:               n1\nLabels:             <none>\nAnnotations:        <none>\n\
             CreationTimestamp:  Fri, 02 Jan 2026 03:04:05 +0000\nSpec:\n  Drivers:\n    a.io:\n      \
             Node ID:  n\n      Allocatables:\n        Count:        10\n      \
             Topology Keys:  [t/rack t/zone]\n    b.io:\n      Node ID:  n\n"
        );
    }

    #[test]
    fn classes_show_their_parameters_and_topologies() {
        let object = json!({"metadata": {"name": "gold"}, "driverName": "a.io",
            "parameters": {"iops": "3000"}});
        assert_eq!(
            described(attributes_class, object),
            "Name:         gold\nAnnotations:  <none>\nDriverName:   a.io\nParameters:   iops=3000\n"
        );
        let object = json!({"metadata": {"name": "fast"}, "provisioner": "a.io",
            "allowedTopologies": [{"matchLabelExpressions": [
                {"key": "zone", "values": ["a", "b"]}, {"key": "rack", "values": ["1"]}]}]});
        let text = described(class, object);
        assert!(
            text.ends_with("AllowedTopologies:     \n  Term 0:              zone in [a, b]\n                       rack in [1]\n"),
            "{text:?}"
        );
    }

    #[test]
    fn access_modes_have_upstreams_order() {
        let modes = json!([
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteMany",
            "ReadOnlyMany"
        ]);
        assert_eq!(access_modes(&modes), "RWO,ROX,RWX");
    }

    #[test]
    fn the_annotation_of_old_clients_names_the_class() {
        let object = json!({"metadata": {"annotations": {
            "volume.beta.kubernetes.io/storage-class": "old"}}, "spec": {"storageClassName": "new"}});
        assert_eq!(class_name(&object), "old");
        assert_eq!(
            class_name(&json!({"spec": {"storageClassName": "new"}})),
            "new"
        );
    }
}
