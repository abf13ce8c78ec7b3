//! Deletes the kernel's entries of UDP conversations with removed endpoints, which would otherwise continue for ever. A pod
//! chooses how many conversations it has, so that this happens beside the changes of other Services.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::Context;
use network::conntrack::{self, Flow};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::{health::Health, ruleset::Datagrams};

/// The delay after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// The addresses whose endpoints changed.
pub(crate) struct StaleFlows {
    health: Arc<Health>,
    /// Guards the changes that wait, the newest of each address; held only briefly.
    waiting: Mutex<Datagrams>,
    added: Notify,
}

impl StaleFlows {
    /// Starts a task that deletes entries.
    pub(crate) fn start(health: Arc<Health>, context: &Context) -> Arc<Self> {
        let flows = Arc::new(Self {
            health,
            waiting: Mutex::default(),
            added: Notify::new(),
        });
        let task = flows.clone();
        context.spawn("stale flows", async move {
            loop {
                task.added.notified().await;
                task.delete().await;
            }
        });
        flows
    }

    /// Adds addresses whose rules are in the kernel.
    pub(crate) fn add(&self, datagrams: Datagrams) {
        if !datagrams.is_empty() {
            self.waiting.lock().extend(datagrams);
            self.added.notify_one();
        }
    }

    /// Adds addresses without newer changes.
    fn add_again(&self, changed: &Datagrams) {
        let mut waiting = self.waiting.lock();
        for (frontend, kept) in changed {
            waiting.entry(*frontend).or_insert_with(|| kept.clone());
        }
    }

    async fn delete(self: &Arc<Self>) {
        let changed = Arc::new(std::mem::take(&mut *self.waiting.lock()));
        let (flows, older) = (self.clone(), changed.clone());
        // Endpoints that were added meanwhile have conversations already.
        let stale = move |flow: &Flow| is_stale(flow, &flows.waiting.lock(), &older);
        let begun = Instant::now();
        match conntrack::forget_udp(stale).await {
            Ok(count) => {
                let metrics = &self.health.metrics;
                metrics.flows_forgotten(count, begun.elapsed());
                debug!(count, "removed UDP conntrack entries");
            }
            Err(error) => {
                warn!(%error, "cannot remove stale UDP conntrack entries, trying again");
                self.add_again(&changed);
                tokio::time::sleep(RETRY).await;
                self.added.notify_one();
            }
        }
    }
}

/// Whether a flow is one of an address in either list, to an endpoint that the first of them does not have.
fn is_stale(flow: &Flow, newer: &Datagrams, older: &Datagrams) -> bool {
    let (ip, port) = flow.sent_to;
    let find = |frontend| newer.get(&frontend).or_else(|| older.get(&frontend));
    let kept = find((Some(ip), port)).or_else(|| {
        // A node port is at any address of the node; an untranslated flow to the node itself has no endpoint.
        let is_translated = flow.sent_to != flow.answered_by;
        is_translated.then(|| find((None, port))).flatten()
    });
    kept.is_some_and(|kept| !kept.contains(&flow.answered_by))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn flows_to_endpoints_that_an_address_has_no_more_are_stale() {
        let at = |text: &str| -> (IpAddr, u16) {
            let at: std::net::SocketAddr = text.parse().unwrap();
            (at.ip(), at.port())
        };
        let datagrams = |frontend: &str, endpoints: &[&str]| -> Datagrams {
            let (ip, port) = at(frontend);
            let ip = (!ip.is_unspecified()).then_some(ip);
            let endpoints = endpoints.iter().map(|endpoint| at(endpoint));
            [((ip, port), endpoints.collect())].into()
        };
        let older = datagrams("10.43.0.9:53", &["10.42.0.1:53"]);
        let node_port = datagrams("0.0.0.0:30053", &["10.42.0.1:53"]);
        let newer = datagrams("10.43.0.9:53", &["10.42.0.2:53"]);
        let none = Datagrams::new();
        for (sent_to, answered_by, newer, older, expected) in [
            ("10.43.0.9:53", "10.42.0.1:53", &none, &older, false),
            ("10.43.0.9:53", "10.42.0.2:53", &none, &older, true),
            ("10.43.0.9:53", "10.42.0.2:53", &newer, &older, false),
            ("10.43.0.9:54", "10.42.0.2:53", &none, &older, false),
            ("192.0.2.1:30053", "10.42.0.2:53", &none, &node_port, true),
            ("192.0.2.1:30053", "10.42.0.1:53", &none, &node_port, false),
            (
                "192.0.2.1:30053",
                "192.0.2.1:30053",
                &none,
                &node_port,
                false,
            ),
        ] {
            let flow = Flow {
                sent_to: at(sent_to),
                answered_by: at(answered_by),
            };
            assert_eq!(
                is_stale(&flow, newer, older),
                expected,
                "{sent_to} {answered_by}"
            );
        }
    }
}
