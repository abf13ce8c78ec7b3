//! The resolver configuration for pods and the cluster's DNS.

use std::path::{Path, PathBuf};

/// The machine's own.
const SYSTEM: &str = "/etc/resolv.conf";
/// The upstream servers of systemd-resolved.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The file with servers that pods can reach. A stub on the loopback address, such as
/// systemd-resolved's, answers only on the machine itself: then it is the file of the stub's
/// upstream servers.
pub(crate) fn resolv_conf() -> PathBuf {
    choose(Path::new(SYSTEM), Path::new(RESOLVED)).to_owned()
}

fn choose<'a>(system: &'a Path, behind: &'a Path) -> &'a Path {
    let text = std::fs::read_to_string(system).unwrap_or_default();
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .map(str::trim)
        .collect();
    let is_stub = servers == ["127.0.0.53"];
    if is_stub && behind.is_file() {
        behind
    } else {
        system
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_behind_a_stub_is_used_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let (system, behind) = (dir.path().join("system"), dir.path().join("behind"));
        let chosen = |text: &str| {
            std::fs::write(&system, text).unwrap();
            choose(&system, &behind).to_owned()
        };
        let stub = "# managed\nnameserver 127.0.0.53\noptions edns0\n";
        assert_eq!(chosen(stub), system);
        std::fs::write(&behind, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(chosen(stub), behind);
        assert_eq!(
            chosen("nameserver 192.0.2.7\nnameserver 127.0.0.53\n"),
            system
        );
    }
}
