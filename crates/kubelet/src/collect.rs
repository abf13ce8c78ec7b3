//! Garbage collection: dead containers beyond the last one of each name, dead sandboxes beyond the last one of each
//! pod, and unused images, the least recently used first, when the disk fills up or they are too old.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cri::v1;
use jiff::Timestamp;
use tracing::{info, warn};

use crate::pod::status::is_terminal;
use crate::{Result, core::Core, make::labels};

const INTERVAL: Duration = Duration::from_secs(60);

/// Collects periodically. Never returns.
pub(crate) async fn run(core: Arc<Core>) {
    // Pulls that an earlier run began are settled by what is present now.
    if let Err(error) = find_unused(&core).await {
        warn!(%error, "cannot list images");
    }
    loop {
        core.config.clock.sleep(INTERVAL).await;
        if let Err(error) = dead_containers(&core).await {
            warn!(%error, "cannot garbage-collect containers");
        }
        if let Err(error) = dead_sandboxes(&core).await {
            warn!(%error, "cannot garbage-collect sandboxes");
        }
        if let Err(error) = images_beyond_policy(&core).await {
            warn!(%error, "cannot garbage-collect images");
        }
    }
}

/// Removes dead sandboxes without containers, except the newest sandbox of each pod.
async fn dead_sandboxes(core: &Core) -> Result<()> {
    // In this order: a container that is made meanwhile is in a sandbox that is newer or ready.
    let sandboxes = core.runtime.list_sandboxes(BTreeMap::new()).await?;
    let containers = core.runtime.list_containers(BTreeMap::new()).await?;
    let superfluous = superfluous_sandboxes(&sandboxes, &containers);
    each(superfluous, |id| async move {
        Ok(core.runtime.remove_sandbox(&id).await?)
    })
    .await
}

/// Removes each of them, also after one that cannot be removed; returns the first error.
async fn each<T, F: Future<Output = Result<()>>>(
    all: impl IntoIterator<Item = T>,
    remove: impl Fn(T) -> F,
) -> Result<()> {
    let mut outcome = Ok(());
    for one in all {
        let removed = remove(one).await;
        outcome = outcome.and(removed);
    }
    outcome
}

