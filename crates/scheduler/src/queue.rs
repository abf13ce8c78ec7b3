//! The pods that wait for a node: ready to be tried, waiting out a backoff, waiting for an event that
//! could help, or held back until something allows them to be tried. Pure: callers say what time it
//! is.

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
};

/// How long pods wait.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first failure; it doubles with each.
    pub first: Duration,
    /// At most.
    pub last: Duration,
    /// A pod that nothing has helped is tried again after this long all the same.
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

/// A pod and what is known of its attempts.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was tried first.
    pub first_attempt: Option<Instant>,
    /// When it was tried last.
    pub last_attempt: Option<Instant>,
    /// When it came into the queue or was tried last: the order of equals.
    since: Instant,
    /// How often no node was found.
    unschedulable: u32,
    /// How often in a row something else went wrong.
    errors: u32,
    /// The plugins that turned it away last time.
    rejected_by: BTreeSet<&'static str>,
    /// Whether it is tried again only because it waited long.
    pub flushed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Active,
    /// Until when; whether after an error rather than for lack of a node.
    Backoff(Instant, bool),
    Unschedulable,
    /// The plugin that does not let it be tried.
    Gated(&'static str),
}

/// The queue that a pod is in, as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    /// Ready to be tried.
    pub active: usize,
    /// Waiting out a backoff.
    pub backoff: usize,
    /// Waiting for an event.
    pub unschedulable: usize,
    /// Held back.
    pub gated: usize,
}

type Rank = (Reverse<i32>, Instant, Arc<str>);

/// All waiting pods.
#[derive(Default)]
pub struct Queue {
    backoffs: Backoff,
    pods: HashMap<Arc<str>, (Waiting, Place)>,
    active: BTreeSet<Rank>,
    backoff: BTreeSet<(Instant, Rank)>,
    errors: BTreeSet<(Instant, Rank)>,
    unschedulable: BTreeSet<(Instant, Arc<str>)>,
    /// Pods that wait for an event, by the plugins that turned them away.
    rejected: HashMap<&'static str, HashSet<Arc<str>>>,
    /// Pods that may not be tried, by the plugin that does not let them.
    gated: HashMap<&'static str, HashSet<Arc<str>>>,
    /// Pods whose victims are still being deleted; and whether an event could have helped since.
    held: HashMap<Arc<str>, bool>,
    /// Where it is counted how long plugins take to judge an event.
    metrics: Option<Families>,
}

fn rank(waiting: &Waiting) -> Rank {
    let pod = &waiting.pod;
    (Reverse(pod.priority()), waiting.since, pod.uid.clone())
}

