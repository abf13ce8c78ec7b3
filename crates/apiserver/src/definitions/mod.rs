//! The controller of CustomResourceDefinitions: it serves their kinds while they exist, writes
//! their status, and deletes their objects before they are deleted themselves. Definitions that
//! change together are processed in one batch: each is served at once, and their statuses are
//! written concurrently.

mod deletion;
mod serving;
mod status;
mod unwritten;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use apiextensions::{
    ConversionMetrics,
    conditions::{find, holds},
    names::{self, InUse},
};
use bytes::Bytes;
use connect::Streams;
use futures::{FutureExt, StreamExt, future};
use machinery::{Object, Status, Value};
use registry::Readable;
use store::{Revision, WatchItem};

use crate::{
    Registry, Resource, Stored, meta,
    write::{Write, WritePath},
};

pub(crate) use deletion::mark;
use status::Names;
use unwritten::{Unwritten, is_passing};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// How many statuses are written concurrently.
const AT_ONCE: usize = 32;
/// Maximum number of changes in a batch.
const BATCH: usize = 512;

/// What the controller of definitions needs.
#[derive(Clone)]
pub(crate) struct DefinitionContext {
    pub(crate) writes: Arc<WritePath>,
    /// Calls the webhooks that convert custom resources.
    pub(crate) conversion: Arc<webhook::Client>,
    pub(crate) metrics: ConversionMetrics,
    /// The deletions of objects run here.
    pub(crate) streams: Streams,
}

/// The definitions at one revision, and the names they hold.
pub(crate) struct Definitions {
    /// The revision of the last change seen.
    revision: Revision,
    /// Definitions whose names conflict, with their groups: they are retried when other definitions
    /// go.
    waiting: BTreeMap<String, String>,
    in_use: InUse,
    /// Definitions whose status could not be written.
    unwritten: Unwritten,
}

/// Lists all definitions and serves them.
pub(crate) async fn load(context: &DefinitionContext) -> Result<Definitions, Status> {
    let readable = context.writes.reader.list_readable(GROUP, PLURAL).await?;
    for definition in &readable.unreadable {
        tracing::error!(
            definition,
            "a CustomResourceDefinition cannot be read; its changes have no effect"
        );
    }
    undefine_deleted(&context.writes.registry, &readable);
    let revision = readable.revision;
    let all = readable.objects();
    let mut definitions = Definitions {
        revision,
        waiting: BTreeMap::new(),
        in_use: InUse::default(),
        unwritten: Unwritten::default(),
    };
    for resource in context
        .writes
        .registry
        .table()
        .all()
        .filter(|one| !one.custom)
    {
        definitions.in_use.reserve(resource.kind.names());
    }
    // Names accepted earlier stay accepted, whatever the order of processing.
    for stored in &all {
        let definition = Value::Object(stored.parse());
        let (group, plural) = id(&definition);
        let accepted = &definition["status"]["acceptedNames"];
        definitions.in_use.set(&group, &plural, accepted);
    }
    definitions.settle_all(context, all).await;
    Ok(definitions)
}

/// Stops serving definitions that were deleted while nothing was watched. One that cannot be read any more was not
/// deleted.
fn undefine_deleted(registry: &Registry, readable: &Readable) {
    let entries = readable.entries.iter();
    let mut names: HashSet<&str> = entries.map(|entry| entry.object.header.name()).collect();
    names.extend(readable.unreadable.iter().map(String::as_str));
    let table = registry.table();
    let served = table.all().filter(|one| one.custom);
    let deleted = served.filter(|one| !names.contains(&*format!("{}.{}", one.plural, one.group)));
    let deleted: Vec<_> = deleted.cloned().collect();
    drop(table);
    for resource in deleted {
        registry.undefine(&resource.group, &resource.plural);
    }
}

/// Follows the definitions for as long as the server runs.
pub(crate) async fn follow(context: DefinitionContext, mut definitions: Definitions) {
    loop {
        let after = definitions.revision;
        match context.writes.reader.watch(GROUP, PLURAL, after).await {
            Ok(Some(events)) => {
                let mut events = events.fuse();
                loop {
                    let item = tokio::select! {
                        item = events.next() => item,
                        () = definitions.unwritten.due() => {
                            definitions.write_again(&context).await;
                            continue;
                        }
                    };
                    let Some(Ok(item)) = item else { break };
                    let mut batch = DefinitionBatch::default();
                    let mut next = Some(item);
                    while let Some(item) = next {
                        batch.add(item);
                        next = match batch.changes < BATCH {
                            true => events.next().now_or_never().flatten().and_then(Result::ok),
                            false => None,
                        };
                    }
                    definitions.apply(&context, batch).await;
                }
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "cannot watch custom resource definitions"),
        }
        // The watch ended early: list again.
        context.writes.clock.sleep(Duration::from_secs(1)).await;
        match load(&context).await {
            Ok(read) => definitions = read,
            Err(status) => tracing::warn!(%status, "cannot read custom resource definitions"),
        }
    }
}

