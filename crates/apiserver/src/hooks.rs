//! Steps of writes that a kind cannot do itself because they concern other objects, the store or the expression
//! language. Each kind says which of them it needs ([`kinds::ServerSide`]).

use kinds::{Expressions, Requester};
use machinery::field::Errors;
use machinery::{Object, Status};
use store::Op;

use service_allocator::ServiceWrite;

use crate::{
    Draft,
    admission::{self, policy},
    definitions, device_selectors, meta,
    write::Write,
};

/// Validation beyond the kind's own; `old` is the stored object.
pub(crate) fn validate(write: &Write, object: &Object, old: Option<&Object>) -> Errors {
    if !write.subresource.is_empty() {
        return Errors::new();
    }
    match write.resource.kind.server_side().expressions {
        Expressions::None => Errors::new(),
        Expressions::CustomResource => check_definition(object, old),
        Expressions::DeviceSelectors(visit) => device_selectors::check(visit, object, old),
        Expressions::MutatingPolicy => policy::check(true, object, old),
        Expressions::ValidatingPolicy => policy::check(false, object, old),
        Expressions::Webhooks => admission::check_webhooks(object, old),
    }
}

fn check_definition(object: &Object, old: Option<&Object>) -> Errors {
    let mut errors = apiextensions::check_rules(object, old);
    // Defaults that were already invalid are kept on update.
    if old.is_none_or(|old| apiextensions::check_defaults(old).is_empty()) {
        errors.extend(apiextensions::check_defaults(object));
    }
    errors
}

/// Whether the write is of an object that addresses and ports are allocated for.
fn allocates_addresses(write: &Write) -> bool {
    write.resource.kind.server_side().allocates_addresses
}

/// Store operations that accompany a create.
pub(crate) async fn before_create(
    write: &Write,
    object: &mut Object,
) -> Result<Vec<Op<Draft>>, Status> {
    if allocates_addresses(write) {
        let allocator = &write.path.service_allocator;
        return allocator.on_create(service_write(write), object).await;
    }
    let user = &write.user;
    let requester = Requester {
        name: &user.name,
        uid: &user.uid,
        groups: &user.groups,
        extra: &user.extra,
    };
    write.resource.kind.record_requester(object, &requester);
    Ok(Vec::new())
}

fn service_write(write: &Write) -> ServiceWrite<'_> {
    ServiceWrite {
        namespace: &write.namespace,
        dry_run: write.dry_run,
    }
}

/// Store operations that accompany an update.
pub(crate) async fn before_update(
    write: &Write,
    object: &mut Object,
    old: &Object,
) -> Result<Vec<Op<Draft>>, Status> {
    if allocates_addresses(write) && write.subresource.is_empty() {
        let allocator = &write.path.service_allocator;
        return allocator.on_update(service_write(write), object, old).await;
    }
    Ok(Vec::new())
}

/// Store operations that accompany a removal.
pub(crate) fn before_remove(write: &Write, object: &Object) -> Vec<Op<Draft>> {
    if allocates_addresses(write) {
        service_allocator::on_remove(object)
    } else {
        Vec::new()
    }
}

/// Marks a definition at its first deletion, whatever the options: it stays until its objects are deleted. Returns
/// false for other objects.
pub(crate) fn mark_definition(write: &Write, object: &mut Object) -> bool {
    let defines = write.resource.kind.server_side().defines_kind;
    if !defines || meta::is_deleting(object) {
        return false;
    }
    definitions::mark(object, &meta::time(write.path.clock.now()));
    true
}

/// Whether an update removes the object: it is terminating, its grace period is over, and no
/// finalizer remains.
pub(crate) fn ends_with(write: &Write, object: &Object, old: &Object) -> bool {
    meta::is_deleting(old)
        && meta::finalizers(object).is_empty()
        && meta::number(old, "deletionGracePeriodSeconds").unwrap_or(0) == 0
        && !write.resource.kind.is_held(object)
}
