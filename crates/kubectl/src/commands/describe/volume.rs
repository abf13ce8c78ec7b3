//! Volumes of pods and sources of persistent volumes.

use serde_json::Value;

use crate::json::{entries, list, str_of};

use super::text::{Text, plain};

/// A volume source: its field, its name, and which of its fields are shown.
type Kind = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const KINDS: &[Kind] = &[
    (
        "hostPath",
        "HostPath (bare host directory volume)",
        &[("Path", "path"), ("HostPathType", "type?none")],
    ),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[("Medium", "medium"), ("SizeLimit", "sizeLimit?unset")],
    ),
    (
        "secret",
        "Secret (a volume populated by a Secret)",
        &[("SecretName", "secretName"), ("Optional", "optional?false")],
    ),
    (
        "configMap",
        "ConfigMap (a volume populated by a ConfigMap)",
        &[("Name", "name"), ("Optional", "optional?false")],
    ),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[
            ("Server", "server"),
            ("Path", "path"),
            ("ReadOnly", "readOnly?false"),
        ],
    ),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[("ClaimName", "claimName"), ("ReadOnly", "readOnly?false")],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[
            ("Driver", "driver"),
            ("FSType", "fsType"),
            ("VolumeHandle", "volumeHandle?"),
            ("ReadOnly", "readOnly?false"),
        ],
    ),
    (
        "local",
        "LocalVolume (a persistent volume backed by local storage on a node)",
        &[("Path", "path")],
    ),
    (
        "image",
        "Image (a container image or OCI artifact)",
        &[("Reference", "reference"), ("PullPolicy", "pullPolicy")],
    ),
];

/// The volumes of a pod spec.
pub(super) fn all(text: &mut Text, volumes: &Value, space: &str) {
    if list(volumes).len() == 0 {
        return text.line(0, &format!("{space}Volumes:\t<none>"));
    }
    text.line(0, &format!("{space}Volumes:"));
    for volume in list(volumes) {
        let indent = if space.is_empty() { "" } else { " " };
        text.line(1, &format!("{indent}{}:", str_of(&volume["name"])));
        source(text, volume);
    }
}

/// The source of a volume.
pub(super) fn source(text: &mut Text, volume: &Value) {
    if !volume["projected"].is_null() {
        return projected(text, &volume["projected"]);
    }
    if !volume["downwardAPI"].is_null() {
        text.field(
            2,
            "Type",
            "DownwardAPI (a volume populated by information about the pod)",
        );
        text.line(2, "Items:");
        for item in list(&volume["downwardAPI"]["items"]) {
            let from = [
                &item["fieldRef"]["fieldPath"],
                &item["resourceFieldRef"]["resource"],
            ];
            let from = from.into_iter().find_map(Value::as_str).unwrap_or_default();
            text.line(3, &format!("{from} -> {}", str_of(&item["path"])));
        }
        return;
    }
    let Some((field, name, fields)) = KINDS.iter().find(|(field, _, _)| !volume[*field].is_null())
    else {
        return match volume["ephemeral"].is_null() {
            false => ephemeral(text, &volume["ephemeral"]["volumeClaimTemplate"]),
            true => text.line(1, "<unknown>"),
        };
    };
    text.field(2, "Type", name);
    for (label, spec) in *fields {
        let (path, default) = spec.split_once('?').unwrap_or((spec, ""));
        let value = match (&volume[*field][path], default) {
            (Value::Null, "none") => "<none>".to_owned(),
            (Value::Null, "unset") => "<unset>".to_owned(),
            (Value::Null, "") if spec.ends_with('?') => continue,
            (Value::Null, default) => default.to_owned(),
            (value, _) => plain(value),
        };
        text.field(2, label, &value);
    }
    if *field == "csi" {
        let attributes = &volume["csi"]["volumeAttributes"];
        let pairs: Vec<String> = crate::json::entries(attributes)
            .into_iter()
            .map(|(k, v)| format!("    {k}={}", str_of(v)))
            .collect();
        text.lines("    VolumeAttributes", pairs);
    }
}

fn ephemeral(text: &mut Text, template: &Value) {
    text.field(2, "Type", "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)");
    text.field(
        2,
        "StorageClass",
        str_of(&template["spec"]["storageClassName"]),
    );
    // Described as an unbound claim.
    text.field(2, "Volume", "");
    for (name, field) in [("Labels", "labels"), ("Annotations", "annotations")] {
        let lines = entries(&template["metadata"][field])
            .into_iter()
            .map(|(key, value)| match field {
                "labels" => format!("    {key}={}", str_of(value)),
                _ => format!("    {key}: {}", str_of(value)),
            })
            .collect::<Vec<_>>();
        match lines.is_empty() {
            true => text.line(2, &format!("{name}:\t    <none>")),
            false => text.lines(&format!("    {name}"), lines),
        }
    }
    text.field(2, "Capacity", "");
    text.field(2, "Access Modes", "");
    text.optional(2, "VolumeMode", &template["spec"]["volumeMode"]);
}

fn projected(text: &mut Text, projected: &Value) {
    text.field(
        2,
        "Type",
        "Projected (a volume that contains injected data from multiple sources)",
    );
    for source in list(&projected["sources"]) {
        if !source["secret"].is_null() {
            text.field(2, "SecretName", str_of(&source["secret"]["name"]));
            text.field(
                2,
                "Optional",
                if source["secret"]["optional"] == true {
                    "true"
                } else {
                    "false"
                },
            );
        } else if !source["downwardAPI"].is_null() {
            text.field(2, "DownwardAPI", "true");
        } else if !source["configMap"].is_null() {
            text.field(2, "ConfigMapName", str_of(&source["configMap"]["name"]));
            text.field(
                2,
                "Optional",
                if source["configMap"]["optional"] == true {
                    "true"
                } else {
                    "false"
                },
            );
        } else if !source["serviceAccountToken"].is_null() {
            let seconds = source["serviceAccountToken"]["expirationSeconds"]
                .as_i64()
                .unwrap_or(3600);
            text.field(2, "TokenExpirationSeconds", &seconds.to_string());
        }
    }
}
