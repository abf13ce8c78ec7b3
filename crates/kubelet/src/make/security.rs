//! Security contexts: the user, namespaces, capabilities and profiles of containers.

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SeccompProfile};

use super::{apparmor, env::Problem};
use crate::pod::spec::{self, Role};

/// Paths of /proc and /sys that are masked or read-only by default.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &[
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

fn pod_context(pod: &Pod) -> PodSecurityContext {
    spec::spec(pod).security_context.clone().unwrap_or_default()
}

/// The namespaces that a pod shares with its node or between its containers.
pub fn namespaces(pod: &Pod) -> v1::NamespaceOption {
    let spec = spec::spec(pod);
    let node_if = |on: Option<bool>, otherwise| {
        if on == Some(true) {
            v1::NamespaceMode::Node
        } else {
            otherwise
        }
    };
    let shared = if spec.share_process_namespace == Some(true) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    v1::NamespaceOption {
        network: node_if(spec.host_network, v1::NamespaceMode::Pod) as i32,
        ipc: node_if(spec.host_ipc, v1::NamespaceMode::Pod) as i32,
        pid: node_if(spec.host_pid, shared) as i32,
        ..Default::default()
    }
}

/// The node's seccomp settings.
#[derive(Debug, Clone, Copy)]
pub struct Seccomp<'a> {
    /// The directory of profiles on the node.
    pub root: &'a str,
    /// Whether containers without a profile get RuntimeDefault.
    pub by_default: bool,
}

fn seccomp(profile: Option<&SeccompProfile>, node: Seccomp<'_>) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let root = node.root;
    let (kind, path) = match profile.map(|profile| profile.type_.as_str()) {
        None if node.by_default => (ProfileType::RuntimeDefault, String::new()),
        Some("RuntimeDefault") => (ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let file = profile
                .and_then(|p| p.localhost_profile.as_deref())
                .unwrap_or_default();
            (ProfileType::Localhost, format!("{root}/{file}"))
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: path,
    }
}

fn selinux(
    options: Option<&k8s_openapi::api::core::v1::SELinuxOptions>,
) -> Option<v1::SeLinuxOption> {
    options.cloned().map(|options| v1::SeLinuxOption {
        user: options.user.unwrap_or_default(),
        role: options.role.unwrap_or_default(),
        r#type: options.type_.unwrap_or_default(),
        level: options.level.unwrap_or_default(),
    })
}

fn groups(pod: &Pod) -> Vec<i64> {
    let context = pod_context(pod);
    context
        .supplemental_groups
        .into_iter()
        .flatten()
        .chain(context.fs_group)
        .collect()
}

fn groups_policy(pod: &Pod) -> i32 {
    match pod_context(pod).supplemental_groups_policy.as_deref() {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict as i32,
        _ => v1::SupplementalGroupsPolicy::Merge as i32,
    }
}

/// The sandbox's security context.
pub fn of_sandbox(pod: &Pod, node: Seccomp<'_>) -> v1::LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    let value = |value| v1::Int64Value { value };
    let privileged = spec::containers(pod).any(|(_, container)| is_privileged(&container));
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux(context.se_linux_options.as_ref()),
        run_as_user: context.run_as_user.map(value),
        run_as_group: context.run_as_group.map(value),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        privileged,
        seccomp: Some(seccomp(context.seccomp_profile.as_ref(), node)),
        ..Default::default()
    }
}

fn is_privileged(container: &Container) -> bool {
    container
        .security_context
        .as_ref()
        .is_some_and(|context| context.privileged == Some(true))
}

/// The user of the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

/// A container's security context; fails if the container may not run, such as with runAsNonRoot.
pub fn of_container(
    pod: &Pod,
    role: Role,
    container: &Container,
    image: &ImageUser,
    target_id: Option<&str>,
    node: Seccomp<'_>,
) -> Result<v1::LinuxContainerSecurityContext, Problem> {
    let of_pod = pod_context(pod);
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(of_pod.run_as_user);
    check_non_root(own.run_as_non_root.or(of_pod.run_as_non_root), user, image)?;
    let value = |value| v1::Int64Value { value };
    let mut namespace_options = namespaces(pod);
    if let (Role::Ephemeral, Some(target)) = (role, target_id) {
        namespace_options.pid = v1::NamespaceMode::Target as i32;
        namespace_options.target_id = target.to_owned();
    }
    let privileged = own.privileged == Some(true);
    let bare = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| {
        if bare {
            vec![]
        } else {
            paths.iter().map(|path| (*path).to_owned()).collect()
        }
    };
    let seccomp_profile = own
        .seccomp_profile
        .as_ref()
        .or(of_pod.seccomp_profile.as_ref());
    let (apparmor, apparmor_profile) = apparmor::profile(pod, container)?.unzip();
    let capabilities = own.capabilities.map(|capabilities| v1::Capability {
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        ..Default::default()
    });
    #[allow(deprecated, reason = "older runtimes read the deprecated profile name")]
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(namespace_options),
        selinux_options: selinux(
            own.se_linux_options
                .as_ref()
                .or(of_pod.se_linux_options.as_ref()),
        ),
        run_as_user: user.or(image.uid).map(value),
        run_as_username: if user.is_none() {
            image.name.clone()
        } else {
            String::new()
        },
        run_as_group: own.run_as_group.or(of_pod.run_as_group).map(value),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        apparmor,
        // The deprecated field for older runtimes.
        apparmor_profile: apparmor_profile.unwrap_or_default(),
        seccomp: Some(seccomp(
            seccomp_profile.filter(|_| !privileged),
            Seccomp {
                by_default: node.by_default && !privileged,
                ..node
            },
        )),
        ..Default::default()
    })
}

