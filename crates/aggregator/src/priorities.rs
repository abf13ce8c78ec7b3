//! Priorities of groups and versions in discovery: the greatest comes first.

/// Group, group priority, version, version priority.
const ALL: &[(&str, i64, &str, i64)] = &[
    ("", 18_000, "v1", 1),
    ("apps", 17_800, "v1", 15),
    ("events.k8s.io", 17_750, "v1", 15),
    ("authentication.k8s.io", 17_700, "v1", 15),
    ("authorization.k8s.io", 17_600, "v1", 15),
    ("autoscaling", 17_500, "v1", 15),
    ("autoscaling", 17_500, "v2", 30),
    ("batch", 17_400, "v1", 15),
    ("certificates.k8s.io", 17_300, "v1", 15),
    ("networking.k8s.io", 17_200, "v1", 15),
    ("policy", 17_100, "v1", 15),
    ("rbac.authorization.k8s.io", 17_000, "v1", 15),
    ("storage.k8s.io", 16_800, "v1", 15),
    ("apiextensions.k8s.io", 16_700, "v1", 15),
    ("admissionregistration.k8s.io", 16_700, "v1", 15),
    ("scheduling.k8s.io", 16_600, "v1", 15),
    ("coordination.k8s.io", 16_500, "v1", 15),
    ("node.k8s.io", 16_300, "v1", 15),
    ("resource.k8s.io", 16_200, "v1", 21),
    ("discovery.k8s.io", 16_200, "v1", 15),
    ("flowcontrol.apiserver.k8s.io", 16_100, "v1", 21),
    ("metrics.k8s.io", 100, "v1beta1", 100),
];

/// The priorities of a group and of a version of it.
pub(super) fn group_and_version_priority(group: &str, version: &str) -> Option<(i64, i64)> {
    let found = ALL.iter().find(|row| (row.0, row.2) == (group, version));
    found.map(|row| (row.1, row.3))
}
