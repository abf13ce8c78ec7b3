//! Namespaces without a process: created by one that ends soon, and pinned by bind mounts on
//! files. Only a shared PID namespace needs an init process.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::wait::waitpid,
    unistd::{ForkResult, execv, fork, sethostname},
};

use super::protocol::Start;
use crate::reexec;

/// Creates and pins the namespaces of the orders, except the PID namespace. The process is in them then.
pub(super) fn pin(orders: &Start) -> io::Result<()> {
    let pins = &orders.namespaces;
    let wanted = [
        (&pins.net, CloneFlags::CLONE_NEWNET, "net"),
        (&pins.ipc, CloneFlags::CLONE_NEWIPC, "ipc"),
        (&pins.uts, CloneFlags::CLONE_NEWUTS, "uts"),
    ];
    let flags = wanted
        .iter()
        .filter(|(file, ..)| file.is_some())
        .map(|(_, flag, _)| *flag);
    let flags: CloneFlags = flags.collect();
    if flags.is_empty() {
        return Ok(());
    }
    unshare(flags)?;
    if pins.uts.is_some() && !orders.hostname.is_empty() {
        sethostname(&orders.hostname)?;
    }
    for (name, value) in &orders.sysctls {
        write_sysctl(name, value)?;
    }
    for (file, _, name) in &wanted {
        if let Some(file) = file {
            bind(&PathBuf::from(format!("/proc/self/ns/{name}")), file)?;
        }
    }
    Ok(())
}

/// Starts the init of a shared PID namespace and pins the namespace. Returns its pid. It ends with
/// this process.
pub(super) fn start_init(file: &Path) -> io::Result<i32> {
    let (alive, keep) = io::pipe()?;
    let (mut reader, mut writer) = io::pipe()?;
    // SAFETY: this process has one thread, so that the child may call any function.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(writer);
            waitpid(child, None)?;
        }
        ForkResult::Child => {
            let pid = fork_init(&alive).unwrap_or(0);
            let _ = writer.write_all(&pid.to_ne_bytes());
            // SAFETY: ends this child without running the parent's destructors.
            unsafe { libc::_exit(0) };
        }
    }
    let mut pid = [0; 4];
    reader.read_exact(&mut pid)?;
    let pid = i32::from_ne_bytes(pid);
    if pid <= 0 {
        return Err(io::Error::other("the pod's init could not be started"));
    }
    bind(&PathBuf::from(format!("/proc/{pid}/ns/pid")), file)?;
    // The init lives while this end is open, so it is never closed.
    std::mem::forget(keep);
    Ok(pid)
}

fn fork_init(alive: &io::PipeReader) -> nix::Result<i32> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    // SAFETY: a child of a process with one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let _ = nix::unistd::dup2_stdin(alive.as_fd());
            let _ = execv(c"/proc/self/exe", &[reexec::INIT]);
            // SAFETY: ends this child without running the parent's destructors.
            unsafe { libc::_exit(127) }
        }
    }
}

/// Bind mounts a namespace on a file, which is created.
fn bind(namespace: &Path, file: &Path) -> io::Result<()> {
    let made = File::create(file)?;
    debug_assert!(made.as_raw_fd() >= 0);
    mount(
        Some(namespace),
        file,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )?;
    Ok(())
}

fn write_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = sysctl_path(name)
        .ok_or_else(|| io::Error::other(format!("{name:?} is not the name of a sysctl")))?;
    fs::write(&path, value).map_err(|error| io::Error::other(format!("sysctl {name}: {error}")))
}

/// Accepts both spellings: `net.ipv4.ip_forward` and `net/ipv4/ip_forward`; a dot in the latter is
/// part of a name.
fn sysctl_path(name: &str) -> Option<PathBuf> {
    let relative = match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => name.to_owned(),
        _ => name.replace('/', "\0").replace('.', "/").replace('\0', "."),
    };
    let safe = relative
        .split('/')
        .all(|part| !part.is_empty() && part != ".." && part != ".");
    safe.then(|| Path::new("/proc/sys").join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_are_named_with_dots_or_slashes() {
        let path = |name: &str| sysctl_path(name).map(|path| path.display().to_string());
        assert_eq!(
            path("net.ipv4.ip_forward").unwrap(),
            "/proc/sys/net/ipv4/ip_forward"
        );
        assert_eq!(
            path("net/ipv4/conf/eth0.1/mtu").unwrap(),
            "/proc/sys/net/ipv4/conf/eth0.1/mtu"
        );
        assert_eq!(
            path("net.ipv4.conf.eth0/1.mtu").unwrap(),
            "/proc/sys/net/ipv4/conf/eth0.1/mtu"
        );
        assert_eq!(path("net/../../etc/passwd"), None);
    }
}