/// The changes since the last batch, each definition once, in its newest state.
#[derive(Default)]
struct DefinitionBatch {
    revision: Revision,
    changes: usize,
    changed: BTreeMap<String, DefinitionChange>,
}

struct DefinitionChange {
    /// `None` when deleted.
    now: Option<Arc<Stored>>,
    before: Option<Arc<Stored>>,
}

impl DefinitionBatch {
    fn add(&mut self, item: WatchItem<Stored>) {
        match item {
            WatchItem::Progress(revision) => self.revision = revision,
            WatchItem::Events { revision, events } => {
                self.revision = revision;
                for event in events.iter() {
                    let object = |entry: &Option<_>| {
                        let entry: &Option<store::Entry<Stored>> = entry;
                        entry.as_ref().map(|entry| entry.object.clone())
                    };
                    let (now, before) = (object(&event.current), object(&event.previous));
                    let Some(known) = now.as_ref().or(before.as_ref()) else {
                        continue;
                    };
                    self.changes += 1;
                    let name = known.header.name().to_string();
                    match self.changed.get_mut(&name) {
                        Some(change) => change.now = now,
                        None => drop(self.changed.insert(name, DefinitionChange { now, before })),
                    }
                }
            }
        }
    }
}

/// What remains to be done for a definition after it was processed.
enum FollowUp {
    /// Its status differs and is to be written.
    Write(Names),
    /// It was just deleted.
    BeginDeletion(Value),
    /// Its objects are to be deleted, then the definition.
    Empty(Value),
}

impl Definitions {
    async fn apply(&mut self, context: &DefinitionContext, batch: DefinitionBatch) {
        let mut freed = BTreeSet::new();
        let mut current = Vec::new();
        for DefinitionChange { now, before } in batch.changed.into_values() {
            let before = before.map(|before| Value::Object(before.parse()));
            match (now, before) {
                (Some(now), before) => {
                    let is_renamed = |before: &Value| {
                        before["spec"]["names"] != Value::Object(now.parse())["spec"]["names"]
                    };
                    freed.extend(before.filter(is_renamed).map(|before| id(&before).0));
                    current.push(now);
                }
                (None, Some(before)) => {
                    self.forget(&context.writes.registry, &before);
                    freed.insert(id(&before).0);
                }
                (None, None) => {}
            }
        }
        self.settle_all(context, current).await;
        self.retry(context, &freed).await;
        self.revision = batch.revision.max(self.revision);
    }

    fn forget(&mut self, registry: &Registry, definition: &Value) {
        let (group, plural) = id(definition);
        let name = format!("{plural}.{group}");
        self.waiting.remove(&name);
        self.unwritten.remove(&name);
        self.in_use.release(&group, &plural);
        registry.undefine(&group, &plural);
    }

    /// Retries definitions of these groups whose names conflict, after one that held names has
    /// changed.
    async fn retry(&mut self, context: &DefinitionContext, groups: &BTreeSet<String>) {
        if !self.waiting.values().any(|group| groups.contains(group)) {
            return;
        }
        match context.writes.reader.list_readable(GROUP, PLURAL).await {
            Ok(readable) => {
                let mut all = readable.objects();
                let waits = |one: &Arc<Stored>| {
                    let group = self.waiting.get(one.header.name());
                    group.is_some_and(|group| groups.contains(group))
                };
                all.retain(waits);
                self.settle_all(context, all).await;
            }
            Err(status) => tracing::warn!(%status, "cannot read custom resource definitions"),
        }
    }

    /// Retries definitions whose status could not be written, in their current state.
    async fn write_again(&mut self, context: &DefinitionContext) {
        match context.writes.reader.list_readable(GROUP, PLURAL).await {
            Ok(readable) => {
                let mut all = readable.objects();
                all.retain(|one| self.unwritten.contains(one.header.name()));
                self.settle_all(context, all).await;
            }
            Err(status) => tracing::warn!(%status, "cannot read custom resource definitions"),
        }
        self.unwritten.schedule(&*context.writes.clock);
    }

