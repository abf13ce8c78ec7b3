//! fsGroup: gives a volume's files to a group that all of the pod's processes are in.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;

use crate::{Error, Result};

/// The pod's fsGroup.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec
        .as_ref()?
        .security_context
        .as_ref()?
        .fs_group
        .and_then(|id| u32::try_from(id).ok())
}

/// The one user that all containers run as, if there is such.
pub fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| {
            container
                .security_context
                .as_ref()
                .and_then(|context| context.run_as_user)
                .or(of_pod)
        });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())
        .flatten()
}

/// Changes group and group bits of everything in `dir`, and `dir` itself.
pub fn give_to_group(dir: &Path, group: u32, read_only: bool) -> Result<()> {
    let meta = fs::symlink_metadata(dir).map_err(Error::io("stat", dir))?;
    lchown(dir, None, Some(group)).map_err(Error::io("chown", dir))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let bits = if read_only { 0o440 } else { 0o660 };
    let bits = if meta.is_dir() { bits | 0o2110 } else { bits };
    let mode = fs::Permissions::from_mode((meta.mode() & 0o7777) | bits);
    fs::set_permissions(dir, mode).map_err(Error::io("chmod", dir))?;
    if meta.is_dir() {
        for entry in crate::entries(dir)? {
            give_to_group(&entry, group, read_only)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_user_exists_only_when_all_containers_agree() {
        let pod = |json| serde_json::from_value::<Pod>(json).unwrap();
        let agree = pod(
            serde_json::json!({"spec": {"securityContext": {"runAsUser": 7},
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]}}),
        );
        assert_eq!(common_user(&agree), Some(7));
        let differ = pod(serde_json::json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]}}));
        assert_eq!(common_user(&differ), None);
    }
}
