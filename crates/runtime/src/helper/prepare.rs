//! Changes the bundle for libcontainer in six points: propagation of single mounts (see
//! [`propagate`]), destinations of mounts (see [`mount_points`]), a volume at `/dev` (see
//! [`bound_dev`]), devices elsewhere (see [`placed_devices`]), sources of mounts (see
//! [`own_mounts`]) and capabilities. libcontainer drops capabilities before our executor can install
//! a seccomp filter, which needs CAP_SYS_ADMIN unless no_new_privs is set. So the process keeps that
//! capability until our executor has installed the filter, and then drops it.

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use oci_spec::runtime::{Capabilities, Capability, Hook, Process, Spec};

use super::{
    Base, bound_dev,
    executor::Finish,
    mount_points,
    oci::Outcome,
    own_mounts::{self, Entered},
    placed_devices, propagate,
    seccomp::{self},
};

pub(super) struct Prepared {
    pub bundle: PathBuf,
    pub finish: Finish,
    /// Why the container is created from the node's mounts although it need not be, which is slower.
    pub slow: Option<String>,
}

/// For a container's first process. Moves the helper into a copy of the mount namespace for containers, if one is given;
/// `root` is where libcontainer keeps its state.
pub(super) fn container(bundle: &Path, root: &Path, base: Option<Base>) -> Outcome<Prepared> {
    let mut spec = Spec::load(bundle.join("config.json"))?;
    let mut finish = Finish {
        filters: Rc::new(filters(&spec)?),
        capabilities: None,
        checks_mounts: true,
    };
    let Some(mut process) = spec.process().clone() else {
        return Err("no process".into());
    };
    let lent = lend_capabilities(&mut process, &mut finish);
    let moved = mount_points::create_mount_points(&mut spec)?;
    let placed = placed_devices::take(&mut spec)?;
    let hooks = [bound_dev::take(&mut spec)?, placed, propagate::hook(&spec)?];
    let hooks: Vec<_> = hooks.into_iter().flatten().collect();
    let hooked = !hooks.is_empty();
    add_hooks(&mut spec, hooks);
    let entered = match base {
        Some(base) => own_mounts::enter(&mut spec, &base, &[bundle, root])?,
        None => Entered::Node,
    };
    let changed = hooked || lent || moved || entered == Entered::Own;
    let slow = match entered {
        Entered::NodeBecause(why) => Some(why),
        Entered::Own | Entered::Node => None,
    };
    if !changed {
        return Ok(Prepared {
            bundle: bundle.to_path_buf(),
            finish,
            slow,
        });
    }
    spec.set_process(Some(process));
    let adjusted = bundle.join("adjusted");
    fs::create_dir_all(&adjusted)?;
    spec.save(adjusted.join("config.json"))?;
    Ok(Prepared {
        bundle: adjusted,
        finish,
        slow,
    })
}

/// Our hooks run first: those of CDI devices expect the container's mounts.
fn add_hooks(spec: &mut Spec, mut ours: Vec<Hook>) {
    if ours.is_empty() {
        return;
    }
    let mut hooks = spec.hooks().clone().unwrap_or_default();
    ours.extend(hooks.create_container().clone().unwrap_or_default());
    hooks.set_create_container(Some(ours));
    spec.set_hooks(Some(hooks));
}

/// For an exec process: its file is changed in place.
pub(super) fn process(bundle: &Path, file: &Path) -> Outcome<Prepared> {
    let spec = Spec::load(bundle.join("config.json"))?;
    let mut finish = Finish {
        filters: Rc::new(filters(&spec)?),
        capabilities: None,
        // The container may have been allowed to mount since it started.
        checks_mounts: false,
    };
    let mut process: Process = serde_json::from_slice(&fs::read(file)?)?;
    if lend_capabilities(&mut process, &mut finish) {
        fs::write(file, serde_json::to_vec(&process)?)?;
    }
    Ok(Prepared {
        bundle: bundle.to_path_buf(),
        finish,
        slow: None,
    })
}

fn filters(spec: &Spec) -> Outcome<Vec<seccompiler::BpfProgram>> {
    let profile = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.seccomp().as_ref());
    profile.map_or_else(|| Ok(Vec::new()), seccomp::compile)
}

/// Returns whether the process was changed.
fn lend_capabilities(process: &mut Process, finish: &mut Finish) -> bool {
    if finish.filters.is_empty() || process.no_new_privileges() == Some(true) {
        return false;
    }
    let Some(wanted) = process.capabilities().clone() else {
        return false;
    };
    let lent = |set: &Option<Capabilities>| -> Capabilities {
        let needed = [Capability::SysAdmin, Capability::Setpcap];
        set.iter().flatten().copied().chain(needed).collect()
    };
    let mut more = wanted.clone();
    more.set_bounding(Some(lent(wanted.bounding())));
    more.set_effective(Some(lent(wanted.effective())));
    more.set_permitted(Some(lent(wanted.permitted())));
    process.set_capabilities(Some(more));
    finish.capabilities = Some(wanted);
    true
}
