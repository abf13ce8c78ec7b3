//! An OCI image with only the binary, as an image layout in a tar archive: `docker load`, `podman
//! load` and `mainstay image import` read it. It runs servers and kubectl; a node needs programs of
//! the machine.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use super::{Package, VERSION, gzip, sha256, tree::Tree};

/// Writes the archive.
pub(super) fn write(path: &Path, package: &Package) -> Result<()> {
    let mut root = Tree::default();
    for directory in [
        "tmp",
        "etc",
        "usr",
        "usr/bin",
        "var",
        "var/lib",
        "var/lib/mainstay",
    ] {
        root.directory(directory);
    }
    root.file("usr/bin/mainstay", fs::read(&package.binary)?, 0o755);
    root.file(
        "etc/passwd",
        b"root:x:0:0:root:/:/usr/bin/mainstay\n".to_vec(),
        0o644,
    );
    let layer = root.archive(package.time)?;
    let packed = gzip(&layer)?;

    let mut layout = Tree::default();
    for directory in ["blobs", "blobs/sha256"] {
        layout.directory(directory);
    }
    let config = json!({
        "architecture": package.architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/mainstay"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "ExposedPorts": {"6443/tcp": {}},
            "Volumes": {"/var/lib/mainstay": {}},
            "Labels": {"org.opencontainers.image.version": VERSION, "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
    });
    let kind = |what: &str| format!("application/vnd.oci.image.{what}");
    let config = blob(
        &mut layout,
        &kind("config.v1+json"),
        config.to_string().into_bytes(),
    );
    let layer = blob(&mut layout, &kind("layer.v1.tar+gzip"), packed);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": kind("manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(
        &mut layout,
        &kind("manifest.v1+json"),
        manifest.to_string().into_bytes(),
    );
    manifest["platform"] = json!({"architecture": package.architecture, "os": "linux"});
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("mainstay.local/mainstay:{VERSION}"),
        "org.opencontainers.image.ref.name": VERSION,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": kind("index.v1+json"),
        "manifests": [manifest],
    });
    layout.file("index.json", index.to_string().into_bytes(), 0o644);
    layout.file(
        "oci-layout",
        br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        0o644,
    );
    fs::write(path, layout.archive(package.time)?)?;
    Ok(())
}

/// Adds a blob to the layout, and describes it.
fn blob(layout: &mut Tree, media_type: &str, bytes: Vec<u8>) -> Value {
    let digest = sha256(&bytes);
    let descriptor = json!({
        "mediaType": media_type,
        "digest": format!("sha256:{digest}"),
        "size": bytes.len(),
    });
    layout.file(&format!("blobs/sha256/{digest}"), bytes, 0o644);
    descriptor
}
