//! Update: read, change, default, admit, validate, commit with the read revision as precondition.

use std::sync::Arc;

use kinds::Context;
use machinery::schema::Field;
use machinery::{Object, Status, Value, apply, field};
use request::heavy;
use store::{Entry, Freshness, Precondition};

use super::{Conflict, Versions, Write, Written, create, owners};
use crate::{
    Draft, Stored, admission::Operation, device_claims, failure, hooks, meta, policy_parameters,
};

/// Makes the new object of an update from the stored one (with its resourceVersion). Called again
/// after a conflict.
pub(crate) trait ObjectChange: Send + Sync {
    fn apply(&self, old: &Object) -> Result<Object, Status>;

    /// The same change as an edit of the stored bytes, if they need not be parsed for it. Only for changes by the
    /// server itself, which need no admission, validation or managedFields; [`ObjectChange::apply`] has the same result.
    fn edit(&self, _: &Stored) -> Option<Draft> {
        None
    }

    /// The uid precondition, if the client sent one.
    fn uid(&self) -> Option<&str> {
        None
    }

    /// The object to create if none exists; `None` means 404.
    fn create(&self) -> Option<Result<Object, Status>> {
        None
    }

    /// The versions that the change converts between, if it does.
    fn versions(&self) -> Option<&Versions> {
        None
    }

    /// Warnings about the body, once the change succeeded or failed.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<F: Fn(&Object) -> Result<Object, Status> + Send + Sync> ObjectChange for F {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        self(old)
    }
}

/// Changes the object that the write names. Warnings about the body come first, then those of
/// admission and the kind, also when the write is rejected.
pub(crate) async fn update(write: &Write, change: &dyn ObjectChange) -> Result<Written, Status> {
    match update_with_retries(write, change).await {
        Ok(mut written) => {
            written.warnings.splice(0..0, change.warnings());
            Ok(written)
        }
        Err(status) => Err(status
            .warned(write.effects.take_warnings())
            .warned(change.warnings())),
    }
}

async fn update_with_retries(write: &Write, change: &dyn ObjectChange) -> Result<Written, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    let mut retry = write.conflict_retry();
    loop {
        let read = write.path.store.get(&key, Freshness::Newest).await;
        let (_, entry) = read.map_err(failure::of_store)?;
        let Some(entry) = entry else {
            let again = || object_to_create(write, change);
            return create(write, again()?, again).await;
        };
        heavy::mark_large(entry.object.size()).await;
        if let Some(edit) = edit_of_stored(write, change, &entry) {
            match put_edit(write, edit, &entry).await? {
                Ok(written) => return Ok(written),
                Err(conflict) => {
                    retry.wait(conflict).await?;
                    continue;
                }
            }
        }
        let old = write.resource.parse_converted(&entry.object).await?;
        check_uid(write, change.uid(), &old)?;
        let mut new = apply_change(change, &old).await?;
        write.ensure_namespace_matches(&mut new)?;
        write.check_name(&new)?;
        match attempt(write, new, old, entry).await? {
            Ok(written) => return Ok(written),
            Err(conflict) => retry.wait(conflict).await?,
        }
    }
}

/// The change as an edit of the stored bytes.
fn edit_of_stored(
    write: &Write,
    change: &dyn ObjectChange,
    entry: &Entry<Stored>,
) -> Option<Draft> {
    let is_internal = write.internal && write.tracked && write.admitted && !write.dry_run;
    let edit = is_internal.then(|| change.edit(&entry.object)).flatten()?;
    (write.resource.storage.is_none() && !entry.object.is_converted()).then_some(edit)
}

async fn put_edit(
    write: &Write,
    edit: Draft,
    entry: &Entry<Stored>,
) -> Result<Result<Written, Conflict>, Status> {
    let unchanged = Precondition::Revision(entry.mod_revision);
    let ops = write.effects.take_ops();
    let put = write.put(&write.name, edit, unchanged, ops).await?;
    Ok(put.map(|entry| Written {
        object: entry.object,
        created: false,
        warnings: write.effects.take_warnings(),
    }))
}

