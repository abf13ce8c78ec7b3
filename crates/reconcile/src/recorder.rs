//! Records Events. A repeated event increments the count of the existing one; many events that
//! differ only in their message are combined; one object cannot flood the store.
//!
//! Recording never blocks and never fails: an event that cannot be written is dropped and logged.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Api, ToJson};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams, Request},
};
use lifecycle::Context;
use serde_json::json;
use stdx::{Clock, SystemClock};
use tokio::sync::mpsc;
use tracing::debug;

/// How many different messages of one group of events are written before they are combined.
const SIMILAR_LIMIT: usize = 10;
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// The burst of events per object, and the refill rate.
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;
const REMEMBERED: usize = 4096;
const WAITING: usize = 1000;
/// How long events wait, so that writing them does not delay what they are about, such as the start of a pod.
const PAUSE: Duration = Duration::from_millis(50);

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Expected operation.
    Normal,
    /// Something may need attention.
    Warning,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

#[derive(Debug, Clone)]
struct QueuedEvent {
    about: ObjectReference,
    kind: Kind,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
}

/// Records events of one component. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    queue: Option<mpsc::Sender<QueuedEvent>>,
}

impl Recorder {
    /// Writes with `client` for the context's run.
    pub fn start(context: &Context, client: kube::Client, component: &str) -> Self {
        Self::from_host(context, client, component, "")
    }

    /// The same for a component on a node.
    pub fn from_host(context: &Context, client: kube::Client, component: &str, host: &str) -> Self {
        let (sender, mut queue) = mpsc::channel(WAITING);
        let mut correlator = Correlator::new(component, host, Arc::new(SystemClock));
        context.spawn("events", async move {
            while let Some(queued) = queue.recv().await {
                tokio::time::sleep(PAUSE).await;
                write(&client, &mut correlator, queued).await;
                while let Ok(queued) = queue.try_recv() {
                    write(&client, &mut correlator, queued).await;
                }
            }
        });
        Self {
            queue: Some(sender),
        }
    }

    /// Discards everything, for tests.
    pub fn silent() -> Self {
        Self { queue: None }
    }

    /// Whether an event would be dropped now, because too many wait: then its message need not be made.
    pub fn is_full(&self) -> bool {
        self.queue
            .as_ref()
            .is_none_or(|sender| sender.capacity() == 0)
    }

    /// Records an event about an object. Never blocks.
    pub fn event(
        &self,
        about: &ObjectReference,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.annotated(about, kind, reason, message, BTreeMap::new());
    }

    /// The same with annotations, for programs. A repeated event keeps those of the first.
    pub fn annotated(
        &self,
        about: &ObjectReference,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        let Some(sender) = &self.queue else { return };
        let queued = QueuedEvent {
            about: about.clone(),
            kind,
            reason: reason.to_owned(),
            message: message.into(),
            annotations,
        };
        if let Err(error) = sender.try_send(queued) {
            debug!(%error, "event dropped");
        }
    }
}

async fn write(client: &kube::Client, correlator: &mut Correlator, queued: QueuedEvent) {
    let namespace = namespace_of(&queued.about);
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let outcome = match correlator.correlate(queued) {
        Outcome::Drop => return,
        Outcome::Create(event) => create(client, &namespace, &event).await,
        Outcome::Count { name, patch, event } => {
            match api
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                // The event expired in the meantime: say it anew.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    create(client, &namespace, &event).await
                }
                other => other.map(|_| ()),
            }
        }
    };
    if let Err(error) = outcome {
        debug!(%error, "cannot write event");
    }
}

/// Creates an event. The response body is ignored.
async fn create(client: &kube::Client, namespace: &str, event: &Event) -> Result<(), kube::Error> {
    let request = Request::new(Event::url_path(&(), Some(namespace)));
    let body = event.to_json().map_err(kube::Error::SerdeError)?;
    let request = request.create(&PostParams::default(), body);
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}

/// Events about cluster-scoped objects are in the namespace "default".
fn namespace_of(about: &ObjectReference) -> String {
    about
        .namespace
        .clone()
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or("default".into())
}

enum Outcome {
    Drop,
    Create(Box<Event>),
    Count {
        name: String,
        patch: serde_json::Value,
        event: Box<Event>,
    },
}

