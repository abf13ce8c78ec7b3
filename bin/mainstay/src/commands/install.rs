//! `mainstay install` and `mainstay uninstall`: the binary in its place, a link for kubectl, a systemd unit, completions and
//! a configuration file. Data is left alone by both.

use std::{
    fmt::Write,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use cluster::Options;

use crate::cli::{Install, Role, Uninstall};

/// The name of the systemd unit.
pub const UNIT: &str = "mainstay.service";

const BINARY: &str = "usr/local/bin/mainstay";
const KUBECTL: &str = "usr/local/bin/kubectl";
const UNIT_FILE: &str = "etc/systemd/system/mainstay.service";
const CONFIG: &str = "etc/mainstay/config.yaml";
const COMPLETION: &str = "usr/local/share/bash-completion/completions/kubectl";
/// There when systemd runs the machine.
const SYSTEMD: &str = "/run/systemd/system";

/// Whether the unit is there.
pub fn is_installed() -> bool {
    Path::new("/").join(UNIT_FILE).exists()
}

/// Puts everything in its place and starts the service.
pub fn install(asked: &Install) -> Result<()> {
    let at = |path: &str| asked.root.join(path);
    put_binary(&at(BINARY))?;
    link_kubectl(&at(KUBECTL), &at(BINARY))?;
    put(&at(UNIT_FILE), &unit(asked.role, &asked.flags), 0o644)?;
    if at(CONFIG).exists() {
        println!("kept       {} as it is", at(CONFIG).display());
    } else {
        // Tokens and keys may be named in it.
        put(&at(CONFIG), &config(), 0o600)?;
    }
    put(&at(COMPLETION), kubectl::BASH_COMPLETION, 0o644)?;
    if asked.root != Path::new("/") || asked.no_start || !Path::new(SYSTEMD).exists() {
        println!(
            "Not started. `systemctl enable --now mainstay` starts it, now and at every boot."
        );
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--now", UNIT])?;
    println!(
        "Started, now and at every boot. `mainstay status` shows how it is, `mainstay logs` what it says."
    );
    Ok(())
}

/// Stops the service and removes what was installed.
pub fn uninstall(asked: &Uninstall) -> Result<()> {
    let at = |path: &str| asked.root.join(path);
    if asked.root == Path::new("/") && Path::new(SYSTEMD).exists() && is_installed() {
        systemctl(&["disable", "--now", UNIT])?;
    }
    if fs::read_link(at(KUBECTL)).is_ok_and(|target| target.ends_with("mainstay")) {
        remove(&at(KUBECTL))?;
    }
    for path in [UNIT_FILE, COMPLETION, BINARY] {
        remove(&at(path))?;
    }
    println!(
        "Containers and data are still there: `mainstay reset` before this removes them. {} was kept.",
        at(CONFIG).display()
    );
    Ok(())
}

/// A running binary is never written over: the new one takes its name.
fn put_binary(path: &Path) -> Result<()> {
    let own = std::env::current_exe()?;
    if own == path {
        return Ok(());
    }
    let aside = path.with_extension("new");
    make_parent(path)?;
    fs::copy(&own, &aside).with_context(|| format!("cannot write {}", aside.display()))?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
    fs::rename(&aside, path)?;
    println!("installed  {}", path.display());
    Ok(())
}

/// Somebody else's kubectl is left alone.
fn link_kubectl(link: &Path, binary: &Path) -> Result<()> {
    match fs::read_link(link) {
        Ok(target) if target.ends_with("mainstay") => return Ok(()),
        _ if link.symlink_metadata().is_ok() => {
            println!("kept       {}, which is another kubectl", link.display());
            return Ok(());
        }
        _ => {}
    }
    let target = binary.file_name().unwrap_or_default();
    symlink(target, link).with_context(|| format!("cannot make {}", link.display()))?;
    println!("installed  {}", link.display());
    Ok(())
}

fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    make_parent(path)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    println!("installed  {}", path.display());
    Ok(())
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

/// Only the daemon itself is stopped with the unit: containers outlive it.
fn unit(role: Role, flags: &[String]) -> String {
    let command = match role {
        Role::Up => "up",
        Role::Server => "server",
        Role::Agent => "agent",
    };
    let mut start = format!("/{BINARY} {command} --config /{CONFIG}");
    for flag in flags {
        // systemd expands percent signs and dollars, and splits at blanks.
        let quoted = flag
            .replace('%', "%%")
            .replace('$', "$$")
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        let _ = write!(start, " \"{quoted}\"");
    }
    format!(
        "[Unit]\nDescription=Mainstay: Kubernetes in one binary\nWants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nType=notify\nExecStart={start}\nKillMode=process\nDelegate=yes\nRestart=on-failure\nRestartSec=1\n\
         TimeoutStartSec=infinity\nLimitNOFILE=1048576\nLimitNPROC=infinity\nTasksMax=infinity\nOOMScoreAdjust=-999\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// Every option with what it means, commented out.
fn config() -> String {
    let command = Options::augment_args(clap::Command::new("mainstay"));
    let mut text =
        "# Options of mainstay. Keys are the names of flags; a flag wins over this file.\n"
            .to_owned();
    for argument in command.get_arguments() {
        let (Some(name), Some(help)) = (argument.get_long(), argument.get_help()) else {
            continue;
        };
        if name == "config" {
            continue;
        }
        let takes_value = argument.get_action().takes_values();
        let value = match argument.get_value_names() {
            Some([value, ..]) if takes_value => value.as_str(),
            _ => "true",
        };
        let _ = write!(text, "\n# {help}\n# {name}: {value}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(root: &Path) -> Install {
        Install {
            root: root.to_owned(),
            role: Role::Agent,
            no_start: false,
            flags: vec!["--server".to_owned(), "https://a b:6443".to_owned()],
        }
    }

    #[test]
    fn what_is_installed_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        install(&asked(root.path())).unwrap();
        let at = |path: &str| root.path().join(path);
        assert_eq!(fs::read_link(at(KUBECTL)).unwrap(), Path::new("mainstay"));
        let unit = fs::read_to_string(at(UNIT_FILE)).unwrap();
        assert!(unit.contains("mainstay agent --config /etc/mainstay/config.yaml \"--server\" \"https://a b:6443\"\n"), "{unit}");
        assert!(unit.contains("KillMode=process\n"), "{unit}");
        fs::write(at(CONFIG), "node-name: mine\n").unwrap();
        // Once more: what a person wrote stays.
        install(&asked(root.path())).unwrap();
        assert_eq!(fs::read_to_string(at(CONFIG)).unwrap(), "node-name: mine\n");
        uninstall(&Uninstall {
            root: root.path().to_owned(),
        })
        .unwrap();
        for path in [BINARY, KUBECTL, UNIT_FILE, COMPLETION] {
            assert!(at(path).symlink_metadata().is_err(), "{path}");
        }
        assert!(at(CONFIG).exists());
    }

    #[test]
    fn another_kubectl_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let kubectl = root.path().join(KUBECTL);
        make_parent(&kubectl).unwrap();
        fs::write(&kubectl, "theirs").unwrap();
        install(&asked(root.path())).unwrap();
        uninstall(&Uninstall {
            root: root.path().to_owned(),
        })
        .unwrap();
        assert_eq!(fs::read_to_string(&kubectl).unwrap(), "theirs");
    }

    #[test]
    fn the_configuration_file_names_every_option_and_sets_none() {
        let text = config();
        assert!(text.contains("\n# node-name: NAME\n"), "{text}");
        assert!(
            text.lines()
                .all(|line| line.is_empty() || line.starts_with('#')),
            "{text}"
        );
        // With all comments taken away it is still a file that is understood, key by key.
        let keys = text
            .lines()
            .filter_map(|line| line.strip_prefix("# ")?.split_once(": "));
        let names: Vec<&str> = keys
            .map(|(name, _)| name)
            .filter(|name| !name.contains(' '))
            .collect();
        assert!(names.len() > 30, "{names:?}");
    }
}
