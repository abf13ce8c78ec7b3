//! The end of a definition: its objects are deleted, then it is let go.

use std::{sync::Arc, time::Duration};

use apiextensions::conditions::{condition, holds, set_condition};
use machinery::{Object, Status, Value, json::json};

use super::{id, status::status_write, write};
use crate::{
    meta,
    pipeline::Core,
    write::{self as writes, DeleteOptions},
};

/// Holds a definition until its objects are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Why a definition is terminating that was only just deleted.
pub(super) const PENDING: &str = "InstanceDeletionPending";
/// How soon a definition is looked at again whose objects do not go.
const AGAIN: Duration = Duration::from_secs(5);

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

/// Says that the deletion of objects begins.
pub(super) async fn begin(core: &Arc<Core>, definition: &Value) -> Result<(), Status> {
    let message = "CustomResource deletion is in progress";
    let reason = "InstanceDeletionInProgress";
    let begun = condition("Terminating", true, reason, message);
    set(core, &name(definition), begun, false).await
}

/// Deletes the objects of a definition, then lets the definition go, for as long as that takes.
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
                Err(status) => tracing::warn!(plural, %status, "cannot delete custom objects"),
            }
            core.config.clock.sleep(AGAIN).await;
        }
        core.registry.undefine(&group, &plural);
        let message = "removed all instances";
        condition("Terminating", false, "InstanceDeletionCompleted", message)
    } else {
        // Another definition has its names.
        let message = "resource was never established";
        condition("Terminating", false, "NeverEstablished", message)
    };
    match set(core, &name(definition), ended, true).await {
        Err(status) if status.code != 404 => {
            tracing::warn!(plural, %status, "cannot let a definition go");
        }
        _ => {}
    }
}

/// Writes one condition of a definition, and may let it go with that.
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

/// Deletes every object once; how many are left.
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
