//! The identity of an object during a build: group, version, kind, name and namespace.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::json::str_of;

/// Cluster-scoped kinds. Unlisted kinds, such as custom resources, count as namespaced.
const CLUSTER_SCOPED: &[(&str, &[&str])] = &[
    (
        "",
        &["ComponentStatus", "Namespace", "Node", "PersistentVolume"],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    (
        "certificates.k8s.io",
        &["CertificateSigningRequest", "ClusterTrustBundle"],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        &["FlowSchema", "PriorityLevelConfiguration"],
    ),
    (
        "networking.k8s.io",
        &["IngressClass", "IPAddress", "ServiceCIDR"],
    ),
    ("node.k8s.io", &["RuntimeClass"]),
    ("policy", &["PodSecurityPolicy"]),
    (
        "rbac.authorization.k8s.io",
        &["ClusterRole", "ClusterRoleBinding"],
    ),
    (
        "resource.k8s.io",
        &["DeviceClass", "DeviceTaintRule", "ResourceSlice"],
    ),
    ("scheduling.k8s.io", &["PriorityClass"]),
    (
        "storage.k8s.io",
        &[
            "CSIDriver",
            "CSINode",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttributesClass",
        ],
    ),
];

/// The namespace used to compare cluster-scoped objects.
const NO_NAMESPACE: &str = "_non_namespaceable_";

/// Group, version and kind; empty parts of a selector match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Gvk {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Gvk {
    pub(super) fn from_object(object: &Value) -> Self {
        Self::new(str_of(&object["apiVersion"]), str_of(&object["kind"]))
    }

    pub(super) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        }
    }

    pub(super) fn kind(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn is_selected(&self, selector: &Self) -> bool {
        let fits = |own: &str, wanted: &str| wanted.is_empty() || own == wanted;
        fits(&self.group, &selector.group)
            && fits(&self.version, &selector.version)
            && fits(&self.kind, &selector.kind)
    }

    pub(super) fn is_cluster_scoped(&self) -> bool {
        CLUSTER_SCOPED
            .iter()
            .any(|(group, kinds)| *group == self.group && kinds.contains(&self.kind.as_str()))
    }

    /// The sort key of equal ranks: `apps_v1_Deployment`.
    pub(super) fn sort_key(&self) -> String {
        let or = |text: &str, other: &str| {
            if text.is_empty() {
                other.to_owned()
            } else {
                text.to_owned()
            }
        };
        format!(
            "{}_{}_{}",
            or(&self.group, "~G"),
            or(&self.version, "~V"),
            or(&self.kind, "~K")
        )
    }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or = |text: &'_ str, other: &'static str| {
            if text.is_empty() {
                other.to_owned()
            } else {
                text.to_owned()
            }
        };
        write!(
            f,
            "{}.{}.{}",
            or(&self.kind, "[noKind]"),
            or(&self.version, "[noVer]"),
            or(&self.group, "[noGrp]")
        )
    }
}

/// An object's full name; empty parts of a selector match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Id {
    #[serde(flatten)]
    pub gvk: Gvk,
    pub name: String,
    pub namespace: String,
}

impl Id {
    pub(super) fn from_object(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self {
            gvk: Gvk::from_object(object),
            name: str_of(&metadata["name"]).to_owned(),
            namespace: str_of(&metadata["namespace"]).to_owned(),
        }
    }

    /// Objects without a namespace are treated as in `default`.
    pub(super) fn effective_namespace(&self) -> &str {
        if self.gvk.is_cluster_scoped() {
            return NO_NAMESPACE;
        }
        match self.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.gvk == other.gvk
            && self.name == other.name
            && self.effective_namespace() == other.effective_namespace()
    }

    pub(super) fn is_selected(&self, selector: &Self) -> bool {
        (selector.name.is_empty() || selector.name == self.name)
            && (selector.namespace.is_empty()
                || selector.effective_namespace() == self.effective_namespace())
            && self.gvk.is_selected(&selector.gvk)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.name.as_str() {
            "" => "[noName]",
            name => name,
        };
        let namespace = match self.namespace.as_str() {
            "" => "[noNs]",
            namespace => namespace,
        };
        write!(f, "{}/{name}.{namespace}", self.gvk)
    }
}