/// Dead sandboxes of pods that have a newer one.
fn superfluous_sandboxes(listed: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<String> {
    let used: HashSet<&str> = containers
        .iter()
        .map(|container| container.pod_sandbox_id.as_str())
        .collect();
    let pod = |sandbox: &&v1::PodSandbox| sandbox.labels.get(labels::POD_UID).cloned();
    let mut ours: Vec<_> = listed.iter().filter(|s| pod(s).is_some()).collect();
    ours.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    let mut seen = HashSet::new();
    ours.retain(|sandbox| !seen.insert(pod(sandbox)));
    let is_dead = |sandbox: &&v1::PodSandbox| {
        sandbox.state() == v1::PodSandboxState::SandboxNotready
            && !used.contains(sandbox.id.as_str())
    };
    let dead = ours.into_iter().filter(is_dead);
    dead.map(|sandbox| sandbox.id.clone()).collect()
}

/// Removes dead containers except the newest one of each name, which is kept for its logs and exit
/// status.
pub(crate) async fn dead_containers(core: &Core) -> Result<()> {
    let listed = core.runtime.list_containers(BTreeMap::new()).await?;
    remove_containers(core, superfluous(&listed)).await
}

async fn remove_containers(core: &Core, ids: Vec<String>) -> Result<()> {
    each(ids, |id| async move {
        Ok(core.runtime.remove_container(&id).await?)
    })
    .await
}

/// Removes all dead containers of ended pods whose final status the API has: the node is short of
/// disk space.
pub(crate) async fn ended_pods(core: &Core) -> Result<()> {
    let pods = core.registry.pods().into_iter();
    let ended: HashSet<String> = pods
        .filter(|seen| seen.is_stopped && seen.is_reported)
        .filter(|seen| is_terminal(seen.status.phase.as_deref()))
        .filter_map(|seen| seen.pod.metadata.uid.clone())
        .collect();
    let listed = core.runtime.list_containers(BTreeMap::new()).await?;
    remove_containers(core, dead_of(&listed, &ended)).await
}

/// The dead containers of these pods.
fn dead_of(listed: &[v1::Container], pods: &HashSet<String>) -> Vec<String> {
    let is_of = |c: &&v1::Container| {
        let pod = c.labels.get(labels::POD_UID);
        pod.is_some_and(|uid| pods.contains(uid))
    };
    listed
        .iter()
        .filter(|c| c.state() == v1::ContainerState::ContainerExited)
        .filter(is_of)
        .map(|c| c.id.clone())
        .collect()
}

/// Dead containers that have a newer dead one of the same name, and those that were never started and have a newer one.
fn superfluous(listed: &[v1::Container]) -> Vec<String> {
    let mut ours: Vec<&v1::Container> = listed
        .iter()
        .filter(|c| c.labels.contains_key(labels::POD_UID))
        .collect();
    ours.sort_by_key(|container| std::cmp::Reverse(container.created_at));
    let key = |c: &v1::Container| {
        (
            c.labels.get(labels::POD_UID).cloned(),
            c.labels.get(labels::CONTAINER_NAME).cloned(),
        )
    };
    let (mut newest, mut ended) = (HashSet::new(), HashSet::new());
    ours.retain(|container| {
        let is_newest = newest.insert(key(container));
        match container.state() {
            v1::ContainerState::ContainerExited => !ended.insert(key(container)),
            // The newest one may be about to start.
            v1::ContainerState::ContainerCreated => !is_newest,
            _ => false,
        }
    });
    ours.into_iter().map(|c| c.id.clone()).collect()
}

/// Removes images that were unused for too long, and more of them while disk usage is above the
/// threshold.
async fn images_beyond_policy(core: &Core) -> Result<()> {
    let unused = find_unused(core).await?;
    let (settings, now) = (core.settings(), core.now());
    let most = settings.image_maximum_gc_age.0;
    let (old, rest): (Vec<_>, Vec<_>) = unused
        .into_iter()
        .partition(|image| !most.is_zero() && now - most > image.last_used);
    let mut outcome = each(&old, |image| remove(core, image, Why::Age)).await;
    // The runtime of another kind may have its images elsewhere.
    let node = core.stats.node(core).await;
    let disk = node.runtime.image_fs.unwrap_or_default();
    let high = i64::from(settings.image_gc_high_threshold_percent);
    let low = i64::from(settings.image_gc_low_threshold_percent);
    let mut to_free = bytes_to_free(disk.capacity_bytes, disk.available_bytes, high, low);
    for image in rest {
        if to_free <= 0 {
            break;
        }
        match remove(core, &image, Why::Usage).await {
            Ok(()) => to_free -= image.size,
            error => outcome = outcome.and(error),
        }
    }
    if to_free > 0 {
        let message = format!(
            "Failed to garbage collect required amount of images: {to_free} bytes are missing"
        );
        core.events
            .node(reconcile::Kind::Warning, "FreeDiskSpaceFailed", message);
    }
    outcome
}

/// How much is to be freed on a disk whose usage in percent is at least `high`, so that it becomes `low`.
fn bytes_to_free(capacity: Option<u64>, available: Option<u64>, high: i64, low: i64) -> i64 {
    let (Some(capacity), Some(available)) = (capacity, available) else {
        return 0;
    };
    let (capacity, available) = (i128::from(capacity), i128::from(available));
    if high == 100 || capacity == 0 || 100 - available * 100 / capacity < i128::from(high) {
        return 0;
    }
    let wanted = capacity * i128::from(100 - low) / 100 - available;
    i64::try_from(wanted).unwrap_or(i64::MAX)
}

/// Removes all unused images that are old enough.
pub(crate) async fn unused_images(core: &Core) -> Result<()> {
    let unused = find_unused(core).await?;
    each(&unused, |image| remove(core, image, Why::Pressure)).await
}

async fn find_unused(core: &Core) -> Result<Vec<Unused>> {
    let mut images = core.runtime.client.clone().images;
    let request = v1::ListImagesRequest { filter: None };
    let asked_at = core.now();
    let listed = images.list_images(request).await?.into_inner().images;
    core.pull_records.prune(&listed, asked_at);
    let containers = core.runtime.list_containers(BTreeMap::new()).await?;
    let youngest = core.settings().image_minimum_gc_age.0;
    let now = core.now();
    let mut ledger = core.images_seen.lock();
    ledger.update(&listed, &containers, now);
    Ok(ledger.unused(&listed, &containers, youngest, now))
}

/// Why an image is removed.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// Unused for longer than imageMaximumGCAge.
    Age,
    /// The images' file system is over the high threshold.
    Usage,
    /// The node has disk pressure.
    Pressure,
}

