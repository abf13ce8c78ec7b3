//! Delete: grace periods, finalizers, preconditions and propagation.

use std::sync::Arc;

use jiff::Timestamp;
use kinds::{Deletion, Orphans};
use machinery::{Object, Status, field};
use store::{Entry, Freshness, Precondition, Revision};

use admission::{DeleteOptions, Preconditions};

use super::{Conflict, Write};
use crate::{Resource, Stored, failure, handlers::check_dry_run, hooks, meta, query::Query};

/// The preconditions in a query.
pub(crate) fn preconditions_of(query: &Query) -> Option<Preconditions> {
    let text = |key: &str| query.get(key).map(str::to_owned);
    let (uid, resource_version) = (text("uid"), text("resourceVersion"));
    (uid.is_some() || resource_version.is_some()).then_some(Preconditions {
        uid,
        resource_version,
    })
}

/// A deletion's result.
pub(crate) struct Deleted {
    /// The current object, or its last state.
    pub(crate) object: Arc<Stored>,
    /// Whether it is already removed.
    pub(crate) gone: bool,
}

/// What a deletion does next.
enum DeletionStep {
    /// Set deletionTimestamp; the owner of a finalizer or the kubelet removes it later.
    Mark,
    /// Remove the object.
    Remove,
    /// Set deletionTimestamp and remove at once: watchers see the object terminating before it is
    /// deleted.
    MarkAndRemove,
    /// The object is already terminating, and this request changes nothing.
    Nothing,
}

/// Rejects contradictory options.
pub(crate) fn check_options(options: &DeleteOptions) -> Result<(), Status> {
    let mut errors = field::Errors::new();
    let policy = field::Path::new("propagationPolicy");
    if options.orphan_dependents.is_some() && options.propagation_policy.is_some() {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        errors.push(field::Error::invalid(
            &policy,
            options.propagation_policy.clone(),
            why,
        ));
    }
    match options.propagation_policy.as_deref() {
        None | Some("Foreground" | "Background" | "Orphan") => {}
        Some(other) => {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(field::Error::not_supported(&policy, other, &known));
        }
    }
    let dry_run: Vec<&str> = options.dry_run.iter().map(String::as_str).collect();
    check_dry_run(&dry_run, &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors))
}

fn orphans(options: &DeleteOptions, finalizers: &[&str], resource: &Resource) -> bool {
    match (
        options.orphan_dependents,
        options.propagation_policy.as_deref(),
    ) {
        (Some(orphan), _) => orphan,
        (None, Some(policy)) => policy == "Orphan",
        (None, None) if finalizers.contains(&meta::FOREGROUND) => false,
        (None, None) => finalizers.contains(&meta::ORPHAN) || orphans_by_default(resource),
    }
}

/// The warning for a deletion that orphans pods by default.
pub(crate) fn orphan_warning(options: &DeleteOptions, resource: &Resource) -> Option<&'static str> {
    let silent = options.orphan_dependents.is_none() && options.propagation_policy.is_none();
    match resource.kind.server_side().orphans {
        Orphans::AllWithWarning(warning) if silent => Some(warning),
        _ => None,
    }
}

fn waits_for_dependents(options: &DeleteOptions, finalizers: &[&str]) -> bool {
    match (
        options.orphan_dependents,
        options.propagation_policy.as_deref(),
    ) {
        (Some(_), _) => false,
        (None, Some(policy)) => policy == "Foreground",
        (None, None) => finalizers.contains(&meta::FOREGROUND),
    }
}

/// Kinds that orphan their dependents by default, for compatibility.
fn orphans_by_default(resource: &Resource) -> bool {
    resource.kind.server_side().orphans != Orphans::None
}

/// Deletes the object that the write names.
pub(crate) async fn delete(write: &Write, options: &DeleteOptions) -> Result<Deleted, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    let mut retry = write.conflict_retry();
    loop {
        let read = write.path.store.get(&key, Freshness::Newest).await;
        let (_, entry) = read.map_err(failure::of_store)?;
        let entry = entry.ok_or_else(|| write.not_found(&write.name))?;
        match attempt(write, options, entry).await? {
            Ok(deleted) => return Ok(deleted),
            Err(conflict) => retry.wait(conflict).await?,
        }
    }
}

