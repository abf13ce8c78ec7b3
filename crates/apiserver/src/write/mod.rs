//! Writes: from a decoded object to a committed one. Every write runs to completion: a client that
//! disconnects loses only its response.

mod admission_chain;
mod conflict_retry;
mod create;
mod delete;
mod fence;
pub(crate) mod owners;
mod path;
mod supervised;
mod update;

use std::{sync::Arc, time::Instant};

use machinery::{
    Object, Status,
    apply::{self, scale},
    field, gates,
};
use store::{Action, Durability, Entry, Op, Precondition, Revision};

use crate::{
    Draft, Resource, Stored, User,
    admission::{self, Attributes, Effects, Operation, Peer, RequestOptions},
    failure, handlers, meta,
};
use auth::authz::{self, Decision, forbidden};

pub(crate) use admission::{DeleteOptions, Preconditions};
pub(crate) use admission_chain::AdmissionChain;
pub(crate) use conflict_retry::KeyQueues;
use conflict_retry::{Conflict, ConflictRetry};
pub(crate) use create::create;
pub(crate) use delete::{Deleted, check_options, delete, orphan_warning, preconditions_of};
pub use fence::Fence;
pub(crate) use path::WritePath;
pub(crate) use registry::Versions;
use registry::store_metrics::Operation as StoreOperation;
pub(crate) use update::{ObjectChange, update};

/// One write: user, object, options.
pub(crate) struct Write {
    pub(crate) path: Arc<WritePath>,
    pub(crate) user: Arc<User>,
    pub(crate) peer: Option<Peer>,
    /// A precondition of every commit, if the caller is a leader.
    pub(crate) fence: Option<Arc<Fence>>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: String,
    /// Empty for creates.
    pub(crate) name: String,
    pub(crate) subresource: String,
    /// The authorized verb.
    pub(crate) verb: &'static str,
    pub(crate) dry_run: bool,
    pub(crate) field_manager: String,
    /// Whether managedFields are already final, as after an apply, or are not to be updated.
    pub(crate) tracked: bool,
    /// Whether the server itself writes, beyond the kind's restrictions on updates by clients.
    pub(crate) internal: bool,
    /// Whether admission is done already, or skipped.
    pub(crate) admitted: bool,
    pub(crate) options: RequestOptions,
    pub(crate) effects: Effects,
}

/// A write's result.
pub(crate) struct Written {
    pub(crate) object: Arc<Stored>,
    pub(crate) created: bool,
    pub(crate) warnings: Vec<String>,
}

