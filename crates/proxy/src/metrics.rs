//! The proxy's metrics, under kube-proxy's names in nftables mode.
//!
//! One transaction programs both address families, so that both have the same figures, except those that count Services.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::exposition::{Counter, Exposition, Family, Histogram};

use crate::{ruleset::ServiceKey, service::PortView};

/// Powers of two from a millisecond.
const SYNC_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
/// Quarters of a second, seconds up to a minute, and then coarser up to five minutes.
const PROGRAMMING_SECONDS: &[f64] = &[
    0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0,
    32.0, 33.0, 34.0, 35.0, 36.0, 37.0, 38.0, 39.0, 40.0, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0, 47.0,
    48.0, 49.0, 50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0, 58.0, 59.0, 60.0, 65.0, 70.0, 75.0,
    80.0, 85.0, 90.0, 95.0, 100.0, 105.0, 110.0, 115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0,
    300.0,
];
const FAMILY: &[&str] = &["ip_family"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// How the table was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// All of it.
    Full,
    /// The difference.
    Partial,
}

/// Service ports that have endpoints, but none on this node although a policy demands it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Deserted {
    internal: usize,
    external: usize,
}

/// All figures.
pub struct Metrics {
    /// The address families of the cluster.
    families: Vec<&'static str>,
    syncs: Family<Histogram>,
    full_syncs: Family<Histogram>,
    partial_syncs: Family<Histogram>,
    sync_failures: Counter,
    programming: Family<Histogram>,
    pending: [AtomicU64; 2],
    changes: [Counter; 2],
    flows: Family<Histogram>,
    forgotten_flows: Family<Counter>,
    healthz: Family<Counter>,
    livez: Family<Counter>,
    /// Guards the Services with ports without local endpoints, by family.
    deserted: Mutex<BTreeMap<ServiceKey, [Deserted; 2]>>,
}

fn by_family() -> Family<Histogram> {
    Family::new(FAMILY, || Histogram::new(SYNC_SECONDS))
}

impl Metrics {
    /// No figures yet. The families are those of the cluster: IPv4, IPv6.
    pub fn new(has_family: [bool; 2]) -> Self {
        let families = FAMILIES.into_iter().zip(has_family);
        Self {
            families: families
                .filter_map(|(name, has)| has.then_some(name))
                .collect(),
            syncs: by_family(),
            full_syncs: by_family(),
            partial_syncs: by_family(),
            sync_failures: Counter::default(),
            programming: Family::new(FAMILY, || Histogram::new(PROGRAMMING_SECONDS)),
            pending: Default::default(),
            changes: Default::default(),
            flows: by_family(),
            forgotten_flows: Family::new(FAMILY, Counter::default),
            healthz: Family::new(&["code"], Counter::default),
            livez: Family::new(&["code"], Counter::default),
            deserted: Mutex::default(),
        }
    }

    /// Changes of Services and of EndpointSlices arrived.
    pub fn queued(&self, services: usize, slices: usize) {
        for (place, count) in [services, slices].into_iter().enumerate() {
            self.pending[place].fetch_add(count as u64, Ordering::Relaxed);
            self.changes[place].add(count as u64);
        }
    }

    /// All changes are applied.
    pub fn synced(&self, sync: Sync, took: Duration) {
        for family in &self.families {
            self.syncs.with(&[family]).took(took);
            let of_kind = match sync {
                Sync::Full => &self.full_syncs,
                Sync::Partial => &self.partial_syncs,
            };
            of_kind.with(&[family]).took(took);
        }
        for pending in &self.pending {
            pending.store(0, Ordering::Relaxed);
        }
    }

    /// nftables refused a batch.
    pub fn failed(&self) {
        self.sync_failures.increment();
    }

    /// An EndpointSlice whose cause was this long ago is programmed.
    pub fn programmed(&self, is_ipv4: bool, after: Duration) {
        let family = FAMILIES[usize::from(!is_ipv4)];
        self.programming.with(&[family]).took(after);
    }

