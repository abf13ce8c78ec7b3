//! `cargo xtask protocols`: generates the Rust code of the gRPC protocols from their `.proto` files. The generated
//! code is committed, so that a build of Mainstay compiles neither a protobuf compiler nor a code generator; tidy
//! checks that it is up to date (decision 26).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// One crate's protocol.
struct Protocol {
    /// The directory with the `.proto` files.
    sources: &'static str,
    /// The directory of the generated code, with one file for each protobuf package.
    generated: &'static str,
    configure: fn(tonic_prost_build::Builder) -> tonic_prost_build::Builder,
}

const ALL: &[Protocol] = &[
    Protocol {
        sources: "crates/cri/proto",
        generated: "crates/cri/src/generated",
        configure: |builder| {
            builder
                .btree_map(".")
                .generate_default_stubs(true)
                .skip_debug(["runtime.v1.AuthConfig", "mainstay.v1.PullRequest"])
        },
    },
    Protocol {
        sources: "crates/csi/proto",
        generated: "crates/csi/src/generated",
        configure: |builder| {
            builder
                .btree_map(".")
                .generate_default_stubs(true)
                .skip_debug(CSI_MESSAGES_WITH_SECRETS)
        },
    },
    Protocol {
        sources: "crates/store/proto",
        generated: "crates/store/src/etcd/generated",
        configure: |builder| {
            builder
                .build_server(false)
                .build_transport(false)
                .bytes(".")
        },
    },
];

/// Printed by `crates/csi/src/redacted.rs`.
const CSI_MESSAGES_WITH_SECRETS: &[&str] = &[
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

/// Writes the generated code of all protocols.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    for protocol in ALL {
        let folder = root.join(protocol.generated);
        fs::create_dir_all(&folder)?;
        for (name, code) in generate(root, protocol)? {
            fs::write(folder.join(name), code)?;
        }
    }
    Ok(())
}

/// Files whose committed code is not what their protocol generates.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut findings = Vec::new();
    for protocol in ALL {
        for (name, code) in generate(root, protocol)? {
            let file = format!("{}/{name}", protocol.generated);
            if fs::read_to_string(root.join(&file)).ok().as_deref() != Some(&code) {
                findings.push(format!("{file}: out of date: run cargo xtask protocols"));
            }
        }
    }
    Ok(findings)
}

/// The generated files of a protocol, by name.
fn generate(root: &Path, protocol: &Protocol) -> anyhow::Result<BTreeMap<String, String>> {
    let folder = root.join(protocol.sources);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    let descriptors = protox::compile(&files, [&folder]).with_context(|| protocol.sources)?;
    let out = tempfile::tempdir()?;
    (protocol.configure)(tonic_prost_build::configure())
        .out_dir(out.path())
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    fs::read_dir(out.path())?
        .map(|entry| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, fs::read_to_string(entry.path())?))
        })
        .collect()
}
