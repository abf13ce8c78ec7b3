//! `mainstay install` and `mainstay uninstall`: the binary, a link for kubectl, a systemd unit,
//! completions and a configuration file. Neither touches data. Packages contain the same files
//! ([`Layout::PACKAGE`]).

mod files;

use std::{
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use files::CONFIG;

use crate::{
    cli::{Install, Role, Uninstall},
    user_kubeconfig,
};

/// The name of the systemd unit.
pub(super) const UNIT: &str = "mainstay.service";

/// Exists if systemd runs the machine.
const SYSTEMD: &str = "/run/systemd/system";

/// The installation paths, below the root.
struct Layout {
    binary: &'static str,
    kubectl: &'static str,
    unit: &'static str,
    completions: [&'static str; 3],
}

impl Layout {
    /// For `mainstay install`.
    const LOCAL: Self = Self {
        binary: "usr/local/bin/mainstay",
        kubectl: "usr/local/bin/kubectl",
        unit: "etc/systemd/system/mainstay.service",
        completions: [
            "usr/local/share/bash-completion/completions/kubectl",
            "usr/local/share/zsh/site-functions/_kubectl",
            "usr/local/share/fish/vendor_completions.d/kubectl.fish",
        ],
    };
    /// For distribution packages. The name kubectl may belong to another package: the link is made
    /// on the machine.
    const PACKAGE: Self = Self {
        binary: "usr/bin/mainstay",
        kubectl: "usr/bin/kubectl",
        unit: "usr/lib/systemd/system/mainstay.service",
        completions: [
            "usr/share/mainstay/completions/kubectl.bash",
            "usr/share/mainstay/completions/_kubectl",
            "usr/share/mainstay/completions/kubectl.fish",
        ],
    };
}

/// Whether the unit is installed.
pub(super) fn is_installed() -> bool {
    let units = [Layout::LOCAL.unit, Layout::PACKAGE.unit];
    units.iter().any(|unit| Path::new("/").join(unit).exists())
}

/// Installs all files and starts the service.
pub(super) fn install(asked: &Install) -> Result<()> {
    if asked.package {
        return lay_out_package(&asked.root);
    }
    let at = |path: &str| asked.root.join(path);
    if at(Layout::PACKAGE.unit).exists() {
        bail!(
            "already installed as a package: `systemctl enable --now mainstay` starts it, /{} configures it",
            files::DEFAULTS
        );
    }
    let layout = Layout::LOCAL;
    put_binary(&at(layout.binary))?;
    let has_kubectl = link_kubectl(&asked.root, &layout)?;
    let unit = unit(asked, &at(layout.unit));
    // Flags may name keys.
    let mode = match files::has_no_flags(&unit.text) {
        true => 0o644,
        false => 0o600,
    };
    let keeps_flags = asked.role.is_none() && asked.flags.is_empty();
    match &unit.tokens {
        Some(tokens) => put(&at(files::TOKENS), tokens, 0o600)?,
        // Those of an upgrade belong to the flags that stay.
        None if keeps_flags => {}
        None => remove(&at(files::TOKENS))?,
    }
    put(&at(layout.unit), &unit.text, mode)?;
    if at(CONFIG).exists() {
        println!("kept       {} as it is", at(CONFIG).display());
    } else {
        // It may name tokens and keys.
        put(&at(CONFIG), &files::config(), 0o600)?;
    }
    // Those of another kubectl stay.
    if has_kubectl {
        put_completions(&layout, &asked.root)?;
    }
    if asked.root != Path::new("/") || asked.no_start || !Path::new(SYSTEMD).exists() {
        println!(
            "Not started. `systemctl enable --now mainstay` starts it, now and at every boot."
        );
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    if main_process().is_some() {
        println!(
            "The service still runs the previous binary: `systemctl restart mainstay` starts this one. Pods keep running."
        );
        return Ok(());
    }
    println!("starting   {UNIT}; `mainstay logs` shows its log");
    systemctl(&["enable", "--now", UNIT])?;
    println!("Started, now and at every boot. `mainstay status` shows its state.");
    give_kubeconfig();
    Ok(())
}

/// The unit's text. Without a role and flags those of an earlier install are kept: an upgrade does
/// not turn a node into a control plane.
fn unit(asked: &Install, path: &Path) -> files::Unit {
    let keeps = asked.role.is_none() && asked.flags.is_empty();
    let installed = fs::read_to_string(path).ok().filter(|_| keeps);
    let renewed = installed.and_then(|installed| files::renewed_unit(&installed));
    let role = asked.role.unwrap_or(Role::Up);
    renewed.unwrap_or_else(|| files::unit(Layout::LOCAL.binary, role, &asked.flags))
}

/// The process of the service, if it is running or starting.
pub(super) fn main_process() -> Option<i32> {
    let asked = Command::new("systemctl")
        .args(["show", "--property=MainPID", "--value", UNIT])
        .output();
    let answer = String::from_utf8(asked.ok()?.stdout).ok()?;
    answer.trim().parse().ok().filter(|process| *process != 0)
}

/// Adds the kubeconfig for the user who installs: the service itself runs as root. A node has no
/// kubeconfig.
fn give_kubeconfig() {
    let data_dir = Path::new(cluster::settings::DATA_DIR);
    if let Ok(added) = user_kubeconfig::add_for_caller(data_dir) {
        println!("{}", added.line());
    }
}

/// The files of a package, for the packaging tool.
fn lay_out_package(root: &Path) -> Result<()> {
    let layout = Layout::PACKAGE;
    put_binary(&root.join(layout.binary))?;
    put(
        &root.join(layout.unit),
        &files::package_unit(layout.binary),
        0o644,
    )?;
    put(&root.join(CONFIG), &files::config(), 0o600)?;
    put(&root.join(files::DEFAULTS), files::DEFAULTS_TEXT, 0o600)?;
    put_completions(&layout, root)
}

fn put_completions(layout: &Layout, root: &Path) -> Result<()> {
    let texts = kubectl::COMPLETIONS.iter();
    for (path, text) in layout.completions.iter().zip(texts) {
        put(&root.join(path), text, 0o644)?;
    }
    Ok(())
}

/// Stops the service and removes the installed files.
pub(super) fn uninstall(asked: &Uninstall) -> Result<()> {
    let at = |path: &str| asked.root.join(path);
    let layout = Layout::LOCAL;
    if !at(layout.unit).exists() && at(Layout::PACKAGE.unit).exists() {
        bail!("it was installed as a package: remove it with `apt-get remove mainstay`");
    }
    if asked.root == Path::new("/") && Path::new(SYSTEMD).exists() && is_installed() {
        systemctl(&["disable", "--now", UNIT])?;
    }
    if is_own_link(&at(layout.kubectl)) {
        let files = [layout.kubectl].into_iter().chain(layout.completions);
        files.map(at).try_for_each(|file| remove(&file))?;
    }
    for path in [layout.unit, layout.binary, files::TOKENS] {
        remove(&at(path))?;
    }
    println!(
        "Containers and data are still there: `mainstay reset` before this removes them. {} was kept.",
        at(CONFIG).display()
    );
    Ok(())
}

/// A running binary is never overwritten: the new one is renamed into place.
fn put_binary(path: &Path) -> Result<()> {
    let own = std::env::current_exe()?;
    if own == path {
        return Ok(());
    }
    let aside = path.with_extension("new");
    make_parent(path)?;
    fs::copy(&own, &aside).with_context(|| format!("cannot write {}", aside.display()))?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
    // After a power failure there is the old binary or the new one.
    fs::File::open(&aside)?.sync_all()?;
    fs::rename(&aside, path)?;
    println!("installed  {}", path.display());
    Ok(())
}

/// Links kubectl, and returns whether it is ours. Another kubectl is left alone, also one that the
/// link would only precede on the PATH.
fn link_kubectl(root: &Path, layout: &Layout) -> Result<bool> {
    let link = root.join(layout.kubectl);
    if is_own_link(&link) {
        return Ok(true);
    }
    if let Some(other) = other_kubectl(root) {
        println!("kept       {}, which is another kubectl", other.display());
        return Ok(false);
    }
    let target = Path::new(layout.binary).file_name().unwrap_or_default();
    symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
    println!("installed  {}", link.display());
    Ok(true)
}

/// Whether this is a link to Mainstay.
fn is_own_link(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target.ends_with("mainstay"))
}

/// A kubectl where users' shells find programs.
fn other_kubectl(root: &Path) -> Option<PathBuf> {
    let usual = ["usr/local/bin", "usr/bin", "bin", "snap/bin"];
    let mut places: Vec<PathBuf> = usual.iter().map(|place| root.join(place)).collect();
    if root == Path::new("/") {
        let path = std::env::var_os("PATH").unwrap_or_default();
        places.extend(std::env::split_paths(&path));
    }
    let mut candidates = places.into_iter().map(|place| place.join("kubectl"));
    candidates.find(|file| file.symlink_metadata().is_ok() && !is_own_link(file))
}

fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    make_parent(path)?;
    write(path, text, mode).with_context(|| format!("cannot write {}", path.display()))?;
    println!("installed  {}", path.display());
    Ok(())
}

/// The file has its mode before it has its text, which may be secret.
fn write(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}

fn remove(path: &PathBuf) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => println!("removed    {}", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => bail!("cannot remove {}: {error}", path.display()),
    }
    Ok(())
}

