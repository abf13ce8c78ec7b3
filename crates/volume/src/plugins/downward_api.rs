//! downwardAPI: the pod's own labels, annotations, name and resources as files, kept up to date.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Volume};

use super::{make_tmpfs, write_payload};
use crate::{
    Plugin, Request, Result, downward,
    payload::{File, Payload, check_path},
};

pub(super) struct DownwardApi;

impl Plugin for DownwardApi {
    fn name(&self) -> &'static str {
        "kubernetes.io/downward-api"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn shows_pod(&self, _: &Volume) -> bool {
        true
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.downward_api.clone().unwrap_or_default();
        let items = source.items.as_deref().unwrap_or_default();
        let payload = payload(request, items, source.default_mode.unwrap_or(0o644))?;
        make_tmpfs(request)?;
        write_payload(request, &payload)?;
        Ok(request.dir.to_owned())
    }
}

/// The files of downward API items.
pub(super) fn payload(
    request: &Request,
    items: &[DownwardAPIVolumeFile],
    default_mode: i32,
) -> Result<Payload> {
    let mut payload = Payload::new();
    for item in items {
        check_path(&item.path)?;
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(request.pod, &field.field_path)?,
            (None, Some(selector)) => {
                downward::resource(request.pod, selector, None, request.node)?
            }
            (None, None) => String::new(),
        };
        let mode = item.mode.unwrap_or(default_mode) as u32;
        payload.insert(
            item.path.clone(),
            File {
                data: text.into_bytes(),
                mode,
                owner: None,
            },
        );
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use crate::testing::set_up;

    #[test]
    fn labels_are_a_file_with_one_line_each() {
        let root = tempfile::tempdir().unwrap();
        let pod = serde_json::json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        let volume = serde_json::json!({"name": "v", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}});
        let pod = serde_json::from_value(pod).unwrap();
        set_up(volume, pod, Default::default(), root.path()).unwrap();
        let text = std::fs::read_to_string(root.path().join("labels")).unwrap();
        assert_eq!(text, "a=\"1\"\nb=\"2\"");
    }
}