struct RecordedEvent {
    name: String,
    count: i32,
    first: Timestamp,
}

struct Similar {
    /// The hashes of the messages.
    messages: Vec<u64>,
    last: Timestamp,
}

struct Bucket {
    tokens: f64,
    at: Instant,
}

/// Decides what happens to an event: a new one, an increment of an existing one, or nothing. It remembers events by
/// hashes: their texts would take most of its memory.
struct Correlator {
    component: String,
    host: String,
    clock: Arc<dyn Clock>,
    hasher: RandomState,
    known: HashMap<u64, RecordedEvent>,
    similar: HashMap<u64, Similar>,
    buckets: HashMap<u64, Bucket>,
}

impl Correlator {
    fn new(component: &str, host: &str, clock: Arc<dyn Clock>) -> Self {
        Self {
            component: component.to_owned(),
            host: host.to_owned(),
            clock,
            hasher: RandomState::new(),
            known: HashMap::new(),
            similar: HashMap::new(),
            buckets: HashMap::new(),
        }
    }

    fn correlate(&mut self, queued: QueuedEvent) -> Outcome {
        self.forget_when_full();
        if !self.allow(self.key(&queued.about, queued.kind)) {
            return Outcome::Drop;
        }
        let now = self.clock.now();
        let about = (queued.kind, &queued.reason);
        let group = self.key(&queued.about, about);
        let combined = self.combined(group, &queued.message, now);
        let (key, message) = if combined {
            let message = format!("(combined from similar events): {}", queued.message);
            (group, message)
        } else {
            let key = self.key(&queued.about, (about, &queued.message));
            (key, queued.message.clone())
        };
        let known = self.known.entry(key).or_insert_with(|| RecordedEvent {
            name: event_name(&queued.about, now),
            count: 0,
            first: now,
        });
        known.count += 1;
        let event = event(known, &queued, message, now, (&self.component, &self.host));
        if known.count == 1 {
            return Outcome::Create(Box::new(event));
        }
        let patch = json!({
            "count": known.count,
            "lastTimestamp": event.last_timestamp,
            "message": event.message,
        });
        Outcome::Count {
            name: known.name.clone(),
            patch,
            event: Box::new(event),
        }
    }

    /// The hash of an object and of something about it.
    fn key(&self, object: &ObjectReference, about: impl Hash) -> u64 {
        let object = (
            &object.api_version,
            &object.kind,
            &object.namespace,
            &object.name,
            &object.uid,
            &object.field_path,
        );
        self.hasher.hash_one((object, about))
    }

    /// A token bucket per object.
    fn allow(&mut self, key: u64) -> bool {
        let now = Instant::now();
        let bucket = self.buckets.entry(key).or_insert(Bucket {
            tokens: BURST,
            at: now,
        });
        let refill = now.duration_since(bucket.at).as_secs_f64() * REFILL_PER_SECOND;
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    }

    /// Whether this group recently had too many different messages, so that they are combined into one event.
    fn combined(&mut self, group: u64, message: &str, now: Timestamp) -> bool {
        let message = self.hasher.hash_one(message);
        let fresh = || Similar {
            messages: Vec::new(),
            last: now,
        };
        let similar = self.similar.entry(group).or_insert_with(fresh);
        if now.duration_since(similar.last).unsigned_abs() > SIMILAR_WINDOW {
            similar.messages.clear();
        }
        similar.last = now;
        if !similar.messages.contains(&message) {
            if similar.messages.len() >= SIMILAR_LIMIT {
                return true;
            }
            similar.messages.push(message);
        }
        similar.messages.len() >= SIMILAR_LIMIT
    }

    /// Limits memory; a forgotten event is at worst written once more.
    fn forget_when_full(&mut self) {
        if self.known.len() > REMEMBERED {
            self.known.clear();
        }
        if self.similar.len() > REMEMBERED {
            self.similar.clear();
        }
        if self.buckets.len() > REMEMBERED {
            self.buckets.clear();
        }
    }
}

