//! ReplicaSet: as many pods of its template as it says, adopted or created.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};

use crate::{replicas, shared::Shared};

/// As in the table of controllers.
pub const NAME: &str = "replicaset";

impl replicas::Owner for ReplicaSet {
    const ACCOUNT: &'static str = "replicaset-controller";
    const COMPONENT: &'static str = "replicaset-controller";

    fn as_replica_set(&self) -> ReplicaSet {
        self.clone()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        Self {
            status: Some(status),
            ..self.clone()
        }
    }
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    replicas::start::<ReplicaSet>(shared);
}
