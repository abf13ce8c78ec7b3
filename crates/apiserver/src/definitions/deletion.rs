//! Deletion of a definition: its objects are deleted first, then its finalizer is removed.

use std::{sync::Arc, time::Duration};

use apiextensions::conditions::{condition, holds, set_condition};
use machinery::{Object, Status, Value, json::json};

use super::{id, status::status_write, write};
use crate::{
    meta,
    pipeline::Core,
    write::{self as writes, DeleteOptions},
};

/// The finalizer that keeps a definition until its objects are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// The Terminating reason of a definition that was just deleted.
pub(super) const PENDING: &str = "InstanceDeletionPending";
/// The retry interval while objects of a deleted definition remain.
const AGAIN: Duration = Duration::from_secs(5);

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
pub(super) async fn begin(core: &Arc<Core>, definition: &Value) -> Result<(), Status> {
    let message = "CustomResource deletion is in progress";
    let reason = "InstanceDeletionInProgress";
    let begun = condition("Terminating", true, reason, message);
    set(core, &name(definition), begun, false).await
}

/// Deletes the objects of a definition, then removes its finalizer; retries until done.
pub(super) fn spawn_empty(core: &Arc<Core>, definition: Value) {
    let core = core.clone();
    core.clone().tasks.streams.spawn(async move {
        let stopping = core.tasks.stopping.clone();
        tokio::select! {
            () = empty(&core, &definition) => {}
            () = stopping.cancelled() => {}
        }
    });
}

fn name(definition: &Value) -> String {
    let name = definition["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

async fn empty(core: &Arc<Core>, definition: &Value) {
    let finalizers = definition.as_object().map(meta::finalizers);
    if !finalizers.is_some_and(|finalizers| finalizers.contains(&CLEANUP)) {
        return;
    }
    let (group, plural) = id(definition);
    let ended = if holds(definition, "Established") {
        loop {
            match delete_all(core, &group, &plural).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(status) => tracing::warn!(plural, %status, "cannot delete custom resources"),
            }
            core.config.clock.sleep(AGAIN).await;
        }
        core.registry.undefine(&group, &plural);
        let message = "removed all instances";
        condition("Terminating", false, "InstanceDeletionCompleted", message)
    } else {
        // Another definition holds its names.
        let message = "resource was never established";
        condition("Terminating", false, "NeverEstablished", message)
    };
    match set(core, &name(definition), ended, true).await {
        Err(status) if status.code != 404 => {
            tracing::warn!(plural, %status, "cannot finish the deletion of a custom resource definition");
        }
        _ => {}
    }
}

/// Writes one condition of a definition; `release` also removes the finalizer.
async fn set(core: &Arc<Core>, name: &str, condition: Value, release: bool) -> Result<(), Status> {
    let Some(write) = status_write(core, name) else {
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
    writes::update(&write, &change).await.map(|_| ())
}

/// Deletes every object once; returns how many remain.
async fn delete_all(core: &Arc<Core>, group: &str, plural: &str) -> Result<usize, Status> {
    let (_, objects) = core.reader.list(group, plural, "").await?;
    let found = core.registry.table().any_version(group, plural).cloned();
    let Some(resource) = found else { return Ok(0) };
    for object in objects {
        let header = &object.header;
        let mut write = write(core, resource.clone(), header.namespace(), header.name());
        write.subresource = String::new();
        match writes::delete(&write, &DeleteOptions::default()).await {
            Err(status) if status.code != 404 => return Err(status),
            _ => {}
        }
    }
    Ok(core.reader.list(group, plural, "").await?.1.len())
}