    /// Conntrack entries of removed endpoints were deleted.
    pub fn flows_forgotten(&self, count: usize, took: Duration) {
        for family in &self.families {
            self.flows.with(&[family]).took(took);
        }
        // UDP flows of both families are deleted in one pass; the count is shown for the first.
        if let Some(first) = self.families.first() {
            self.forgotten_flows.with(&[first]).add(count as u64);
        }
    }

    /// `/healthz` or `/livez` was answered.
    pub fn answered(&self, is_livez: bool, code: u16) {
        let family = if is_livez { &self.livez } else { &self.healthz };
        family.with(&[&code.to_string()]).increment();
    }

    /// Counts the ports of a Service that have no endpoint on this node.
    pub fn set_service(&self, key: &ServiceKey, views: &[PortView]) {
        let mut deserted = [Deserted::default(); 2];
        for view in views {
            if view.endpoints.cluster.is_empty() || !view.endpoints.local.is_empty() {
                continue;
            }
            let family = &mut deserted[usize::from(view.cluster_ip.is_ipv6())];
            let is_outside = view.node_port.is_some() || !view.external_ips.is_empty();
            family.internal += usize::from(view.internal_local);
            family.external += usize::from(view.external_local && is_outside);
        }
        let mut all = self.deserted.lock();
        match deserted == [Deserted::default(); 2] {
            true => all.remove(key),
            false => all.insert(key.clone(), deserted),
        };
    }

    /// The page, with the times of the last change and of the last sync.
    pub fn page(&self, queued: Option<Timestamp>, updated: Option<Timestamp>) -> String {
        let mut page = Exposition::default();
        for (name, help, histograms) in [
            (
                "sync_proxy_rules",
                "How long it took to write rules",
                &self.syncs,
            ),
            (
                "sync_full_proxy_rules",
                "How long it took to write the whole table",
                &self.full_syncs,
            ),
            (
                "sync_partial_proxy_rules",
                "How long it took to write a difference",
                &self.partial_syncs,
            ),
            (
                "network_programming",
                "From the change of a Service or its pods to the rules about it",
                &self.programming,
            ),
            (
                "conntrack_reconciler_sync",
                "How long it took to delete conntrack entries of removed endpoints",
                &self.flows,
            ),
        ] {
            page.histograms(
                &format!("kubeproxy_{name}_duration_seconds"),
                help,
                histograms,
            );
        }
        self.add_changes(&mut page);
        self.add_times(&mut page, queued, updated);
        self.add_failures(&mut page);
        self.add_deserted(&mut page);
        page.counters(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Deleted conntrack entries of removed endpoints",
            &self.forgotten_flows,
        );
        for (name, counters) in [("healthz", &self.healthz), ("livez", &self.livez)] {
            let name = format!("kubeproxy_proxy_{name}_total");
            page.counters(&name, "Answers by HTTP status", counters);
        }
        page.finish()
    }

    fn add_changes(&self, page: &mut Exposition) {
        for (place, what) in ["service", "endpoint"].into_iter().enumerate() {
            let name = format!("kubeproxy_sync_proxy_rules_{what}_changes_pending");
            let pending = self.pending[place].load(Ordering::Relaxed) as f64;
            page.family(&name, "gauge", "Changes that are not in the rules yet");
            page.sample(&name, &[], pending, None);
            let name = format!("kubeproxy_sync_proxy_rules_{what}_changes_total");
            page.family(&name, "counter", "Changes since the start");
            page.sample(&name, &[], self.changes[place].get() as f64, None);
        }
    }

