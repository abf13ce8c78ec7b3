//! Requirements of a machine: all missing ones are reported at once, with the command that fixes
//! them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipnet::IpNet;

use crate::{Error, Role, Settings, lock};

/// Programs that the node's components call.
const PROGRAMS: &[(&str, &str)] = &[("nft", "nftables"), ("conntrack", "conntrack")];

/// Cgroup controllers needed for pod limits.
const CONTROLLERS: &[&str] = &["cpu", "memory", "pids"];

/// Namespaces of pods, as in /proc/self/ns.
const NAMESPACES: &[&str] = &["net", "mnt", "pid", "ipc", "uts"];

/// An earlier clock is wrong: no certificate is older than this program (2026-01-01).
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);

/// With less free space the store fills the disk within hours.
const DISK: u64 = 256 << 20;

/// Fails if a requirement is missing, or if this cluster is already running: then its own ports are
/// the ones in use.
pub fn check(settings: &Settings, role: Role) -> Result<(), Error> {
    if lock::holder(&settings.data_dir).is_some() {
        return Err(Error::InUse(settings.data_dir.clone()));
    }
    let mut lacks = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        lacks.push("root: containers, links and rules need it; run it with sudo".to_owned());
    }
    if role != Role::Server {
        lacks.extend(programs());
        lacks.extend(packet_filter());
        lacks.extend(cgroups(Path::new("/sys/fs/cgroup")));
        lacks.extend(namespaces(Path::new("/proc/self/ns")));
        if has_ipv6(settings) {
            lacks.extend(ipv6(Path::new("/proc/sys/net/ipv6")));
        }
        // A detected address may not be usable yet.
        if settings.cloud.given_ip.is_some() {
            lacks.extend(settings.node_ips().into_iter().filter_map(foreign_address));
        }
    }
    lacks.extend(clock(SystemTime::now()));
    lacks.extend(disk(&settings.data_dir));
    let taken = ports(settings, role).into_iter();
    lacks.extend(taken.filter_map(|(what, address)| taken_port(what, address)));
    if lacks.is_empty() {
        Ok(())
    } else {
        Err(Error::Preflight(lacks))
    }
}

fn programs() -> Vec<String> {
    let missing = PROGRAMS.iter().filter(|(program, _)| !is_on_path(program));
    let lack = |(program, package): &(&str, &str)| {
        format!("the program {program}: install it with `apt-get install {package}`")
    };
    missing.map(lack).collect()
}

/// The kernel's nftables support: missing in the kernel, or not permitted in a container.
fn packet_filter() -> Option<String> {
    let listed = Command::new("nft").args(["list", "tables"]).output().ok()?;
    if listed.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&listed.stderr);
    let said = said.lines().next().unwrap_or_default().trim();
    Some(format!(
        "nftables in the kernel ({said}): load it with `modprobe nf_tables`"
    ))
}

/// Pod limits need cgroup controllers of either version.
fn cgroups(root: &Path) -> Option<String> {
    let unified = std::fs::read_to_string(root.join("cgroup.controllers"));
    let has = |name: &&str| {
        let in_unified = unified
            .as_ref()
            .is_ok_and(|list| list.split_whitespace().any(|one| one == *name));
        in_unified || root.join(name).is_dir()
    };
    let missing: Vec<&str> = CONTROLLERS
        .iter()
        .filter(|name| !has(name))
        .copied()
        .collect();
    if missing.is_empty() {
        return None;
    }
    if unified.is_err() && missing.len() == CONTROLLERS.len() {
        let mount = "mount -t cgroup2 none /sys/fs/cgroup";
        return Some(format!(
            "cgroups: nothing is mounted at {}; `{mount}` does it",
            root.display()
        ));
    }
    let list = missing.join(", ");
    Some(format!(
        "the cgroup controllers {list}: start the kernel with cgroup_enable=memory and without cgroup_disable, \
         then reboot"
    ))
}

/// Pods are made of these.
fn namespaces(root: &Path) -> Option<String> {
    let missing: Vec<&str> = NAMESPACES
        .iter()
        .filter(|name| !root.join(name).exists())
        .copied()
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "the kernel's namespaces {}: start a kernel that was built with them; `zgrep _NS= /proc/config.gz` shows \
             what this one has",
            missing.join(", ")
        )
    })
}

fn has_ipv6(settings: &Settings) -> bool {
    let ranges = [settings.cluster_cidr.all(), settings.service_cidr.all()].concat();
    ranges.iter().any(|range| matches!(range, IpNet::V6(_)))
}

/// Ranges of IPv6 need it on: a kernel without it has no such directory.
fn ipv6(root: &Path) -> Option<String> {
    if !root.exists() {
        return Some(
            "IPv6 in the kernel: start it without ipv6.disable=1, then reboot; or choose IPv4 ranges with \
             --cluster-cidr and --service-cidr"
                .to_owned(),
        );
    }
    let off = std::fs::read_to_string(root.join("conf/all/disable_ipv6")).ok()?;
    (off.trim() == "1").then(|| {
        "IPv6, which is off on this machine: `sysctl -w net.ipv6.conf.all.disable_ipv6=0` turns it on".to_owned()
    })
}

fn clock(now: SystemTime) -> Option<String> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since < EARLIEST).then(|| {
        "the current time: the clock is years behind, and certificates would not be valid; \
         `timedatectl set-ntp true` sets it"
            .to_owned()
    })
}

