//! Scrapes every node's resource metrics, each on its own schedule: soon after it appears, a little
//! later for the first average, then every 15 seconds. A node that does not answer delays no other.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use machinery::{Status, Value};
use registry::{Reader, Stored};
use stdx::Clock;
use tokio::{sync::Notify, time::Instant};

use crate::{
    API_SERVICE, Samples,
    page::{self, Page},
};

/// The scrape interval.
const PERIOD: Duration = Duration::from_secs(15);
/// When a node is scraped for the second time, after which the first average is known.
const SECOND: Duration = Duration::from_secs(5);
/// The timeout of a scrape.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a page.
pub const MAX_PAGE: usize = 16 << 20;
/// The minimum interval between two lists of nodes.
const LIST_PERIOD: Duration = Duration::from_secs(1);
/// New nodes are first scraped over a time that grows with their number, up to [`MAX_SPREAD`].
const SPREAD_PER_NODE: Duration = Duration::from_millis(8);
const MAX_SPREAD: Duration = Duration::from_secs(4);

/// Scrapes a node.
#[async_trait]
pub trait Fetch: Send + Sync + 'static {
    /// The page at `/metrics/resource` of a node's kubelet, at most [`MAX_PAGE`] bytes.
    async fn resource_metrics(&self, node: &Stored) -> Result<Bytes, String>;
}

/// When a node is scraped next.
struct Schedule {
    /// `None` while it is being scraped.
    due: Option<Instant>,
    /// The number of pages received.
    pages: u32,
}

/// The result of a scrape.
struct ScrapeResult {
    node: String,
    page: Result<Page, String>,
}

/// Keeps the samples of all nodes up to date, while polled.
pub async fn collect(
    reader: Reader,
    fetch: Arc<dyn Fetch>,
    samples: Arc<Samples>,
    clock: Arc<dyn Clock>,
) {
    let changed = Notify::new();
    let watch = reader.tell_of_changes("", "nodes", &changed);
    let mut collector = Collector {
        reader: &reader,
        fetch,
        samples,
        clock,
        schedules: HashMap::new(),
        asked: FuturesUnordered::new(),
    };
    tokio::join!(watch, collector.run(&changed));
}

struct Collector<'a> {
    reader: &'a Reader,
    fetch: Arc<dyn Fetch>,
    samples: Arc<Samples>,
    clock: Arc<dyn Clock>,
    schedules: HashMap<String, Schedule>,
    asked: FuturesUnordered<BoxFuture<'static, ScrapeResult>>,
}

impl Collector<'_> {
    async fn run(&mut self, changed: &Notify) {
        let mut listed = None;
        loop {
            let due = self.schedules.values().filter_map(|one| one.due).min();
            let nodes_change = async {
                if let Some(listed) = listed {
                    tokio::time::sleep_until(listed + LIST_PERIOD).await;
                }
                changed.notified().await;
            };
            tokio::select! {
                () = nodes_change => {
                    listed = Some(Instant::now());
                    if let Err(status) = self.list().await {
                        tracing::warn!(%status, "cannot list nodes");
                        changed.notify_one();
                    }
                }
                Some(asked) = self.asked.next() => self.record(asked),
                () = at(due) => self.ask_due().await,
            }
        }
    }

    /// Updates the list of nodes.
    async fn list(&mut self) -> Result<(), Status> {
        let (_, nodes) = self.reader.list("", "nodes", "").await?;
        let mut known = std::mem::take(&mut self.schedules);
        let spread =
            MAX_SPREAD.min(SPREAD_PER_NODE * u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        for node in &nodes {
            let name = node.header.name().to_string();
            let schedule = known.remove(&name).unwrap_or_else(|| {
                let wait = rand::random_range(Duration::ZERO..=spread);
                Schedule {
                    due: Some(Instant::now() + wait),
                    pages: 0,
                }
            });
            self.schedules.insert(name, schedule);
        }
        let schedules = &self.schedules;
        self.samples.retain(|node| schedules.contains_key(node));
        Ok(())
    }

    /// Scrapes the nodes that are due, unless another server serves the group.
    async fn ask_due(&mut self) {
        let now = Instant::now();
        let is_served_elsewhere = is_served_elsewhere(self.reader).await;
        if is_served_elsewhere {
            self.samples.retain(|_| false);
        }
        for (name, schedule) in &mut self.schedules {
            if schedule.due.is_none_or(|due| due > now) {
                continue;
            }
            if is_served_elsewhere {
                schedule.due = Some(now + PERIOD);
                continue;
            }
            schedule.due = None;
            self.asked.push(Box::pin(ask(
                self.reader.clone(),
                self.fetch.clone(),
                self.clock.clone(),
                name.clone(),
            )));
        }
    }

    fn record(&mut self, asked: ScrapeResult) {
        // The node may be gone.
        let Some(schedule) = self.schedules.get_mut(&asked.node) else {
            return;
        };
        match asked.page {
            Ok(page) => {
                schedule.pages = schedule.pages.saturating_add(1);
                self.samples.record(&asked.node, page);
            }
            Err(why) => tracing::debug!(node = asked.node, why, "no resource metrics"),
        }
        let wait = if schedule.pages < 2 { SECOND } else { PERIOD };
        schedule.due = Some(Instant::now() + wait);
    }
}

