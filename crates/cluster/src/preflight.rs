//! What a machine must have before a cluster is started on it: every lack is named at once, with
//! what to do about it.

use std::path::Path;

use crate::{Error, Settings};

/// Programs that the node's parts call.
const PROGRAMS: &[(&str, &str)] = &[("nft", "nftables"), ("conntrack", "conntrack")];

/// Refuses to start where it cannot work.
pub fn check(settings: &Settings) -> Result<(), Error> {
    let mut lacks = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        lacks.push("root: containers, links and rules need it; run it with sudo".to_owned());
    }
    for (program, package) in PROGRAMS {
        if !is_on_path(program) {
            lacks.push(format!(
                "the program {program}: install it with `apt-get install {package}`"
            ));
        }
    }
    if !has_cgroups() {
        lacks.push(
            "cgroups: neither version 2 nor version 1 is mounted at /sys/fs/cgroup".to_owned(),
        );
    }
    for (what, port) in [
        ("--https-port", settings.https_port),
        ("--kubelet-port", settings.kubelet_port),
    ] {
        if let Err(error) = std::net::TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, port)) {
            lacks.push(format!(
                "port {port} ({error}): is another cluster running? choose with {what}"
            ));
        }
    }
    if lacks.is_empty() {
        Ok(())
    } else {
        Err(Error::Preflight(lacks))
    }
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(usual)
        .any(|directory| directory.join(program).exists())
}

fn has_cgroups() -> bool {
    let root = Path::new("/sys/fs/cgroup");
    root.join("cgroup.controllers").exists() || root.join("memory").is_dir()
}
