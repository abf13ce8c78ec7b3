//! configMap: the keys of a ConfigMap as files, kept up to date.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{KeyToPath, Volume};

use super::{make_dir, write_payload};
use crate::{
    Error, Need, Objects, Plugin, Request, Result,
    payload::{Payload, config_map_data, select},
};

pub(super) struct ConfigMapVolume;

impl Plugin for ConfigMapVolume {
    fn name(&self) -> &'static str {
        "kubernetes.io/configmap"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    fn needs(&self, volume: &Volume) -> Vec<Need> {
        let need = |source: &k8s_openapi::api::core::v1::ConfigMapVolumeSource| Need::ConfigMap {
            name: source.name.clone(),
            optional: source.optional == Some(true),
        };
        volume.config_map.iter().map(need).collect()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.config_map.clone().unwrap_or_default();
        let payload = payload(
            request.objects,
            &source.name,
            source.items.as_deref(),
            source.default_mode.unwrap_or(0o644),
            source.optional == Some(true),
        )?;
        make_dir(request.dir, 0o777)?;
        write_payload(request, &payload)?;
        Ok(request.dir.to_owned())
    }
}

/// The files of one ConfigMap.
pub(super) fn payload(
    objects: &Objects,
    name: &str,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
) -> Result<Payload> {
    match objects.config_maps.get(name) {
        Some(map) => select(
            &config_map_data(map),
            items,
            default_mode,
            optional,
            "config",
        ),
        None if optional => Ok(Payload::new()),
        None => Err(Error::Missing {
            kind: "configmap",
            name: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set_up;

    fn objects(text: &str) -> Objects {
        let map = serde_json::from_value(serde_json::json!({
            "data": {"app.conf": text}, "binaryData": {"b": "AAE="}}));
        Objects {
            config_maps: [("m".to_owned(), map.unwrap())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_changed_config_map_changes_the_files() {
        let root = tempfile::tempdir().unwrap();
        let volume = serde_json::json!({"name": "v", "configMap": {"name": "m"}});
        let dir = root.path();
        set_up(volume.clone(), Default::default(), objects("one"), dir).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.join("app.conf")).unwrap(),
            "one"
        );
        assert_eq!(std::fs::read(dir.join("b")).unwrap(), [0, 1]);
        set_up(volume, Default::default(), objects("two"), dir).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.join("app.conf")).unwrap(),
            "two"
        );
    }

    #[test]
    fn a_missing_config_map_fails_unless_it_is_optional() {
        let root = tempfile::tempdir().unwrap();
        let volume = |optional| serde_json::json!({"name": "v", "configMap": {"name": "gone", "optional": optional}});
        let set_up = |optional| {
            set_up(
                volume(optional),
                Default::default(),
                Objects::default(),
                root.path(),
            )
        };
        assert_eq!(
            set_up(false).err().unwrap().to_string(),
            "configmap \"gone\" not found"
        );
        assert!(set_up(true).is_ok());
    }
}