    fn add_times(
        &self,
        page: &mut Exposition,
        queued: Option<Timestamp>,
        updated: Option<Timestamp>,
    ) {
        for (name, help, time) in [
            (
                "last_timestamp_seconds",
                "The last time rules were synced",
                updated,
            ),
            (
                "last_queued_timestamp_seconds",
                "The last time a sync of rules was queued",
                queued,
            ),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_{name}");
            let seconds = time.map_or(0.0, |time| time.as_millisecond() as f64 / 1000.0);
            page.family(&name, "gauge", help);
            for family in &self.families {
                page.sample(&name, &[("ip_family", family)], seconds, None);
            }
        }
    }

    fn add_failures(&self, page: &mut Exposition) {
        // Unused chains are removed in the transaction that stops using them, so that there is no separate cleanup
        // that can fail.
        for (name, help, count) in [
            (
                "sync",
                "Batches that nftables refused",
                self.sync_failures.get(),
            ),
            ("cleanup", "Refused removals of unused chains", 0),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_nftables_{name}_failures_total");
            page.family(&name, "counter", help);
            for family in &self.families {
                page.sample(&name, &[("ip_family", family)], count as f64, None);
            }
        }
    }

    fn add_deserted(&self, page: &mut Exposition) {
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        page.family(
            name,
            "gauge",
            "Service ports with a Local policy and no endpoint on this node",
        );
        let deserted = self.deserted.lock();
        for (place, family) in FAMILIES.into_iter().enumerate() {
            if !self.families.contains(&family) {
                continue;
            }
            let of_family = || deserted.values().map(|families| families[place]);
            let internal: usize = of_family().map(|ports| ports.internal).sum();
            let external: usize = of_family().map(|ports| ports.external).sum();
            for (policy, count) in [("internal", internal), ("external", external)] {
                let labels = [("traffic_policy", policy), ("ip_family", family)];
                page.sample(name, &labels, count as f64, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use network::Protocol;

    use super::*;
    use crate::endpoints::{Chosen, Endpoint};

    fn has(page: &str, line: &str) -> bool {
        page.lines().any(|found| found == line)
    }

    #[test]
    fn syncs_are_counted_for_each_family_of_the_cluster() {
        let metrics = Metrics::new([true, false]);
        metrics.queued(2, 3);
        assert!(has(
            &metrics.page(None, None),
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 3"
        ));
        metrics.synced(Sync::Full, Duration::from_millis(3));
        metrics.synced(Sync::Partial, Duration::from_secs(60));
        metrics.failed();
        metrics.programmed(true, Duration::from_millis(700));
        metrics.flows_forgotten(4, Duration::from_millis(1));
        metrics.answered(true, 200);
        let page = metrics.page(Some(Timestamp::UNIX_EPOCH), Timestamp::from_second(7).ok());
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 7",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"1\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 4",
            "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        ] {
            assert!(has(&page, line), "{line} in\n{page}");
        }
        assert!(!page.contains("IPv6"), "{page}");
    }

    #[test]
    fn ports_without_local_endpoints_count_while_their_service_exists() {
        let metrics = Metrics::new([true, true]);
        let key = ("default".to_owned(), "web".to_owned());
        let endpoint = Endpoint {
            ip: IpAddr::from([10, 42, 1, 1]),
            port: 80,
            local: false,
        };
        let view = PortView {
            name: "default/web:http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            cluster_ip: IpAddr::from([10, 43, 0, 1]),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: None,
            node_port: Some(30000),
            affinity_seconds: None,
            internal_local: false,
            external_local: true,
            endpoints: Chosen {
                cluster: vec![endpoint],
                local: Vec::new(),
                ..Chosen::default()
            },
        };
        let external = |count: usize| {
            format!(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total{{traffic_policy=\"external\",ip_family=\"IPv4\"}} {count}"
            )
        };
        metrics.set_service(&key, &[view]);
        let page = metrics.page(None, None);
        assert!(has(&page, &external(1)), "{page}");
        assert!(
            page.contains("{traffic_policy=\"internal\",ip_family=\"IPv6\"} 0"),
            "{page}"
        );
        metrics.set_service(&key, &[]);
        assert!(has(&metrics.page(None, None), &external(0)));
    }
}