fn check_non_root(
    wanted: Option<bool>,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), Problem> {
    if wanted != Some(true) {
        return Ok(());
    }
    match (user, image.uid) {
        (Some(0), _) => Err(Problem(
            "container's runAsUser breaks non-root policy".into(),
        )),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(Problem(
            "container has runAsNonRoot and image will run as root".into(),
        )),
        (None, Some(_)) => Ok(()),
        (None, None) if !image.name.is_empty() => Err(Problem(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root",
            image.name
        ))),
        // An image without a user runs as root.
        (None, None) => Err(Problem(
            "container has runAsNonRoot and image will run as root".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Seccomp<'_> = Seccomp {
        root: "/seccomp",
        by_default: false,
    };

    #[test]
    fn containers_without_a_profile_get_the_runtimes_where_the_node_says_so() {
        use v1::security_profile::ProfileType;
        let by_default = Seccomp {
            by_default: true,
            ..NODE
        };
        let unconfined = serde_json::json!({"seccompProfile": {"type": "Unconfined"}});
        for (context, node, expected) in [
            (serde_json::json!({}), NODE, ProfileType::Unconfined),
            (
                serde_json::json!({}),
                by_default,
                ProfileType::RuntimeDefault,
            ),
            (unconfined, by_default, ProfileType::Unconfined),
            (
                serde_json::json!({"privileged": true}),
                by_default,
                ProfileType::Unconfined,
            ),
        ] {
            let pod = serde_json::json!({"spec": {"containers": [
                {"name": "a", "securityContext": context}]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let image = ImageUser::default();
            let made = of_container(&pod, Role::Main, container, &image, None, node).unwrap();
            let found = made.seccomp.unwrap().profile_type;
            assert_eq!(found, expected as i32, "{pod:?} {node:?}");
        }
    }

    fn context(
        spec: serde_json::Value,
        image: ImageUser,
    ) -> Result<v1::LinuxContainerSecurityContext, Problem> {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        of_container(&pod, Role::Main, container, &image, None, NODE)
    }

    #[test]
    fn the_container_overrides_the_pod_and_the_pod_the_image() {
        let spec = serde_json::json!({"securityContext": {"runAsUser": 1000, "fsGroup": 7,
            "supplementalGroups": [8]}, "containers": [{"name": "a", "securityContext": {
            "runAsUser": 2000, "allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_ADMIN"]}}}]});
        let made = context(
            spec,
            ImageUser {
                uid: Some(5),
                name: String::new(),
            },
        )
        .unwrap();
        assert_eq!(made.run_as_user.unwrap().value, 2000);
        assert_eq!(made.supplemental_groups, [8, 7]);
        assert!(made.no_new_privs && !made.privileged);
        assert!(made.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert_eq!(made.capabilities.unwrap().add_capabilities, ["NET_ADMIN"]);
        let plain = serde_json::json!({"containers": [{"name": "a"}]});
        let made = context(
            plain,
            ImageUser {
                uid: None,
                name: "web".into(),
            },
        )
        .unwrap();
        assert_eq!(
            (made.run_as_user, made.run_as_username.as_str()),
            (None, "web")
        );
    }

    #[test]
    fn non_root_is_verified() {
        let spec = |user: serde_json::Value| {
            serde_json::json!({"securityContext":
            {"runAsNonRoot": true, "runAsUser": user}, "containers": [{"name": "a"}]})
        };
        let numeric = |uid| ImageUser {
            uid: Some(uid),
            name: String::new(),
        };
        assert!(context(spec(0.into()), numeric(1)).is_err());
        assert!(context(spec(serde_json::Value::Null), numeric(0)).is_err());
        assert!(context(spec(serde_json::Value::Null), numeric(1)).is_ok());
        assert!(context(spec(5.into()), ImageUser::default()).is_ok());
        let named = ImageUser {
            uid: None,
            name: "web".into(),
        };
        let error = context(spec(serde_json::Value::Null), named).err().unwrap();
        assert!(error.0.contains("non-numeric user (web)"));
    }

    #[test]
    fn a_privileged_container_sees_everything() {
        let made = context(
            serde_json::json!({"hostPID": true, "containers": [{"name": "a",
            "securityContext": {"privileged": true}}]}),
            ImageUser::default(),
        )
        .unwrap();
        assert!(made.masked_paths.is_empty() && made.readonly_paths.is_empty());
        assert_eq!(
            made.namespace_options.unwrap().pid,
            v1::NamespaceMode::Node as i32
        );
    }
}