impl Write {
    /// The attempts of this write.
    fn conflict_retry(&self) -> ConflictRetry<'_> {
        ConflictRetry::new(&self.path.key_queues, self.path.deadline)
    }

    /// The subresource as kinds see it.
    pub(crate) fn subresource(&self) -> Option<&str> {
        (!self.subresource.is_empty()).then_some(&self.subresource)
    }

    pub(crate) fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, name)
    }

    pub(crate) fn modified(&self, name: &str) -> Status {
        Status::modified(&self.resource.group, &self.resource.plural, name)
    }

    pub(crate) fn invalid(&self, name: &str, errors: &[field::Error]) -> Status {
        // Objects are validated in their storage version, and errors name its group.
        let kept = self.resource.storage.as_ref().unwrap_or(&self.resource);
        Status::invalid(&kept.group, &self.resource.kind.names().kind, name, errors)
    }

    /// Sets the namespace of the request; an object with another namespace is refused.
    pub(crate) fn ensure_namespace_matches(&self, object: &mut Object) -> Result<(), Status> {
        let namespaced = self.resource.namespaced();
        let namespace = if namespaced { &self.namespace } else { "" };
        meta::ensure_namespace_matches(object, namespace)
    }

    /// Rejects an object whose name differs from the request's.
    pub(crate) fn check_name(&self, object: &Object) -> Result<(), Status> {
        meta::check_name(object, &self.name)
    }

    /// PUT and apply that find no object create it, and require the verb `create` as well. Checked
    /// after validation, as upstream does.
    async fn authorize_create(&self, name: &str) -> Result<(), Status> {
        if self.verb == "create" || self.internal {
            return Ok(());
        }
        let attributes = authz::Attributes {
            user: &self.user,
            verb: "create",
            is_resource: true,
            group: &self.resource.group,
            version: &self.resource.version,
            resource: &self.resource.plural,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        match authz::decide(&self.path.authorizers, &attributes).await {
            Decision::Allow => Ok(()),
            Decision::Deny(reason) | Decision::NoOpinion(reason) => {
                Err(forbidden(&attributes, &reason))
            }
        }
    }

    /// The admission attributes.
    fn attributes<'a>(
        &'a self,
        operation: Operation,
        name: &'a str,
        old: Option<&'a Object>,
    ) -> Attributes<'a> {
        let (api_version, kind) = match self.is_scale() {
            true => (scale::API_VERSION, "Scale"),
            false => (
                self.resource.api_version.as_str(),
                self.resource.kind.names().kind.as_str(),
            ),
        };
        Attributes {
            user: &self.user,
            peer: self.peer,
            operation,
            group: &self.resource.group,
            version: &self.resource.version,
            api_version,
            kind,
            resource: &self.resource.plural,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name,
            generate_name: "",
            dry_run: self.dry_run,
            options: &self.options,
            old,
            reader: &self.path.reader,
            effects: &self.effects,
        }
    }

    /// Whether admission sees the object's Scale instead of the object.
    fn is_scale(&self) -> bool {
        self.subresource == "scale"
    }

    /// Admits a body that is not stored itself, such as a binding. Its operation is create, on a
    /// subresource of the object that the write names.
    pub(crate) async fn admit_part(
        &self,
        api_version: &str,
        kind: &str,
        body: &mut Object,
    ) -> Result<(), Status> {
        self.mutate_part(api_version, kind, body).await?;
        self.validate_part(api_version, kind, body).await
    }

    /// The first half of [`Write::admit_part`]: the body takes effect as plugins changed it.
    pub(crate) async fn mutate_part(
        &self,
        api_version: &str,
        kind: &str,
        body: &mut Object,
    ) -> Result<(), Status> {
        let chain = &self.path.admission;
        let attributes = self.part_attributes(api_version, kind);
        chain.mutate(&attributes, body).await
    }

    /// The second half of [`Write::admit_part`], after the body is complete.
    pub(crate) async fn validate_part(
        &self,
        api_version: &str,
        kind: &str,
        body: &Object,
    ) -> Result<(), Status> {
        let chain = &self.path.admission;
        let attributes = self.part_attributes(api_version, kind);
        chain.validate(&attributes, Some(body)).await
    }

    fn part_attributes<'a>(&'a self, api_version: &'a str, kind: &'a str) -> Attributes<'a> {
        Attributes {
            api_version,
            kind,
            ..self.attributes(Operation::Create, &self.name, None)
        }
    }

    /// The same for a binding posted to `bindings`, which is a resource of its own.
    pub(crate) async fn admit_binding(&self, body: &mut Object) -> Result<(), Status> {
        let attributes = Attributes {
            resource: "bindings",
            subresource: "",
            ..self.part_attributes("v1", "Binding")
        };
        let chain = &self.path.admission;
        chain.mutate(&attributes, body).await?;
        chain.validate(&attributes, Some(body)).await
    }

    async fn admit_mutating(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if self.admitted {
            return Ok(());
        }
        let text = |key: &str| meta::text(object, key).to_owned();
        let (name, generate_name) = (text("name"), text("generateName"));
        let chain = &self.path.admission;
        if self.is_scale() {
            let old = old.map(|old| handlers::scale_for_admission(&self.resource, old));
            let old = old.transpose()?;
            let mut scale = handlers::scale_for_admission(&self.resource, object)?;
            let before = scale.clone();
            let attributes = self.attributes(operation, &name, old.as_ref());
            chain.mutate(&attributes, &mut scale).await?;
            if scale != before {
                handlers::set_admitted_replicas(&self.resource, object, &scale)?;
            }
            return Ok(());
        }
        let attributes = Attributes {
            generate_name: &generate_name,
            ..self.attributes(operation, &name, old)
        };
        chain.mutate(&attributes, object).await
    }

    async fn admit_validating(
        &self,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if self.admitted {
            return Ok(());
        }
        let name = object
            .or(old)
            .map(|object| meta::text(object, "name"))
            .unwrap_or_default();
        let chain = &self.path.admission;
        if self.is_scale() {
            let scale = |object: Option<&Object>| {
                let scale =
                    object.map(|object| handlers::scale_for_admission(&self.resource, object));
                scale.transpose()
            };
            let (object, old) = (scale(object)?, scale(old)?);
            let attributes = self.attributes(operation, name, old.as_ref());
            return chain.validate(&attributes, object.as_ref()).await;
        }
        let attributes = self.attributes(operation, name, old);
        chain.validate(&attributes, object).await
    }

    /// Mutating and validating admission of a delete.
    async fn admit_delete(&self, old: &Object) -> Result<(), Status> {
        if self.admitted {
            return Ok(());
        }
        // The objects of a deletecollection are admitted without their names, as upstream.
        let is_collection = self.verb == "deletecollection";
        let name = if is_collection { "" } else { &*self.name };
        let attributes = self.attributes(Operation::Delete, name, Some(old));
        let chain = &self.path.admission;
        chain.mutate_delete(&attributes).await?;
        chain.validate(&attributes, None).await
    }

    /// Updates managedFields for this write.
    async fn track(&self, live: Option<&Object>, object: &mut Object) -> Result<(), Status> {
        if self.tracked {
            return Ok(());
        }
        let now = meta::time(self.path.clock.now());
        let versions = self.versions();
        if !versions.asks() {
            apply::track(live, object, &self.writer(&versions, &now));
            return Ok(());
        }
        loop {
            let mut tracked = object.clone();
            apply::track(live, &mut tracked, &self.writer(&versions, &now));
            if !versions.convert_pending().await? {
                *object = tracked;
                return Ok(());
            }
        }
    }

    /// As [`Write::track`] for a new object. Returns the creator's field set, unless it was written
    /// into the object.
    async fn track_new(&self, object: &mut Object) -> Result<Option<Vec<u8>>, Status> {
        if self.tracked || self.resource.kind.changes_managers() {
            self.track(None, object).await?;
            return Ok(None);
        }
        let now = meta::time(self.path.clock.now());
        let versions = self.versions();
        Ok(apply::track_new(object, &self.writer(&versions, &now)))
    }

    /// The versions of the resource, for conversion.
    pub(crate) fn versions(&self) -> Versions {
        Versions::new(&self.resource, self.path.registry.kept_table())
    }

    /// The manager of this write, for managedFields.
    pub(crate) fn writer<'a>(
        &'a self,
        versions: &'a dyn apply::Versions,
        now: &'a str,
    ) -> apply::Writer<'a> {
        apply::Writer {
            manager: &self.field_manager,
            api_version: &self.resource.api_version,
            subresource: &self.subresource,
            now,
            versions,
            reset: self.resource.kind.resets(self.subresource()),
        }
    }

    /// Drops fields behind disabled feature gates. Their manager still owns them in managedFields.
    fn close_gates(&self, object: &mut Object) {
        if let Some(schema) = self.resource.schema {
            gates::close(schema, object);
        }
    }

    /// The object as it is stored: without selfLink, which only the answer to a dry run keeps.
    pub(crate) async fn draft(&self, object: &mut Object) -> Result<Draft, Status> {
        if !self.dry_run {
            meta::of_mut(object).shift_remove("selfLink");
        }
        self.resource.draft(object).await
    }

    /// An object that already is in its storage version, ready to commit.
    async fn draft_stored(&self, object: &mut Object) -> Result<Draft, Status> {
        let stored = self.resource.storage.as_ref().unwrap_or(&self.resource);
        stored.draft(object).await
    }

    /// Commits a draft, with the additional operations of the transaction.
    async fn put(
        &self,
        name: &str,
        draft: Draft,
        precondition: Precondition,
        mut ops: Vec<Op<Draft>>,
    ) -> Result<Result<Entry<Stored>, Conflict>, Status> {
        let expires_in = self.resource.kind.lifetime();
        let key = self.resource.key(&self.namespace, name);
        let operation = match precondition {
            Precondition::Absent => StoreOperation::Create,
            _ => StoreOperation::Update,
        };
        let action = Action::Put { draft, expires_in };
        ops.insert(
            0,
            Op {
                key,
                precondition,
                action,
            },
        );
        let durability = match self.resource.kind.needs_sync(&self.namespace) {
            true => Durability::Synced,
            false => Durability::Relaxed,
        };
        let committed = match self.commit(ops, durability, operation).await {
            Ok(committed) => committed,
            Err(error) => return self.conflict(error).map(Err),
        };
        let entry = committed.entries.into_iter().next().flatten();
        entry.map(Ok).ok_or_else(nothing_came_back)
    }

    /// The conflict of a commit, unless it failed for another reason.
    fn conflict(&self, error: store::Error) -> Result<Conflict, Status> {
        match (error, &self.fence) {
            (store::Error::Conflict { key, .. }, Some(fence)) if fence.is_at(&key) => {
                Err(fence.leader_replaced())
            }
            (store::Error::Conflict { key, .. }, _) => Ok(Conflict(key)),
            (error, _) => Err(failure::of_store(error)),
        }
    }

    async fn commit(
        &self,
        mut ops: Vec<Op<Draft>>,
        durability: Durability,
        operation: StoreOperation,
    ) -> Result<store::Committed<Stored>, store::Error> {
        if let Some(fence) = &self.fence {
            fence.add_precondition(&mut ops);
        }
        let begun = Instant::now();
        let committed = self.path.store.commit(ops, durability).await;
        let failed =
            matches!(&committed, Err(error) if !matches!(error, store::Error::Conflict { .. }));
        let (all, labels) = (&self.path.metrics.storage, &self.resource.labels);
        let stores = &self.resource.stores;
        stores.count(all, labels, operation, begun, failed);
        committed
    }

    /// Removes the object if it still has this revision.
    async fn remove(
        &self,
        name: &str,
        revision: Revision,
        mut ops: Vec<Op<Draft>>,
    ) -> Result<Result<(Revision, Arc<Stored>), Conflict>, Status> {
        let key = self.resource.key(&self.namespace, name);
        let precondition = Precondition::Revision(revision);
        ops.insert(
            0,
            Op {
                key,
                precondition,
                action: Action::Delete,
            },
        );
        let committed = match self
            .commit(ops, Durability::Synced, StoreOperation::Delete)
            .await
        {
            Ok(committed) => committed,
            Err(error) => return self.conflict(error).map(Err),
        };
        let revision = committed.revision;
        let entry = committed.entries.into_iter().next().flatten();
        let entry = entry.ok_or_else(nothing_came_back)?;
        Ok(Ok((revision, entry.object)))
    }
}

/// The store returns a result for every operation of a transaction, so this does not occur.
fn nothing_came_back() -> Status {
    Status::internal("the store committed a write and returned no result")
}
