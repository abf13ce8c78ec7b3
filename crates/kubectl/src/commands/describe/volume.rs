//! Volumes of pods and sources of persistent volumes.

use machinery::quantity::Quantity;
use serde_json::Value;

use crate::json::{entries, list, str_of};

use super::{
    storage,
    text::{Text, plain, shortened},
};

/// How a field of a source is shown.
#[derive(Debug, Clone, Copy)]
enum Show {
    Text,
    /// The value, or this.
    Or(&'static str),
    /// Zero if absent.
    Number,
    /// `false` if absent.
    Bool,
    /// `[a b]`
    List,
    /// `a, b`
    Joined,
    /// A reference to an object in the same namespace, as Go prints it.
    Local,
    /// A reference with a namespace, as Go prints it.
    Secret,
    /// `map[a:b]`
    Map,
    /// A size; zero is unset.
    Size,
}

use Show::{Bool, Joined, List, Local, Map, Number, Or, Secret, Size, Text as Plain};

/// A volume source: its field, its name, and which of its fields are shown.
type Kind = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, Show)],
);

const READ_ONLY: (&str, &str, Show) = ("ReadOnly", "readOnly", Bool);
const FS_TYPE: (&str, &str, Show) = ("FSType", "fsType", Plain);
const OPTIONAL: (&str, &str, Show) = ("Optional", "optional", Bool);

