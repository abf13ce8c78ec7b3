//! Update: read, change, admit, prepare, validate, commit at the revision that was read.

use std::sync::Arc;

use kinds::Context;
use machinery::{Object, Status, Value, field};
use store::{Entry, Freshness, Precondition};

use super::{ATTEMPTS, Write, Written, create};
use crate::{Stored, admission::Operation, failure, hooks, meta};

/// How an update comes by the new object, given the one that stands (with its resourceVersion).
/// Called again when a race was lost.
pub(crate) trait Change: Send + Sync {
    fn apply(&self, old: &Object) -> Result<Object, Status>;

    /// The object to create when none stands there; `None` refuses with 404.
    fn create(&self) -> Option<Result<Object, Status>> {
        None
    }
}

impl<F: Fn(&Object) -> Result<Object, Status> + Send + Sync> Change for F {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        self(old)
    }
}

/// Changes the object that the write names.
pub(crate) async fn update(write: &Write, change: &dyn Change) -> Result<Written, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    for _ in 0..ATTEMPTS {
        let read = write.core.store.get(&key, Freshness::Newest).await;
        let (_, entry) = read.map_err(failure::of_store)?;
        let Some(entry) = entry else {
            return match change.create() {
                Some(object) => {
                    let again = || {
                        change
                            .create()
                            .unwrap_or_else(|| Err(write.not_found(&write.name)))
                    };
                    create(write, object?, again).await
                }
                None => Err(write.not_found(&write.name)),
            };
        };
        let old = write.resource.parse(&entry.object);
        let new = change.apply(&old)?;
        if let Some(written) = attempt(write, new, old, entry).await? {
            return Ok(written);
        }
    }
    Err(write.modified(&write.name))
}

/// One try. `None` when the object changed meanwhile.
async fn attempt(
    write: &Write,
    mut object: Object,
    old: Object,
    entry: Entry<Stored>,
) -> Result<Option<Written>, Status> {
    check_preconditions(write, &object, &old)?;
    let kind = &write.resource.kind;
    kind.default(&mut object);
    write
        .admit_mutating(Operation::Update, &mut object, Some(&old))
        .await?;
    prepare(write, &mut object, &old)?;
    write.track(Some(&old), &mut object);
    let mut ops = hooks::before_update(write, &mut object, &old).await?;
    validate(write, &object, &old)?;
    let warnings = match write.subresource() {
        Some("status") => kind.status_warnings(&object, &old),
        _ => kind.warnings(&object, Some(&old)),
    };
    for warning in warnings {
        write.effects.warn(warning);
    }
    write
        .admit_validating(Operation::Update, Some(&object), Some(&old))
        .await?;
    ops.extend(write.effects.take_ops());
    let warnings = write.effects.take_warnings();
    let written = |object| {
        Some(Written {
            object,
            created: false,
            warnings,
        })
    };
    let gone = hooks::ends_with(write, &object, &old);
    let draft = write.draft(&mut object)?;
    if draft.bytes == entry.object.unstamped() && ops.is_empty() && !gone {
        return Ok(written(entry.object));
    }
    let revision = entry.mod_revision;
    if write.dry_run {
        return Ok(written(Arc::new(Stored::stamp(draft, revision))));
    }
    if gone {
        ops.extend(hooks::before_remove(write, &object));
        let removed = write.remove(&write.name, revision, ops).await?;
        return Ok(removed.and_then(|(at, _)| written(Arc::new(Stored::stamp(draft, at)))));
    }
    let put = write
        .put(&write.name, draft, Precondition::Revision(revision), ops)
        .await?;
    Ok(put.and_then(|entry| written(entry.object)))
}

/// The uid and the resourceVersion that the client named must be those that stand.
fn check_preconditions(write: &Write, object: &Object, old: &Object) -> Result<(), Status> {
    let (group, plural) = (&write.resource.group, &write.resource.plural);
    let (uid, old_uid) = (meta::text(object, "uid"), meta::text(old, "uid"));
    if !uid.is_empty() && uid != old_uid {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
        );
        return Err(Status::conflict(group, plural, &write.name, &why));
    }
    let revision = meta::text(object, "resourceVersion");
    if revision.is_empty() || revision == "0" {
        if write.resource.kind.allows_unconditional_update() {
            return Ok(());
        }
        let path = field::Path::new("metadata").child("resourceVersion");
        let error = field::Error::invalid(&path, 0, "must be specified for an update");
        return Err(Status::invalid(group, plural, &write.name, &[error]));
    }
    if revision != meta::text(old, "resourceVersion") {
        return Err(write.modified(&write.name));
    }
    Ok(())
}

fn prepare(write: &Write, object: &mut Object, old: &Object) -> Result<(), Status> {
    let namespace = if write.resource.namespaced() {
        write.namespace.as_str()
    } else {
        ""
    };
    meta::settle_namespace(object, namespace)?;
    let kind = &write.resource.kind;
    let generation = meta::of(old)
        .and_then(|metadata| metadata.get("generation"))
        .cloned();
    meta::set(object, "generation", generation.unwrap_or(Value::Null));
    let now = meta::time(write.core.config.clock.now());
    let context = Context {
        now: &now,
        user: &write.user.name,
    };
    if !write.internal {
        kind.prepare_update(object, old, write.subresource(), &context);
    }
    meta::keep(object, old);
    if kind.has_generation()
        && !write.internal
        && write.subresource != "status"
        && meta::spec_differs(object, old)
    {
        let generation = meta::number(old, "generation").unwrap_or(0) + 1;
        meta::set(object, "generation", generation);
    }
    Ok(())
}

fn validate(write: &Write, object: &Object, old: &Object) -> Result<(), Status> {
    if write.internal {
        return Ok(());
    }
    let mut errors = kinds::metadata::validate_update(&*write.resource.kind, object, old);
    errors.extend(
        write
            .resource
            .kind
            .validate_update(object, old, write.subresource()),
    );
    if errors.is_empty() {
        errors = hooks::validate(write, object, Some(old));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(write.invalid(meta::text(object, "name"), &errors))
}
