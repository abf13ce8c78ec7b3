//! Create: prepare the metadata, default, admit, validate, commit.

use std::sync::Arc;

use kinds::Context;
use machinery::{Object, Status, field::Errors};
use store::{Freshness, Precondition, Revision};

use super::{Conflict, Write, Written, owners};
use crate::{Stored, admission::Operation, device_claims, failure, hooks, meta, policy_parameters};

/// How many generated names are tried.
const MAX_GENERATED_NAMES: usize = 8;

/// Creates a decoded object. `again` decodes it once more, should the first attempt end in a conflict: that is
/// rare, and a copy of every object is not.
pub(crate) async fn create(
    write: &Write,
    object: Object,
    again: impl Fn() -> Result<Object, Status> + Send,
) -> Result<Written, Status> {
    let revision = meta::revision(&object).unwrap_or(0);
    let mut first = Some(object);
    let (mut retry, mut taken) = (write.conflict_retry(), 0);
    loop {
        let mut object = match first.take() {
            Some(object) => object,
            None => again()?,
        };
        write.ensure_namespace_matches(&mut object)?;
        let Collision { name, conflict } = match attempt(write, object, revision).await? {
            Ok(written) => return Ok(written),
            Err(collision) => collision,
        };
        if conflict.0 == write.resource.key(&write.namespace, &name.text) {
            taken += 1;
            if !name.is_generated || taken == MAX_GENERATED_NAMES {
                refuse_taken(write, &name.text, name.is_prefixed).await?;
            }
        }
        retry.wait(conflict).await?;
    }
}

/// The name of a new object.
struct Name {
    text: String,
    is_generated: bool,
    /// Whether the object has a generateName.
    is_prefixed: bool,
}

impl Name {
    fn read(object: &Object, is_generated: bool) -> Self {
        Self {
            text: meta::text(object, "name").to_owned(),
            is_generated,
            is_prefixed: !meta::text(object, "generateName").is_empty(),
        }
    }
}

/// A conflict on the object's own key, or on another key of the transaction.
struct Collision {
    name: Name,
    conflict: Conflict,
}

/// One attempt.
async fn attempt(
    write: &Write,
    mut object: Object,
    revision: Revision,
) -> Result<Result<Written, Collision>, Status> {
    let kind = &write.resource.kind;
    let now = write.path.clock.now();
    meta::reset_for_create(&mut object);
    kind.default(&mut object);
    let created = now;
    let now = meta::time(now);
    kind.default_at(&mut object, &now);
    let stage = owners::Stage::Request;
    owners::without_duplicates(&mut object, stage, &write.effects);
    let owned = write.track_new(&mut object).await?;
    reject_if_terminating(write, &object)?;
    write
        .admit_mutating(Operation::Create, &mut object, None)
        .await?;
    // Mutating admission does not see a generated name, and may set one.
    let is_generated = meta::generate_name(&mut object, &*write.path.name_suffixes);
    meta::identify(&mut object, created);
    // Admission must not move it to another namespace.
    write.ensure_namespace_matches(&mut object)?;
    let stage = owners::Stage::AfterAdmission;
    owners::without_duplicates(&mut object, stage, &write.effects);
    let context = Context {
        now: &now,
        user: &write.user.name,
    };
    if kind.has_generation() {
        meta::set(&mut object, "generation", 1);
    }
    write.close_gates(&mut object);
    kind.prepare_create(&mut object, &context);
    let mut ops = hooks::before_create(write, &mut object).await?;
    let refused = device_claims::authorize(write, &object, None).await;
    validate(write, &object, refused)?;
    policy_parameters::authorize(write, &object, None).await?;
    warn(write, &object);
    let name = Name::read(&object, is_generated);
    write.authorize_create(&name.text).await?;
    write
        .admit_validating(Operation::Create, Some(&object), None)
        .await?;
    ops.extend(write.effects.take_ops());
    let draft = write
        .resource
        .draft_new(&mut object, owned.as_deref())
        .await?;
    let warnings = write.effects.take_warnings();
    if write.dry_run {
        if existing_is_deleting(write, &name.text).await?.is_some() {
            let conflict = Conflict(write.resource.key(&write.namespace, &name.text));
            return Ok(Err(Collision { name, conflict }));
        }
        // A dry run answers before the check that forbids a resourceVersion on create.
        return Ok(Ok(Written {
            object: Arc::new(Stored::stamp(draft, revision)),
            created: true,
            warnings,
        }));
    }
    if revision != 0 {
        let why = "resourceVersion should not be set on objects to be created";
        return Err(Status::unknown(why));
    }
    let put = write
        .put(&name.text, draft, Precondition::Absent, ops)
        .await?;
    Ok(match put {
        Ok(entry) => Ok(Written {
            object: entry.object,
            created: true,
            warnings,
        }),
        Err(conflict) => Err(Collision { name, conflict }),
    })
}

/// Sends the warnings about a new object.
fn warn(write: &Write, object: &Object) {
    for warning in write.resource.kind.warnings(object, None) {
        write.effects.warn(warning);
    }
}

/// Rejects new objects of a definition that is being deleted: its deletion would never complete.
fn reject_if_terminating(write: &Write, object: &Object) -> Result<(), Status> {
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

/// Whether an object of this name exists, and is being deleted. One that cannot be read exists.
async fn existing_is_deleting(write: &Write, name: &str) -> Result<Option<bool>, Status> {
    let key = write.resource.key(&write.namespace, name);
    match write.path.store.get(&key, Freshness::Newest).await {
        Ok((_, entry)) => Ok(entry.map(|entry| meta::is_deleting(&entry.object.parse()))),
        Err(store::Error::Unreadable(_)) => Ok(Some(false)),
        Err(error) => Err(failure::of_store(error)),
    }
}

/// 409 if an object of this name exists. With generateName the message says that no name could be
/// generated, even if a name was given too.
async fn refuse_taken(write: &Write, name: &str, prefixed: bool) -> Result<(), Status> {
    let Some(is_deleting) = existing_is_deleting(write, name).await? else {
        return Ok(());
    };
    let (group, plural) = (&write.resource.group, &write.resource.plural);
    let mut status = match prefixed {
        true => Status::generate_name_conflict(group, plural, name),
        false => Status::already_exists(group, plural, name),
    };
    if is_deleting {
        status.message = format!("object is being deleted: {}", status.message);
    }
    Err(status)
}
