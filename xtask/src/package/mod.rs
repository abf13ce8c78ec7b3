//! `cargo xtask package`: the files of a release from a built binary: a tarball, a Debian package,
//! an OCI image, and their checksums. Reproducible: the same input gives the same bytes.

mod deb;
mod image;
mod tree;

use std::{
    fmt::Write,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use tree::Tree;

/// The version of everything in the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The input of a release.
struct Package {
    binary: PathBuf,
    /// Debian's and OCI's name: amd64 or arm64.
    architecture: String,
    out: PathBuf,
    /// The modification time of every file in the packages.
    time: u64,
}

/// `package BINARY OUT`
pub(crate) fn run(args: &[String]) -> Result<()> {
    let [binary, out] = args else {
        bail!("usage: cargo xtask package BINARY DIRECTORY");
    };
    let binary = PathBuf::from(binary);
    let package = Package {
        architecture: architecture(&binary)?.to_owned(),
        binary,
        out: out.into(),
        time: time(),
    };
    fs::create_dir_all(&package.out)?;
    let stage = package.out.join("stage");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let made = package.make(&stage);
    let _ = fs::remove_dir_all(&stage);
    for file in made? {
        crate::complain(&format!("made {}", file.display()));
    }
    sums(&package.out)
}

impl Package {
    fn make(&self, stage: &Path) -> Result<Vec<PathBuf>> {
        self.lay_out(stage)?;
        let Self {
            architecture, out, ..
        } = self;
        let tarball = out.join(format!("mainstay-{VERSION}-linux-{architecture}.tar.gz"));
        let debian = out.join(format!("mainstay_{VERSION}_{architecture}.deb"));
        let image = out.join(format!("mainstay-{VERSION}-image-{architecture}.tar"));
        let top = format!("mainstay-{VERSION}-linux-{architecture}");
        let tree = self.release_tree(&top)?;
        fs::write(&tarball, gzip(&tree.archive(self.time)?)?)?;
        let mut tree = Tree::read(stage)?;
        add_documents(&mut tree, "usr/share/doc/mainstay")?;
        deb::write(&debian, self, &tree)?;
        image::write(&image, self)?;
        Ok(vec![tarball, debian, image])
    }

    /// The files of an installation, written by the binary itself. A binary for another
    /// architecture cannot run: the text files of the host's build are the same.
    fn lay_out(&self, stage: &Path) -> Result<()> {
        let host = std::env::var_os("MAINSTAY_HOST_BINARY").map(PathBuf::from);
        let installer = host.unwrap_or_else(|| self.binary.clone());
        let status = Command::new(&installer)
            .args(["install", "--package", "--root"])
            .arg(stage)
            .stdout(std::process::Stdio::null())
            .status()
            .with_context(|| format!("cannot run {}", installer.display()))?;
        ensure!(status.success(), "{}: {status}", installer.display());
        fs::copy(&self.binary, stage.join("usr/bin/mainstay"))?;
        let docs = stage.join("usr/share/doc/mainstay");
        fs::create_dir_all(&docs)?;
        for (from, to) in [("README.md", "README.md"), ("LICENSE", "copyright")] {
            fs::copy(crate::root().join(from), docs.join(to))?;
        }
        Ok(())
    }

    /// The content of the tarball: the binary, instructions, and examples.
    fn release_tree(&self, top: &str) -> Result<Tree> {
        let root = crate::root();
        let mut tree = Tree::default();
        tree.directory(top);
        tree.file(&format!("{top}/mainstay"), fs::read(&self.binary)?, 0o755);
        for name in ["README.md", "LICENSE", "CHANGELOG.md"] {
            tree.file(&format!("{top}/{name}"), fs::read(root.join(name))?, 0o644);
        }
        add_documents(&mut tree, top)?;
        Ok(tree)
    }
}

/// Adds the book and the examples, which README.md links to, beside it.
fn add_documents(tree: &mut Tree, directory: &str) -> Result<()> {
    for name in ["docs", "examples"] {
        let documents = Tree::read(&crate::root().join(name))?;
        tree.below(&format!("{directory}/{name}"), &documents);
    }
    Ok(())
}

/// The architecture of an ELF file.
fn architecture(binary: &Path) -> Result<&'static str> {
    use std::io::Read;
    let mut header = [0; 20];
    let mut file = File::open(binary).with_context(|| binary.display().to_string())?;
    file.read_exact(&mut header)?;
    ensure!(
        header.starts_with(b"\x7fELF"),
        "{} is no program",
        binary.display()
    );
    match u16::from_le_bytes([header[18], header[19]]) {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        other => bail!(
            "{} is for machine {other}, which has no packages",
            binary.display()
        ),
    }
}

/// The time of the last commit, or `SOURCE_DATE_EPOCH` (reproducible-builds.org).
fn time() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let commit = || {
        let output = Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(crate::root())
            .output()
            .ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let text = given.or_else(commit).unwrap_or_default();
    text.trim().parse().unwrap_or(1_767_225_600)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    io::copy(&mut &bytes[..], &mut encoder)?;
    Ok(encoder.finish()?)
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// `SHA256SUMS` of all output files, for `sha256sum --check`.
fn sums(out: &Path) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(out)?
        .flatten()
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "SHA256SUMS")
        .collect();
    names.sort();
    let mut text = String::new();
    for name in names {
        let sum = sha256(&fs::read(out.join(&name))?);
        let _ = writeln!(text, "{sum}  {name}");
    }
    fs::write(out.join("SHA256SUMS"), text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_of_a_binary_is_read_from_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut header = [0_u8; 64];
        header[..4].copy_from_slice(b"\x7fELF");
        for (machine, name) in [(62, Some("amd64")), (183, Some("arm64")), (243, None)] {
            header[18] = machine;
            fs::write(file.path(), header).unwrap();
            assert_eq!(architecture(file.path()).ok(), name);
        }
        fs::write(file.path(), "#!/bin/sh\nexit 0 # no program\n").unwrap();
        assert!(architecture(file.path()).is_err());
    }
}
