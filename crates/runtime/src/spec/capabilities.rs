//! Linux capabilities of a container.

use std::{collections::BTreeSet, fs};

use cri::v1::LinuxContainerSecurityContext;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The default capabilities.
const DEFAULT: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The capabilities of the container's processes.
pub(super) fn effective(security: &LinuxContainerSecurityContext) -> BTreeSet<String> {
    let available = available();
    if security.privileged {
        return available;
    }
    let change = security.capabilities.clone().unwrap_or_default();
    let mut set: BTreeSet<String> = DEFAULT.iter().map(|name| (*name).to_owned()).collect();
    // ALL is applied first: single capabilities are exceptions from it.
    let all = |names: &[String]| names.iter().any(|name| canonical(name) == "CAP_ALL");
    if all(&change.add_capabilities) {
        set.extend(available.iter().cloned());
    }
    if all(&change.drop_capabilities) {
        set.clear();
    }
    let named = |names: Vec<String>| {
        names
            .into_iter()
            .map(|name| canonical(&name))
            .filter(|name| name != "CAP_ALL")
    };
    set.extend(named(change.add_capabilities));
    for name in named(change.drop_capabilities) {
        set.remove(&name);
    }
    set
}

/// The sets of the OCI configuration.
pub(super) fn sets(security: &LinuxContainerSecurityContext) -> Result<Value> {
    let known: BTreeSet<String> = caps::all().iter().map(ToString::to_string).collect();
    let set = effective(security);
    if let Some(unknown) = set.iter().find(|name| !known.contains(*name)) {
        return Err(Error::Invalid(format!("unknown capability {unknown:?}")));
    }
    // Capabilities that this process lacks cannot be granted.
    let available = available();
    let set: Vec<_> = set
        .into_iter()
        .filter(|name| available.contains(name))
        .collect();
    let ambient = security
        .capabilities
        .clone()
        .unwrap_or_default()
        .add_ambient_capabilities;
    let ambient: Vec<_> = ambient.iter().map(|name| canonical(name)).collect();
    let mut sets = json!({ "bounding": set, "effective": set, "permitted": set });
    if !ambient.is_empty() {
        sets["inheritable"] = json!(ambient);
        sets["ambient"] = json!(ambient);
    }
    Ok(sets)
}

fn canonical(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    if name.starts_with("CAP_") {
        name
    } else {
        format!("CAP_{name}")
    }
}

/// The capabilities that this process can grant.
fn available() -> BTreeSet<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let mask = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(u64::MAX);
    let all = caps::all();
    all.iter()
        .filter(|cap| mask & cap.bitmask() != 0)
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use cri::v1::Capability;

    use super::*;

    fn with(add: &[&str], drop: &[&str]) -> BTreeSet<String> {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let capabilities = Capability {
            add_capabilities: own(add),
            drop_capabilities: own(drop),
            ..Default::default()
        };
        effective(&LinuxContainerSecurityContext {
            capabilities: Some(capabilities),
            ..Default::default()
        })
    }

    #[test]
    fn capabilities_are_added_and_dropped_from_the_default() {
        assert_eq!(with(&[], &[]).len(), DEFAULT.len());
        assert!(with(&["NET_ADMIN"], &[]).contains("CAP_NET_ADMIN"));
        assert!(!with(&[], &["chown"]).contains("CAP_CHOWN"));
        assert_eq!(
            with(&["NET_BIND_SERVICE"], &["ALL"]),
            ["CAP_NET_BIND_SERVICE".to_owned()].into()
        );
        assert!(with(&["ALL"], &["CHOWN"]).contains("CAP_SYS_ADMIN"));
        assert!(!with(&["ALL"], &["CHOWN"]).contains("CAP_CHOWN"));
    }
}