/// The new object. Computed again after a conversion webhook had to be called.
async fn apply_change(change: &dyn ObjectChange, old: &Object) -> Result<Object, Status> {
    loop {
        let new = change.apply(old);
        match change.versions() {
            Some(versions) if versions.convert_pending().await? => {}
            _ => return new,
        }
    }
}

/// The object to create if none exists.
fn object_to_create(write: &Write, change: &dyn ObjectChange) -> Result<Object, Status> {
    let Some(object) = change.create() else {
        return Err(write.not_found(&write.name));
    };
    let mut object = object?;
    let uid = meta::text(&object, "uid");
    if !uid.is_empty() && change.uid().is_none() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        let (group, plural) = (&write.resource.group, &write.resource.plural);
        return Err(Status::conflict(group, plural, &write.name, &why));
    }
    write.ensure_namespace_matches(&mut object)?;
    write.check_name(&object)?;
    // A resourceVersion is no precondition for an object that does not exist.
    meta::revision(&object)?;
    meta::of_mut(&mut object).shift_remove("resourceVersion");
    Ok(object)
}

/// One attempt.
async fn attempt(
    write: &Write,
    mut object: Object,
    old: Object,
    entry: Entry<Stored>,
) -> Result<Result<Written, Conflict>, Status> {
    let kind = &write.resource.kind;
    kind.default(&mut object);
    let now = meta::time(write.path.clock.now());
    kind.default_at(&mut object, &now);
    write.track(Some(&old), &mut object).await?;
    write
        .admit_mutating(Operation::Update, &mut object, Some(&old))
        .await?;
    owners::without_duplicates(&mut object, owners::Stage::AfterAdmission, &write.effects);
    apply::keep_times(&mut object, &old);
    check_revision(write, &object, &old)?;
    prepare(write, &mut object, &old, &now)?;
    let mut ops = hooks::before_update(write, &mut object, &old).await?;
    let refused = device_claims::authorize(write, &object, Some(&old)).await;
    validate(write, &object, &old, refused)?;
    policy_parameters::authorize(write, &object, Some(&old)).await?;
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
    let written = |object| Written {
        object,
        created: false,
        warnings,
    };
    let gone = hooks::ends_with(write, &object, &old);
    let draft = match untouched(write, &object, &old, &entry) {
        Some(mut stored) => write.draft_stored(&mut stored).await?,
        None => write.draft(&mut object).await?,
    };
    if *draft.bytes() == entry.object.unstamped() && ops.is_empty() && !gone {
        return Ok(Ok(written(entry.object)));
    }
    let revision = entry.mod_revision;
    if write.dry_run {
        return Ok(Ok(written(Arc::new(Stored::stamp(draft, revision)))));
    }
    if gone {
        ops.extend(hooks::before_remove(write, &object));
        let removed = write.remove(&write.name, revision, ops).await?;
        return Ok(removed.map(|(at, _)| written(Arc::new(Stored::stamp(draft, at)))));
    }
    let put = write
        .put(&write.name, draft, Precondition::Revision(revision), ops)
        .await?;
    Ok(put.map(|entry| written(entry.object)))
}

/// The stored object with new managers, if an apply in another version changes nothing else: it is
/// not converted, since that version may not represent all of it.
fn untouched(
    write: &Write,
    object: &Object,
    old: &Object,
    entry: &Entry<Stored>,
) -> Option<Object> {
    let applied = write.tracked && write.resource.storage.is_some();
    if !applied || !meta::differ_in_managers_alone(object, old) {
        return None;
    }
    let mut stored = entry.object.parse();
    let managers = meta::metadata(object).and_then(|metadata| metadata.get("managedFields"));
    let managers = managers.cloned().unwrap_or_default();
    meta::set(&mut stored, "managedFields", managers);
    Some(stored)
}

