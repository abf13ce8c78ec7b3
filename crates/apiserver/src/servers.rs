//! Liveness of several servers over one store: each renews its own Lease, and all watch the
//! others'. A server counts as dead when its Lease has not changed for a while by the observer's
//! clock, so that clocks need not agree.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kinds::tree;
use machinery::Value;
use parking_lot::Mutex;

use crate::identity::ADDRESS;

/// How often a server renews its Lease if there may be others.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(4);
/// How often a server checks the others' Leases.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A server whose Lease has not changed for this long is dead.
const LEASE_EXPIRY: SignedDuration = SignedDuration::from_secs(12);
/// A Lease that is seen for the first time and was renewed longer ago than this belongs to a server
/// that ended before this one started, unless clocks differ widely; it counts only once it changes.
const STALE_AT_START: SignedDuration = SignedDuration::from_secs(60);

/// The observed Leases of other servers.
#[derive(Default)]
pub(crate) struct Servers {
    /// Guards when each Lease was last seen changing, by its name.
    seen: Mutex<HashMap<String, SeenLease>>,
}

struct SeenLease {
    renewed: String,
    /// By our own clock; `None` if the Lease looked old when first seen and has not changed since.
    changed: Option<Timestamp>,
}

impl Servers {
    /// The addresses of live servers, given the current Leases.
    pub(crate) fn living(&self, leases: &[Value], now: Timestamp) -> BTreeSet<SocketAddr> {
        let mut seen = self.seen.lock();
        let name = |lease: &Value| tree::text(&lease["metadata"]["name"]).to_owned();
        let names: BTreeSet<String> = leases.iter().map(name).collect();
        seen.retain(|name, _| names.contains(name));
        let mut living = BTreeSet::new();
        for lease in leases {
            let renewed = tree::text(&lease["spec"]["renewTime"]);
            let entry = seen.entry(name(lease)).or_insert_with(|| SeenLease {
                renewed: renewed.to_owned(),
                changed: is_recent(renewed, now).then_some(now),
            });
            if entry.renewed != renewed {
                entry.renewed = renewed.to_owned();
                entry.changed = Some(now);
            }
            let address = tree::text(&lease["metadata"]["annotations"][ADDRESS]).parse();
            let is_alive = entry
                .changed
                .is_some_and(|changed| now.duration_since(changed) < LEASE_EXPIRY);
            if let (Ok(address), true) = (address, is_alive) {
                living.insert(address);
            }
        }
        living
    }
}

fn is_recent(renewed: &str, now: Timestamp) -> bool {
    let renewed: Result<Timestamp, _> = renewed.parse();
    renewed.is_ok_and(|renewed| now.duration_since(renewed) < STALE_AT_START)
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn lease(name: &str, renewed: &str) -> Value {
        let address = format!("192.0.2.{}:6443", name.len());
        json!({"metadata": {"name": name, "annotations": {ADDRESS: address}},
            "spec": {"renewTime": renewed}})
    }

    #[test]
    fn a_server_is_alive_while_its_lease_changes_regardless_of_its_clock() {
        let servers = Servers::default();
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let living = |leases: &[Value], second| servers.living(leases, at(second)).len();
        let own = |second| at(second).to_string();
        // A server that ended long ago, one that starts, one whose clock is a day behind.
        let before = [
            lease("a", &own(-3600)),
            lease("bb", &own(0)),
            lease("ccc", &own(-86400)),
        ];
        assert_eq!(living(&before, 0), 1);
        let after = [
            lease("a", &own(-3600)),
            lease("bb", &own(4)),
            lease("ccc", &own(-86396)),
        ];
        assert_eq!(living(&after, 4), 2);
        assert_eq!(living(&after, 15), 2);
        assert_eq!(living(&after, 16), 0);
        // Deleted on orderly shutdown.
        assert_eq!(living(&after[2..], 10), 1);
    }
}
