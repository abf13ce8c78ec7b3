//! A container's mounts: volumes, hosts file and termination message file.

use std::{collections::BTreeMap, path::Path};

use cri::v1::{Device, ImageSpec, Mount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use volume::{Mounter, subpath};

use super::{env::Problem, expand::expand};
use crate::{pod::spec, volumes::Mounted};

/// The kernel accepts no longer paths.
const MAX_PATH: usize = 4096;

/// The sources of mounts.
pub struct Inputs<'a> {
    pub pod_dir: &'a Path,
    pub volumes: &'a Mounted,
    /// Image volumes, by volume name.
    pub images: &'a BTreeMap<String, ImageSpec>,
    /// The container's environment, for subPathExpr.
    pub environment: &'a BTreeMap<String, String>,
    pub mounter: &'a dyn Mounter,
}

/// The mounts of `volumeMounts`.
pub fn of_volumes(
    pod: &Pod,
    container: &Container,
    inputs: &Inputs,
) -> Result<Vec<Mount>, Problem> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| container_mount(pod, container, index, mount, inputs))
        .collect()
}

fn container_mount(
    pod: &Pod,
    container: &Container,
    index: usize,
    mount: &VolumeMount,
    inputs: &Inputs,
) -> Result<Mount, Problem> {
    let sub = match (&mount.sub_path_expr, &mount.sub_path) {
        (Some(text), _) if !text.is_empty() => {
            let too_long = |_| Problem(format!("subPathExpr {text:?} is too long"));
            let expanded = expand(text, inputs.environment, MAX_PATH).map_err(too_long)?;
            if expanded.contains("$(") {
                return Err(Problem(format!(
                    "subPathExpr {text:?} names an unknown variable"
                )));
            }
            Some(expanded)
        }
        (_, Some(path)) if !path.is_empty() => Some(path.clone()),
        _ => None,
    };
    if let Some(image) = inputs.images.get(&mount.name) {
        return Ok(Mount {
            container_path: absolute(&mount.mount_path),
            image: Some(image.clone()),
            image_sub_path: sub.unwrap_or_default(),
            readonly: true,
            ..Default::default()
        });
    }
    let missing = || Problem(format!("volume {:?} is not mounted", mount.name));
    let volume = inputs.volumes.paths.get(&mount.name).ok_or_else(missing)?;
    let host_path = match sub {
        Some(sub) => subpath::prepare(
            inputs.pod_dir,
            &mount.name,
            &container.name,
            index,
            volume,
            &sub,
            inputs.mounter,
        )
        .map_err(|error| {
            Problem(format!(
                "failed to prepare subPath for volumeMount {:?}: {error}",
                mount.name
            ))
        })?,
        None => volume.clone(),
    };
    let read_only = mount.read_only == Some(true)
        || inputs.volumes.read_only.contains(&mount.name)
        || is_read_only_volume(pod, &mount.name);
    Ok(Mount {
        container_path: absolute(&mount.mount_path),
        host_path: host_path.to_string_lossy().into_owned(),
        readonly: read_only,
        propagation: propagation(mount) as i32,
        recursive_read_only: mount.recursive_read_only.as_deref() == Some("Enabled"),
        ..Default::default()
    })
}

/// The block devices of `volumeDevices`, the only ones that the container may use.
pub fn devices(container: &Container, volumes: &Mounted) -> Result<Vec<Device>, Problem> {
    let wanted = container.volume_devices.iter().flatten();
    let device = |wanted: &VolumeDevice| {
        let missing = || Problem(format!("volume {:?} is not mapped", wanted.name));
        let path = volumes.devices.get(&wanted.name).ok_or_else(missing)?;
        let read_only = volumes.read_only.contains(&wanted.name);
        Ok(Device {
            container_path: wanted.device_path.clone(),
            host_path: path.to_string_lossy().into_owned(),
            permissions: if read_only { "mr" } else { "mrw" }.to_owned(),
        })
    };
    wanted.map(device).collect()
}

/// A path in a container, from the container's root.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn propagation(mount: &VolumeMount) -> MountPropagation {
    match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    }
}

/// Containers may not write to ConfigMap, Secret, downward API and projected volumes.
fn is_read_only_volume(pod: &Pod, name: &str) -> bool {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.filter(|volume| volume.name == name).any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.projected.is_some()
            || volume.downward_api.is_some()
    })
}