/// Checks the client's uid precondition.
fn check_uid(write: &Write, wanted: Option<&str>, old: &Object) -> Result<(), Status> {
    let (group, plural) = (&write.resource.group, &write.resource.plural);
    let uid = meta::text(old, "uid");
    match wanted.filter(|wanted| !wanted.is_empty() && *wanted != uid) {
        None => Ok(()),
        Some(wanted) => {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}",
                upstream_key(write)
            );
            Err(Status::conflict(group, plural, &write.name, &why))
        }
    }
}

/// Upstream's storage key, as its error messages show it.
fn upstream_key(write: &Write) -> String {
    let resource = &write.resource;
    let prefix = match resource.kind.server_side().upstream_key {
        "" if resource.custom => format!("{}/{}", resource.group, resource.plural),
        "" => resource.plural.clone(),
        key => key.to_owned(),
    };
    let namespace = match write.namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    };
    // A dry run does not reach upstream's storage, so its key has no root.
    let root = if write.dry_run { "" } else { "/registry" };
    format!("{root}/{prefix}/{namespace}{}", write.name)
}

/// Checks the client's resourceVersion precondition.
fn check_revision(write: &Write, object: &Object, old: &Object) -> Result<(), Status> {
    let (group, plural) = (&write.resource.group, &write.resource.plural);
    let revision = meta::revision(object)?;
    if revision == 0 {
        if write.resource.kind.allows_unconditional_update() {
            return Ok(());
        }
        let path = field::Path::new("metadata.resourceVersion");
        let error = field::Error::invalid(&path, 0, "must be specified for an update");
        return Err(Status::invalid(group, plural, &write.name, &[error]));
    }
    if revision != meta::revision(old)? {
        return Err(write.modified(&write.name));
    }
    Ok(())
}

fn prepare(write: &Write, object: &mut Object, old: &Object, now: &str) -> Result<(), Status> {
    write.ensure_namespace_matches(object)?;
    let kind = &write.resource.kind;
    let generation = meta::metadata(old)
        .and_then(|metadata| metadata.get("generation"))
        .cloned();
    meta::set(object, "generation", generation.unwrap_or(Value::Null));
    let context = Context {
        now,
        user: &write.user.name,
    };
    write.close_gates(object);
    if !write.internal {
        kind.prepare_update(object, old, write.subresource(), &context);
    }
    meta::keep_immutable(object, old);
    if kind.has_generation()
        && !write.internal
        && write.subresource != "status"
        && (spec_differs(write, object, old)
            || (kind.counts_annotations() && meta::annotations_differ(object, old)))
    {
        let generation = meta::number(old, "generation").unwrap_or(0) + 1;
        meta::set(object, "generation", generation);
    }
    Ok(())
}

/// Whether the generation is incremented: values that are equal in Go are no change.
fn spec_differs(write: &Write, object: &Object, old: &Object) -> bool {
    meta::spec_differs(object, old)
        && write.resource.schema.is_none_or(|schema| {
            let counted = |field: &&Field| meta::is_counted(field.name);
            schema.fields.iter().filter(counted).any(|field| {
                let (new, was) = (object.get(field.name), old.get(field.name));
                let value = |value: Option<&Value>| value.cloned().unwrap_or_default();
                !kinds::equal_fields(field, &value(new), &value(was))
            })
        })
}

fn validate(
    write: &Write,
    object: &Object,
    old: &Object,
    mut errors: field::Errors,
) -> Result<(), Status> {
    if write.internal {
        return Ok(());
    }
    let kind = &*write.resource.kind;
    errors.extend(kinds::metadata::validate_update(
        kind,
        object,
        old,
        write.subresource(),
    ));
    let (wrong, warnings) = kind.check_update(object, old, write.subresource());
    errors.extend(wrong);
    for warning in warnings {
        write.effects.warn(warning);
    }
    if errors.is_empty() {
        errors = hooks::validate(write, object, Some(old));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(write.invalid(meta::text(object, "name"), &errors))
}
