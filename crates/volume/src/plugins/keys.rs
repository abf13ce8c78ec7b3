//! configMap and secret: the keys of a ConfigMap or a Secret as files, kept up to date. Those of a
//! Secret are in memory only.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{KeyToPath, Volume};

use super::{make_dir, make_tmpfs, write_payload};
use crate::{
    Error, Need, Objects, Plugin, Request, Result,
    payload::{Payload, config_map_data, secret_data, select},
};

/// The kind of object that has the keys.
#[derive(Clone, Copy)]
pub(super) enum KeysOf {
    ConfigMap,
    Secret,
}

/// The fields that both sources have.
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) items: Option<&'a [KeyToPath]>,
    pub(super) default_mode: i32,
    pub(super) optional: bool,
}

impl Plugin for KeysOf {
    fn name(&self) -> &'static str {
        match self {
            Self::ConfigMap => "kubernetes.io/configmap",
            Self::Secret => "kubernetes.io/secret",
        }
    }

    fn claims(&self, volume: &Volume) -> bool {
        self.source(volume).is_some()
    }

    fn needs(&self, volume: &Volume) -> Vec<Need> {
        let source = self.source(volume);
        source
            .map(|source| self.need(&source))
            .into_iter()
            .collect()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let payload = match self.source(request.volume) {
            Some(source) => self.payload(request.objects, &source)?,
            None => Payload::new(),
        };
        match self {
            Self::ConfigMap => make_dir(request.dir, 0o777)?,
            Self::Secret => make_tmpfs(request)?,
        }
        write_payload(request, &payload)?;
        Ok(request.dir.to_owned())
    }
}

impl KeysOf {
    fn source(self, volume: &Volume) -> Option<Source<'_>> {
        match self {
            Self::ConfigMap => volume.config_map.as_ref().map(|source| Source {
                name: &source.name,
                items: source.items.as_deref(),
                default_mode: source.default_mode.unwrap_or(0o644),
                optional: source.optional == Some(true),
            }),
            Self::Secret => volume.secret.as_ref().map(|source| Source {
                name: source.secret_name.as_deref().unwrap_or_default(),
                items: source.items.as_deref(),
                default_mode: source.default_mode.unwrap_or(0o644),
                optional: source.optional == Some(true),
            }),
        }
    }

    /// The object that a source names.
    pub(super) fn need(self, source: &Source<'_>) -> Need {
        let (name, optional) = (source.name.to_owned(), source.optional);
        match self {
            Self::ConfigMap => Need::ConfigMap { name, optional },
            Self::Secret => Need::Secret { name, optional },
        }
    }

    /// The files of one object.
    pub(super) fn payload(self, objects: &Objects, source: &Source<'_>) -> Result<Payload> {
        let (kind, origin, data) = match self {
            Self::ConfigMap => {
                let map = objects.config_maps.get(source.name);
                ("configmap", "config", map.map(config_map_data))
            }
            Self::Secret => {
                let secret = objects.secrets.get(source.name);
                ("secret", "secret", secret.map(secret_data))
            }
        };
        let (mode, optional) = (source.default_mode, source.optional);
        match data {
            Some(data) => select(&data, source.items, mode, optional, origin),
            None if optional => Ok(Payload::new()),
            None => Err(Error::Missing {
                kind,
                name: source.name.to_owned(),
            }),
        }
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

    #[test]
    fn items_choose_keys_paths_and_modes() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let secret = serde_json::json!({"data": {"user": "YWRtaW4=", "other": "eA=="}});
        let objects = Objects {
            secrets: [("s".to_owned(), serde_json::from_value(secret).unwrap())].into(),
            ..Default::default()
        };
        let volume = serde_json::json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 256,
            "items": [{"key": "user", "path": "cred/name"}]}});
        set_up(volume, Default::default(), objects, root.path()).unwrap();
        let path = root.path().join("cred/name");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "admin");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o400);
        assert!(!root.path().join("other").exists());
    }
}