/// The mount of the hosts file, unless the container mounts something at that path.
pub fn hosts(container: &Container, file: &Path) -> Option<Mount> {
    let own = container.volume_mounts.iter().flatten();
    if own
        .into_iter()
        .any(|mount| mount.mount_path == "/etc/hosts")
    {
        return None;
    }
    Some(Mount {
        container_path: "/etc/hosts".into(),
        host_path: file.to_string_lossy().into_owned(),
        readonly: container
            .security_context
            .as_ref()
            .is_some_and(|context| context.read_only_root_filesystem == Some(true)),
        ..Default::default()
    })
}

/// The mount of the termination message file.
pub fn termination_message(container: &Container, file: &Path) -> Option<Mount> {
    let path = container
        .termination_message_path
        .as_deref()
        .unwrap_or("/dev/termination-log");
    (!path.is_empty()).then(|| Mount {
        container_path: absolute(path),
        host_path: file.to_string_lossy().into_owned(),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    #[test]
    fn config_is_always_read_only_and_paths_are_absolute() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "volumes": [{"name": "c", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}},
                {"name": "i", "image": {"reference": "data:1"}}],
            "containers": [{"name": "a", "volumeMounts": [
                {"name": "c", "mountPath": "etc/c"},
                {"name": "e", "mountPath": "/data", "mountPropagation": "HostToContainer"},
                {"name": "i", "mountPath": "/image", "subPath": "etc"}]}]}}))
        .unwrap();
        let volumes = Mounted {
            paths: BTreeMap::from([
                ("c".to_owned(), PathBuf::from("/v/c")),
                ("e".to_owned(), PathBuf::from("/v/e")),
            ]),
            ..Mounted::default()
        };
        let image = ImageSpec {
            image: "sha256:1".into(),
            ..Default::default()
        };
        let images = BTreeMap::from([("i".to_owned(), image.clone())]);
        let environment = BTreeMap::new();
        let inputs = Inputs {
            pod_dir: Path::new("/p"),
            volumes: &volumes,
            images: &images,
            environment: &environment,
            mounter: &volume::LinuxMounter,
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = of_volumes(&pod, container, &inputs).unwrap();
        assert_eq!(
            (made[0].container_path.as_str(), made[0].readonly),
            ("/etc/c", true)
        );
        assert_eq!(
            (made[1].host_path.as_str(), made[1].readonly),
            ("/v/e", false)
        );
        assert_eq!(
            made[1].propagation(),
            MountPropagation::PropagationHostToContainer
        );
        assert_eq!(
            (&made[2].image, made[2].image_sub_path.as_str()),
            (&Some(image), "etc")
        );
        assert!(made[2].readonly && made[2].host_path.is_empty());
    }

    #[test]
    fn the_termination_message_is_mounted_at_a_path_from_the_root() {
        for (path, expected) in [
            (json!(null), Some("/dev/termination-log")),
            (json!("/tmp/message"), Some("/tmp/message")),
            (json!("tmp/message"), Some("/tmp/message")),
            (json!(""), None),
        ] {
            let container = json!({"name": "a", "terminationMessagePath": path});
            let container: Container = serde_json::from_value(container).unwrap();
            let made = termination_message(&container, Path::new("/m"));
            let made = made.map(|mount| mount.container_path);
            assert_eq!(made.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn devices_of_read_only_claims_cannot_be_written() {
        let container: Container = serde_json::from_value(serde_json::json!({"name": "a", "volumeDevices": [
            {"name": "raw", "devicePath": "/dev/xvda"}, {"name": "fixed", "devicePath": "/dev/xvdb"}]}))
        .unwrap();
        let path = |name: &str| (name.to_owned(), PathBuf::from(format!("/d/{name}")));
        let mut volumes = Mounted {
            devices: [path("raw"), path("fixed")].into(),
            read_only: ["fixed".to_owned()].into(),
            ..Mounted::default()
        };
        let made = devices(&container, &volumes).unwrap();
        let shown: Vec<_> = made
            .iter()
            .map(|device| (device.container_path.as_str(), device.permissions.as_str()))
            .collect();
        assert_eq!(shown, [("/dev/xvda", "mrw"), ("/dev/xvdb", "mr")]);
        volumes.devices.clear();
        assert!(devices(&container, &volumes).is_err());
    }
}
