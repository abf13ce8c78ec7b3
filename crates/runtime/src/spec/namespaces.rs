//! Which namespaces a container has of its own, shares with its pod, or shares with the node.

use std::path::PathBuf;

use cri::v1::{LinuxContainerSecurityContext, NamespaceMode};
use serde_json::{Value, json};

use super::Inputs;
use crate::{
    cgroup::Hierarchies,
    error::{Error, Result},
};

pub(super) struct Namespaces {
    pub list: Vec<Value>,
    pub shares_pids: bool,
}

pub(super) fn namespaces(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
) -> Result<Namespaces> {
    let options = security.namespace_options.clone().unwrap_or_default();
    let mut list = vec![json!({ "type": "mount" })];
    if Hierarchies::host().is_unified() && !security.privileged {
        list.push(json!({ "type": "cgroup" }));
    }
    for (kind, pin) in [
        ("network", &inputs.pins.net),
        ("ipc", &inputs.pins.ipc),
        ("uts", &inputs.pins.uts),
    ] {
        if let Some(path) = pin {
            list.push(json!({ "type": kind, "path": path }));
        }
    }
    let mode = NamespaceMode::try_from(options.pid)
        .map_err(|_| Error::Invalid(format!("unknown namespace mode {}", options.pid)))?;
    let shared = |path: PathBuf| json!({ "type": "pid", "path": path });
    match mode {
        NamespaceMode::Container => list.push(json!({ "type": "pid" })),
        NamespaceMode::Node => {}
        NamespaceMode::Pod => {
            let pin = inputs.pins.pid.clone();
            let pin =
                pin.ok_or_else(|| Error::Invalid("the pod has no PID namespace to share".into()))?;
            list.push(shared(pin));
        }
        NamespaceMode::Target => {
            let pid = inputs.target_pid.ok_or_else(|| {
                Error::Precondition(format!(
                    "target container {:?} is not running",
                    options.target_id
                ))
            })?;
            list.push(shared(format!("/proc/{pid}/ns/pid").into()));
        }
    }
    Ok(Namespaces {
        list,
        shares_pids: mode != NamespaceMode::Container,
    })
}