fn systemctl(args: &[&str]) -> Result<()> {
    let status = Command::new("systemctl")
        .args(args)
        .status()
        .context("systemctl")?;
    anyhow::ensure!(status.success(), "systemctl {}: {status}", args.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout::LOCAL;

    fn asked(root: &Path) -> Install {
        Install {
            root: root.to_owned(),
            role: Some(Role::Agent),
            package: false,
            no_start: false,
            flags: ["--server", "https://a b:6443", "--token", "abcdef.x1"]
                .map(str::to_owned)
                .into(),
        }
    }

    #[test]
    fn uninstall_removes_only_installed_files() {
        let root = tempfile::tempdir().unwrap();
        install(&asked(root.path())).unwrap();
        let at = |path: &str| root.path().join(path);
        assert_eq!(
            fs::read_link(at(LAYOUT.kubectl)).unwrap(),
            Path::new("mainstay")
        );
        let unit = fs::metadata(at(LAYOUT.unit)).unwrap();
        assert_eq!(
            unit.permissions().mode() & 0o777,
            0o600,
            "flags may name keys"
        );
        let tokens = fs::metadata(at(files::TOKENS)).unwrap();
        assert_eq!(tokens.permissions().mode() & 0o777, 0o600);
        fs::write(at(CONFIG), "node-name: mine\n").unwrap();
        // Installing again keeps the user's changes.
        install(&asked(root.path())).unwrap();
        let before = fs::read_to_string(at(LAYOUT.unit)).unwrap();
        let without_flags = |role| Install {
            role,
            flags: Vec::new(),
            ..asked(root.path())
        };
        install(&without_flags(None)).unwrap();
        let unit = fs::read_to_string(at(LAYOUT.unit)).unwrap();
        assert_eq!(unit, before, "an upgrade keeps role and flags");
        let tokens = fs::read_to_string(at(files::TOKENS)).unwrap();
        assert_eq!(tokens, "MAINSTAY_TOKEN=abcdef.x1\n");
        let mode = fs::metadata(at(LAYOUT.unit)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_to_string(at(CONFIG)).unwrap(), "node-name: mine\n");
        // Another role has other flags.
        install(&without_flags(Some(Role::Up))).unwrap();
        assert!(!at(files::TOKENS).exists());
        install(&asked(root.path())).unwrap();
        uninstall(&Uninstall {
            root: root.path().to_owned(),
        })
        .unwrap();
        let [bash, zsh, fish] = LAYOUT.completions;
        for path in [
            LAYOUT.binary,
            LAYOUT.kubectl,
            LAYOUT.unit,
            files::TOKENS,
            bash,
            zsh,
            fish,
        ] {
            assert!(at(path).symlink_metadata().is_err(), "{path}");
        }
        assert!(at(CONFIG).exists());
    }

    #[test]
    fn another_kubectl_and_its_completions_are_left_alone() {
        for place in [LAYOUT.kubectl, "usr/bin/kubectl", "snap/bin/kubectl"] {
            let root = tempfile::tempdir().unwrap();
            let completion = root.path().join(LAYOUT.completions[0]);
            let theirs = [root.path().join(place), completion];
            for file in &theirs {
                make_parent(file).unwrap();
                fs::write(file, "theirs").unwrap();
            }
            install(&asked(root.path())).unwrap();
            let link = root.path().join(LAYOUT.kubectl);
            assert!(!is_own_link(&link), "{place} is preceded on the PATH");
            uninstall(&Uninstall {
                root: root.path().to_owned(),
            })
            .unwrap();
            for file in &theirs {
                assert_eq!(fs::read_to_string(file).unwrap(), "theirs", "{place}");
            }
        }
    }

    #[test]
    fn beside_a_package_nothing_is_installed_or_removed() {
        let root = tempfile::tempdir().unwrap();
        let package = Install {
            package: true,
            ..asked(root.path())
        };
        install(&package).unwrap();
        let refused = install(&asked(root.path())).unwrap_err().to_string();
        assert!(
            refused.contains("systemctl enable --now mainstay"),
            "{refused}"
        );
        let root = root.path().to_owned();
        assert!(uninstall(&Uninstall { root: root.clone() }).is_err());
        assert!(root.join(Layout::PACKAGE.binary).exists());
        assert!(!root.join(LAYOUT.binary).exists());
    }
}