/// Whether the group's APIService refers to another server.
async fn is_served_elsewhere(reader: &Reader) -> bool {
    let found = reader.get("apiregistration.k8s.io", "apiservices", "", API_SERVICE);
    let service = found.await.ok().flatten().map(|found| found.parse());
    let spec = service.as_ref().and_then(|service| service.get("spec"));
    spec.is_some_and(|spec| spec["service"] != Value::Null)
}

/// Waits until a time, or for ever.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn ask(
    reader: Reader,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    node: String,
) -> ScrapeResult {
    let page = async {
        let found = reader.get("", "nodes", "", &node).await;
        let found = found.map_err(|status| status.to_string())?;
        let found = found.ok_or("the node is gone")?;
        let text = fetch.resource_metrics(&found).await?;
        let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
        let page = page::parse(text, clock.now().as_millisecond());
        Ok(page)
    };
    let page = tokio::time::timeout(TIMEOUT, page).await;
    let page = page.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    ScrapeResult { node, page }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use machinery::json::json;
    use registry_testing::World;
    use stdx::SystemClock;

    use super::*;

    /// Responds as the node's name says.
    #[derive(Default)]
    struct Nodes {
        /// Whether the request to the hanging node has ended.
        has_given_up: Arc<AtomicBool>,
    }

    struct Ended(Arc<AtomicBool>);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[async_trait]
    impl Fetch for Nodes {
        async fn resource_metrics(&self, node: &Stored) -> Result<Bytes, String> {
            static COUNT: AtomicU64 = AtomicU64::new(1);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            match node.header.name() {
                "hangs" => {
                    let _ended = Ended(self.has_given_up.clone());
                    std::future::pending().await
                }
                "refuses" => Err("no".to_owned()),
                _ => Ok(format!(
                    "node_cpu_usage_seconds_total {count} {count}000\nnode_memory_working_set_bytes 1\n"
                )
                .into()),
            }
        }
    }

    async fn eventually(samples: &Samples, mut is_so: impl FnMut(&Samples) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(samples) {
            assert!(Instant::now() < deadline, "not within a minute");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    #[tokio::test]
    async fn a_hanging_node_delays_no_other_and_a_deleted_node_is_forgotten() {
        let world = World::new();
        for name in ["hangs", "refuses", "works"] {
            let node = json!({"metadata": {"name": name}});
            world.put("", "nodes", node).await;
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let samples = Arc::new(Samples::new(clock.clone()));
        let nodes = Nodes::default();
        let has_given_up = nodes.has_given_up.clone();
        let collect = collect(
            world.reader.clone(),
            Arc::new(nodes),
            samples.clone(),
            clock,
        );
        let test = async {
            eventually(&samples, |samples| samples.node("works").is_some()).await;
            assert!(!has_given_up.load(Ordering::Relaxed), "it waited");
            assert_eq!(samples.node("hangs"), None);
            assert_eq!(samples.node("refuses"), None);
            world.delete("", "nodes", "", "works").await;
            eventually(&samples, |samples| samples.node("works").is_none()).await;
        };
        tokio::select! {
            () = collect => {}
            () = test => {}
        }
    }
}
