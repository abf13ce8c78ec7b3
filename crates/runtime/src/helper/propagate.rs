//! Mount propagation of single mounts. libcontainer gives every mount the propagation of the root.
//! If they differ, the root gets the widest, and this hook narrows the others, in the container's
//! mount namespace before pivot_root.

use std::{
    io::{self, Write},
    os::fd::AsRawFd,
    path::Path,
    process::ExitCode,
};

use nix::{
    fcntl::OFlag,
    mount::{MsFlags, mount},
};
use oci_spec::runtime::{Hook, HookBuilder, Spec};

use super::oci::Outcome;
use crate::{reexec, rooted};

/// The hook, if the configuration needs it.
pub(super) fn hook(spec: &Spec) -> Outcome<Option<Hook>> {
    let root = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.rootfs_propagation().clone());
    if !matches!(root.as_deref(), Some("slave" | "shared")) {
        return Ok(None);
    }
    let rootfs = spec
        .root()
        .as_ref()
        .ok_or("no root")?
        .path()
        .display()
        .to_string();
    let name = String::from_utf8_lossy(reexec::PROPAGATE.to_bytes()).into_owned();
    let mut args = vec![name, rootfs];
    for mount in spec.mounts().iter().flatten() {
        let options = mount.options().iter().flatten();
        let wants = options
            .map(String::as_str)
            .find(|option| matches!(*option, "rprivate" | "rslave"));
        let narrower = wants.filter(|wants| Some(&wants[1..]) != root.as_deref());
        if let Some(wants) = narrower {
            args.extend([wants.to_owned(), mount.destination().display().to_string()]);
        }
    }
    let hook: Hook = HookBuilder::default()
        .path("/proc/self/exe")
        .args(args)
        .build()?;
    Ok(Some(hook))
}

/// The hook's entry point; arguments: the container's root, then pairs of propagation and mount.
pub(crate) fn run() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((root, changes)) = args.split_first() else {
        return ExitCode::from(2);
    };
    for change in changes.chunks_exact(2) {
        if let Err(error) = narrow(Path::new(root), &change[0], &change[1]) {
            let _ = writeln!(io::stderr(), "propagation of {}: {error}", change[1]);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn narrow(root: &Path, wants: &str, destination: &str) -> io::Result<()> {
    let flag = if wants == "rslave" {
        MsFlags::MS_SLAVE
    } else {
        MsFlags::MS_PRIVATE
    };
    // The destination may contain links of the image.
    let place = rooted::open(root, destination, OFlag::O_PATH)?;
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    let none = None::<&str>;
    Ok(mount(
        none,
        place.as_str(),
        none,
        MsFlags::MS_REC | flag,
        none,
    )?)
}
