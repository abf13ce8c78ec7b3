//! Steps of single resources that a kind cannot do because they concern other objects or the store: addresses and
//! ports of Services, CEL rules of definitions and policies, device selectors, deletion of definitions with objects.

use kinds::Requester;
use machinery::field::Errors;
use machinery::{Object, Status};
use store::Op;

use service_allocator::ServiceWrite;

use crate::{
    Draft, Resource,
    admission::{self, policy},
    definitions, device_selectors, meta,
    write::Write,
};

#[inline]
fn is(resource: &Resource, group: &str, plural: &str) -> bool {
    // Compared first: plurals differ more often than groups.
    resource.plural == plural && machinery::text::same(&resource.group, group)
}

/// Validation beyond the kind's own; `old` is the stored object.
pub(crate) fn validate(write: &Write, object: &Object, old: Option<&Object>) -> Errors {
    if !write.subresource.is_empty() {
        return Errors::new();
    }
    if write.resource.group == "admissionregistration.k8s.io" {
        let webhooks = [
            "validatingwebhookconfigurations",
            "mutatingwebhookconfigurations",
        ];
        if webhooks.contains(&write.resource.plural.as_str()) {
            return admission::check_webhooks(object, old);
        }
        return policy::check(&write.resource.plural, object, old);
    }
    if write.resource.group == "resource.k8s.io" {
        return device_selectors::check(&write.resource.plural, object, old);
    }
    let defines = is(
        &write.resource,
        "apiextensions.k8s.io",
        "customresourcedefinitions",
    );
    if !defines {
        return Errors::new();
    }
    let mut errors = apiextensions::check_rules(object, old);
    // Defaults that were already invalid are kept on update.
    if old.is_none_or(|old| apiextensions::check_defaults(old).is_empty()) {
        errors.extend(apiextensions::check_defaults(object));
    }
    errors
}

/// Store operations that accompany a create.
pub(crate) async fn before_create(
    write: &Write,
    object: &mut Object,
) -> Result<Vec<Op<Draft>>, Status> {
    if is(&write.resource, "", "services") {
        let allocator = &write.core.writes.service_allocator;
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
    if is(&write.resource, "", "services") && write.subresource.is_empty() {
        let allocator = &write.core.writes.service_allocator;
        return allocator.on_update(service_write(write), object, old).await;
    }
    Ok(Vec::new())
}

/// Store operations that accompany a removal.
pub(crate) fn before_remove(write: &Write, object: &Object) -> Vec<Op<Draft>> {
    if is(&write.resource, "", "services") {
        service_allocator::on_remove(object)
    } else {
        Vec::new()
    }
}

/// Whether the first deletion of an object only sets its deletionTimestamp, whatever the options: a
/// definition stays until its objects are deleted.
pub(crate) fn marks_itself(write: &Write, object: &mut Object) -> bool {
    let defines = is(
        &write.resource,
        "apiextensions.k8s.io",
        "customresourcedefinitions",
    );
    if !defines || meta::is_deleting(object) {
        return false;
    }
    definitions::mark(object, &meta::time(write.core.config.clock.now()));
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
