//! The controller of CustomResourceDefinitions: their kinds are served while they exist, their status says so, and
//! when they are deleted their objects are deleted first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiextensions::{
    Conversion, CustomKind, Schemas,
    conditions::{self, condition, find, holds, set_condition},
    fingerprint,
    names::{self, Conflict, Taken},
};
use bytes::Bytes;
use futures::StreamExt;
use kinds::Kind;
use machinery::json::json;
use machinery::{Object, Status, Value};
use store::{Revision, WatchItem};

use crate::{
    Resource, Stored, User,
    admission::{Effects, RequestOptions},
    meta,
    pipeline::Core,
    user,
    write::{self, DeleteOptions, Write},
};

/// Holds a definition until its objects are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// Why a definition is terminating that was only just deleted.
const PENDING: &str = "InstanceDeletionPending";
/// How soon a definition is looked at again whose objects do not go.
const AGAIN: Duration = Duration::from_secs(5);

/// The definitions as they were read, and what has to be done when they change.
pub(crate) struct Definitions {
    /// The moment they were read at.
    revision: Revision,
    /// Those that did not get their names, and their groups: they try again when others go.
    waiting: BTreeMap<String, String>,
}

/// Reads all definitions and serves them.
pub(crate) async fn load(core: &Arc<Core>) -> Result<Definitions, Status> {
    let (revision, all) = core.reader.list(GROUP, PLURAL, "").await?;
    let mut definitions = Definitions {
        revision,
        waiting: BTreeMap::new(),
    };
    for definition in all {
        definitions.settle(core, &definition).await;
    }
    Ok(definitions)
}

/// Follows the definitions for as long as the server runs.
pub(crate) async fn follow(core: Arc<Core>, mut definitions: Definitions) {
    loop {
        let after = definitions.revision;
        match core.reader.watch(GROUP, PLURAL, after).await {
            Ok(Some(mut events)) => {
                while let Some(Ok(item)) = events.next().await {
                    definitions.take(&core, item).await;
                }
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "cannot watch custom resource definitions"),
        }
        // The watch ended early: read everything anew.
        core.config.clock.sleep(Duration::from_secs(1)).await;
        match load(&core).await {
            Ok(read) => definitions = read,
            Err(status) => tracing::warn!(%status, "cannot read custom resource definitions"),
        }
    }
}

impl Definitions {
    async fn take(&mut self, core: &Arc<Core>, item: WatchItem<Stored>) {
        match item {
            WatchItem::Progress(revision) => self.revision = revision,
            WatchItem::Events { revision, events } => {
                for event in events.iter() {
                    match (&event.current, &event.previous) {
                        (Some(entry), previous) => {
                            let definition = self.settle(core, &entry.object).await;
                            let was = previous.as_ref().map(|was| was.object.parse());
                            if was.is_some_and(|was| names_of(&was) != names_of(&definition)) {
                                self.retry(core, &definition).await;
                            }
                        }
                        (None, Some(entry)) => self.forget(core, &entry.object.parse()).await,
                        (None, None) => {}
                    }
                }
                self.revision = revision;
            }
        }
    }

    /// Brings one definition where it should be; what it says.
    async fn settle(&mut self, core: &Arc<Core>, stored: &Stored) -> Object {
        let definition = stored.parse();
        let name = meta::text(&definition, "name").to_owned();
        match settle(core, &definition, stored.bytes()).await {
            true => drop(self.waiting.remove(&name)),
            false => drop(self.waiting.insert(name, group_of(&definition))),
        }
        definition
    }

    async fn forget(&mut self, core: &Arc<Core>, definition: &Object) {
        self.waiting.remove(meta::text(definition, "name"));
        let names = names_of(definition);
        let plural = names["plural"].as_str().unwrap_or_default();
        core.registry.undefine(&group_of(definition), plural);
        self.retry(core, definition).await;
    }