/// One attempt.
async fn attempt(
    write: &Write,
    options: &DeleteOptions,
    entry: Entry<Stored>,
) -> Result<Result<Deleted, Conflict>, Status> {
    let mut object = write.resource.parse_converted(&entry.object).await?;
    check_preconditions(write, options, &object)?;
    write.admit_delete(&object).await?;
    let step = decide(write, options, &mut object)?;
    let revision = entry.mod_revision;
    let stands = |object| {
        Ok(Ok(Deleted {
            object,
            gone: false,
        }))
    };
    match step {
        DeletionStep::Nothing => stands(entry.object),
        DeletionStep::Mark => {
            write.resource.kind.mark_terminating(&mut object);
            let draft = write.draft(&mut object).await?;
            if write.dry_run {
                return stands(Arc::new(Stored::stamp(draft, revision)));
            }
            if *draft.bytes() == entry.object.unstamped() {
                return stands(entry.object);
            }
            let put = write
                .put(
                    &write.name,
                    draft,
                    Precondition::Revision(revision),
                    Vec::new(),
                )
                .await?;
            Ok(put.map(|entry| Deleted {
                object: entry.object,
                gone: false,
            }))
        }
        DeletionStep::Remove if write.dry_run => Ok(Ok(Deleted {
            object: entry.object,
            gone: true,
        })),
        DeletionStep::MarkAndRemove => mark_and_remove(write, object, revision).await,
        DeletionStep::Remove => {
            let mut ops = hooks::before_remove(write, &object);
            ops.extend(write.effects.take_ops());
            let removed = write.remove(&write.name, revision, ops).await?;
            Ok(removed.map(|(at, object)| Deleted {
                object: Arc::new(object.at(at)),
                gone: true,
            }))
        }
    }
}

/// Two commits, as upstream does for an object whose grace period is zero.
async fn mark_and_remove(
    write: &Write,
    mut object: Object,
    revision: Revision,
) -> Result<Result<Deleted, Conflict>, Status> {
    let draft = write.draft(&mut object).await?;
    if write.dry_run {
        return Ok(Ok(Deleted {
            object: Arc::new(Stored::stamp(draft, revision)),
            gone: true,
        }));
    }
    let at = Precondition::Revision(revision);
    let marked = match write.put(&write.name, draft, at, Vec::new()).await? {
        Ok(marked) => marked,
        Err(conflict) => return Ok(Err(conflict)),
    };
    let mut ops = hooks::before_remove(write, &object);
    ops.extend(write.effects.take_ops());
    let gone = |object| Ok(Ok(Deleted { object, gone: true }));
    match write.remove(&write.name, marked.mod_revision, ops).await? {
        Ok((at, object)) => gone(Arc::new(object.at(at))),
        // The first commit notifies the kubelet, which may have removed the object already.
        Err(_) if is_gone(write, meta::text(&object, "uid")).await? => gone(marked.object),
        Err(conflict) => Ok(Err(conflict)),
    }
}

/// Whether the object with this uid no longer exists.
async fn is_gone(write: &Write, uid: &str) -> Result<bool, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    let read = write.path.store.get(&key, Freshness::Newest).await;
    let (_, entry) = read.map_err(failure::of_store)?;
    Ok(entry.is_none_or(|entry| meta::text(&entry.object.parse(), "uid") != uid))
}

fn check_preconditions(
    write: &Write,
    options: &DeleteOptions,
    object: &Object,
) -> Result<(), Status> {
    let Some(wanted) = &options.preconditions else {
        return Ok(());
    };
    let conflict = |why: String| {
        let kind = &write.resource.kind.names().kind;
        Err(Status::conflict(
            &write.resource.group,
            kind,
            &write.name,
            &why,
        ))
    };
    let uid = meta::text(object, "uid");
    if let Some(wanted) = wanted.uid.as_deref().filter(|wanted| *wanted != uid) {
        return conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        ));
    }
    let revision = meta::text(object, "resourceVersion");
    if let Some(wanted) = wanted
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != revision)
    {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        ));
    }
    Ok(())
}

