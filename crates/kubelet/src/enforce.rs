//! Enforces node allocatable: limits all pods together to the node's capacity without the
//! reservations, and, if configured, the cgroups of system and Kubernetes daemons to theirs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use machinery::quantity::Quantity;
use reconcile::Kind;
use tracing::{info, warn};

use crate::{
    cgroups,
    core::Core,
    make::resources::{self, PodBounds},
};

/// When to retry: the kernel rejects a limit below the current usage.
const RETRY: Duration = Duration::from_secs(60);

/// Enforces at the start and when settings change. Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    if core.config.cgroup_root.is_empty() {
        return;
    }
    let mut settings = core.settings.subscribe();
    settings.mark_unchanged();
    loop {
        let failed = pods(&core) | reservations(&core);
        let retry = async {
            match failed {
                true => core.config.clock.sleep(RETRY).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = retry => {}
            changed = settings.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Returns whether it failed.
fn pods(core: &Core) -> bool {
    let settings = core.settings();
    let root = core.cgroup_root();
    let path = root.kubepods();
    let bounds = core.machine.bounds_for_pods(&settings);
    let pids = core.machine.pids_for_pods(&settings);
    let enforced = cgroups::enforce(&root, &path, &bounds, pids);
    report(
        core,
        enforced,
        "Updated Node Allocatable limit across pods",
        &format!("Failed to update Node Allocatable Limits {path:?}"),
    )
}

fn reservations(core: &Core) -> bool {
    let settings = core.settings();
    let all = [
        (
            "system",
            &settings.system_reserved_cgroup,
            &settings.system_reserved,
        ),
        (
            "kube",
            &settings.kube_reserved_cgroup,
            &settings.kube_reserved,
        ),
    ];
    let mut failed = false;
    for (name, path, reserved) in all {
        let whole = settings.enforces(&format!("{name}-reserved"));
        if !whole && !settings.enforces(&format!("{name}-reserved-compressible")) {
            continue;
        }
        let (bounds, pids) = bounds(reserved, whole);
        failed |= report(
            core,
            cgroups::enforce(&core.cgroup_root(), path, &bounds, pids),
            &format!("Updated limits on {name} reserved cgroup {path}"),
            &format!("Failed to enforce {name} Reserved Cgroup Limits on {path:?}"),
        );
    }
    failed
}

/// The limits of a reservation; without `whole` only the cpu weight, which is compressible.
fn bounds(reserved: &BTreeMap<String, String>, whole: bool) -> (PodBounds, Option<i64>) {
    let amount = |name: &str| reserved.get(name)?.parse::<Quantity>().ok();
    let rest = |name: &str| {
        let amount = amount(name).filter(|_| whole)?;
        Some(amount.value())
    };
    let bounds = PodBounds {
        cpu_shares: amount("cpu").map(|cpu| resources::shares(cpu.millis())),
        memory: rest("memory"),
        ..PodBounds::default()
    };
    (bounds, rest("pid"))
}

fn report(core: &Core, enforced: crate::Result<()>, done: &str, failed: &str) -> bool {
    match enforced {
        Ok(()) => {
            info!("{done}");
            core.events
                .node(Kind::Normal, "NodeAllocatableEnforced", done);
            false
        }
        Err(error) => {
            warn!(%error, "{failed}");
            let message = format!("{failed}: {error}");
            core.events
                .node(Kind::Warning, "FailedNodeAllocatableEnforcement", message);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_bounds_its_cgroup_in_whole_or_where_it_costs_nothing() {
        let reserved = [("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")];
        let reserved = reserved.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let (whole, pids) = bounds(&reserved, true);
        assert_eq!(
            (whole.cpu_shares, whole.memory, pids),
            (Some(512), Some(1 << 30), Some(100))
        );
        let (part, pids) = bounds(&reserved, false);
        assert_eq!(
            (part.cpu_shares, part.memory, pids),
            (Some(512), None, None)
        );
    }
}