    /// Looks again at definitions of the same group that have not all their names: one that had
    /// them has changed.
    async fn retry(&mut self, core: &Arc<Core>, changed: &Object) {
        let (group, own) = (group_of(changed), meta::text(changed, "name"));
        let waits = |name: &str| name != own && self.waiting.get(name) == Some(&group);
        if !self.waiting.keys().any(|name| waits(name)) {
            return;
        }
        match core.reader.list(GROUP, PLURAL, "").await {
            Ok((_, all)) => {
                let all: Vec<_> = all
                    .into_iter()
                    .filter(|one| waits(&one.header.name))
                    .collect();
                for definition in all {
                    self.settle(core, &definition).await;
                }
            }
            Err(status) => tracing::warn!(%status, "cannot read custom resource definitions"),
        }
    }
}

fn group_of(definition: &Object) -> String {
    let group = definition.get("spec").and_then(|spec| spec.get("group"));
    group.and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn names_of(definition: &Object) -> Value {
    let names = definition.get("spec").and_then(|spec| spec.get("names"));
    names.cloned().unwrap_or_default()
}

/// Brings one definition where it should be: served, or emptied and let go. False when it does not get
/// all its names.
async fn settle(core: &Arc<Core>, definition: &Object, bytes: &Bytes) -> bool {
    let name = meta::text(definition, "name").to_owned();
    if meta::is_deleting(definition) {
        let whole = Value::Object(definition.clone());
        let established = holds(&whole, "Established");
        if established {
            serve(core, &whole, bytes).await;
        }
        let pending = find(&whole, "Terminating").is_some_and(|told| told["reason"] == PENDING);
        if established && pending && say(core, &name, in_progress(), false).await.is_ok() {
            // That comes back here as a change.
            return true;
        }
        let (core, definition) = (core.clone(), definition.clone());
        // Objects with finalizers may stay long; other definitions do not wait for them.
        core.clone().tasks.streams.spawn(async move {
            let stopping = core.tasks.stopping.clone();
            tokio::select! {
                () = empty(&core, &definition) => {}
                () = stopping.cancelled() => {}
            }
        });
        return true;
    }
    let whole = Value::Object(definition.clone());
    let (wanted, before) = (&whole["spec"]["names"], &whole["status"]["acceptedNames"]);
    let (accepted, conflict) = names::accept(wanted, before, &taken(core, &whole));
    if conflict.is_none() {
        serve(core, &whole, bytes).await;
    }
    if let Err(status) = tell(core, &name, &accepted, conflict.as_ref()).await {
        tracing::warn!(definition = name, %status, "cannot write the status of a definition");
    }
    conflict.is_none()
}

/// Registers the served versions, the stored one first. A change that is not about the kinds leaves them as they are,
/// and with them what was compiled and made of them.
async fn serve(core: &Core, definition: &Value, bytes: &Bytes) {
    if renew(core, definition, bytes) {
        return;
    }
    let versions = definition["spec"]["versions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else {
        return;
    };
    let stored_name = stored["name"].as_str().unwrap_or_default();
    let since = match known_since(core, definition) {
        Some(since) => since,
        // Writes up to now may have been made by the schema of before.
        None => core
            .store
            .revision()
            .await
            .map_or(Revision::MAX, |now| now + 1),
    };
    let schemas = Arc::new(Schemas::new(bytes.clone()));
    let (client, metrics) = (&core.conversion, &core.metrics.conversion);
    let conversion = Conversion::read(&definition["spec"], client, metrics).map(Arc::new);
    let read = |version: &Value| {
        let schemas = schemas.clone();
        let kind = CustomKind::read(definition, version, schemas, stored_name, since);
        Arc::new(kind.converted_by(conversion.clone()))
    };
    let mut kinds = vec![read(stored)];
    let others = versions.iter().filter(|version| version["storage"] != true);
    kinds.extend(others.filter(|version| version["served"] == true).map(read));
    core.registry.define(kinds, stored["served"] == true);
}

fn renew(core: &Core, definition: &Value, bytes: &Bytes) -> bool {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let table = core.registry.table();
    // All versions of a definition share its bytes.
    let known = table.any_version(&group, &plural);
    let known = known.and_then(|known| known.definition.as_ref());
    known.is_some_and(|known| known.renew(definition, bytes))
}

/// From which revision on objects are written as the definition says, if its schemas are those
/// that are served already.
fn known_since(core: &Core, definition: &Value) -> Option<Revision> {
    let spec = &definition["spec"];
    let (group, plural) = (&spec["group"], &spec["names"]["plural"]);
    let table = core.registry.table();
    let mut known = table
        .all()
        .iter()
        .filter(|known| known.custom && known.group == *group && known.plural == *plural)
        .filter_map(|known| known.definition.as_ref())
        .peekable();
    let since = known.peek()?.since;
    let conversion = fingerprint(&spec["conversion"]);
    let same = |kind: &Arc<CustomKind>| {
        if kind.conversion_fingerprint != conversion {
            return false;
        }
        let mut versions = spec["versions"].as_array().into_iter().flatten();
        let stored =
            |version: &Value| version["storage"] == true && version["name"] == *kind.stored();
        versions.clone().any(stored)
            && versions.any(|version| {
                version["name"] == kind.names().version
                    && fingerprint(&version["schema"]["openAPIV3Schema"]) == kind.fingerprint
            })
    };
    known.all(same).then_some(since)
}

/// The names that others of the definition's group have.
fn taken(core: &Core, definition: &Value) -> Taken {
    let spec = &definition["spec"];
    let (group, plural) = (&spec["group"], &spec["names"]["plural"]);
    let table = core.registry.table();
    let others = table
        .all()
        .iter()
        .filter(|other| other.group == *group && !(other.custom && other.plural == *plural));
    let mut taken = Taken::default();
    for other in others {
        let names = other.kind.names();
        taken.resources.extend(names.short_names.iter().cloned());
        taken.resources.insert(names.plural.clone());
        taken.resources.insert(names.singular.clone());
        taken.kinds.insert(names.kind.clone());
        taken.kinds.insert(names.list_kind.clone());
    }
    taken
}

fn write(core: &Arc<Core>, resource: Arc<Resource>, namespace: &str, name: &str) -> Write {
    Write {
        core: core.clone(),
        user: Arc::new(User::new("system:apiserver", [user::MASTERS])),
        peer: None,
        fence: None,
        resource,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: "status".to_owned(),
        verb: "update",
        dry_run: false,
        field_manager: "kube-apiserver".to_owned(),
        tracked: false,
        internal: true,
        // A webhook that cannot be asked must not keep definitions from being served.
        admitted: true,
        options: RequestOptions::default(),
        effects: Effects::default(),
    }
}

/// Writes accepted names and conditions.
async fn tell(
    core: &Arc<Core>,
    name: &str,
    accepted: &Value,
    conflict: Option<&Conflict>,
) -> Result<(), Status> {
    let Some(resource) = core.registry.get(GROUP, "v1", PLURAL) else {
        return Ok(());
    };
    let write = write(core, resource, "", name);
    let now = meta::time(core.config.clock.now());
    let change = move |old: &Object| {
        let mut object = Value::Object(old.clone());
        object["status"]["acceptedNames"] = accepted.clone();
        let status = &mut object["status"];
        match conflict {
            None => {
                let names = condition("NamesAccepted", true, "NoConflicts", "no conflicts found");
                let message = "the initial names have been accepted";
                let established = condition("Established", true, "InitialNamesAccepted", message);
                set_condition(status, names, &now);
                set_condition(status, established, &now);
            }
            Some(Conflict { reason, message }) => {
                let names = condition("NamesAccepted", false, reason, message);
                set_condition(status, names, &now);
                // What was established once goes on under the names of before.
                let conditions = status["conditions"].as_array().into_iter().flatten();
                if !conditions
                    .into_iter()
                    .any(|old| old["type"] == "Established")
                {
                    let message = "not all names are accepted";
                    let established = condition("Established", false, "NotAccepted", message);
                    set_condition(status, established, &now);
                }
            }
        }
        if let Some(approval) = conditions::approval(old) {
            set_condition(&mut object["status"], approval, &now);
        }
        let stored = object["spec"]["versions"].as_array().into_iter().flatten();
        let stored = stored
            .filter(|version| version["storage"] == true)
            .map(|v| v["name"].clone())
            .next();
        if let Some(stored) = stored {
            let known = &mut object["status"]["storedVersions"];
            if !known.is_array() {
                *known = json!([]);
            }
            if let Some(known) = known
                .as_array_mut()
                .filter(|known| !known.contains(&stored))
            {
                known.push(stored);
            }
        }
        match object {
            Value::Object(object) => Ok(object),
            _ => Err(Status::internal("an object stays one")),
        }
    };
    write::update(&write, &change).await.map(|_| ())
}

/// Deletes the objects of a definition, then lets the definition go.
async fn empty(core: &Arc<Core>, definition: &Object) {
    if !meta::finalizers(definition).contains(&CLEANUP) {
        return;
    }
    let whole = Value::Object(definition.clone());
    let group = whole["spec"]["group"].as_str().unwrap_or_default();
    let plural = whole["spec"]["names"]["plural"]
        .as_str()
        .unwrap_or_default();
    let ended = if holds(&whole, "Established") {
        loop {
            match delete_all(core, group, plural).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(status) => tracing::warn!(plural, %status, "cannot delete custom objects"),
            }
            core.config.clock.sleep(AGAIN).await;
        }
        core.registry.undefine(group, plural);
        let message = "removed all instances";
        condition("Terminating", false, "InstanceDeletionCompleted", message)
    } else {
        // Another definition has its names.
        let message = "resource was never established";
        condition("Terminating", false, "NeverEstablished", message)
    };
    match say(core, meta::text(definition, "name"), ended, true).await {
        Err(status) if status.code != 404 => {
            tracing::warn!(plural, %status, "cannot let a definition go");
        }
        _ => {}
    }
}

