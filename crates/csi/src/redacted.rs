//! Secrets must not be logged: requests with secrets are printed without them.

use std::fmt::{Debug, Formatter, Result};

use crate::v1::*;

macro_rules! redacted {
    ($($message:ident: $($field:ident),+;)+) => {$(
        impl Debug for $message {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let mut shown = f.debug_struct(stringify!($message));
                $(shown.field(stringify!($field), &self.$field);)+
                shown.finish_non_exhaustive()
            }
        }
    )+};
}

redacted! {
    CreateVolumeRequest: name, capacity_range, volume_capabilities;
    DeleteVolumeRequest: volume_id;
    ControllerPublishVolumeRequest: volume_id, node_id, volume_capability, readonly;
    ControllerUnpublishVolumeRequest: volume_id, node_id;
    ValidateVolumeCapabilitiesRequest: volume_id, volume_capabilities;
    CreateSnapshotRequest: source_volume_id, name;
    DeleteSnapshotRequest: snapshot_id;
    ListSnapshotsRequest: source_volume_id, snapshot_id;
    ControllerExpandVolumeRequest: volume_id, capacity_range;
    ControllerModifyVolumeRequest: volume_id;
    NodeStageVolumeRequest: volume_id, staging_target_path, volume_capability;
    NodePublishVolumeRequest: volume_id, staging_target_path, target_path, volume_capability, readonly;
    NodeExpandVolumeRequest: volume_id, volume_path, capacity_range, staging_target_path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_tokens_are_not_printed() {
        let secrets = [("key".to_owned(), "hidden".to_owned())];
        let request = NodePublishVolumeRequest {
            volume_id: "vol-1".into(),
            secrets: secrets.clone().into(),
            volume_context: secrets.into(),
            ..Default::default()
        };
        let printed = format!("{request:?}");
        assert!(printed.contains("vol-1") && !printed.contains("hidden"));
    }
}
