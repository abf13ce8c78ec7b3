//! What every write needs: the stored objects, admission, the allocators, and the bounds on conflicts and tasks.

use std::{future::Future, sync::Arc, time::Duration};

use admission::{Effects, RequestOptions};
use auth::authz::Authorizer;
use machinery::Status;
use request::heavy::Slots;
use server_metrics::ServerMetrics;
use service_allocator::Allocator;
use stdx::Clock;
use tokio_util::task::TaskTracker;

use super::{AdmissionChain, Write, conflict_retry::KeyQueues, supervised::Supervised};
use crate::{NameSuffixes, Reader, Registry, Resource, Store, User, user};

/// What all writes share.
pub(crate) struct WritePath {
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reader: Reader,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) admission: Arc<AdmissionChain>,
    /// For the permissions that a write needs beside its own verb.
    pub(crate) authorizers: Arc<[Arc<dyn Authorizer>]>,
    /// Allocates addresses and ports of Services.
    pub(crate) service_allocator: Arc<Allocator>,
    /// The generator of name suffixes for `generateName`.
    pub(crate) name_suffixes: Arc<dyn NameSuffixes>,
    /// How long a write may retry after conflicts.
    pub(crate) deadline: Duration,
    /// The order of conflicting writes.
    pub(crate) key_queues: KeyQueues,
    /// Writes in progress; they end even when their client is gone, and shutdown waits for them.
    pub(crate) tasks: TaskTracker,
    /// Bounds the processor share of heavy requests.
    pub(crate) slots: Slots,
    pub(crate) metrics: Arc<ServerMetrics>,
}

impl WritePath {
    /// Runs a write to completion, also when its request is dropped.
    pub(crate) fn supervise<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Supervised<T> {
        Supervised::new(self.tasks.clone(), self.slots.clone(), Box::pin(write))
    }

    /// A write by the server itself, to be completed by the caller: without admission, because an unreachable webhook
    /// must not keep the server from working.
    pub(crate) fn own_write(
        self: &Arc<Self>,
        resource: Arc<Resource>,
        namespace: &str,
        name: &str,
        verb: &'static str,
    ) -> Write {
        Write {
            path: self.clone(),
            user: Arc::new(User::new("system:apiserver", [user::MASTERS])),
            peer: None,
            fence: None,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
            verb,
            dry_run: false,
            field_manager: "kube-apiserver".to_owned(),
            tracked: false,
            internal: false,
            admitted: true,
            options: RequestOptions::default(),
            effects: Effects::default(),
        }
    }
}
