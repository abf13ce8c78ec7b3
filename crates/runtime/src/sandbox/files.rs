//! Files that all containers of a pod share and may write to. They are on disk beside the
//! containers' data, where they count as the pod's usage, and not in the node's `/run`, which a pod
//! could fill.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use cri::v1::{DnsConfig, PodSandboxConfig};

use super::Paths;
use crate::{
    error::{Error, Result},
    snapshot::Size,
};

/// Writes the files.
pub(super) fn write(paths: &Paths, config: &PodSandboxConfig, own_hostname: bool) -> Result<()> {
    let hostname = if own_hostname && !config.hostname.is_empty() {
        config.hostname.clone()
    } else {
        host("/etc/hostname").trim_end().to_owned()
    };
    let resolv_conf = match &config.dns_config {
        Some(dns) => resolv_conf(dns),
        None => host("/etc/resolv.conf"),
    };
    let hosts = if own_hostname {
        HOSTS.to_owned()
    } else {
        host("/etc/hosts")
    };
    let contents = [format!("{hostname}\n"), hosts, resolv_conf];
    for (name, text) in NAMES.iter().zip(contents) {
        // Not synced: after a power failure the pod is created again.
        let path = paths.root.join(name);
        fs::write(&path, text).map_err(Error::file(&path))?;
        readable(&path)?;
    }
    Ok(())
}

/// The file names.
pub(super) const NAMES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// The disk usage of the files.
pub(super) fn size(paths: &Paths) -> Size {
    let sizes = NAMES.iter().filter_map(|name| {
        let meta = fs::symlink_metadata(paths.root.join(name)).ok()?;
        Some(Size {
            bytes: meta.blocks() * 512,
            inodes: 1,
        })
    });
    sizes.fold(Size::default(), |sum, size| sum + size)
}

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

fn host(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Makes a file readable for all users.
fn readable(path: &Path) -> Result<()> {
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(path, mode).map_err(Error::file(path))
}

fn resolv_conf(dns: &DnsConfig) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_settings_become_a_resolv_conf() {
        let dns = DnsConfig {
            servers: vec!["10.43.0.10".into()],
            searches: vec!["a.svc.cluster.local".into(), "svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        };
        let expected = "search a.svc.cluster.local svc.cluster.local\nnameserver 10.43.0.10\noptions ndots:5\n";
        assert_eq!(resolv_conf(&dns), expected);
    }
}