fn in_progress() -> Value {
    let message = "CustomResource deletion is in progress";
    condition("Terminating", true, "InstanceDeletionInProgress", message)
}

/// Marks a definition for its deletion. Neither its generation nor a time of grace is counted.
pub(crate) fn mark(definition: &mut Object, now: &str) {
    meta::set(definition, "deletionTimestamp", now);
    let mut finalizers = meta::finalizers(definition);
    if !finalizers.contains(&CLEANUP) {
        finalizers.push(CLEANUP);
    }
    let finalizers = finalizers.into_iter().map(str::to_owned).collect();
    meta::set_finalizers(definition, finalizers);
    let message =
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let status = definition.entry("status").or_insert_with(|| json!({}));
    set_condition(
        status,
        condition("Terminating", true, PENDING, message),
        now,
    );
}

/// Writes one condition of a definition, and may let it go with that.
async fn say(core: &Arc<Core>, name: &str, condition: Value, release: bool) -> Result<(), Status> {
    let Some(resource) = core.registry.get(GROUP, "v1", PLURAL) else {
        return Ok(());
    };
    let now = meta::time(core.config.clock.now());
    let change = |old: &Object| {
        let mut object = old.clone();
        let status = object.entry("status").or_insert_with(|| json!({}));
        set_condition(status, condition.clone(), &now);
        if release {
            let finalizers = meta::finalizers(old).into_iter();
            let left = finalizers.filter(|name| *name != CLEANUP);
            meta::set_finalizers(&mut object, left.map(str::to_owned).collect());
        }
        Ok(object)
    };
    let write = write(core, resource, "", name);
    write::update(&write, &change).await.map(|_| ())
}

/// Deletes every object once; how many are left.
async fn delete_all(core: &Arc<Core>, group: &str, plural: &str) -> Result<usize, Status> {
    let (_, objects) = core.reader.list(group, plural, "").await?;
    let found = core.registry.table().any_version(group, plural).cloned();
    let Some(resource) = found else { return Ok(0) };
    for object in objects {
        let mut write = write(
            core,
            resource.clone(),
            &object.header.namespace,
            &object.header.name,
        );
        write.subresource = String::new();
        match write::delete(&write, &DeleteOptions::default()).await {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
    }
    Ok(core.reader.list(group, plural, "").await?.1.len())
}
