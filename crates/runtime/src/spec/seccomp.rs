//! The seccomp profile of a container.

use std::{collections::BTreeSet, path::Path};

use cri::v1::{LinuxContainerSecurityContext, security_profile::ProfileType};
use serde_json::Value;

use super::syscalls;
use crate::error::{Error, Result};

/// The profile in the OCI form; `None` if unconfined.
pub(super) fn profile(
    security: &LinuxContainerSecurityContext,
    capabilities: &BTreeSet<String>,
) -> Result<Option<Value>> {
    if security.privileged {
        return Ok(None);
    }
    let Some(wanted) = &security.seccomp else {
        return Ok(None);
    };
    match ProfileType::try_from(wanted.profile_type) {
        Ok(ProfileType::Unconfined) => Ok(None),
        Ok(ProfileType::RuntimeDefault) => Ok(Some(syscalls::default_profile(capabilities))),
        Ok(ProfileType::Localhost) => load(Path::new(&wanted.localhost_ref)).map(Some),
        Err(_) => Err(Error::Invalid(format!(
            "unknown seccomp profile {}",
            wanted.profile_type
        ))),
    }
}

/// Loads a profile from the node's disk. An invalid one is an error.
fn load(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(Error::file(path))?;
    let wrong = |error| Error::Invalid(format!("seccomp profile {}: {error}", path.display()));
    let value: Value = serde_json::from_slice(&text).map_err(wrong)?;
    serde_json::from_value::<oci_spec::runtime::LinuxSeccomp>(value.clone()).map_err(wrong)?;
    Ok(value)
}