const KINDS: &[Kind] = &[
    (
        "hostPath",
        "HostPath (bare host directory volume)",
        &[
            ("Path", "path", Plain),
            ("HostPathType", "type", Or("<none>")),
        ],
    ),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[
            ("Medium", "medium", Plain),
            ("SizeLimit", "sizeLimit", Size),
        ],
    ),
    (
        "gcePersistentDisk",
        "GCEPersistentDisk (a Persistent Disk resource in Google Compute Engine)",
        &[
            ("PDName", "pdName", Plain),
            FS_TYPE,
            ("Partition", "partition", Number),
            READ_ONLY,
        ],
    ),
    (
        "awsElasticBlockStore",
        "AWSElasticBlockStore (a Persistent Disk resource in AWS)",
        &[
            ("VolumeID", "volumeID", Plain),
            FS_TYPE,
            ("Partition", "partition", Number),
            READ_ONLY,
        ],
    ),
    (
        "gitRepo",
        "GitRepo (a volume that is pulled from git when the pod is created)",
        &[
            ("Repository", "repository", Plain),
            ("Revision", "revision", Plain),
        ],
    ),
    (
        "secret",
        "Secret (a volume populated by a Secret)",
        &[("SecretName", "secretName", Plain), OPTIONAL],
    ),
    (
        "configMap",
        "ConfigMap (a volume populated by a ConfigMap)",
        &[("Name", "name", Plain), OPTIONAL],
    ),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[
            ("Server", "server", Plain),
            ("Path", "path", Plain),
            READ_ONLY,
        ],
    ),
    (
        "iscsi",
        "ISCSI (an ISCSI Disk resource that is attached to a kubelet's host machine and then exposed to the pod)",
        &[
            ("TargetPortal", "targetPortal", Plain),
            ("IQN", "iqn", Plain),
            ("Lun", "lun", Number),
            // Upstream's label has no colon.
            ("ISCSIInterface\t", "iscsiInterface", Plain),
            FS_TYPE,
            READ_ONLY,
            ("Portals", "portals", List),
            ("DiscoveryCHAPAuth", "chapAuthDiscovery", Bool),
            ("SessionCHAPAuth", "chapAuthSession", Bool),
            ("SecretRef", "secretRef", Local),
            ("InitiatorName", "initiatorName", Or("<none>")),
        ],
    ),
    (
        "glusterfs",
        "Glusterfs (a Glusterfs mount on the host that shares a pod's lifetime)",
        &[
            ("EndpointsName", "endpoints", Plain),
            ("Path", "path", Plain),
            READ_ONLY,
        ],
    ),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[("ClaimName", "claimName", Plain), READ_ONLY],
    ),
    (
        "rbd",
        "RBD (a Rados Block Device mount on the host that shares a pod's lifetime)",
        &[
            ("CephMonitors", "monitors", List),
            ("RBDImage", "image", Plain),
            FS_TYPE,
            ("RBDPool", "pool", Plain),
            ("RadosUser", "user", Plain),
            ("Keyring", "keyring", Plain),
            ("SecretRef", "secretRef", Local),
            READ_ONLY,
        ],
    ),
    (
        "quobyte",
        "Quobyte (a Quobyte mount on the host that shares a pod's lifetime)",
        &[
            ("Registry", "registry", Plain),
            ("Volume", "volume", Plain),
            READ_ONLY,
        ],
    ),
    (
        "azureDisk",
        "AzureDisk (an Azure Data Disk mount on the host and bind mount to the pod)",
        &[
            ("DiskName", "diskName", Plain),
            ("DiskURI", "diskURI", Plain),
            ("Kind: \t", "kind", Plain),
            FS_TYPE,
            ("CachingMode", "cachingMode", Plain),
            READ_ONLY,
        ],
    ),
    (
        "vsphereVolume",
        "vSphereVolume (a Persistent Disk resource in vSphere)",
        &[
            ("VolumePath", "volumePath", Plain),
            FS_TYPE,
            ("StoragePolicyName", "storagePolicyName", Plain),
        ],
    ),
    (
        "cinder",
        "Cinder (a Persistent Disk resource in OpenStack)",
        &[
            ("VolumeID", "volumeID", Plain),
            FS_TYPE,
            READ_ONLY,
            ("SecretRef", "secretRef", Local),
        ],
    ),
    (
        "photonPersistentDisk",
        "PhotonPersistentDisk (a Persistent Disk resource in photon platform)",
        &[("PdID", "pdID", Plain), FS_TYPE],
    ),
    (
        "portworxVolume",
        "PortworxVolume (a Portworx Volume resource)",
        &[("VolumeID", "volumeID", Plain)],
    ),
    (
        "scaleIO",
        "ScaleIO (a persistent volume backed by a block device in ScaleIO)",
        &[
            ("Gateway", "gateway", Plain),
            ("System", "system", Plain),
            ("Protection Domain", "protectionDomain", Plain),
            ("Storage Pool", "storagePool", Plain),
            ("Storage Mode", "storageMode", Plain),
            ("VolumeName", "volumeName", Plain),
            FS_TYPE,
            READ_ONLY,
        ],
    ),
    (
        "cephfs",
        "CephFS (a CephFS mount on the host that shares a pod's lifetime)",
        &[
            ("Monitors", "monitors", List),
            ("Path", "path", Plain),
            ("User", "user", Plain),
            ("SecretFile", "secretFile", Plain),
            ("SecretRef", "secretRef", Local),
            READ_ONLY,
        ],
    ),
    (
        "storageos",
        "StorageOS (a StorageOS Persistent Disk resource)",
        &[
            ("VolumeName", "volumeName", Plain),
            ("VolumeNamespace", "volumeNamespace", Plain),
            FS_TYPE,
            READ_ONLY,
        ],
    ),
    (
        "fc",
        "FC (a Fibre Channel disk)",
        &[
            ("TargetWWNs", "targetWWNs", Joined),
            ("LUN", "lun", Or("<none>")),
            FS_TYPE,
            READ_ONLY,
        ],
    ),
    (
        "azureFile",
        "AzureFile (an Azure File Service mount on the host and bind mount to the pod)",
        &[
            ("SecretName", "secretName", Plain),
            ("ShareName", "shareName", Plain),
            READ_ONLY,
        ],
    ),
    (
        "flexVolume",
        "FlexVolume (a generic volume resource that is provisioned/attached using an exec based plugin)",
        &[
            ("Driver", "driver", Plain),
            FS_TYPE,
            ("SecretRef", "secretRef", Local),
            READ_ONLY,
            ("Options", "options", Map),
        ],
    ),
    (
        "flocker",
        "Flocker (a Flocker volume mounted by the Flocker agent)",
        &[
            ("DatasetName", "datasetName", Plain),
            ("DatasetUUID", "datasetUUID", Plain),
        ],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[("Driver", "driver", Plain), FS_TYPE, READ_ONLY],
    ),
    (
        "local",
        "LocalVolume (a persistent volume backed by local storage on a node)",
        &[("Path", "path", Plain)],
    ),
    (
        "image",
        "Image (a container image or OCI artifact)",
        &[
            ("Reference", "reference", Plain),
            ("PullPolicy", "pullPolicy", Plain),
        ],
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

/// Fields that only sources of persistent volumes have, each with the label before it.
const OF_PERSISTENT_VOLUMES: &[(&str, &str, (&str, &str, Show))] = &[
    ("csi", "FSType", ("VolumeHandle", "volumeHandle", Plain)),
    (
        "glusterfs",
        "EndpointsName",
        ("EndpointsNamespace", "endpointsNamespace", Or("<unset>")),
    ),
    (
        "azureFile",
        "SecretName",
        ("SecretNamespace", "secretNamespace", Plain),
    ),
];

/// The source of a pod's volume.
fn source(text: &mut Text, volume: &Value) {
    if !volume["projected"].is_null() {
        return projected(text, &volume["projected"]);
    }
    if !volume["downwardAPI"].is_null() {
        return downward(text, &volume["downwardAPI"]);
    }
    if !volume["ephemeral"].is_null() {
        return ephemeral(text, &volume["ephemeral"]["volumeClaimTemplate"]);
    }
    fields(text, volume, false);
}

/// The source of a persistent volume.
pub(super) fn persistent(text: &mut Text, spec: &Value) {
    fields(text, spec, true);
}

fn fields(text: &mut Text, volume: &Value, is_persistent: bool) {
    let found = KINDS.iter().find(|(field, _, _)| !volume[*field].is_null());
    let Some((field, name, shown)) = found else {
        return text.line(1, "<unknown>");
    };
    let source = &volume[*field];
    text.field(2, "Type", name);
    for one in *shown {
        put(text, source, one, is_persistent);
        let mut more = OF_PERSISTENT_VOLUMES.iter().filter(|_| is_persistent);
        if let Some((_, _, more)) = more.find(|(kind, after, _)| kind == field && *after == one.0) {
            put(text, source, more, is_persistent);
        }
        if is_persistent && *field == "scaleIO" && one.0 == "VolumeName" {
            let secret = &source["secretRef"];
            text.field(2, "SecretName", str_of(&secret["name"]));
            text.field(2, "SecretNamespace", str_of(&secret["namespace"]));
        }
    }
    if *field == "csi" {
        attributes(text, &source["volumeAttributes"]);
    }
}

fn put(
    text: &mut Text,
    source: &Value,
    (label, field, show): &(&str, &str, Show),
    is_persistent: bool,
) {
    let value = &source[*field];
    // A persistent volume has no namespace: its secrets name theirs.
    let show = match show {
        Local if is_persistent => Secret,
        other => *other,
    };
    let value = shown(value, show);
    match label.ends_with('\t') {
        true => text.line(2, &format!("{label}{value}")),
        false => text.field(2, label, &value),
    }
}

fn shown(value: &Value, show: Show) -> String {
    let name = || str_of(&value["name"]);
    match show {
        Or(other) if value.is_null() => other.to_owned(),
        Number if value.is_null() => "0".to_owned(),
        Bool => (*value == true).to_string(),
        List => super::text::bracketed(value),
        Joined => list(value).map(str_of).collect::<Vec<_>>().join(", "),
        Local | Secret if value.is_null() => "nil".to_owned(),
        Local => format!("&LocalObjectReference{{Name:{},}}", name()),
        Secret => format!(
            "&SecretReference{{Name:{},Namespace:{},}}",
            name(),
            str_of(&value["namespace"])
        ),
        Map => {
            let pairs = entries(value).into_iter();
            let pairs: Vec<String> = pairs
                .map(|(key, one)| format!("{key}:{}", plain(one)))
                .collect();
            format!("map[{}]", pairs.join(" "))
        }
        Size => {
            let size = plain(value);
            let is_set = size
                .parse()
                .is_ok_and(|size: Quantity| !size.is_zero() && !size.is_negative());
            if is_set { size } else { "<unset>".to_owned() }
        }
        Plain | Or(_) | Number => plain(value),
    }
}

fn attributes(text: &mut Text, attributes: &Value) {
    let line = |(key, value): (&str, &Value)| {
        let line = format!("{key}={}", str_of(value));
        format!("    {}", shortened(&line, 140))
    };
    let lines = entries(attributes).into_iter().map(line).collect();
    text.lines("    VolumeAttributes", lines);
}

fn downward(text: &mut Text, source: &Value) {
    text.field(
        2,
        "Type",
        "DownwardAPI (a volume populated by information about the pod)",
    );
    text.line(2, "Items:");
    for item in list(&source["items"]) {
        let from = [
            &item["fieldRef"]["fieldPath"],
            &item["resourceFieldRef"]["resource"],
        ];
        let from = from.into_iter().find_map(Value::as_str).unwrap_or_default();
        text.line(3, &format!("{from} -> {}", str_of(&item["path"])));
    }
}

fn ephemeral(text: &mut Text, template: &Value) {
    text.field(2, "Type", "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)");
    if template.is_null() {
        return;
    }
    text.field(2, "StorageClass", storage::class_name(template));
    // Described as an unbound claim.
    text.field(2, "Volume", str_of(&template["spec"]["volumeName"]));
    let labels = entries(&template["metadata"]["labels"]);
    let labels = labels
        .into_iter()
        .map(|(key, value)| format!("    {key}={}", str_of(value)));
    nested(text, "Labels", labels.collect());
    let annotations = super::text::annotation_lines(&template["metadata"]["annotations"]);
    // Long values are below their keys, not indented further.
    let indented = |line: String| match line.starts_with("  ") {
        true => line,
        false => format!("    {line}"),
    };
    nested(
        text,
        "Annotations",
        annotations.into_iter().map(indented).collect(),
    );
    text.field(2, "Capacity", "");
    text.field(2, "Access Modes", "");
    text.optional(2, "VolumeMode", &template["spec"]["volumeMode"]);
    storage::data_source(text, 2, &template["spec"]["dataSource"]);
}

fn nested(text: &mut Text, name: &str, lines: Vec<String>) {
    match lines.is_empty() {
        true => text.line(2, &format!("{name}:\t    <none>")),
        false => text.lines(&format!("    {name}"), lines),
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described(volume: Value, is_persistent: bool) -> String {
        let mut text = Text::default();
        match is_persistent {
            true => persistent(&mut text, &volume),
            false => source(&mut text, &volume),
        }
        text.with_tabs()
    }

    #[test]
    fn a_source_of_a_persistent_volume_shows_more_than_that_of_a_pod() {
        let csi = json!({"csi": {"driver": "a.io", "volumeHandle": "h", "fsType": "ext4"}});
        let common = "    Type:\tCSI (a Container Storage Interface (CSI) volume source)\n    Driver:\ta.io\n    FSType:\text4\n";
        let end = "    ReadOnly:\tfalse\n    VolumeAttributes:\t<none>\n";
        assert_eq!(described(csi.clone(), false), format!("{common}{end}"));
        let handle = "    VolumeHandle:\th\n";
        assert_eq!(described(csi, true), format!("{common}{handle}{end}"));
        let cinder =
            |reference: Value| json!({"cinder": {"volumeID": "v", "secretRef": reference}});
        for (volume, is_persistent, expected) in [
            (cinder(Value::Null), false, "nil"),
            (
                cinder(json!({"name": "s"})),
                false,
                "&LocalObjectReference{Name:s,}",
            ),
            (
                cinder(json!({"name": "s", "namespace": "n"})),
                true,
                "&SecretReference{Name:s,Namespace:n,}",
            ),
        ] {
            let text = described(volume, is_persistent);
            assert!(
                text.ends_with(&format!("    SecretRef:\t{expected}\n")),
                "{text}"
            );
        }
    }

    #[test]
    fn every_kind_of_source_is_known_by_its_field() {
        for (volume, part) in [
            (
                json!({"awsElasticBlockStore": {"volumeID": "v"}}),
                "    Partition:\t0\n",
            ),
            (
                json!({"fc": {"targetWWNs": ["a", "b"], "lun": 0}}),
                "    TargetWWNs:\ta, b\n    LUN:\t0\n",
            ),
            (
                json!({"iscsi": {"portals": ["a", "b"], "iscsiInterface": "default"}}),
                "    ISCSIInterface\tdefault\n",
            ),
            (
                json!({"flexVolume": {"options": {"b": "2", "a": "1"}}}),
                "    Options:\tmap[a:1 b:2]\n",
            ),
            (
                json!({"azureDisk": {"kind": "Shared"}}),
                "    Kind: \tShared\n",
            ),
            (
                json!({"scaleIO": {"system": "s"}}),
                "    VolumeName:\t\n    FSType:\t\n",
            ),
            (json!({"unheard": {}}), "  <unknown>\n"),
        ] {
            let text = described(volume.clone(), false);
            assert!(text.contains(part), "{volume}: {text}");
        }
    }

    #[test]
    fn a_size_limit_of_zero_is_unset_and_long_attributes_are_cut() {
        for (limit, expected) in [("0", "<unset>"), ("64Mi", "64Mi")] {
            let text = described(json!({"emptyDir": {"sizeLimit": limit}}), false);
            assert!(
                text.ends_with(&format!("    SizeLimit:\t{expected}\n")),
                "{text}"
            );
        }
        let long = json!({"csi": {"volumeAttributes": {"k": "v".repeat(200)}}});
        let text = described(long, false);
        assert!(
            text.ends_with(&format!("\t    k={}...\n", "v".repeat(138))),
            "{text}"
        );
    }
}
