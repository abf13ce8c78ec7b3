//! The queue of pending pods: active, in backoff, unschedulable until an event could help, or gated
//! by PreEnqueue. Pure: the caller passes the time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cluster::Cluster,
    extender,
    framework::{Point, event::Event, profile::Profile},
    metrics::Families,
    pod::PodInfo,
    rejected_pods::RejectedPods,
};

/// The backoff settings.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The delay after the first failure; doubled after each.
    pub first: Duration,
    /// The maximum delay.
    pub last: Duration,
    /// A pod that no event has helped is retried after this time.
    pub leftover: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            last: Duration::from_secs(10),
            leftover: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    fn after(&self, failures: u32) -> Duration {
        let factor = 1u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.last)
    }
}

/// A pending pod and its attempts.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The number of attempts.
    pub attempts: u32,
    /// When it was first tried.
    pub first_attempt: Option<Instant>,
    /// When it was last tried.
    pub last_attempt: Option<Instant>,
    /// When it was queued or last tried; orders pods of equal priority.
    since: Instant,
    /// How often no node was found.
    unschedulable: u32,
    /// The number of consecutive errors.
    errors: u32,
    /// The plugins that rejected it last time.
    rejected_by: BTreeSet<&'static str>,
    /// Whether it is retried only because of its age.
    pub flushed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueState {
    Active,
    /// Until when, and whether after an error.
    Backoff(Instant, bool),
    Unschedulable,
    /// The plugin that gates it.
    Gated(&'static str),
}

/// The sizes of the queues, as metrics name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    /// Ready to be scheduled.
    pub active: usize,
    /// In backoff.
    pub backoff: usize,
    /// Waiting for an event.
    pub unschedulable: usize,
    /// Gated by PreEnqueue.
    pub gated: usize,
}

type Rank = (Reverse<i32>, Instant, Arc<str>);

/// All pending pods.
#[derive(Default)]
pub struct Queue {
    backoffs: Backoff,
    pods: HashMap<Arc<str>, (Waiting, QueueState)>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, Rank)>,
    errors: BTreeSet<(Instant, Rank)>,
    unschedulable: BTreeSet<(Instant, Arc<str>)>,
    /// Unschedulable pods, by the plugins that rejected them.
    rejected: RejectedPods,
    /// The number of unschedulable pods, by profile and plugin.
    counts: BTreeMap<String, BTreeMap<&'static str, usize>>,
    /// Gated pods, by plugin.
    gated: HashMap<&'static str, HashSet<Arc<str>>>,
    /// Pods whose victims are being deleted, and whether an event could have helped since.
    held: HashMap<Arc<str>, bool>,
    /// The metrics of queueing hints, if they are recorded.
    metrics: Option<Families>,
}

fn rank(waiting: &Waiting) -> Rank {
    let pod = &waiting.pod;
    (Reverse(pod.priority()), waiting.since, pod.uid.clone())
}

/// The plugin that gates the pod, and the reason.
pub(crate) fn gate(
    pod: &PodInfo,
    profile: &Profile,
    cluster: &Cluster,
) -> Option<(&'static str, String)> {
    profile.at(Point::PreEnqueue).iter().find_map(|enabled| {
        let why = enabled.plugin.pre_enqueue(pod, cluster).err()?;
        Some((enabled.plugin.name(), why))
    })
}

impl Queue {
    /// A queue with these backoffs.
    pub fn new(backoffs: Backoff) -> Self {
        Self {
            backoffs,
            ..Self::default()
        }
    }

