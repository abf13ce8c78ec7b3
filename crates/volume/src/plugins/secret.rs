//! secret: the keys of a Secret as files in memory, kept up to date.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{KeyToPath, SecretVolumeSource, Volume};

use super::{make_tmpfs, write_payload};
use crate::{
    Error, Need, Objects, Plugin, Request, Result,
    payload::{Payload, secret_data, select},
};

pub(super) struct SecretVolume;

impl Plugin for SecretVolume {
    fn name(&self) -> &'static str {
        "kubernetes.io/secret"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    fn needs(&self, volume: &Volume) -> Vec<Need> {
        let need = |source: &SecretVolumeSource| Need::Secret {
            name: source.secret_name.clone().unwrap_or_default(),
            optional: source.optional == Some(true),
        };
        volume.secret.iter().map(need).collect()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.secret.clone().unwrap_or_default();
        let payload = payload(
            request.objects,
            &source.secret_name.unwrap_or_default(),
            source.items.as_deref(),
            source.default_mode.unwrap_or(0o644),
            source.optional == Some(true),
        )?;
        make_tmpfs(request)?;
        write_payload(request, &payload)?;
        Ok(request.dir.to_owned())
    }
}

/// The files of one Secret.
pub(super) fn payload(
    objects: &Objects,
    name: &str,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
) -> Result<Payload> {
    match objects.secrets.get(name) {
        Some(secret) => select(
            &secret_data(secret),
            items,
            default_mode,
            optional,
            "secret",
        ),
        None if optional => Ok(Payload::new()),
        None => Err(Error::Missing {
            kind: "secret",
            name: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set_up;

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
