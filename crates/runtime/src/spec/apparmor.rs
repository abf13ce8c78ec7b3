//! The AppArmor profile of a container. If the profile is not loaded, the container is rejected: it
//! must not run less confined than requested.

use std::fs;

use cri::v1::{LinuxContainerSecurityContext, security_profile::ProfileType};

use crate::error::{Error, Result};

const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

/// The profile's name, if a profile of the node is requested.
pub(super) fn profile(security: &LinuxContainerSecurityContext) -> Result<Option<String>> {
    let Some(name) = wanted(security)? else {
        return Ok(None);
    };
    let enabled = fs::read_to_string(ENABLED).is_ok_and(|text| text.starts_with('Y'));
    // If unreadable, executing the program fails if the profile is not loaded.
    let loaded = fs::read_to_string(LOADED).ok();
    check(&name, enabled, loaded.as_deref())?;
    Ok(Some(name))
}

/// The name in the field or in its deprecated form.
#[allow(deprecated)]
fn wanted(security: &LinuxContainerSecurityContext) -> Result<Option<String>> {
    if let Some(profile) = &security.apparmor {
        return match ProfileType::try_from(profile.profile_type) {
            Ok(ProfileType::Localhost) => named(&profile.localhost_ref).map(Some),
            Ok(ProfileType::RuntimeDefault | ProfileType::Unconfined) => Ok(None),
            Err(_) => Err(Error::Invalid(format!(
                "unknown AppArmor profile type {}",
                profile.profile_type
            ))),
        };
    }
    match security.apparmor_profile.as_str() {
        "" | "runtime/default" | "unconfined" => Ok(None),
        other => match other.strip_prefix("localhost/") {
            Some(name) => named(name).map(Some),
            None => Err(Error::Invalid(format!(
                "invalid AppArmor profile {other:?}"
            ))),
        },
    }
}

fn named(name: &str) -> Result<String> {
    let name = name.trim_start_matches("localhost/");
    if name.is_empty() {
        let message = "an AppArmor profile of type Localhost needs a name";
        return Err(Error::Invalid(message.into()));
    }
    Ok(name.to_owned())
}

fn check(name: &str, enabled: bool, loaded: Option<&str>) -> Result<()> {
    if !enabled {
        return Err(Error::Invalid(format!(
            "AppArmor profile {name:?} is wanted but AppArmor is not enabled"
        )));
    }
    // Lines such as `cri-default (enforce)`; names may contain spaces.
    let is_loaded = |list: &str| {
        list.lines()
            .filter_map(|line| line.rsplit_once(" (").map(|(name, _)| name))
            .any(|known| known == name)
    };
    if loaded.is_some_and(|list| !is_loaded(list)) {
        return Err(Error::Invalid(format!(
            "AppArmor profile {name:?} is not loaded"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cri::v1::SecurityProfile;

    use super::*;

    #[test]
    fn a_profile_that_is_not_loaded_refuses_the_container() {
        let list = "docker-default (enforce)\nmy own (complain)\n";
        assert!(check("docker-default", true, Some(list)).is_ok());
        assert!(check("my own", true, Some(list)).is_ok());
        assert!(check("my", true, Some(list)).is_err());
        assert!(check("gone", true, Some(list)).is_err());
        assert!(check("gone", true, None).is_ok());
        assert!(check("docker-default", false, Some(list)).is_err());
    }

    #[test]
    #[allow(deprecated)]
    fn both_fields_name_a_profile() {
        let of = |kind: ProfileType, name: &str| LinuxContainerSecurityContext {
            apparmor: Some(SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: name.into(),
            }),
            ..Default::default()
        };
        let localhost = wanted(&of(ProfileType::Localhost, "p")).unwrap();
        assert_eq!(localhost.as_deref(), Some("p"));
        assert_eq!(wanted(&of(ProfileType::Unconfined, "")).unwrap(), None);
        assert!(wanted(&of(ProfileType::Localhost, "")).is_err());
        let older = |text: &str| LinuxContainerSecurityContext {
            apparmor_profile: text.into(),
            ..Default::default()
        };
        let name = wanted(&older("localhost/p")).unwrap();
        assert_eq!(name.as_deref(), Some("p"));
        assert!(wanted(&older("p")).is_err());
    }
}
