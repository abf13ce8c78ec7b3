//! Compiles the protocols with protox, so that building needs no protoc.

use std::error::Error;

const FILES: &[&str] = &[
    "proto/controller.proto",
    "proto/identity.proto",
    "proto/node.proto",
    "proto/pluginregistration.proto",
    "proto/volume.proto",
];

/// Messages with secrets, which `src/redacted.rs` prints.
const SECRET: &[&str] = &[
    "csi.v1.CreateVolumeRequest",
    "csi.v1.DeleteVolumeRequest",
    "csi.v1.ControllerPublishVolumeRequest",
    "csi.v1.ControllerUnpublishVolumeRequest",
    "csi.v1.ValidateVolumeCapabilitiesRequest",
    "csi.v1.CreateSnapshotRequest",
    "csi.v1.DeleteSnapshotRequest",
    "csi.v1.ListSnapshotsRequest",
    "csi.v1.ControllerExpandVolumeRequest",
    "csi.v1.ControllerModifyVolumeRequest",
    "csi.v1.NodeStageVolumeRequest",
    "csi.v1.NodePublishVolumeRequest",
    "csi.v1.NodeExpandVolumeRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .generate_default_stubs(true)
        .skip_debug(SECRET)
        .compile_fds(descriptors)?;
    Ok(())
}