/// The plugin that does not let the pod be tried, and why.
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
    /// With other times to wait.
    pub fn new(backoffs: Backoff) -> Self {
        Self {
            backoffs,
            ..Self::default()
        }
    }

    /// Counts from now on how long plugins take to judge an event.
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
                .map_or(Place::Active, |(plugin, _)| Place::Gated(plugin));
            self.place(waiting, place);
            return gate.map(|(_, why)| why);
        };
        let old = std::mem::replace(&mut waiting.pod, pod);
        let event = Event::OwnUpdate {
            old: &old,
            new: &waiting.pod,
        };
        let place = match (place, &gate) {
            (_, Some((plugin, _))) => Place::Gated(plugin),
            (Place::Gated(_), None) => Place::Active,
            (Place::Unschedulable, None) if is_helped(&waiting, &event, profile, cluster) => {
                self.resume(&waiting, now)
            }
            (other, None) => other,
        };
        self.place(waiting, place);
        gate.map(|(_, why)| why)
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &str) -> Option<Waiting> {
        self.held.remove(uid);
        self.take(uid).map(|(waiting, _)| waiting)
    }

    /// The waiting version of a pod.
    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|(waiting, _)| &waiting.pod)
    }

    /// A waiting pod and the name of the queue that it is in.
    pub fn find(&self, uid: &str) -> Option<(&Waiting, &'static str)> {
        let (waiting, place) = self.pods.get(uid)?;
        let queue = match place {
            Place::Active => "active",
            Place::Backoff(..) => "backoff",
            Place::Unschedulable => "unschedulable",
            Place::Gated(_) => "gated",
        };
        Some((waiting, queue))
    }

    /// The next pod to try, out of the queue: it comes back with [`Queue::retry`] or
    /// [`Queue::turned_away`]. When none is ready, one that waits out its backoff after it found no
    /// node is tried early.
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

    /// An attempt that failed for a reason that has nothing to do with the cluster.
    pub fn retry(&mut self, mut waiting: Waiting, now: Instant) {
        waiting.errors += 1;
        waiting.since = now;
        waiting.rejected_by.clear();
        let until = now + self.backoffs.after(waiting.errors);
        self.place(waiting, Place::Backoff(until, true));
    }

    /// An attempt that found no node, turned away by these plugins.
    pub fn turned_away(&mut self, mut waiting: Waiting, by: BTreeSet<&'static str>, now: Instant) {
        waiting.errors = 0;
        waiting.unschedulable += 1;
        waiting.since = now;
        waiting.flushed = false;
        waiting.rejected_by = by;
        self.place(waiting, Place::Unschedulable);
    }

    /// The pod is not tried until [`Queue::release`]: its victims are being deleted.
    pub fn hold(&mut self, uid: &Arc<str>) {
        self.held.insert(uid.clone(), false);
    }

    /// All victims were deleted; with `failed`, some could not be and the pod is tried again.
    pub fn release(&mut self, uid: &str, failed: bool, now: Instant) {
        let helped = self.held.remove(uid).unwrap_or(false);
        if let Some((waiting, place)) = self.take(uid) {
            let place = match place {
                Place::Unschedulable if failed || helped => self.resume(&waiting, now),
                other => other,
            };
            self.place(waiting, place);
        }
    }

    /// Something happened: the pods that it could help are tried again. Returns how many moved.
    pub fn on_event(
        &mut self,
        event: &Event<'_>,
        profiles: &HashMap<String, Arc<Profile>>,
        cluster: &Cluster,
        now: Instant,
    ) -> usize {
        // Any event helps those that no plugin turned away.
        let all = self.rejected.get("").into_iter().flatten();
        let mut helped: BTreeSet<Arc<str>> = all.cloned().collect();
        for profile in profiles.values() {
            for plugin in profile.plugins() {
                let Some(uids) = self.rejected.get(plugin.name()) else {
                    continue;
                };
                if !plugin.events().contains(&event.kind()) {
                    continue;
                }
                let hints = self.metrics.as_ref();
                let hints = hints.map(|metrics| metrics.hints(plugin.name(), event.label()));
                for uid in uids {
                    let Some((waiting, _)) = self.pods.get(uid) else {
                        continue;
                    };
                    if waiting.pod.template.scheduler_name != profile.name {
                        continue;
                    }
                    let begun = Instant::now();
                    let is_helped = plugin.is_helped_by(&waiting.pod, event, cluster);
                    if let Some(hints) = &hints {
                        hints[usize::from(is_helped)].observe(begun.elapsed().as_secs_f64());
                    }
                    if is_helped {
                        helped.insert(uid.clone());
                    }
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

    /// Pods that plugins held back are looked at again.
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
                self.place(waiting, Place::Active);
            }
        }
        open.len()
    }

    /// How many pods wait for an event, by profile and the plugin that turned them away.
    pub fn unschedulable(&self) -> BTreeMap<(&str, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for (_, uid) in &self.unschedulable {
            let Some((waiting, _)) = self.pods.get(uid) else {
                continue;
            };
            let profile = waiting.pod.template.scheduler_name.as_str();
            for plugin in &waiting.rejected_by {
                *counts.entry((profile, *plugin)).or_default() += 1;
            }
        }
        counts
    }

    /// When there will be something to do without any event.
    pub fn due(&self) -> Option<Instant> {
        let leftover = self.unschedulable.first();
        let leftover = leftover.map(|(since, _)| *since + self.backoffs.leftover);
        let backoff = self.backoff.first().map(|(due, _)| *due);
        let errors = self.errors.first().map(|(due, _)| *due);
        leftover.into_iter().chain(backoff).chain(errors).min()
    }

    /// How many pods wait, and where.
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
                self.place(waiting, Place::Active);
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

    /// Where a pod goes that may be tried again.
    fn resume(&self, waiting: &Waiting, now: Instant) -> Place {
        let until = waiting.since + self.backoffs.after(waiting.unschedulable.max(1));
        if until <= now || waiting.unschedulable == 0 {
            Place::Active
        } else {
            Place::Backoff(until, false)
        }
    }

    fn take(&mut self, uid: &str) -> Option<(Waiting, Place)> {
        let (waiting, place) = self.pods.remove(uid)?;
        match place {
            Place::Active => {
                self.active.remove(&rank(&waiting));
            }
            Place::Backoff(until, error) => {
                let set = if error {
                    &mut self.errors
                } else {
                    &mut self.backoff
                };
                set.remove(&(until, rank(&waiting)));
            }
            Place::Unschedulable => {
                self.unschedulable
                    .remove(&(waiting.since, waiting.pod.uid.clone()));
                for plugin in rejecting(&waiting) {
                    if let Some(uids) = self.rejected.get_mut(plugin) {
                        uids.remove(uid);
                    }
                }
            }
            Place::Gated(plugin) => {
                if let Some(uids) = self.gated.get_mut(plugin) {
                    uids.remove(uid);
                }
            }
        }
        Some((waiting, place))
    }

    fn place(&mut self, waiting: Waiting, place: Place) {
        let uid = waiting.pod.uid.clone();
        let place = match (place, self.held.get_mut(&uid)) {
            (Place::Active | Place::Backoff(..), Some(helped)) => {
                *helped = true;
                Place::Unschedulable
            }
            (other, _) => other,
        };
        match place {
            Place::Active => {
                self.active.insert(rank(&waiting));
            }
            Place::Backoff(until, error) => {
                let set = if error {
                    &mut self.errors
                } else {
                    &mut self.backoff
                };
                set.insert((until, rank(&waiting)));
            }
            Place::Unschedulable => {
                self.unschedulable.insert((waiting.since, uid.clone()));
                for plugin in rejecting(&waiting) {
                    self.rejected.entry(plugin).or_default().insert(uid.clone());
                }
            }
            Place::Gated(plugin) => {
                self.gated.entry(plugin).or_default().insert(uid.clone());
            }
        }
        self.pods.insert(uid, (waiting, place));
    }
}

/// The plugins that turned a pod away; the empty name when none did, as without any node, and when an
/// extender did: any event could change what it says.
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
    use crate::samples;

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
    fn a_pod_that_was_turned_away_waits_for_an_event_that_could_help() {
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
        fixture.event(&Event::PodDeleted(&gone), 0);
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
    fn a_gated_pod_is_not_tried_until_its_gates_are_gone() {
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
    fn what_nothing_helps_is_tried_again_after_five_minutes() {
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
        fixture.event(&Event::PodDeleted(&gone), 5);
        assert_eq!(fixture.pop(5), "none");
        fixture.queue.release("uid-a", false, fixture.at(5));
        assert_eq!(fixture.pop(5), "a", "the event is remembered");
    }
}
