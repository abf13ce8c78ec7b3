//! Metrics of the informers of this process, under the names of client-go.

use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use stdx::exposition::{Exposition, Family, Histogram};

use super::Shared;

const LABELS: &[&str] = &["name", "group", "version", "resource"];
const BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Of a resourceVersion only the last 15 digits are shown: a float cannot represent more.
const DIGITS: u64 = 1_000_000_000_000_000;

/// Guards the list of started informers; dropped informers are removed when the metrics are next read.
static ALL: LazyLock<Mutex<Vec<Started>>> = LazyLock::new(Mutex::default);
static LATENCIES: LazyLock<Family<Histogram>> =
    LazyLock::new(|| Family::new(LABELS, || Histogram::new(BUCKETS)));

/// The values of the labels: the service that started an informer, group, version and plural.
type Identity = [Box<str>; 4];

/// A started informer.
type Started = (Identity, Weak<dyn Measured>);

/// An informer of any kind.
trait Measured: Send + Sync {
    /// The number of queued changes of the slowest subscriber.
    fn queued(&self) -> usize;

    /// The newest resourceVersion in its cache.
    fn version(&self) -> u64;
}

impl Measured for Shared {
    fn queued(&self) -> usize {
        self.cache.read().queued()
    }

    fn version(&self) -> u64 {
        self.waiters.lock().seen()
    }
}

/// Adds an informer to the metrics until it is dropped; returns the histogram for the latency of its changes.
pub(super) fn add(name: &str, path: &str, informer: &Arc<Shared>) -> Arc<Histogram> {
    let identity = identity(name, path);
    let informer: Weak<dyn Measured> = Arc::downgrade(informer) as _;
    ALL.lock().push((identity.clone(), informer));
    LATENCIES.with(&identity.each_ref().map(|value| &**value))
}

/// A histogram that is not in the metrics.
pub(super) fn unseen() -> Arc<Histogram> {
    Arc::new(Histogram::new(BUCKETS))
}

/// The label values; group, version and plural are read from the path of the list request.
fn identity(name: &str, path: &str) -> Identity {
    let mut parts = path.trim_start_matches('/').split('/');
    let group = match parts.next() {
        Some("apis") => parts.next().unwrap_or_default(),
        _ => "",
    };
    let version = parts.next().unwrap_or_default();
    let plural = parts.next_back().unwrap_or_default();
    [name, group, version, plural].map(Box::from)
}

/// Adds the metrics to a page. Informers of the same service and kind, which differ in their selectors, share one
/// series: the sum of their queued changes, and their oldest resourceVersion.
pub(super) fn show(page: &mut Exposition) {
    let mut all = ALL.lock();
    all.retain(|(_, informer)| informer.strong_count() > 0);
    let alive = all.iter().filter_map(|(identity, informer)| {
        let informer = informer.upgrade()?;
        Some((identity.clone(), informer))
    });
    let mut alive: Vec<_> = alive.collect();
    drop(all);
    alive.sort_by(|one, other| one.0.cmp(&other.0));
    let is_gone = |values: &[Box<str>]| !alive.iter().any(|(identity, _)| identity == values);
    LATENCIES.forget(is_gone);
    let same = alive.chunk_by(|one, other| one.0 == other.0);
    let figures: Vec<_> = same
        .map(|same| {
            let queued: usize = same.iter().map(|(_, one)| one.queued()).sum();
            let version = same.iter().map(|(_, one)| one.version()).min();
            let version = version.unwrap_or_default() % DIGITS;
            (&same[0].0, queued as f64, version as f64)
        })
        .collect();
    let mut gauges = |name: &str, help: &str, value: fn(&(&Identity, f64, f64)) -> f64| {
        page.family(name, "gauge", help);
        for figure in &figures {
            let values = figure.0.iter().map(|value| &**value);
            let labels: Vec<_> = LABELS.iter().copied().zip(values).collect();
            page.sample(name, &labels, value(figure), None);
        }
    };
    let help = "Changes queued for the slowest subscriber of an informer";
    gauges("informer_queued_items", help, |figure| figure.1);
    let help = "The last 15 digits of the resourceVersion that an informer has reached";
    gauges("informer_store_resource_version", help, |figure| figure.2);
    let help = "How long an informer took to process a change";
    page.histograms("informer_processing_latency_seconds", help, &LATENCIES);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::informer::{Informer, cache::Cache};

    #[test]
    fn the_path_says_the_resource() {
        let shown = |path| identity("n", path).join(" ");
        assert_eq!(shown("/api/v1/pods"), "n  v1 pods");
        assert_eq!(shown("/api/v1/namespaces/d/pods"), "n  v1 pods");
        assert_eq!(shown("/apis/apps/v1/deployments"), "n apps v1 deployments");
        assert_eq!(shown("/api/v1/namespaces"), "n  v1 namespaces");
        assert_eq!(shown(""), "n   ");
    }

    #[test]
    fn an_informer_is_shown_for_as_long_as_it_lives() {
        let informer = Informer::<ConfigMap>::from_cache(Cache::new::<ConfigMap>());
        let path = "/api/v1/configmaps";
        add("metrics-test", path, &informer.shared).observe(0.002);
        let _slow = informer.subscribe();
        for (name, version) in [("a", "7"), ("b", "12"), ("a", "1000000000000013")] {
            let mut object = ConfigMap::default();
            object.metadata.name = Some(name.to_owned());
            object.metadata.resource_version = Some(version.to_owned());
            informer.upsert(object);
        }
        let page = || {
            let mut page = Exposition::default();
            show(&mut page);
            page.finish()
        };
        let labels = r#"{name="metrics-test",group="",version="v1",resource="configmaps"}"#;
        let text = page();
        for line in [
            format!("informer_queued_items{labels} 3\n"),
            format!("informer_store_resource_version{labels} 13\n"),
            format!("informer_processing_latency_seconds_count{labels} 1\n"),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        drop((informer, _slow));
        assert!(!page().contains("metrics-test"));
    }
}