    /// Processes definitions: serves them, writes their statuses, starts deletions.
    async fn settle_all(&mut self, context: &DefinitionContext, all: Vec<Arc<Stored>>) {
        if all.is_empty() {
            return;
        }
        // Objects up to the current revision may have been written under the previous schemas.
        let now = context.writes.store.revision().await;
        let since = now.map_or(Revision::MAX, |now| now + 1);
        let mut steps = Vec::new();
        for stored in all {
            self.unwritten.remove(stored.header.name());
            steps.extend(self.serve_or_delete(context, stored.parse(), &stored.bytes(), since));
            tokio::task::yield_now().await;
        }
        let steps = futures::stream::iter(steps).map(|step| carry_out(context, step));
        let failed = steps.buffer_unordered(AT_ONCE).filter_map(future::ready);
        self.unwritten.extend(failed.collect().await);
        self.unwritten.schedule(&*context.writes.clock);
    }

    /// Serves a definition, or prepares its deletion.
    fn serve_or_delete(
        &mut self,
        context: &DefinitionContext,
        definition: Object,
        bytes: &Bytes,
        since: Revision,
    ) -> Option<FollowUp> {
        let name = meta::text(&definition, "name").to_owned();
        let is_deleting = meta::is_deleting(&definition);
        let whole = Value::Object(definition);
        let (group, plural) = id(&whole);
        // Anyone who may write the status can claim that the names of a built-in kind were accepted.
        let is_built_in = context.writes.registry.table().is_built_in(&group, &plural);
        if is_deleting {
            self.waiting.remove(&name);
            let established = holds(&whole, "Established") && !is_built_in;
            if established {
                serving::serve(context, &whole, bytes, since);
            }
            let terminating = find(&whole, "Terminating");
            let is_new =
                terminating.is_some_and(|condition| condition["reason"] == deletion::PENDING);
            return Some(match established && is_new {
                true => FollowUp::BeginDeletion(whole),
                false => FollowUp::Empty(whole),
            });
        }
        let (wanted, before) = (&whole["spec"]["names"], &whole["status"]["acceptedNames"]);
        let accepted = before["plural"].as_str().unwrap_or_default();
        let before = match (accepted.is_empty() || accepted == plural) && !is_built_in {
            true => before,
            false => &Value::Null,
        };
        let taken = self.in_use.by_others(&group, &plural);
        let (accepted, conflict) = names::accept(wanted, before, taken);
        self.in_use.set(&group, &plural, &accepted);
        match conflict {
            None => {
                serving::serve(context, &whole, bytes, since);
                self.waiting.remove(&name);
            }
            Some(_) => {
                // An established definition stays served, under the names that it has.
                if holds(&whole, "Established") && accepted["plural"] == *plural {
                    let mut served = whole.clone();
                    served["spec"]["names"] = accepted.clone();
                    serving::serve(context, &served, bytes, since);
                }
                self.waiting.insert(name.clone(), group);
            }
        }
        let names = Names {
            name,
            accepted,
            conflict,
        };
        let now = meta::time(context.writes.clock.now());
        (!names.are_in(&whole, &now)).then_some(FollowUp::Write(names))
    }
}

/// Returns the name of a definition whose status is to be written again later.
async fn carry_out(context: &DefinitionContext, step: FollowUp) -> Option<String> {
    match step {
        FollowUp::Write(names) => {
            let written = names.write(context).await;
            if let Err(status) = written {
                let definition = names.name;
                tracing::warn!(definition, %status, "cannot update the status of a custom resource definition");
                return is_passing(&status).then_some(definition);
            } else if names.conflict.is_none()
                && let Some((plural, group)) = names.name.split_once('.')
            {
                // Clients that see the condition find the resource in discovery.
                context.writes.registry.establish(group, plural);
            }
        }
        FollowUp::BeginDeletion(definition) => {
            // The status change returns here as a watch event.
            if deletion::mark_in_progress(context, &definition)
                .await
                .is_err()
            {
                deletion::spawn_empty(context, definition);
            }
        }
        // Objects with finalizers may remain for long: run in the background so that other
        // definitions do not wait.
        FollowUp::Empty(definition) => deletion::spawn_empty(context, definition),
    }
    None
}

/// The group and the plural of a definition.
fn id(definition: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &definition["spec"];
    (text(&spec["group"]), text(&spec["names"]["plural"]))
}

/// A write by the server itself, of a definition's status unless the caller changes that.
fn own_write(
    context: &DefinitionContext,
    resource: Arc<Resource>,
    namespace: &str,
    name: &str,
) -> Write {
    Write {
        subresource: "status".to_owned(),
        internal: true,
        ..context
            .writes
            .own_write(resource, namespace, name, "update")
    }
}
