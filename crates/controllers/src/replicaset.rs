//! ReplicaSet: maintains the desired number of pods, adopted or created.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};

use reconcile::Selector;

use crate::{
    replicas::{self, DesiredReplicas},
    shared::Shared,
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "replicaset";

impl replicas::Owner for ReplicaSet {
    const ACCOUNT: &'static str = "replicaset-controller";
    const COMPONENT: &'static str = "replicaset-controller";

    const COUNTS_TERMINATING: bool = true;

    fn wish(&self) -> DesiredReplicas<'_> {
        let spec = self.spec.as_ref();
        DesiredReplicas {
            replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
            min_ready_seconds: spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
            selector: Selector::from_label_selector(spec.map(|spec| &spec.selector)),
            template: spec.and_then(|spec| spec.template.as_ref()),
        }
    }

    fn status(&self) -> Option<ReplicaSetStatus> {
        self.status.clone()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        Self {
            status: Some(status),
            ..self.clone()
        }
    }
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    replicas::start::<ReplicaSet>(shared);
}