async fn remove(core: &Core, image: &Unused, why: Why) -> Result<()> {
    info!(image = image.id, size = image.size, ?why, "removing image");
    let spec = v1::ImageSpec {
        image: image.id.clone(),
        ..Default::default()
    };
    let mut images = core.runtime.client.clone().images;
    let request = v1::RemoveImageRequest { image: Some(spec) };
    images.remove_image(request).await?;
    let label = match why {
        Why::Age => "age",
        Why::Usage | Why::Pressure => "space",
    };
    core.metrics.lives.image_collected(label);
    Ok(())
}

/// An image that may be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unused {
    id: String,
    size: i64,
    last_used: Timestamp,
}

/// When images were first seen and last used. Starts empty with each kubelet, as upstream's.
#[derive(Debug, Default)]
pub struct Ledger {
    records: HashMap<String, Record>,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    first_seen: Timestamp,
    last_used: Timestamp,
}

impl Ledger {
    fn update(&mut self, images: &[v1::Image], containers: &[v1::Container], now: Timestamp) {
        let used = used_names(containers);
        for image in images {
            let record = self.records.entry(image.id.clone()).or_insert(Record {
                first_seen: now,
                last_used: now,
            });
            if is_used(image, &used) {
                record.last_used = now;
            }
        }
        let there: HashSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.records.retain(|id, _| there.contains(id.as_str()));
    }

    /// Images that no container uses and that are not pinned, the least recently used first. New
    /// images stay: their container may be about to be created.
    fn unused(
        &self,
        images: &[v1::Image],
        containers: &[v1::Container],
        youngest: Duration,
        now: Timestamp,
    ) -> Vec<Unused> {
        let used = used_names(containers);
        let mut found: Vec<(Record, Unused)> = images
            .iter()
            .filter(|image| !image.pinned && !is_used(image, &used))
            .filter_map(|image| {
                let record = *self.records.get(&image.id)?;
                let unused = Unused {
                    id: image.id.clone(),
                    size: i64::try_from(image.size).unwrap_or(i64::MAX),
                    last_used: record.last_used,
                };
                (now - youngest >= record.first_seen).then_some((record, unused))
            })
            .collect();
        found.sort_by(|(a, x), (b, y)| {
            let order = a.last_used.cmp(&b.last_used);
            order
                .then(a.first_seen.cmp(&b.first_seen))
                .then(x.id.cmp(&y.id))
        });
        found.into_iter().map(|(_, unused)| unused).collect()
    }
}

fn used_names(containers: &[v1::Container]) -> HashSet<&str> {
    let named = containers.iter();
    named
        .flat_map(|c| [c.image_id.as_str(), c.image_ref.as_str()])
        .chain(
            containers
                .iter()
                .filter_map(|c| c.image.as_ref().map(|i| i.image.as_str())),
        )
        .filter(|name| !name.is_empty())
        .collect()
}

