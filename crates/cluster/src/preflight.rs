//! What a machine must have before a cluster is started on it: every lack is named at once, with
//! what to do about it.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use crate::{Error, Role, Settings};

/// Programs that the node's parts call.
const PROGRAMS: &[(&str, &str)] = &[("nft", "nftables"), ("conntrack", "conntrack")];

/// Refuses to start where it cannot work.
pub fn check(settings: &Settings, role: Role) -> Result<(), Error> {
    let mut lacks = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        lacks.push("root: containers, links and rules need it; run it with sudo".to_owned());
    }
    if role != Role::Server {
        lacks.extend(node_lacks());
    }
    let mut ports = Vec::new();
    if role != Role::Agent {
        ports.push(("--https-port", settings.https_port));
    }
    if role != Role::Server {
        ports.push(("--kubelet-port", settings.kubelet_port));
    }
    lacks.extend(
        ports
            .into_iter()
            .filter_map(|(flag, port)| taken(flag, port)),
    );
    if lacks.is_empty() {
        Ok(())
    } else {
        Err(Error::Preflight(lacks))
    }
}

fn node_lacks() -> Vec<String> {
    let mut lacks = Vec::new();
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
    lacks
}

/// Why a port cannot be listened on, at the address that the servers listen on.
fn taken(flag: &str, port: u16) -> Option<String> {
    let error = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).err()?;
    Some(format!(
        "port {port} ({error}): is another cluster running? choose with {flag}"
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_tried_where_the_servers_listen() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let why = taken("--https-port", port).unwrap();
        assert!(why.contains("--https-port"), "{why}");
        drop(listener);
        assert_eq!(taken("--https-port", port), None);
    }
}
