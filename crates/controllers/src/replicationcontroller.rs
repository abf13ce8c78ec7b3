//! ReplicationController: the older form of a ReplicaSet, with a plain map as its selector.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
        core::v1::{
            ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
        },
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use crate::{replicas, shared::Shared};

/// As in the table of controllers.
pub const NAME: &str = "replicationcontroller";

impl replicas::Owner for ReplicationController {
    const ACCOUNT: &'static str = "replication-controller";
    const COMPONENT: &'static str = "replication-controller";

    fn as_replica_set(&self) -> ReplicaSet {
        let spec = self.spec.as_ref().map(|spec| ReplicaSetSpec {
            replicas: spec.replicas,
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector {
                match_labels: spec.selector.clone(),
                match_expressions: None,
            },
            template: spec.template.clone(),
        });
        let status = self.status.as_ref().map(|status| ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.as_ref().map(|conditions| {
                let convert = |condition: &ReplicationControllerCondition| ReplicaSetCondition {
                    type_: condition.type_.clone(),
                    status: condition.status.clone(),
                    reason: condition.reason.clone(),
                    message: condition.message.clone(),
                    last_transition_time: condition.last_transition_time.clone(),
                };
                conditions.iter().map(convert).collect()
            }),
            terminating_replicas: None,
        });
        ReplicaSet {
            metadata: self.metadata.clone(),
            spec,
            status,
        }
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

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    replicas::start::<ReplicationController>(shared);
}
