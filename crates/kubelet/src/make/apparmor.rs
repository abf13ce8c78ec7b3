//! The AppArmor profile of a container: its own, the one of the pod's deprecated annotation, or the
//! pod's.

use cri::v1::{SecurityProfile, security_profile::ProfileType};
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use super::env::Problem;
use crate::pod::spec;

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The profile for the runtime, also in the deprecated form of one string.
pub fn profile(
    pod: &Pod,
    container: &Container,
) -> Result<Option<(SecurityProfile, String)>, Problem> {
    let own = container.security_context.as_ref();
    let of_pod = spec::spec(pod).security_context.as_ref();
    let profile = own
        .and_then(|context| context.app_armor_profile.clone())
        .or_else(|| annotated(pod, &container.name))
        .or_else(|| of_pod.and_then(|context| context.app_armor_profile.clone()));
    let Some(profile) = profile else {
        return Ok(None);
    };
    let made = |kind: ProfileType, name: &str| SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: name.to_owned(),
    };
    Ok(Some(match profile.type_.as_str() {
        "RuntimeDefault" => (
            made(ProfileType::RuntimeDefault, ""),
            "runtime/default".to_owned(),
        ),
        "Unconfined" => (made(ProfileType::Unconfined, ""), "unconfined".to_owned()),
        "Localhost" => {
            let name = profile.localhost_profile.unwrap_or_default();
            if name.trim().is_empty() {
                return Err(Problem("missing localhost apparmor profile name".into()));
            }
            (
                made(ProfileType::Localhost, &name),
                format!("localhost/{name}"),
            )
        }
        other => {
            return Err(Problem(format!("unknown apparmor profile type: {other:?}")));
        }
    }))
}

fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let value = spec::annotation(pod, &format!("{ANNOTATION}{container}"))?;
    let of = |type_: &str, name: Option<&str>| AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match value {
        "runtime/default" => Some(of("RuntimeDefault", None)),
        "unconfined" => Some(of("Unconfined", None)),
        value => value
            .strip_prefix("localhost/")
            .map(|name| of("Localhost", Some(name))),
    }
}

/// Whether any container has a profile other than Unconfined.
pub fn is_required(pod: &Pod) -> bool {
    let confined = |profile: Option<&AppArmorProfile>| {
        profile.is_some_and(|profile| profile.type_ != "Unconfined")
    };
    let of_pod = spec::spec(pod).security_context.as_ref();
    let mut containers = spec::containers(pod);
    let mut annotations = pod.metadata.annotations.iter().flatten();
    confined(of_pod.and_then(|context| context.app_armor_profile.as_ref()))
        || containers.any(|(_, container)| {
            let context = container.security_context.as_ref();
            confined(context.and_then(|context| context.app_armor_profile.as_ref()))
        })
        || annotations.any(|(key, value)| key.starts_with(ANNOTATION) && value != "unconfined")
}

/// Whether this machine can enforce profiles.
pub fn host_support() -> Result<(), &'static str> {
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    match enabled {
        Ok(text) if text.starts_with('Y') => Ok(()),
        _ => Err("AppArmor is not enabled on the host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_profile_comes_before_the_annotation_and_that_before_the_pods() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"annotations": {
                "container.apparmor.security.beta.kubernetes.io/b": "localhost/old"}},
            "spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {"name": "a", "securityContext": {"appArmorProfile":
                        {"type": "Localhost", "localhostProfile": "own"}}},
                    {"name": "b"}, {"name": "c"}]}}))
        .unwrap();
        let profiles: Vec<_> = pod
            .spec
            .as_ref()
            .unwrap()
            .containers
            .iter()
            .map(|container| profile(&pod, container).unwrap().unwrap().1)
            .collect();
        assert_eq!(
            profiles,
            ["localhost/own", "localhost/old", "runtime/default"]
        );
        assert!(is_required(&pod));
        assert_eq!(profile(&Pod::default(), &Container::default()), Ok(None));
        assert!(!is_required(&Pod::default()));
    }
}
