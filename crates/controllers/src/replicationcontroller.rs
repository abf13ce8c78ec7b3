//! ReplicationController: the predecessor of ReplicaSet, with a map as its selector.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ReplicaSetCondition, ReplicaSetStatus},
    core::v1::{
        ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
    },
};
use reconcile::Selector;

use crate::{
    replicas::{self, DesiredReplicas},
    shared::Shared,
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "replicationcontroller";

impl replicas::Owner for ReplicationController {
    const ACCOUNT: &'static str = "replication-controller";
    const COMPONENT: &'static str = "replication-controller";

    const COUNTS_TERMINATING: bool = false;

    fn wish(&self) -> DesiredReplicas<'_> {
        let spec = self.spec.as_ref();
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        let selector = selector.filter(|selector| !selector.is_empty());
        DesiredReplicas {
            replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
            min_ready_seconds: spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
            selector: selector.map_or_else(Selector::nothing, Selector::labels),
            template: spec.and_then(|spec| spec.template.as_ref()),
        }
    }

    fn status(&self) -> Option<ReplicaSetStatus> {
        let convert = |condition: &ReplicationControllerCondition| ReplicaSetCondition {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: condition.last_transition_time.clone(),
        };
        self.status.as_ref().map(|status| ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status
                .conditions
                .as_ref()
                .map(|all| all.iter().map(convert).collect()),
            terminating_replicas: None,
        })
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        let convert = |condition: ReplicaSetCondition| ReplicationControllerCondition {
            type_: condition.type_,
            status: condition.status,
            reason: condition.reason,
            message: condition.message,
            last_transition_time: condition.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status
                .conditions
                .map(|all| all.into_iter().map(convert).collect()),
        };
        Self {
            status: Some(status),
            ..self.clone()
        }
    }
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    replicas::start::<ReplicationController>(shared);
}
