//! emptyDir: a directory that lives as long as its pod, on disk or in memory.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Volume;

use super::make_dir;
use crate::{Error, Plugin, Request, Result, ownership, quantity};

pub struct EmptyDir;

impl Plugin for EmptyDir {
    fn name(&self) -> &'static str {
        "kubernetes.io/empty-dir"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.empty_dir.as_ref();
        let medium = source
            .and_then(|source| source.medium.as_deref())
            .unwrap_or_default();
        let dir = request.dir;
        // What a running pod has already written stays as it is.
        if dir.exists() && (medium.is_empty() || request.mounter.is_mounted(dir)?) {
            return Ok(dir.to_owned());
        }
        let limit = source
            .and_then(|s| s.size_limit.as_ref())
            .and_then(quantity::value);
        match medium {
            "" => make_dir(dir, 0o777)?,
            "Memory" => {
                make_dir(dir, 0o777)?;
                request
                    .mounter
                    .tmpfs(dir, limit.and_then(|limit| u64::try_from(limit).ok()))?;
                make_dir(dir, 0o777)?;
            }
            _ => {
                return Err(Error::Unsupported {
                    volume: request.volume.name.clone(),
                    kind: "emptyDir with huge pages",
                });
            }
        }
        if let Some(group) = ownership::fs_group(request.pod) {
            ownership::give_to_group(dir, group, false)?;
        }
        Ok(dir.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::set_up;

    #[test]
    fn content_survives_a_second_set_up_and_everybody_may_write() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v");
        let volume = serde_json::json!({"name": "v", "emptyDir": {}});
        set_up(volume.clone(), Default::default(), Default::default(), &dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o777);
        std::fs::write(dir.join("f"), "x").unwrap();
        set_up(volume, Default::default(), Default::default(), &dir).unwrap();
        assert!(dir.join("f").exists());
    }
}
