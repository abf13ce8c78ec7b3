//! The built-in image: the running program as a root file system, so that demos and tests need no
//! registry. It is built again only when the program has changed.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Image, ImageConfig, Images, Reference,
    blobs::Hashing,
    registry::manifest::{Manifest, architecture},
};
use crate::{
    disk,
    error::{Error, Result},
};

/// The registry name of images that are built here and never pulled.
pub const LOCAL_REGISTRY: &str = "mainstay.local";

/// The built-in image's name.
pub const HELLO: &str = "mainstay.local/hello:latest";

/// Identifies the program that the image was built from.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    device: u64,
    inode: u64,
    size: u64,
    modified: i64,
    modified_nanos: i64,
    image: String,
}

const PASSWD: &str = "root:x:0:0:root:/:/mainstay\nnobody:x:65534:65534:nobody:/:/mainstay\n";
const GROUP: &str = "root:x:0:\nnobody:x:65534:\n";

impl Images {
    /// Builds the image of a program unless it exists. Blocks.
    pub fn ensure_hello(&self, program: &Path) -> Result<Image> {
        let _lease = self.lease()?;
        let metadata = fs::metadata(program).map_err(Error::file(program))?;
        let note = self.root.join("hello.json");
        let mut origin = Origin {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: metadata.mtime(),
            modified_nanos: metadata.mtime_nsec(),
            image: String::new(),
        };
        if let Ok(known) = disk::load::<Origin>(&note) {
            origin.image.clone_from(&known.image);
            if let (true, Some(image)) = (known == origin, self.get(&known.image)?) {
                return Ok(image);
            }
        }
        let image = self.make_hello(program)?;
        origin.image.clone_from(&image.id);
        disk::save(&note, &origin)?;
        Ok(image)
    }

    fn make_hello(&self, program: &Path) -> Result<Image> {
        let staging = self.staging();
        let made = lay_out(&staging, program).and_then(|()| archive_digest(&staging));
        let diff_id = made.map_err(Error::file(&staging)).inspect_err(|_| {
            let _ = fs::remove_dir_all(&staging);
        })?;
        let layer = diff_id.trim_start_matches("sha256:").to_owned();
        let place = self.layer_dir(&layer);
        if place.exists() {
            disk::remove_dir(&staging)?;
        } else {
            fs::rename(&staging, &place).map_err(Error::file(&place))?;
        }
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": ["/mainstay", "hello"],
                "Env": [format!("PATH={}", crate::spec::DEFAULT_PATH)],
                "ExposedPorts": { "8080/tcp": {} },
            },
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        });
        let config = config.to_string();
        let id = self.put_blob(config.as_bytes())?;
        let manifest = Manifest::new(&id, config.len() as u64, Vec::new());
        let manifest = serde_json::to_vec(&manifest).map_err(|e| Error::BadImage(e.to_string()))?;
        let manifest = self.put_blob(&manifest)?;
        let reference = Reference::parse(HELLO)?;
        self.put(Image {
            id,
            tags: [reference.to_string()].into(),
            digests: [reference.with_digest(&manifest)].into(),
            manifest,
            blobs: Vec::new(),
            layers: vec![layer],
            size: fs::metadata(program).map_or(0, |metadata| metadata.len()),
            pinned: true,
            settled: false,
            config: ImageConfig {
                entrypoint: vec!["/mainstay".into(), "hello".into()],
                env: vec![format!("PATH={}", crate::spec::DEFAULT_PATH)],
                ..ImageConfig::default()
            },
        })
    }
}

/// Creates the root file system: the program, and the minimum that programs expect.
fn lay_out(root: &Path, program: &Path) -> io::Result<()> {
    let dir = |path: &str, mode: u32| {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(root.join(path))?;
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode))
    };
    dir("", 0o755)?;
    for path in ["bin", "dev", "etc", "proc", "sys", "run", "var"] {
        dir(path, 0o755)?;
    }
    dir("tmp", 0o1777)?;
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("etc/group"), GROUP)?;
    fs::copy(program, root.join("mainstay"))?;
    fs::set_permissions(root.join("mainstay"), fs::Permissions::from_mode(0o755))?;
    symlink("../mainstay", root.join("bin/hello"))
}

/// The digest of the tree's tar archive.
fn archive_digest(root: &Path) -> io::Result<String> {
    let mut hashing = Hashing::new(io::sink());
    write_archive(root, &mut hashing)?;
    Ok(hashing.digest())
}

/// Writes the tree as a reproducible tar archive.
pub(super) fn write_archive(root: &Path, out: impl io::Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    builder.mode(tar::HeaderMode::Deterministic);
    builder.follow_symlinks(false);
    append(&mut builder, root, Path::new(""))?;
    builder.finish()
}

fn append<W: io::Write>(
    builder: &mut tar::Builder<W>,
    root: &Path,
    below: &Path,
) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(root.join(below))?.collect::<io::Result<Vec<_>>>()?;
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let name = below.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            builder.append_dir(&name, entry.path())?;
            append(builder, root, &name)?;
        } else if kind.is_file() {
            builder.append_file(&name, &mut File::open(entry.path())?)?;
        } else {
            builder.append_path_with_name(entry.path(), &name)?;
        }
    }
    Ok(())
}