fn is_used(image: &v1::Image, used: &HashSet<&str>) -> bool {
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    used.contains(image.id.as_str()) || names.into_iter().any(|name| used.contains(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, name: &str, created_at: i64, ended: bool) -> v1::Container {
        let state = if ended {
            v1::ContainerState::ContainerExited
        } else {
            v1::ContainerState::ContainerRunning
        };
        v1::Container {
            id: id.into(),
            created_at,
            state: state as i32,
            image_id: "used".into(),
            labels: [(labels::POD_UID, "u"), (labels::CONTAINER_NAME, name)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        }
    }

    #[test]
    fn only_older_dead_containers_go() {
        let listed = [
            container("run", "a", 4, false),
            container("last", "a", 3, true),
            container("old", "a", 2, true),
            container("other", "b", 1, true),
        ];
        assert_eq!(superfluous(&listed), ["old"]);
        let created = |id: &str, created_at| v1::Container {
            state: v1::ContainerState::ContainerCreated as i32,
            ..container(id, "a", created_at, false)
        };
        let listed = [
            created("starts", 5),
            container("last", "a", 3, true),
            created("left", 2),
        ];
        assert_eq!(superfluous(&listed), ["left"]);
    }

    #[test]
    fn of_each_pod_the_newest_sandbox_stays_and_those_with_containers_or_that_are_ready() {
        let sandbox = |id: &str, pod: &str, created_at, ready| v1::PodSandbox {
            id: id.into(),
            created_at,
            state: match ready {
                true => v1::PodSandboxState::SandboxReady,
                false => v1::PodSandboxState::SandboxNotready,
            } as i32,
            labels: [(labels::POD_UID.to_owned(), pod.to_owned())].into(),
            ..Default::default()
        };
        let listed = [
            sandbox("only", "a", 1, false),
            sandbox("old", "b", 1, false),
            sandbox("with-container", "b", 2, false),
            sandbox("ready", "b", 3, true),
            sandbox("newest", "b", 4, false),
            v1::PodSandbox {
                labels: Default::default(),
                ..sandbox("foreign", "", 0, false)
            },
        ];
        let container = v1::Container {
            pod_sandbox_id: "with-container".into(),
            ..Default::default()
        };
        assert_eq!(superfluous_sandboxes(&listed, &[container]), ["old"]);
    }

    #[test]
    fn the_least_recently_used_images_are_removed_and_new_used_and_pinned_ones_kept() {
        let image = |id: &str, pinned| v1::Image {
            id: id.into(),
            size: 1,
            pinned,
            ..Default::default()
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let youngest = Duration::from_secs(120);
        let mut ledger = Ledger::default();
        let early = [
            image("used", false),
            image("a", false),
            image("pinned", true),
        ];
        let mut of_a = container("c", "a", 1, false);
        of_a.image_id = "a".into();
        let both = [container("c", "x", 1, false), of_a];
        ledger.update(&early, &both, at(0));
        ledger.update(&early, &both, at(100));
        let all = [&early[..], &[image("b", false), image("young", false)]].concat();
        let one = [container("c", "x", 1, false)];
        ledger.update(&all[..4], &one, at(150));
        ledger.update(&all, &one, at(400));
        let ids = |now| -> Vec<String> {
            let found = ledger.unused(&all, &one, youngest, now);
            found.into_iter().map(|unused| unused.id).collect()
        };
        // `a` was used until 100, `b` was seen at 150 and never used.
        assert_eq!(ids(at(400)), ["a", "b"]);
        assert_eq!(ids(at(520)), ["a", "b", "young"]);
    }

    #[tokio::test]
    async fn one_that_cannot_be_removed_holds_up_no_other() {
        let removed = std::cell::RefCell::new(Vec::new());
        let removed = &removed;
        let outcome = each(["a", "stuck", "b", "stuck too"], |id| async move {
            if id.starts_with("stuck") {
                return Err(crate::Error::Other(id.to_owned()));
            }
            removed.borrow_mut().push(id);
            Ok(())
        });
        assert_eq!(outcome.await.unwrap_err().to_string(), "stuck");
        assert_eq!(*removed.borrow(), ["a", "b"]);
    }

    #[test]
    fn images_are_removed_from_the_high_threshold_down_to_the_low_one() {
        for (capacity, available, expected) in [
            (Some(1000), Some(160), 0),
            // 84.1 percent count as 85.
            (Some(1000), Some(159), 41),
            (Some(1000), Some(100), 100),
            (Some(0), Some(0), 0),
            (None, Some(0), 0),
        ] {
            let freed = bytes_to_free(capacity, available, 85, 80);
            assert_eq!(freed, expected, "{capacity:?} {available:?}");
        }
        assert_eq!(bytes_to_free(Some(1000), Some(0), 100, 80), 0);
    }

    #[test]
    fn of_pods_that_ended_every_dead_container_goes_and_no_other() {
        let container = |id: &str, pod: &str, state: v1::ContainerState| v1::Container {
            id: id.into(),
            labels: [(labels::POD_UID.to_owned(), pod.to_owned())].into(),
            state: state.into(),
            ..Default::default()
        };
        let (dead, runs) = (
            v1::ContainerState::ContainerExited,
            v1::ContainerState::ContainerRunning,
        );
        let listed = [
            container("a", "ended", dead),
            container("b", "ended", dead),
            container("c", "ended", runs),
            container("d", "other", dead),
        ];
        let ended = HashSet::from(["ended".to_owned()]);
        assert_eq!(dead_of(&listed, &ended), ["a", "b"]);
    }
}
