//! The packages of a release: built, checked by dpkg, installed into an empty root and run from
//! there.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use testkit::{Cluster, Machine, Ran};

fn run(program: &str, args: &[&str]) -> Ran {
    let output = Command::new(program).args(args).output();
    output
        .unwrap_or_else(|error| panic!("{program}: {error}"))
        .into()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

fn binary() -> String {
    std::env::var("MAINSTAY_BIN").expect("the binary")
}

fn busybox() -> &'static str {
    let places = ["/bin/busybox", "/usr/bin/busybox"];
    let found = places.into_iter().find(|path| Path::new(path).exists());
    found.expect("busybox is installed (make test does it)")
}

/// Builds the packages. A debug build takes minutes to compress, so that another program replaces
/// it; everything else is real.
fn make(out: &Path) -> Vec<PathBuf> {
    let packages = out.join("packages");
    let made = Command::new(env!("CARGO"))
        .args(["xtask", "package", busybox(), text(&packages)])
        .env("MAINSTAY_HOST_BINARY", binary())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output();
    Ran::from(made.expect("cargo starts")).success();
    let entries = fs::read_dir(&packages).expect("packages");
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn one<'a>(packages: &'a [PathBuf], end: &str) -> &'a Path {
    let found = packages
        .iter()
        .find(|path| path.to_string_lossy().ends_with(end));
    found.unwrap_or_else(|| panic!("no {end} in {packages:?}"))
}

/// A root with only what maintainer scripts need: a shell.
fn empty_root(root: &Path) {
    let info = "var/lib/dpkg/info";
    for directory in ["bin", "dev", "usr/bin", info, "var/lib/dpkg/updates", "tmp"] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    fs::write(root.join("dev/null"), "").expect("a file");
    fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    fs::copy(busybox(), root.join("bin/busybox")).expect("a copy");
    for name in ["sh", "ln", "mkdir", "rm", "readlink", "true"] {
        symlink("busybox", root.join("bin").join(name)).expect("a link");
    }
}

#[test]
fn a_release_is_packed_installed_into_an_empty_root_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let packages = make(directory.path());
    let sums = one(&packages, "SHA256SUMS");
    let check = Command::new("sha256sum")
        .args(["--check", "--strict", text(sums)])
        .current_dir(sums.parent().expect("a directory"))
        .output();
    Ran::from(check.expect("sha256sum starts")).success();

    let debian = text(one(&packages, ".deb"));
    let info = run("dpkg-deb", &["--info", debian]).success();
    assert!(info.contains("Depends: nftables, conntrack"), "{info}");
    let root = directory.path().join("root");
    empty_root(&root);
    let dpkg = |args: &[&str]| {
        let root = format!("--root={}", root.display());
        let options = [&*root, "--force-depends", "--force-bad-path"];
        run("dpkg", &[&options, args].concat())
    };
    dpkg(&["--install", debian]).success();
    assert_eq!(
        fs::read_link(root.join("usr/bin/kubectl")).expect("a link"),
        Path::new("mainstay")
    );
    let unit = root.join("usr/lib/systemd/system/mainstay.service");
    let unit = fs::read_to_string(unit).expect("a unit");
    assert!(
        unit.contains("KillMode=process") && unit.contains("$MAINSTAY_COMMAND"),
        "{unit}"
    );
    let documents = unit
        .lines()
        .find_map(|line| line.strip_prefix("Documentation=file:///"));
    let readme = root.join(documents.expect("the unit names its documentation"));
    assert!(readme.is_file(), "{}", readme.display());
    assert!(readme.with_file_name("docs").join("README.md").is_file());
    fs::copy(binary(), root.join("usr/bin/mainstay")).expect("a copy");
    let version = run(
        "chroot",
        &[text(&root), "/usr/bin/kubectl", "version", "--client"],
    )
    .success();
    assert!(version.contains("Client Version: v1.36"), "{version}");

    // A changed configuration file stays, and nothing else is left behind.
    let config = root.join("etc/mainstay/config.yaml");
    fs::write(&config, "node-name: mine\n").expect("a file");
    dpkg(&["--remove", "mainstay"]).success();
    assert_eq!(
        fs::read_to_string(&config).expect("a file"),
        "node-name: mine\n"
    );
    for gone in [
        "usr/bin/mainstay",
        "usr/bin/kubectl",
        "usr/lib/systemd/system/mainstay.service",
    ] {
        assert!(root.join(gone).symlink_metadata().is_err(), "{gone}");
    }

    let tarball = text(one(&packages, ".tar.gz"));
    run("tar", &["-C", text(directory.path()), "-xzf", tarball]).success();
    let entries = fs::read_dir(directory.path()).expect("a directory");
    let unpacked = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("mainstay").exists() && path.join("LICENSE").exists());
    let unpacked = unpacked.expect("the tarball has one directory");
    assert!(unpacked.join("examples/guestbook").is_dir());
    let target = directory.path().join("installed");
    let install = ["install", "--root", text(&target)];
    run(&binary(), &install).success();
    assert!(target.join("usr/local/bin/mainstay").exists());
    let unit = target.join("etc/systemd/system/mainstay.service");
    let unit = fs::read_to_string(unit).expect("a unit");
    assert!(!unit.contains("Documentation="), "{unit}");
}

#[test]
fn the_image_of_a_release_is_imported_under_its_name() {
    let cluster = Cluster::up();
    let packages = make(cluster.machine().dir());
    let is_image = |path: &&PathBuf| path.to_string_lossy().contains("-image-");
    let image = packages.iter().find(is_image).expect("an image");
    cluster
        .mainstay(&["image", "import", text(image)])
        .success();
    let listed = cluster.mainstay(&["image", "list"]).success();
    let name = concat!("mainstay.local/mainstay:", env!("CARGO_PKG_VERSION"));
    assert!(listed.contains(name), "{listed}");
}

/// A minimal Debian below `target/`, made once; `None` if this machine cannot make one.
fn debian_root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian");
    let (new, made) = (root.with_extension("new"), root.join("etc/debian_version"));
    if made.exists() {
        return Some(root);
    }
    let _ = fs::remove_dir_all(&new);
    let suite = ["--variant=minbase", "--include=nftables,conntrack"];
    let ran = Command::new("debootstrap")
        .args(suite)
        .args(["bookworm", text(&new)])
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {
            fs::rename(&new, &root).expect("a new root");
            Some(root)
        }
        Ok(_) => {
            reference::skip("needs Debian's packages");
            None
        }
        Err(_) => {
            reference::skip("needs debootstrap");
            None
        }
    }
}

#[test]
fn a_clean_debian_runs_a_pod_and_keeps_nothing_of_the_package() {
    let Some(root) = debian_root() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let packages = make(directory.path());
    let story = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/debian/enter.sh");
    let machine = Machine::new();
    let package = text(one(&packages, ".deb"));
    let own = ["--mount", "--pid", "--fork", "--kill-child", "sh", story];
    let program = binary();
    let own = [&own[..], &[text(&root), package, &program]].concat();
    let ran = machine.run("unshare", &own);
    if !ran.ok {
        // What is left of a failed run must not be found by the next one.
        fs::remove_dir_all(&root).expect("the root goes");
    }
    assert!(ran.success().ends_with("nothing stays\n"));
}
