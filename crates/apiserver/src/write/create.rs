//! Create: settle the metadata, admit, prepare, validate, commit.

use std::sync::Arc;

use kinds::Context;
use machinery::{Object, Status, field::Errors};
use store::{Freshness, Precondition};

use super::{Lost, Write, Written, owners};
use crate::{Stored, admission::Operation, device_claims, failure, hooks, meta};

/// How many generated names are tried.
const NAMES: usize = 8;

/// Creates a decoded object. `again` decodes it once more, should the first try lose a race: that is
/// rare, and a copy of every object is not.
pub(crate) async fn create(
    write: &Write,
    object: Object,
    again: impl Fn() -> Result<Object, Status> + Send,
) -> Result<Written, Status> {
    // A rehearsal does not come as far as to see it.
    let has_revision = meta::revision(&object).is_ok_and(|revision| revision != 0);
    let mut first = Some(object);
    let (mut race, mut taken) = (write.race(), 0);
    loop {
        let mut object = match first.take() {
            Some(object) => object,
            None => again()?,
        };
        write.settle_place(&mut object)?;
        let generated = meta::generate_name(&mut object);
        let (name, lost) = match attempt(write, object, has_revision).await? {
            Ok(written) => return Ok(written),
            Err(lost) => lost,
        };
        let is_name = lost.0 == write.resource.key(&write.namespace, &name);
        match (is_name, generated) {
            (true, true) => taken += 1,
            (true, false) => refuse_taken(write, &name).await?,
            (false, _) => {}
        }
        if taken == NAMES {
            let (group, plural) = (&write.resource.group, &write.resource.plural);
            return Err(Status::generate_name_conflict(group, plural, &name));
        }
        race.lost(lost).await?;
    }
}

/// One try. A race is lost for the object's name, or for another object of the transaction.
async fn attempt(
    write: &Write,
    mut object: Object,
    has_revision: bool,
) -> Result<Result<Written, (String, Lost)>, Status> {
    let kind = &write.resource.kind;
    let now = write.core.config.clock.now();
    meta::begin(&mut object, now);
    kind.default(&mut object);
    let now = meta::time(now);
    kind.default_at(&mut object, &now);
    let stage = owners::Stage::Request;
    owners::without_duplicates(&mut object, stage, &write.effects);
    write.track(None, &mut object);
    refuse_leaving(write, &object)?;
    write
        .admit_mutating(Operation::Create, &mut object, None)
        .await?;
    let stage = owners::Stage::AfterAdmission;
    owners::without_duplicates(&mut object, stage, &write.effects);
    let context = Context {
        now: &now,
        user: &write.user.name,
    };
    if kind.has_generation() {
        meta::set(&mut object, "generation", 1);
    }
    kind.prepare_create(&mut object, &context);
    let mut ops = hooks::before_create(write, &mut object).await?;
    let refused = device_claims::authorize(write, &object, None).await;
    validate(write, &object, refused)?;
    for warning in kind.warnings(&object, None) {
        write.effects.warn(warning);
    }
    write
        .admit_validating(Operation::Create, Some(&object), None)
        .await?;
    ops.extend(write.effects.take_ops());
    let name = meta::text(&object, "name").to_owned();
    let draft = write.draft(&mut object)?;
    let warnings = write.effects.take_warnings();
    if write.dry_run {
        refuse_taken(write, &name).await?;
        return Ok(Ok(Written {
            object: Arc::new(Stored::stamp(draft, 0)),
            created: true,
            warnings,
        }));
    }
    if has_revision {
        let why = "resourceVersion should not be set on objects to be created";
        return Err(Status::unknown(why));
    }
    let put = write.put(&name, draft, Precondition::Absent, ops).await?;
    Ok(match put {
        Ok(entry) => Ok(Written {
            object: entry.object,
            created: true,
            warnings,
        }),
        Err(lost) => Err((name, lost)),
    })
}

/// Nothing is made of a definition that is being deleted: it would never be empty.
fn refuse_leaving(write: &Write, object: &Object) -> Result<(), Status> {
    let definition = write.resource.definition.as_ref();
    if definition.is_none_or(|definition| !definition.leaving) {
        return Ok(());
    }
    Err(Status::forbidden(
        &write.resource.group,
        &write.resource.plural,
        meta::text(object, "name"),
        "create not allowed while custom resource definition is terminating",
    ))
}

fn validate(write: &Write, object: &Object, mut errors: Errors) -> Result<(), Status> {
    let kind = &*write.resource.kind;
    errors.extend(kinds::metadata::validate_create(kind, object));
    errors.extend(kind.validate_create(object));
    if errors.is_empty() {
        errors = hooks::validate(write, object, None);
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(write.invalid(meta::text(object, "name"), &errors))
}

/// 409 when an object of this name exists.
async fn refuse_taken(write: &Write, name: &str) -> Result<(), Status> {
    let key = write.resource.key(&write.namespace, name);
    let read = write.core.store.get(&key, Freshness::Newest).await;
    let (_, entry) = read.map_err(failure::of_store)?;
    let Some(entry) = entry else { return Ok(()) };
    let mut status = Status::already_exists(&write.resource.group, &write.resource.plural, name);
    if meta::is_deleting(&entry.object.parse()) {
        status.message = format!("object is being deleted: {}", status.message);
    }
    Err(status)
}