fn event(
    known: &RecordedEvent,
    queued: &QueuedEvent,
    message: String,
    now: Timestamp,
    (component, host): (&str, &str),
) -> Event {
    let metadata = ObjectMeta {
        name: Some(known.name.clone()),
        namespace: Some(namespace_of(&queued.about)),
        annotations: Some(queued.annotations.clone()).filter(|all| !all.is_empty()),
        ..Default::default()
    };
    Event {
        metadata,
        involved_object: queued.about.clone(),
        type_: Some(queued.kind.as_str().to_owned()),
        reason: Some(queued.reason.clone()),
        message: Some(message),
        count: Some(known.count),
        first_timestamp: Some(Time(known.first)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some(component.to_owned()),
            host: (!host.is_empty()).then(|| host.to_owned()),
        }),
        reporting_component: Some(component.to_owned()),
        reporting_instance: (!host.is_empty()).then(|| host.to_owned()),
        ..Default::default()
    }
}

fn event_name(about: &ObjectReference, now: Timestamp) -> String {
    let name = about.name.as_deref().unwrap_or("unknown");
    // With a coarse clock two events about one object may have the same nanosecond.
    let nanos = now.as_nanosecond() as u64 ^ u64::from(rand::random::<u16>());
    format!("{name}.{nanos:016x}")
}

#[cfg(test)]
mod tests {
    use stdx::FakeClock;

    use super::*;

    fn correlator() -> (Correlator, FakeClock) {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        (
            Correlator::new("tester", "", Arc::new(clock.clone())),
            clock,
        )
    }

    fn queued(message: &str) -> QueuedEvent {
        let about = ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some("default".into()),
            name: Some("web".into()),
            ..Default::default()
        };
        QueuedEvent {
            about,
            kind: Kind::Normal,
            reason: "Started".into(),
            message: message.into(),
            annotations: BTreeMap::new(),
        }
    }

    fn render(outcome: Outcome) -> String {
        match outcome {
            Outcome::Drop => "dropped".to_owned(),
            Outcome::Create(event) => format!("new: {}", event.message.unwrap()),
            Outcome::Count { patch, .. } => format!("{}: {}", patch["count"], patch["message"]),
        }
    }

    #[test]
    fn a_repeated_event_increments_its_count() {
        let (mut correlator, clock) = correlator();
        assert_eq!(render(correlator.correlate(queued("a"))), "new: a");
        clock.advance(Duration::from_secs(5));
        assert_eq!(render(correlator.correlate(queued("a"))), "2: \"a\"");
        assert_eq!(render(correlator.correlate(queued("b"))), "new: b");
    }

    #[test]
    fn annotations_of_an_event_are_in_its_metadata() {
        let (mut correlator, _clock) = correlator();
        let annotations: BTreeMap<_, _> =
            [("starved_resource".to_owned(), "memory".to_owned())].into();
        let annotated = QueuedEvent {
            annotations: annotations.clone(),
            ..queued("a")
        };
        for (queued, expected) in [(annotated, Some(annotations)), (queued("b"), None)] {
            let Outcome::Create(event) = correlator.correlate(queued) else {
                panic!("no new event");
            };
            assert_eq!(event.metadata.annotations, expected);
        }
    }

    #[test]
    fn many_messages_of_one_reason_are_aggregated_into_one_event() {
        let (mut correlator, clock) = correlator();
        for number in 0..9 {
            correlator.correlate(queued(&format!("pod {number}")));
        }
        let combined = render(correlator.correlate(queued("pod 9")));
        assert_eq!(combined, "new: (combined from similar events): pod 9");
        let again = render(correlator.correlate(queued("pod 10")));
        assert_eq!(again, "2: \"(combined from similar events): pod 10\"");
        clock.advance(SIMILAR_WINDOW * 2);
        assert_eq!(
            render(correlator.correlate(queued("pod 11"))),
            "new: pod 11"
        );
    }

    #[test]
    fn one_object_cannot_flood_the_store() {
        let (mut correlator, _clock) = correlator();
        let outcomes: Vec<_> = (0..30)
            .map(|_| render(correlator.correlate(queued("a"))))
            .collect();
        assert_eq!(
            outcomes
                .iter()
                .filter(|outcome| *outcome == "dropped")
                .count(),
            5
        );
    }
}
