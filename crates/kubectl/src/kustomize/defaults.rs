//! The fields of built-in kinds that transformers change, and those that reference other objects by
//! name.

use super::{
    config::{Config, NameReference},
    fieldspec::FieldSpec,
    id::Gvk,
};

/// Kinds with a pod spec, and its path.
const POD_SPECS: &[(&str, &str)] = &[
    ("Pod", "spec"),
    ("PodTemplate", "template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicaSet", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
];

/// Kinds in which references to accounts, claims and priorities are followed.
const ACCOUNT_SPECS: &[(&str, &str)] = &[
    ("Pod", "spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicationController", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
];

/// The pod template metadata of a kind: kind, group, path.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("ReplicationController", "", "spec/template/metadata"),
    ("Deployment", "", "spec/template/metadata"),
    ("ReplicaSet", "", "spec/template/metadata"),
    ("DaemonSet", "", "spec/template/metadata"),
    ("StatefulSet", "apps", "spec/template/metadata"),
    ("Job", "batch", "spec/template/metadata"),
    ("CronJob", "batch", "spec/jobTemplate/metadata"),
    (
        "CronJob",
        "batch",
        "spec/jobTemplate/spec/template/metadata",
    ),
];

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn config() -> Config {
    let metadata_labels = metadata_labels();
    let mut common_labels = selectors();
    common_labels.extend(metadata_labels.clone());
    Config {
        name_prefix: vec![FieldSpec::any("metadata/name", false)],
        name_suffix: vec![FieldSpec::any("metadata/name", false)],
        namespace: vec![
            spec("", "", "Namespace", "metadata/name", true),
            spec(
                "apiregistration.k8s.io",
                "",
                "APIService",
                "spec/service/namespace",
                true,
            ),
            spec(
                "apiextensions.k8s.io",
                "",
                "CustomResourceDefinition",
                "spec/conversion/webhook/clientConfig/service/namespace",
                false,
            ),
        ],
        common_labels,
        labels: Vec::new(),
        template_labels: metadata_labels,
        common_annotations: annotations(),
        name_reference: name_references(),
        var_reference: var_references(),
        images: [
            "spec/containers[]/image",
            "spec/initContainers[]/image",
            "spec/volumes[]/image/reference",
            "spec/template/spec/containers[]/image",
            "spec/template/spec/initContainers[]/image",
            "spec/template/spec/volumes[]/image/reference",
        ]
        .map(|path| FieldSpec::any(path, true))
        .to_vec(),
        replicas: [
            "Deployment",
            "StatefulSet",
            "ReplicaSet",
            "ReplicationController",
        ]
        .map(|kind| spec("", "", kind, "spec/replicas", true))
        .to_vec(),
    }
}

fn spec(group: &str, version: &str, kind: &str, path: &str, create: bool) -> FieldSpec {
    FieldSpec {
        gvk: Gvk {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        },
        path: path.to_owned(),
        create,
    }
}

fn metadata_labels() -> Vec<FieldSpec> {
    let mut specs = vec![FieldSpec::any("metadata/labels", true)];
    for (kind, group, path) in TEMPLATES {
        specs.push(spec(group, "", kind, &format!("{path}/labels"), true));
    }
    specs.push(spec(
        "apps",
        "",
        "StatefulSet",
        "spec/volumeClaimTemplates[]/metadata/labels",
        true,
    ));
    specs
}

fn annotations() -> Vec<FieldSpec> {
    let mut specs = vec![FieldSpec::any("metadata/annotations", true)];
    for (kind, group, path) in TEMPLATES {
        let group = if *kind == "StatefulSet" { "" } else { group };
        specs.push(spec(group, "", kind, &format!("{path}/annotations"), true));
    }
    specs
}

/// Selectors: created if a kind needs one, else only changed.
fn selectors() -> Vec<FieldSpec> {
    let mut specs = vec![
        spec("", "v1", "Service", "spec/selector", true),
        spec("", "v1", "ReplicationController", "spec/selector", true),
        spec("", "", "Deployment", "spec/selector/matchLabels", true),
        spec("", "", "ReplicaSet", "spec/selector/matchLabels", true),
        spec("", "", "DaemonSet", "spec/selector/matchLabels", true),
        spec("apps", "", "StatefulSet", "spec/selector/matchLabels", true),
    ];
    let optional = [
        ("batch", "Job", "spec/selector/matchLabels"),
        (
            "batch",
            "CronJob",
            "spec/jobTemplate/spec/selector/matchLabels",
        ),
        ("policy", "PodDisruptionBudget", "spec/selector/matchLabels"),
        (
            "networking.k8s.io",
            "NetworkPolicy",
            "spec/podSelector/matchLabels",
        ),
        (
            "networking.k8s.io",
            "NetworkPolicy",
            "spec/ingress/from/podSelector/matchLabels",
        ),
        (
            "networking.k8s.io",
            "NetworkPolicy",
            "spec/egress/to/podSelector/matchLabels",
        ),
    ];
    for (group, kind, path) in optional {
        specs.push(spec(group, "", kind, path, false));
    }
    for kind in ["Deployment", "StatefulSet"] {
        for affinity in ["podAffinity", "podAntiAffinity"] {
            for path in [
                "preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm",
                "requiredDuringSchedulingIgnoredDuringExecution",
            ] {
                let path = format!(
                    "spec/template/spec/affinity/{affinity}/{path}/labelSelector/matchLabels"
                );
                specs.push(spec("apps", "", kind, &path, false));
            }
        }
        let spread = "spec/template/spec/topologySpreadConstraints/labelSelector/matchLabels";
        specs.push(spec("apps", "", kind, spread, false));
    }
    specs
}

/// `paths` below the pod specs of `kinds`.
fn in_pods(kinds: &[(&str, &str)], paths: &[&str]) -> Vec<FieldSpec> {
    let mut specs = Vec::new();
    for (kind, pod) in kinds {
        for path in paths {
            specs.push(spec("", "", kind, &format!("{pod}/{path}"), false));
        }
    }
    specs
}

fn reference(
    (group, version, kind): (&str, &str, &str),
    mut referrers: Vec<FieldSpec>,
    more: &[(&str, &str, &str)],
) -> NameReference {
    for (group, kind, path) in more {
        referrers.push(spec(group, "", kind, path, false));
    }
    NameReference {
        target: Gvk {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        },
        referrers,
    }
}

fn name_references() -> Vec<NameReference> {
    let scaled = ("", "HorizontalPodAutoscaler", "spec/scaleTargetRef/name");
    let mut references: Vec<NameReference> = [
        "Deployment",
        "ReplicationController",
        "ReplicaSet",
        "StatefulSet",
    ]
    .iter()
    .map(|kind| reference(("", "", kind), Vec::new(), &[scaled]))
    .collect();
    references.extend([config_maps(), secrets(), services(), accounts()]);
    references.extend(rbac());
    references.extend(storage());
    references.extend([
        reference(
            ("scheduling.k8s.io", "v1", "PriorityClass"),
            in_pods(ACCOUNT_SPECS, &["priorityClassName"]),
            &[],
        ),
        reference(
            ("networking.k8s.io", "v1", "IngressClass"),
            Vec::new(),
            &[("", "Ingress", "spec/ingressClassName")],
        ),
        reference(
            (
                "admissionregistration.k8s.io",
                "",
                "ValidatingAdmissionPolicy",
            ),
            Vec::new(),
            &[(
                "admissionregistration.k8s.io",
                "ValidatingAdmissionPolicyBinding",
                "spec/policyName",
            )],
        ),
    ]);
    references
}

fn config_maps() -> NameReference {
    let paths = [
        "volumes/configMap/name",
        "containers/env/valueFrom/configMapKeyRef/name",
        "initContainers/env/valueFrom/configMapKeyRef/name",
        "containers/envFrom/configMapRef/name",
        "initContainers/envFrom/configMapRef/name",
        "volumes/projected/sources/configMap/name",
    ];
    let more = [
        ("", "Node", "spec/configSource/configMap"),
        ("", "Role", "rules/resourceNames"),
        ("", "ClusterRole", "rules/resourceNames"),
        (
            "",
            "Ingress",
            r"metadata/annotations/nginx.ingress.kubernetes.io\/fastcgi-params-configmap",
        ),
    ];
    reference(("", "v1", "ConfigMap"), in_pods(POD_SPECS, &paths), &more)
}

fn secrets() -> NameReference {
    let paths = [
        "volumes/secret/secretName",
        "containers/env/valueFrom/secretKeyRef/name",
        "initContainers/env/valueFrom/secretKeyRef/name",
        "containers/envFrom/secretRef/name",
        "initContainers/envFrom/secretRef/name",
        "imagePullSecrets/name",
        "volumes/projected/sources/secret/name",
    ];
    let more = [
        ("", "Ingress", "spec/tls/secretName"),
        (
            "",
            "Ingress",
            r"metadata/annotations/ingress.kubernetes.io\/auth-secret",
        ),
        (
            "",
            "Ingress",
            r"metadata/annotations/nginx.ingress.kubernetes.io\/auth-secret",
        ),
        (
            "",
            "Ingress",
            r"metadata/annotations/nginx.ingress.kubernetes.io\/auth-tls-secret",
        ),
        ("", "ServiceAccount", "imagePullSecrets/name"),
        ("", "StorageClass", "parameters/secretName"),
        ("", "StorageClass", "parameters/adminSecretName"),
        ("", "StorageClass", "parameters/userSecretName"),
        ("", "StorageClass", "parameters/secretRef"),
        ("", "Role", "rules/resourceNames"),
        ("", "ClusterRole", "rules/resourceNames"),
        (
            "serving.knative.dev",
            "Service",
            "spec/template/spec/containers/env/valueFrom/secretKeyRef/name",
        ),
        ("", "PersistentVolume", "spec/azureFile/secretName"),
    ];
    reference(("", "v1", "Secret"), in_pods(POD_SPECS, &paths), &more)
}

fn services() -> NameReference {
    let webhooks = "admissionregistration.k8s.io";
    let more = [
        ("apps", "StatefulSet", "spec/serviceName"),
        ("", "Ingress", "spec/rules/http/paths/backend/serviceName"),
        ("", "Ingress", "spec/backend/serviceName"),
        ("", "Ingress", "spec/rules/http/paths/backend/service/name"),
        ("", "Ingress", "spec/defaultBackend/service/name"),
        ("apiregistration.k8s.io", "APIService", "spec/service/name"),
        (
            webhooks,
            "ValidatingWebhookConfiguration",
            "webhooks/clientConfig/service",
        ),
        (
            webhooks,
            "MutatingWebhookConfiguration",
            "webhooks/clientConfig/service",
        ),
    ];
    reference(("", "v1", "Service"), Vec::new(), &more)
}

fn accounts() -> NameReference {
    let subjects = [
        (RBAC, "RoleBinding", "subjects"),
        (RBAC, "ClusterRoleBinding", "subjects"),
    ];
    reference(
        ("", "v1", "ServiceAccount"),
        in_pods(ACCOUNT_SPECS, &["serviceAccountName"]),
        &subjects,
    )
}

fn rbac() -> [NameReference; 2] {
    let role = (RBAC, "RoleBinding", "roleRef/name");
    let cluster = (RBAC, "ClusterRoleBinding", "roleRef/name");
    [
        reference((RBAC, "", "Role"), Vec::new(), &[role]),
        reference((RBAC, "", "ClusterRole"), Vec::new(), &[role, cluster]),
    ]
}

fn storage() -> [NameReference; 3] {
    let classes = [
        ("", "PersistentVolume", "spec/storageClassName"),
        ("", "PersistentVolumeClaim", "spec/storageClassName"),
        (
            "",
            "StatefulSet",
            "spec/volumeClaimTemplates/spec/storageClassName",
        ),
    ];
    let volumes = [
        ("", "PersistentVolumeClaim", "spec/volumeName"),
        ("", "ClusterRole", "rules/resourceNames"),
    ];
    [
        reference(
            ("", "v1", "PersistentVolumeClaim"),
            in_pods(ACCOUNT_SPECS, &["volumes/persistentVolumeClaim/claimName"]),
            &[],
        ),
        reference(("", "v1", "PersistentVolume"), Vec::new(), &volumes),
        reference(
            ("storage.k8s.io", "v1", "StorageClass"),
            Vec::new(),
            &classes,
        ),
    ]
}

/// Fields in which `$(NAME)` is replaced.
fn var_references() -> Vec<FieldSpec> {
    let kinds: Vec<(&str, &str)> = POD_SPECS
        .iter()
        .copied()
        .filter(|(kind, _)| *kind != "PodTemplate")
        .collect();
    let mut specs = in_pods(
        &kinds,
        &[
            "containers/args",
            "containers/command",
            "containers/env/value",
            "containers/volumeMounts/mountPath",
            "initContainers/args",
            "initContainers/command",
            "initContainers/env/value",
            "initContainers/volumeMounts/mountPath",
            "volumes/nfs/server",
        ],
    );
    for (kind, path) in [
        ("Deployment", "spec/template/metadata/annotations"),
        ("Ingress", "spec/rules/host"),
        ("Ingress", "spec/tls/hosts"),
        ("Ingress", "spec/tls/secretName"),
        ("Service", "spec/ports/port"),
        ("Service", "spec/ports/targetPort"),
        ("StatefulSet", "spec/volumeClaimTemplates/spec/nfs/server"),
        ("PersistentVolume", "spec/nfs/server"),
        ("", "metadata/labels"),
        ("", "metadata/annotations"),
    ] {
        specs.push(spec("", "", kind, path, false));
    }
    specs
}
