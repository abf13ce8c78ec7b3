//! Deletion of a definition: its objects are deleted first, then its finalizer is removed.

use std::time::Duration;

use apiextensions::conditions::{condition, holds, set_condition};
use machinery::{Object, Status, Value, json::json};

use stdx::Backoff;

use super::{DefinitionContext, GROUP, PLURAL, id, own_write, status::status_write};
use crate::{
    meta,
    write::{self as writes, DeleteOptions},
};

/// The finalizer that keeps a definition until its objects are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// The Terminating reason of a definition that was just deleted.
pub(super) const PENDING: &str = "InstanceDeletionPending";
/// The retry interval while objects of a deleted definition remain.
const AGAIN: Duration = Duration::from_secs(5);
/// The retry intervals after errors.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Marks a definition as deleted. Neither its generation nor a grace period is set.
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

/// Sets the condition that the deletion of objects has begun.
pub(super) async fn mark_in_progress(
    context: &DefinitionContext,
    definition: &Value,
) -> Result<(), Status> {
    let message = "CustomResource deletion is in progress";
    let reason = "InstanceDeletionInProgress";
    let begun = condition("Terminating", true, reason, message);
    write_condition(context, &name(definition), begun, false).await
}

/// Deletes the objects of a definition, then removes its finalizer; retries until done.
pub(super) fn spawn_empty(context: &DefinitionContext, definition: Value) {
    let context = context.clone();
    let tasks = context.streams.tasks.clone();
    tasks.spawn(async move {
        let stopping = context.streams.stopping.clone();
        tokio::select! {
            () = empty(&context, &definition) => {}
            () = stopping.cancelled() => {}
        }
    });
}

fn name(definition: &Value) -> String {
    let name = definition["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

async fn empty(context: &DefinitionContext, definition: &Value) {
    let mut backoff = Backoff::new(FIRST, LONGEST);
    loop {
        let again = match try_empty(context, definition).await {
            Ok(true) => return,
            Ok(false) => {
                backoff.reset();
                AGAIN
            }
            Err(status) => {
                let definition = name(definition);
                tracing::warn!(definition, %status, "cannot finish the deletion of a CustomResourceDefinition; will retry");
                backoff.step()
            }
        };
        context.writes.clock.sleep(again).await;
    }
}

/// One attempt; returns whether nothing is left to do.
async fn try_empty(context: &DefinitionContext, definition: &Value) -> Result<bool, Status> {
    let name = name(definition);
    let stored = context.writes.reader.get(GROUP, PLURAL, "", &name).await?;
    if !stored.is_some_and(|stored| is_cleaned_up(&stored.parse(), definition)) {
        return Ok(true);
    }
    let (group, plural) = id(definition);
    let is_built_in = context.writes.registry.table().is_built_in(&group, &plural);
    let ended = if holds(definition, "Established") && !is_built_in {
        if delete_all(context, &group, &plural).await? > 0 {
            return Ok(false);
        }
        context.writes.registry.undefine(&group, &plural);
        let message = "removed all instances";
        condition("Terminating", false, "InstanceDeletionCompleted", message)
    } else {
        // Another definition or a built-in kind holds its names.
        let message = "resource was never established";
        condition("Terminating", false, "NeverEstablished", message)
    };
    match write_condition(context, &name, ended, true).await {
        Err(status) if status.code == 404 => Ok(true),
        written => written.map(|()| true),
    }
}

/// Whether a stored definition is still the deleted one, and waits for its objects. After a change another task begins,
/// and another definition of the same name may have been created.
fn is_cleaned_up(stored: &Object, definition: &Value) -> bool {
    definition["metadata"]["resourceVersion"] == meta::text(stored, "resourceVersion")
        && meta::is_deleting(stored)
        && meta::finalizers(stored).contains(&CLEANUP)
}

/// Writes one condition of a definition; `release` also removes the finalizer.
async fn write_condition(
    context: &DefinitionContext,
    name: &str,
    condition: Value,
    release: bool,
) -> Result<(), Status> {
    let Some(write) = status_write(context, name) else {
        return Ok(());
    };
    let now = meta::time(context.writes.clock.now());
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
    writes::update(&write, &change).await.map(|_| ())
}

/// Deletes every object once; returns how many remain.
async fn delete_all(
    context: &DefinitionContext,
    group: &str,
    plural: &str,
) -> Result<usize, Status> {
    let (_, objects) = context.writes.reader.list(group, plural, "").await?;
    let found = context
        .writes
        .registry
        .table()
        .any_version(group, plural)
        .cloned();
    let Some(resource) = found else { return Ok(0) };
    for object in objects {
        let header = &object.header;
        let mut write = own_write(context, resource.clone(), header.namespace(), header.name());
        write.subresource = String::new();
        match writes::delete(&write, &DeleteOptions::default()).await {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
    }
    Ok(context.writes.reader.list(group, plural, "").await?.1.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_deleted_definition_itself_is_emptied_and_by_one_task() {
        let deleted = json!({"metadata": {
            "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLEANUP],
        }});
        let with = |field: &str, value: Value| {
            let mut stored = deleted.clone();
            stored["metadata"][field] = value;
            stored
        };
        for (stored, expected) in [
            (deleted.clone(), true),
            (with("resourceVersion", "8".into()), false),
            (with("deletionTimestamp", Value::Null), false),
            (with("finalizers", json!(["example.com/other"])), false),
        ] {
            let is_it = is_cleaned_up(stored.as_object().unwrap(), &deleted);
            assert_eq!(is_it, expected, "{stored}");
        }
    }
}
