//! What single resources need beside their kind because it touches other objects or the store:
//! allocation, and namespaces that stay until they are empty.

use machinery::field::Errors;
use machinery::{Object, Status, Value};
use store::Op;

use service_allocator::ServiceWrite;

use crate::{Draft, Resource, User, admission::policy, definitions, meta, write::Write};

#[inline]
fn is(resource: &Resource, group: &str, plural: &str) -> bool {
    // Resources differ more often than groups.
    resource.plural == plural && resource.group == group
}

/// What is wrong with an object whose kind finds nothing wrong; `old` is what it was.
pub(crate) fn validate(write: &Write, object: &Object, old: Option<&Object>) -> Errors {
    if !write.subresource.is_empty() {
        return Errors::new();
    }
    if write.resource.group == "admissionregistration.k8s.io" {
        return policy::check(&write.resource.plural, object, old);
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
    // Defaults that broke the rules before may go on.
    if old.is_none_or(|old| apiextensions::check_defaults(old).is_empty()) {
        errors.extend(apiextensions::check_defaults(object));
    }
    errors
}

/// Operations that belong to a creation.
pub(crate) async fn before_create(
    write: &Write,
    object: &mut Object,
) -> Result<Vec<Op<Draft>>, Status> {
    if is(&write.resource, "", "services") {
        let allocator = &write.core.service_allocator;
        return allocator.on_create(service_write(write), object).await;
    }
    if is(
        &write.resource,
        "certificates.k8s.io",
        "certificatesigningrequests",
    ) {
        say_who_asks(&write.user, object);
    }
    Ok(Vec::new())
}

fn service_write(write: &Write) -> ServiceWrite<'_> {
    ServiceWrite {
        namespace: &write.namespace,
        dry_run: write.dry_run,
    }
}

/// A request for a certificate carries its author's whole identity, for those who approve it.
fn say_who_asks(user: &User, object: &mut Object) {
    let spec = object
        .entry("spec")
        .or_insert_with(|| Value::Object(Object::new()));
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    spec.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), machinery::json::json!(user.extra));
    }
}

/// Operations that belong to an update.
pub(crate) async fn before_update(
    write: &Write,
    object: &mut Object,
    old: &Object,
) -> Result<Vec<Op<Draft>>, Status> {
    if is(&write.resource, "", "services") && write.subresource.is_empty() {
        let allocator = &write.core.service_allocator;
        return allocator.on_update(service_write(write), object, old).await;
    }
    Ok(Vec::new())
}

/// Operations that belong to a removal.
pub(crate) fn before_remove(write: &Write, object: &Object) -> Vec<Op<Draft>> {
    if is(&write.resource, "", "services") {
        service_allocator::on_remove(object)
    } else {
        Vec::new()
    }
}

/// Whether the first deletion of an object only marks it, whatever was asked for: a definition stays until its
/// objects are gone.
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

/// What else changes when an object is marked for deletion. A namespace has no grace period, not even one of nothing.
pub(crate) fn after_mark(write: &Write, object: &mut Object) {
    if !is(&write.resource, "", "namespaces") {
        return;
    }
    meta::of_mut(object).shift_remove("deletionGracePeriodSeconds");
    let status = object
        .entry("status")
        .or_insert_with(|| Value::Object(Object::new()));
    if let Some(status) = status.as_object_mut() {
        status.insert("phase".to_owned(), "Terminating".into());
    }
}

/// Whether a deleted object stays although its metadata has no finalizers: a namespace that has
/// not been emptied, or hears of its end for the first time.
pub(crate) fn stays(write: &Write, object: &Object) -> bool {
    is(&write.resource, "", "namespaces")
        && (has_spec_finalizers(object) || !meta::is_deleting(object))
}

fn has_spec_finalizers(object: &Object) -> bool {
    let finalizers = object.get("spec").and_then(|spec| spec.get("finalizers"));
    finalizers
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

/// Whether an update ends the object: it was marked, its time is over, and nothing holds it.
pub(crate) fn ends_with(write: &Write, object: &Object, old: &Object) -> bool {
    meta::is_deleting(old)
        && meta::finalizers(object).is_empty()
        && meta::number(old, "deletionGracePeriodSeconds").unwrap_or(0) == 0
        && !stays(write, object)
}