    /// Records the durations of queueing hints from now on.
    pub(crate) fn measured(mut self, metrics: &Families) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Takes a new pod in, or a pod's newest version: one that changed may fit now. Returns why it
    /// may not be tried, when it may not.
    pub fn put(
        &mut self,
        pod: Arc<PodInfo>,
        profile: &Profile,
        cluster: &Cluster,
        now: Instant,
    ) -> Option<String> {
        let gate = gate(&pod, profile, cluster);
        let Some((mut waiting, place)) = self.take(&pod.uid) else {
            let waiting = Waiting {
                pod,
                attempts: 0,
                first_attempt: None,
                last_attempt: None,
                since: now,
                unschedulable: 0,
                errors: 0,
                rejected_by: BTreeSet::new(),
                flushed: false,
            };
            let place = gate
                .as_ref()
                .map_or(QueueState::Active, |(plugin, _)| QueueState::Gated(plugin));
            self.place(waiting, place);
            return gate.map(|(_, why)| why);
        };
        let old = std::mem::replace(&mut waiting.pod, pod);
        let event = Event::OwnUpdate {
            old: &old,
            new: &waiting.pod,
        };
        let place = match (place, &gate) {
            (_, Some((plugin, _))) => QueueState::Gated(plugin),
            (QueueState::Gated(_), None) => QueueState::Active,
            (QueueState::Unschedulable, None) if is_helped(&waiting, &event, profile, cluster) => {
                self.resume(&waiting, now)
            }
            (other, None) => other,
        };
        self.place(waiting, place);
        gate.map(|(_, why)| why)
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &str) -> Option<Waiting> {
        self.held.remove(uid);
        self.take(uid).map(|(waiting, _)| waiting)
    }

