//! Which sysctls a pod may set: namespaced ones that are safe, and those that the node's
//! administrator allows besides.

use k8s_openapi::api::core::v1::Pod;

use super::{Refusal, refusal};
use crate::pod::spec;

/// Namespaced sysctls that cannot harm other pods.
const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Rejects the first sysctl that is not allowed.
pub(super) fn check(pod: &Pod, allowed: &[String]) -> Result<(), Refusal> {
    let spec = spec::spec(pod);
    let context = spec.security_context.as_ref();
    let sysctls = context
        .into_iter()
        .flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = normalized(&sysctl.name);
        let permitted = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        let known = SAFE.contains(&name.as_str())
            || allowed
                .iter()
                .any(|pattern| permitted(&normalized(pattern)));
        let shared = match namespace(&name) {
            Some("Net") if spec.host_network == Some(true) => Some("Net"),
            Some("IPC") if spec.host_ipc == Some(true) => Some("IPC"),
            _ => None,
        };
        let why = match (known, shared) {
            (false, _) => format!("{name:?} not allowlisted"),
            (true, Some(shared)) => format!("{name:?} not allowed with host {shared} enabled"),
            (true, None) => continue,
        };
        return Err(refusal(
            "SysctlForbidden",
            format!("forbidden sysctl: {why}"),
        ));
    }
    Ok(())
}

/// The kernel namespace that a sysctl belongs to.
fn namespace(name: &str) -> Option<&'static str> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name.starts_with("net.") {
        Some("Net")
    } else if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
        Some("IPC")
    } else {
        None
    }
}

/// Names may be written with slashes; then dots belong to a component, as in
/// `net/ipv4/conf/eth0.1/x`.
fn normalized(name: &str) -> String {
    let first = name.find(['.', '/']);
    if first.is_some_and(|at| name.as_bytes()[at] == b'/') {
        let swap = |letter| match letter {
            '/' => '.',
            '.' => '/',
            other => other,
        };
        name.chars().map(swap).collect()
    } else {
        name.to_owned()
    }
}

/// Whether an administrator may allow this pattern: only namespaced sysctls.
pub fn is_allowable(pattern: &str) -> bool {
    namespace(normalized(pattern).trim_end_matches('*')).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_namespace_that_the_pod_shares_with_the_node_are_refused() {
        let pod = |name: &str, host: &str| -> Pod {
            serde_json::from_value(serde_json::json!({"spec": {"containers": [], host: true,
                "securityContext": {"sysctls": [{"name": name, "value": "1"}]}}}))
            .unwrap()
        };
        let why = |name, host| check(&pod(name, host), &[]).err().map(|r| r.message);
        assert_eq!(
            why("net.ipv4.tcp_rmem", "hostNetwork").as_deref(),
            Some("forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowed with host Net enabled")
        );
        assert_eq!(why("net.ipv4.tcp_rmem", "hostIPC"), None);
        assert!(why("kernel.shm_rmid_forced", "hostIPC").is_some());
        assert!(is_allowable("net.*") && is_allowable("kernel.msg*") && !is_allowable("vm.*"));
    }
}