/// Decides the step, and sets the deletion fields of an object that stays for now.
fn decide(
    write: &Write,
    options: &DeleteOptions,
    object: &mut Object,
) -> Result<DeletionStep, Status> {
    if hooks::mark_definition(write, object) {
        return Ok(DeletionStep::Mark);
    }
    let now = write.path.clock.now();
    let requested = options
        .grace_period_seconds
        .map(|grace| if grace < 0 { 1 } else { grace });
    let graceful = match (
        meta::is_deleting(object),
        meta::number(object, "deletionGracePeriodSeconds"),
    ) {
        (true, None | Some(0)) => false,
        (true, Some(current)) => match requested {
            Some(period) if period < current => {
                shorten(object, current, period, now);
                true
            }
            _ => return Ok(DeletionStep::Nothing),
        },
        (false, _) => match write.resource.kind.deletion(object, requested) {
            Deletion::Forbidden(why) => {
                let (group, plural) = (&write.resource.group, &write.resource.plural);
                return Err(Status::forbidden(group, plural, &write.name, why));
            }
            Deletion::Immediate => false,
            Deletion::Graceful { seconds } => {
                mark_terminating(object, now, seconds);
                true
            }
        },
    };
    let finalizers = finalizers_of(write, options, object);
    let pending = !finalizers.is_empty();
    meta::set_finalizers(object, finalizers);
    let grace = meta::number(object, "deletionGracePeriodSeconds").unwrap_or(0);
    Ok(match (graceful, pending) {
        (true, false) if grace == 0 => DeletionStep::MarkAndRemove,
        (true, _) => DeletionStep::Mark,
        (false, false) if !write.resource.kind.is_held(object) => DeletionStep::Remove,
        (false, _) => {
            mark_now(object, now);
            DeletionStep::Mark
        }
    })
}

/// The finalizers after a deletion request, in their previous order unless some are added or
/// removed.
fn finalizers_of(write: &Write, options: &DeleteOptions, object: &Object) -> Vec<String> {
    let current = meta::finalizers(object);
    let others = current
        .iter()
        .filter(|name| !matches!(**name, meta::ORPHAN | meta::FOREGROUND));
    let mut finalizers: Vec<&str> = others.copied().collect();
    if orphans(options, &current, &write.resource) {
        finalizers.push(meta::ORPHAN);
    }
    if waits_for_dependents(options, &current) {
        finalizers.push(meta::FOREGROUND);
    }
    let same = |a: &[&str], b: &[&str]| a.iter().all(|name| b.contains(name));
    if same(&finalizers, &current) && same(&current, &finalizers) {
        finalizers = current.clone();
    }
    finalizers.into_iter().map(str::to_owned).collect()
}

/// Sets deletionTimestamp for a grace period.
fn mark_terminating(object: &mut Object, now: Timestamp, seconds: i64) {
    meta::set(
        object,
        "deletionTimestamp",
        meta::time(meta::shifted(now, seconds)),
    );
    meta::set(object, "deletionGracePeriodSeconds", seconds);
    count_generation(object);
}

/// Sets deletionTimestamp for an object that only waits for its finalizers.
fn mark_now(object: &mut Object, now: Timestamp) {
    if !meta::is_deleting(object) {
        count_generation(object);
    }
    if meta::deletion_time(object).is_none_or(|at| at > now) {
        meta::set(object, "deletionTimestamp", meta::time(now));
    }
    meta::set(object, "deletionGracePeriodSeconds", 0);
}

fn count_generation(object: &mut Object) {
    if let Some(generation) =
        meta::number(object, "generation").filter(|generation| *generation > 0)
    {
        meta::set(object, "generation", generation + 1);
    }
}

/// Shortens the grace period; deletionTimestamp never moves into the past.
fn shorten(object: &mut Object, current: i64, period: i64, now: Timestamp) {
    let at = meta::deletion_time(object).unwrap_or(now);
    let at = meta::shifted(at, period - current);
    let (at, period) = if at < now {
        (now, period.min(1))
    } else {
        (at, period)
    };
    meta::set(object, "deletionTimestamp", meta::time(at));
    meta::set(object, "deletionGracePeriodSeconds", period);
}