    /// The queued version of a pod.
    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|(waiting, _)| &waiting.pod)
    }

    /// A pending pod and the name of its queue.
    pub fn find(&self, uid: &str) -> Option<(&Waiting, &'static str)> {
        let (waiting, place) = self.pods.get(uid)?;
        let queue = match place {
            QueueState::Active => "active",
            QueueState::Backoff(..) => "backoff",
            QueueState::Unschedulable => "unschedulable",
            QueueState::Gated(_) => "gated",
        };
        Some((waiting, queue))
    }

    /// Takes the next pod to schedule out of the queue: it returns by [`Queue::retry`] or
    /// [`Queue::turned_away`]. If none is active, an unschedulable one in backoff is tried early.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        self.flush(now);
        let ready = self.active.first().map(|(_, _, uid)| uid.clone());
        let early = || self.backoff.first().map(|(_, (_, _, uid))| uid.clone());
        let uid = ready.or_else(early)?;
        let (mut waiting, _) = self.take(&uid)?;
        waiting.attempts += 1;
        waiting.first_attempt.get_or_insert(now);
        waiting.last_attempt = Some(now);
        Some(waiting)
    }

    /// Requeues a pod after an error that has nothing to do with the cluster.
    pub fn retry(&mut self, mut waiting: Waiting, now: Instant) {
        waiting.errors += 1;
        waiting.since = now;
        waiting.rejected_by.clear();
        let until = now + self.backoffs.after(waiting.errors);
        self.place(waiting, QueueState::Backoff(until, true));
    }

    /// Requeues a pod for which no node was found, rejected by these plugins.
    pub fn turned_away(&mut self, mut waiting: Waiting, by: BTreeSet<&'static str>, now: Instant) {
        waiting.errors = 0;
        waiting.unschedulable += 1;
        waiting.since = now;
        waiting.flushed = false;
        waiting.rejected_by = by;
        self.place(waiting, QueueState::Unschedulable);
    }

    /// Holds the pod until [`Queue::release`], while its victims are being deleted.
    pub fn hold(&mut self, uid: &Arc<str>) {
        self.held.insert(uid.clone(), false);
    }

    /// All victims were deleted; with `failed`, some deletions failed and the pod is retried.
    pub fn release(&mut self, uid: &str, failed: bool, now: Instant) {
        let helped = self.held.remove(uid).unwrap_or(false);
        if let Some((waiting, place)) = self.take(uid) {
            let place = match place {
                QueueState::Unschedulable if failed || helped => self.resume(&waiting, now),
                other => other,
            };
            self.place(waiting, place);
        }
    }

    /// Requeues the pods that an event could help. Returns their number.
    pub fn on_event(
        &mut self,
        event: &Event<'_>,
        profiles: &HashMap<String, Arc<Profile>>,
        cluster: &Cluster,
        now: Instant,
    ) -> usize {
        // Any event may help pods that no plugin rejected.
        let all = self.rejected.groups("").flatten();
        let mut helped: BTreeSet<Arc<str>> = all.cloned().collect();
        for profile in profiles.values() {
            for plugin in profile.plugins() {
                if !plugin.events().contains(&event.kind()) {
                    continue;
                }
                let hints = self.metrics.as_ref();
                let hints = hints.map(|metrics| metrics.hints(plugin.name(), event.label()));
                let ask = |pod: &PodInfo| {
                    let begun = Instant::now();
                    let is_helped = plugin.is_helped_by(pod, event, cluster);
                    if let Some(hints) = &hints {
                        hints[usize::from(is_helped)].observe(begun.elapsed().as_secs_f64());
                    }
                    is_helped
                };
                let shares = plugin.hints_by_template();
                for group in self.rejected.groups(plugin.name()) {
                    helped.extend(self.helped_of(group, profile, shares, cluster, &ask));
                }
            }
        }
        let mut moved = helped.len();
        for uid in helped {
            if let Some((waiting, _)) = self.take(&uid) {
                let place = self.resume(&waiting, now);
                self.place(waiting, place);
            }
        }
        moved += self.open_gates(event, profiles, cluster);
        moved
    }

    /// The pods of a profile among equal ones that a plugin says are helped. With `shares`, it is asked once for those that are
    /// not nominated.
    fn helped_of(
        &self,
        group: &HashSet<Arc<str>>,
        profile: &Profile,
        shares: bool,
        cluster: &Cluster,
        ask: &dyn Fn(&PodInfo) -> bool,
    ) -> Vec<Arc<str>> {
        let (mut helped, mut shared) = (Vec::new(), None);
        for uid in group {
            let shares = shares && cluster.nominated.node_of(uid).is_none();
            // While a pod is held, the first event that helps it is enough.
            if (shares && shared == Some(false)) || self.held.get(uid) == Some(&true) {
                continue;
            }
            let Some((waiting, _)) = self.pods.get(uid) else {
                continue;
            };
            if waiting.pod.template.scheduler_name != profile.name {
                break;
            }
            let is_helped = match shared.filter(|_| shares) {
                Some(known) => known,
                None => ask(&waiting.pod),
            };
            if shares {
                shared = Some(is_helped);
            }
            if is_helped {
                helped.push(uid.clone());
            } else if shares && cluster.nominated.is_empty() {
                break;
            }
        }
        helped
    }

    /// Checks gated pods again.
    fn open_gates(
        &mut self,
        event: &Event<'_>,
        profiles: &HashMap<String, Arc<Profile>>,
        cluster: &Cluster,
    ) -> usize {
        let mut open = BTreeSet::new();
        for profile in profiles.values() {
            for enabled in profile.at(Point::PreEnqueue) {
                let plugin = &enabled.plugin;
                if !plugin.events().contains(&event.kind()) {
                    continue;
                }
                let uids = self.gated.get(plugin.name()).into_iter().flatten();
                let opens = |uid: &&Arc<str>| {
                    let waiting = self.pods.get(*uid).map(|(waiting, _)| &waiting.pod);
                    waiting.is_some_and(|pod| {
                        pod.template.scheduler_name == profile.name
                            && gate(pod, profile, cluster).is_none()
                    })
                };
                open.extend(uids.filter(opens).cloned());
            }
        }
        for uid in &open {
            if let Some((waiting, _)) = self.take(uid) {
                self.place(waiting, QueueState::Active);
            }
        }
        open.len()
    }

    /// The number of unschedulable pods by profile and plugin.
    pub fn unschedulable(&self) -> BTreeMap<(&str, &'static str), usize> {
        let counts = self.counts.iter().flat_map(|(profile, plugins)| {
            let plugins = plugins.iter();
            plugins.map(move |(plugin, count)| ((profile.as_str(), *plugin), *count))
        });
        counts.collect()
    }

    /// Counts an unschedulable pod.
    fn count(&mut self, waiting: &Waiting) {
        let profile = &waiting.pod.template.scheduler_name;
        if !self.counts.contains_key(profile) {
            self.counts.insert(profile.clone(), BTreeMap::new());
        }
        if let Some(counts) = self.counts.get_mut(profile) {
            for plugin in &waiting.rejected_by {
                *counts.entry(*plugin).or_default() += 1;
            }
        }
    }

    /// Undoes [`Queue::count`].
    fn uncount(&mut self, waiting: &Waiting) {
        let profile = &waiting.pod.template.scheduler_name;
        let Some(counts) = self.counts.get_mut(profile) else {
            return;
        };
        for plugin in &waiting.rejected_by {
            if let Some(count) = counts.get_mut(plugin) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(plugin);
                }
            }
        }
    }

    /// When there will be something to do without any event.
    pub fn due(&self) -> Option<Instant> {
        let leftover = self.unschedulable.first();
        let leftover = leftover.map(|(since, _)| *since + self.backoffs.leftover);
        let backoff = self.backoff.first().map(|(due, _)| *due);
        let errors = self.errors.first().map(|(due, _)| *due);
        leftover.into_iter().chain(backoff).chain(errors).min()
    }

    /// The sizes of the queues.
    pub fn depth(&self) -> Depth {
        Depth {
            active: self.active.len(),
            backoff: self.backoff.len() + self.errors.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated.values().map(HashSet::len).sum(),
        }
    }

    fn flush(&mut self, now: Instant) {
        let due = |set: &BTreeSet<(Instant, Rank)>| {
            let (due, (_, _, uid)) = set.first()?;
            (*due <= now).then(|| uid.clone())
        };
        while let Some(uid) = due(&self.backoff).or_else(|| due(&self.errors)) {
            if let Some((waiting, _)) = self.take(&uid) {
                self.place(waiting, QueueState::Active);
            }
        }
        while let Some((since, uid)) = self.unschedulable.first().cloned() {
            if since + self.backoffs.leftover > now {
                break;
            }
            if let Some((mut waiting, _)) = self.take(&uid) {
                waiting.flushed = true;
                let place = self.resume(&waiting, now);
                self.place(waiting, place);
            }
        }
    }

    /// The queue for a pod that may be retried.
    fn resume(&self, waiting: &Waiting, now: Instant) -> QueueState {
        let until = waiting.since + self.backoffs.after(waiting.unschedulable.max(1));
        if until <= now || waiting.unschedulable == 0 {
            QueueState::Active
        } else {
            QueueState::Backoff(until, false)
        }
    }

    fn take(&mut self, uid: &str) -> Option<(Waiting, QueueState)> {
        let (waiting, place) = self.pods.remove(uid)?;
        match place {
            QueueState::Active => {
                self.active.remove(&rank(&waiting));
            }
            QueueState::Backoff(until, error) => {
                let set = if error {
                    &mut self.errors
                } else {
                    &mut self.backoff
                };
                set.remove(&(until, rank(&waiting)));
            }
            QueueState::Unschedulable => {
                self.uncount(&waiting);
                self.unschedulable
                    .remove(&(waiting.since, waiting.pod.uid.clone()));
                for plugin in rejecting(&waiting) {
                    self.rejected.remove(plugin, &waiting.pod);
                }
            }
            QueueState::Gated(plugin) => {
                if let Some(uids) = self.gated.get_mut(plugin) {
                    uids.remove(uid);
                }
            }
        }
        // Return the memory of a burst of pods.
        if self.pods.len() < self.pods.capacity() / 16 && self.pods.capacity() > 1024 {
            self.pods.shrink_to(self.pods.capacity() / 4);
        }
        Some((waiting, place))
    }

    fn place(&mut self, waiting: Waiting, place: QueueState) {
        let uid = waiting.pod.uid.clone();
        let place = match (place, self.held.get_mut(&uid)) {
            (QueueState::Active | QueueState::Backoff(..), Some(helped)) => {
                *helped = true;
                QueueState::Unschedulable
            }
            (other, _) => other,
        };
        match place {
            QueueState::Active => {
                self.active.insert(rank(&waiting));
            }
            QueueState::Backoff(until, error) => {
                let set = if error {
                    &mut self.errors
                } else {
                    &mut self.backoff
                };
                set.insert((until, rank(&waiting)));
            }
            QueueState::Unschedulable => {
                self.count(&waiting);
                self.unschedulable.insert((waiting.since, uid.clone()));
                for plugin in rejecting(&waiting) {
                    self.rejected.insert(plugin, &waiting.pod);
                }
            }
            QueueState::Gated(plugin) => {
                self.gated.entry(plugin).or_default().insert(uid.clone());
            }
        }
        self.pods.insert(uid, (waiting, place));
    }
}