fn disk(data_dir: &Path) -> Option<String> {
    // The directory may not exist yet.
    let existing = data_dir.ancestors().find(|path| path.exists())?;
    let disk = nix::sys::statvfs::statvfs(existing).ok()?;
    let free = disk.blocks_available() * disk.fragment_size();
    (free < DISK).then(|| {
        format!(
            "room on the disk of {}: {} MiB are free, {} are needed; `du -x {}` shows what takes it, --data-dir \
             chooses another disk",
            data_dir.display(),
            free >> 20,
            DISK >> 20,
            existing.display()
        )
    })
}

/// The listening ports of this machine, with the option that changes each.
fn ports(settings: &Settings, role: Role) -> Vec<(&'static str, SocketAddr)> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut ports = Vec::new();
    if role != Role::Agent {
        let address = SocketAddr::new(any, settings.https_port);
        ports.push(("choose another with --https-port", address));
    }
    if role != Role::Server {
        let address = SocketAddr::new(any, settings.kubelet_port);
        ports.push(("choose another with --kubelet-port", address));
    }
    ports
}

/// Why an address cannot be the node's. With that of another machine the node would be Ready, and
/// its kubelet unreachable.
fn foreign_address(address: IpAddr) -> Option<String> {
    let error = UdpSocket::bind((address, 0)).err()?;
    (error.kind() == io::ErrorKind::AddrNotAvailable).then(|| {
        format!(
            "the address {address}: no interface of this machine has it; `ip address` lists them, choose one with \
             --node-ip"
        )
    })
}

/// Why a port cannot be bound.
fn taken_port(what: &str, address: SocketAddr) -> Option<String> {
    let error = TcpListener::bind(address).err()?;
    let port = address.port();
    Some(format!(
        "port {port} ({error}): is another cluster running? `ss -lptn 'sport = :{port}'` shows the program; {what}"
    ))
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(usual)
        .any(|directory| directory.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn a_cluster_that_runs_does_not_find_its_own_ports_taken() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            data_dir: Some(directory.path().to_owned()),
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        };
        let settings = Settings::resolve(options).unwrap();
        let _running = lock::DataLock::take(&settings.data_dir).unwrap();
        for role in [Role::Up, Role::Server, Role::Agent] {
            let refused = check(&settings, role).unwrap_err().to_string();
            assert!(refused.contains("already running"), "{refused}");
        }
    }

    #[test]
    fn a_port_is_tried_where_the_servers_listen() {
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        let listener = TcpListener::bind(any).unwrap();
        let address = listener.local_addr().unwrap();
        let why = taken_port("choose another with --https-port", address).unwrap();
        assert!(why.contains("--https-port"), "{why}");
        drop(listener);
        assert_eq!(taken_port("", address), None);
    }

    #[test]
    fn the_address_of_another_machine_is_not_the_nodes() {
        let why = foreign_address("192.0.2.1".parse().unwrap()).unwrap();
        assert!(why.contains("--node-ip"), "{why}");
        assert_eq!(foreign_address(Ipv4Addr::LOCALHOST.into()), None);
    }

    #[test]
    fn controllers_of_either_version_do_and_missing_ones_are_named() {
        let root = tempfile::tempdir().unwrap();
        let lack = || cgroups(root.path());
        assert!(lack().unwrap().contains("mount -t cgroup2"));
        std::fs::write(
            root.path().join("cgroup.controllers"),
            "cpuset cpu io pids\n",
        )
        .unwrap();
        assert!(
            lack()
                .unwrap()
                .starts_with("the cgroup controllers memory:")
        );
        std::fs::create_dir(root.path().join("memory")).unwrap();
        assert_eq!(lack(), None);
    }

    #[test]
    fn namespaces_that_the_kernel_does_not_have_are_named() {
        let root = tempfile::tempdir().unwrap();
        for name in NAMESPACES.iter().filter(|name| **name != "ipc") {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let why = namespaces(root.path()).unwrap();
        assert!(why.starts_with("the kernel's namespaces ipc:"), "{why}");
        assert_eq!(namespaces(Path::new("/proc/self/ns")), None);
    }

    #[test]
    fn ipv6_that_is_absent_or_off_is_reported_with_what_turns_it_on() {
        let root = tempfile::tempdir().unwrap();
        let why = ipv6(&root.path().join("absent")).unwrap();
        assert!(why.contains("without ipv6.disable=1"), "{why}");
        let all = root.path().join("conf/all");
        std::fs::create_dir_all(&all).unwrap();
        for (value, is_off) in [("1\n", true), ("0\n", false)] {
            std::fs::write(all.join("disable_ipv6"), value).unwrap();
            let why = ipv6(root.path());
            assert_eq!(why.is_some(), is_off, "{why:?}");
            assert!(why.is_none_or(|why| why.contains("`sysctl -w")));
        }
    }

    #[test]
    fn only_clusters_with_ipv6_ranges_need_it() {
        for (ranges, needs) in [
            (["10.42.0.0/16", "10.43.0.0/16"], false),
            (["10.42.0.0/16,fd42::/56", "10.43.0.0/16,fd43::/112"], true),
        ] {
            let options = Options {
                node_name: Some("n".into()),
                node_ip: "192.0.2.1,2001:db8::1".parse().ok().filter(|_| needs),
                cluster_cidr: ranges[0].parse().ok(),
                service_cidr: ranges[1].parse().ok(),
                ..Options::default()
            };
            let settings = Settings::resolve(options).unwrap();
            assert_eq!(has_ipv6(&settings), needs, "{ranges:?}");
        }
    }

    #[test]
    fn a_clock_that_never_was_set_is_found() {
        assert!(clock(UNIX_EPOCH).unwrap().contains("timedatectl"));
        assert_eq!(clock(SystemTime::now()), None);
    }

    #[test]
    fn free_space_is_checked_also_for_a_directory_that_does_not_exist_yet() {
        assert_eq!(disk(Path::new("/no/such/place")), None);
    }
}