/// The plugins that rejected a pod. The empty name if none did, for example without any node, or if
/// an extender did: any event could change the result.
fn rejecting(waiting: &Waiting) -> impl Iterator<Item = &'static str> {
    let any = is_helped_by_all(waiting).then_some("");
    waiting.rejected_by.iter().copied().chain(any)
}

fn is_helped_by_all(waiting: &Waiting) -> bool {
    waiting.rejected_by.is_empty() || waiting.rejected_by.contains(extender::NAME)
}

/// Whether the event could help the pod.
fn is_helped(waiting: &Waiting, event: &Event<'_>, profile: &Profile, cluster: &Cluster) -> bool {
    let by = &waiting.rejected_by;
    is_helped_by_all(waiting)
        || profile.plugins().any(|plugin| {
            by.contains(plugin.name())
                && plugin.events().contains(&event.kind())
                && plugin.is_helped_by(&waiting.pod, event, cluster)
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSchedulingGate;

    use super::*;
    use crate::{reference::replica, samples};

    struct Fixture {
        queue: Queue,
        profiles: HashMap<String, Arc<Profile>>,
        cluster: Cluster,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let profile = Profile::default_scheduler();
            Self {
                queue: Queue::default(),
                profiles: [(profile.name.clone(), Arc::new(profile))].into(),
                cluster: Cluster::default(),
                start: Instant::now(),
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn put(&mut self, pod: Arc<PodInfo>, seconds: u64) -> Option<String> {
            let (profile, now) = (&self.profiles["default-scheduler"], self.at(seconds));
            self.queue.put(pod, profile, &self.cluster, now)
        }

        fn pop(&mut self, seconds: u64) -> String {
            let popped = self.queue.pop(self.at(seconds));
            popped.map_or("none".into(), |waiting| waiting.pod.name.to_string())
        }

        fn fail(&mut self, seconds: u64, by: &'static str) {
            let now = self.at(seconds);
            let waiting = self.queue.pop(now).unwrap();
            self.queue.turned_away(waiting, [by].into(), now);
        }

        fn event(&mut self, event: &Event<'_>, seconds: u64) -> usize {
            let now = self.at(seconds);
            self.queue
                .on_event(event, &self.profiles, &self.cluster, now)
        }
    }

    #[test]
    fn more_important_pods_are_tried_first_and_of_equals_the_one_that_waits_longer() {
        let mut fixture = Fixture::new();
        fixture.put(samples::prioritised("second", "1", 0), 1);
        fixture.put(samples::prioritised("first", "1", 0), 0);
        fixture.put(samples::prioritised("high", "1", 100), 2);
        assert_eq!(
            [fixture.pop(3), fixture.pop(3), fixture.pop(3)],
            ["high", "first", "second"]
        );
        assert_eq!(fixture.pop(3), "none");
    }

    #[test]
    fn an_unschedulable_pod_waits_for_an_event_that_could_help() {
        let mut fixture = Fixture::new();
        fixture.put(samples::pod("a", "2", "1"), 0);
        fixture.fail(0, "NodeResourcesFit");
        let (small, large) = (
            samples::node("n", "1", "1Gi"),
            samples::node("n", "2", "1Gi"),
        );
        assert_eq!(fixture.event(&Event::NodeAdded(&small), 2), 0);
        assert_eq!(fixture.pop(2), "none", "the node is too small for it");
        assert_eq!(fixture.event(&Event::NodeAdded(&large), 2), 1);
        assert_eq!(fixture.pop(2), "a");
    }

    #[test]
    fn a_backoff_lets_others_go_first_but_wastes_no_time() {
        let mut fixture = Fixture::new();
        fixture.put(samples::prioritised("important", "1", 10), 0);
        fixture.fail(0, "NodeResourcesFit");
        let gone = samples::pod("x", "1", "1");
        fixture.event(&Event::PodDeleted(&gone, None), 0);
        assert_eq!(fixture.queue.due(), Some(fixture.at(1)));
        fixture.put(samples::pod("other", "1", "1"), 0);
        assert_eq!(fixture.pop(0), "other");
        assert_eq!(fixture.pop(0), "important", "nothing else is to be done");
    }

    #[test]
    fn after_an_error_the_backoff_is_waited_out_and_doubles() {
        let mut fixture = Fixture::new();
        fixture.put(samples::pod("a", "1", "1"), 0);
        let mut now = 0;
        for wait in [1, 2, 4, 8, 10, 10] {
            let waiting = fixture.queue.pop(fixture.at(now)).unwrap();
            fixture.queue.retry(waiting, fixture.at(now));
            assert_eq!(fixture.queue.due(), Some(fixture.at(now + wait)));
            assert_eq!(fixture.pop(now), "none");
            now += wait;
        }
    }

    #[test]
    fn a_gated_pod_is_not_tried_until_its_gates_are_removed() {
        let mut fixture = Fixture::new();
        let gates = vec![PodSchedulingGate {
            name: "wait".into(),
        }];
        let gated = samples::pod_with("a", |spec| spec.scheduling_gates = Some(gates));
        let why = fixture.put(gated, 0).unwrap();
        assert_eq!(why, "waiting for scheduling gates: [wait]");
        assert_eq!(fixture.pop(0), "none");
        assert_eq!(fixture.queue.depth().gated, 1);
        assert_eq!(fixture.put(samples::pod_with("a", |_| {}), 0), None);
        assert_eq!(fixture.pop(0), "a");
    }

    #[test]
    fn an_update_of_the_pod_itself_helps_only_where_it_could() {
        let mut fixture = Fixture::new();
        fixture.put(samples::pod("a", "2", "1"), 0);
        fixture.fail(0, "NodeResourcesFit");
        fixture.put(samples::pod("a", "2", "1"), 60);
        assert_eq!(fixture.pop(60), "none", "nothing of it changed");
        fixture.put(samples::pod("a", "1", "1"), 60);
        assert_eq!(fixture.pop(60), "a");
    }

    #[test]
    fn equal_pods_are_helped_together_and_the_nominated_one_by_itself() {
        let mut fixture = Fixture::new();
        fixture.cluster.put_node(samples::node("n1", "2", "1Gi"));
        let first = samples::pod("a", "2", "1");
        for number in 0..3 {
            fixture.put(replica(&first, number), number as u64);
            fixture.fail(number as u64, "NodeResourcesFit");
        }
        let nominated = replica(&first, 1);
        fixture.cluster.nominated.put(nominated, "n1".into());
        let gone = samples::pod("x", "1", "1");
        let event = Event::PodDeleted(&gone, Some(0));
        assert_eq!(fixture.event(&event, 60), 1, "room for the nominated one");
        assert_eq!(fixture.pop(60), "a-1");
        fixture.cluster.nominated.remove("uid-a-1");
        assert_eq!(fixture.event(&event, 60), 2);
        assert_eq!(fixture.pop(60), "a-0");
        assert_eq!(fixture.pop(60), "a-2");
    }

    #[test]
    fn unschedulable_pods_are_counted_by_plugin_until_they_are_tried_again() {
        let mut fixture = Fixture::new();
        for name in ["a", "b", "c"] {
            fixture.put(samples::pod(name, "2", "1"), 0);
        }
        fixture.fail(0, "NodeAffinity");
        fixture.fail(0, "NodeResourcesFit");
        fixture.fail(0, "NodeResourcesFit");
        let counts = |fixture: &Fixture| {
            let counts = fixture.queue.unschedulable();
            let named = counts
                .iter()
                .map(|((_, plugin), count)| format!("{plugin} {count}"));
            named.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(counts(&fixture), "NodeAffinity 1, NodeResourcesFit 2");
        fixture.queue.remove("uid-b");
        assert_eq!(counts(&fixture), "NodeAffinity 1, NodeResourcesFit 1");
        let gone = samples::pod("x", "1", "1");
        assert_eq!(fixture.event(&Event::PodDeleted(&gone, None), 5), 1);
        assert_eq!(counts(&fixture), "NodeAffinity 1");
    }

    #[test]
    fn unschedulable_pods_are_retried_after_five_minutes() {
        let mut fixture = Fixture::new();
        fixture.put(samples::pod("a", "1", "1"), 0);
        fixture.fail(0, "NodeAffinity");
        assert_eq!(fixture.queue.due(), Some(fixture.at(300)));
        assert_eq!(fixture.pop(299), "none");
        assert_eq!(fixture.pop(300), "a");
    }

    #[test]
    fn a_pod_is_not_tried_while_its_victims_are_being_deleted() {
        let mut fixture = Fixture::new();
        fixture.put(samples::pod("a", "1", "1"), 0);
        fixture.fail(0, "NodeResourcesFit");
        fixture.queue.hold(&"uid-a".into());
        let gone = samples::pod("x", "1", "1");
        fixture.event(&Event::PodDeleted(&gone, None), 5);
        assert_eq!(fixture.pop(5), "none");
        fixture.queue.release("uid-a", false, fixture.at(5));
        assert_eq!(fixture.pop(5), "a", "the event is remembered");
    }
}
