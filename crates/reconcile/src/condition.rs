//! Writes conditions by a strategic merge patch of the status that names each condition by its
//! `type`. Conditions of other writers are never in the patch, so that an outdated cache cannot
//! undo them. The patch has the object's uid as a precondition: for an object that was recreated
//! under the same name the server answers 409.

use std::fmt::Debug;

use client::{Api, FromJson};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{
            DaemonSetCondition, DeploymentCondition, ReplicaSetCondition, StatefulSetCondition,
        },
        batch::v1::JobCondition,
        core::v1::{
            NamespaceCondition, NodeCondition, PersistentVolumeClaimCondition, PodCondition,
            ReplicationControllerCondition,
        },
    },
    apimachinery::pkg::apis::meta::v1::{Condition as MetaCondition, Time},
};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A condition of any kind.
pub trait Condition: Serialize + Clone {
    /// The optional fields. Those that a new condition omits are removed explicitly; a strategic
    /// merge would otherwise keep the old value.
    const OPTIONAL: &'static [&'static str];

    /// The condition's type; unique in its list.
    fn type_(&self) -> &str;

    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;

    /// When the status last changed.
    fn last_transition_time(&self) -> Option<&Time>;

    /// Sets when the status last changed.
    fn set_last_transition_time(&mut self, time: Time);
}

macro_rules! conditions {
    ($($kind:ty: $($optional:literal)*;)*) => {
        $(impl Condition for $kind {
            const OPTIONAL: &'static [&'static str] =
                &["reason", "message", "lastTransitionTime" $(, $optional)*];

            fn type_(&self) -> &str {
                &self.type_
            }

            fn status(&self) -> &str {
                &self.status
            }

            fn last_transition_time(&self) -> Option<&Time> {
                self.last_transition_time.as_ref()
            }

            fn set_last_transition_time(&mut self, time: Time) {
                self.last_transition_time = Some(time);
            }
        })*
    };
}

conditions! {
    PodCondition: "lastProbeTime" "observedGeneration";
    NodeCondition: "lastHeartbeatTime";
    NamespaceCondition: ;
    JobCondition: "lastProbeTime";
    DeploymentCondition: "lastUpdateTime";
    ReplicaSetCondition: ;
    ReplicationControllerCondition: ;
    DaemonSetCondition: ;
    StatefulSetCondition: ;
    PersistentVolumeClaimCondition: "lastProbeTime";
}

impl Condition for MetaCondition {
    const OPTIONAL: &'static [&'static str] = &["observedGeneration"];

    fn type_(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }

    fn last_transition_time(&self) -> Option<&Time> {
        Some(&self.last_transition_time)
    }

    fn set_last_transition_time(&mut self, time: Time) {
        self.last_transition_time = time;
    }
}

/// The condition of this type.
pub fn find<'a, C: Condition + 'a>(
    conditions: impl IntoIterator<Item = &'a C>,
    type_: &str,
) -> Option<&'a C> {
    let mut conditions = conditions.into_iter();
    conditions.find(|condition| condition.type_() == type_)
}

/// `new` with the right transition time: that of the known condition of its type if the status is
/// the same, otherwise `now`. `None` if nothing changes.
pub fn transition<'a, C: Condition + PartialEq + 'a>(
    known: impl IntoIterator<Item = &'a C>,
    mut new: C,
    now: Timestamp,
) -> Option<C> {
    let known = find(known, new.type_());
    let since = known
        .filter(|known| known.status() == new.status())
        .and_then(|known| known.last_transition_time().cloned());
    new.set_last_transition_time(since.unwrap_or(Time(now)));
    (known != Some(&new)).then_some(new)
}

/// A patch of an object's status that changes only the conditions and fields it names.
#[derive(Debug, Clone)]
pub struct StatusPatch {
    uid: Option<String>,
    resource_version: Option<String>,
    conditions: Vec<Value>,
    fields: Map<String, Value>,
}

impl StatusPatch {
    /// A patch of this object, with its uid as a precondition.
    pub fn new<K: Resource>(object: &K) -> Self {
        Self {
            uid: object.meta().uid.clone(),
            resource_version: None,
            conditions: Vec::new(),
            fields: Map::new(),
        }
    }

    /// Adds the object's resourceVersion as a precondition.
    pub fn if_unchanged<K: Resource>(mut self, object: &K) -> Self {
        self.resource_version
            .clone_from(&object.meta().resource_version);
        self
    }

    /// Sets one condition; omitted fields are removed.
    pub fn condition<C: Condition>(mut self, condition: &C) -> Self {
        let mut value = json!(condition);
        if let Value::Object(map) = &mut value {
            for field in C::OPTIONAL {
                map.entry(*field).or_insert(Value::Null);
            }
        }
        self.conditions.push(value);
        self
    }

    /// Sets several conditions.
    pub fn conditions<'a, C: Condition + 'a>(
        self,
        conditions: impl IntoIterator<Item = &'a C>,
    ) -> Self {
        conditions.into_iter().fold(self, Self::condition)
    }

    /// Sets a field of the status, e.g. `phase`; null removes it.
    pub fn field(mut self, name: &str, value: impl Serialize) -> Self {
        self.fields.insert(name.to_owned(), json!(value));
        self
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.fields.is_empty()
    }

    /// The patch document.
    pub fn body(&self) -> Value {
        let mut metadata = Map::new();
        for (name, value) in [
            ("uid", &self.uid),
            ("resourceVersion", &self.resource_version),
        ] {
            if let Some(value) = value {
                metadata.insert(name.to_owned(), json!(value));
            }
        }
        let mut status = self.fields.clone();
        if !self.conditions.is_empty() {
            status.insert("conditions".to_owned(), json!(self.conditions));
        }
        json!({"metadata": metadata, "status": status})
    }

    /// Sends it to the status subresource; returns the updated object.
    pub async fn send<K>(&self, api: &Api<K>, name: &str) -> Result<K, kube::Error>
    where
        K: FromJson,
    {
        let patch = Patch::Strategic(self.body());
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::ObjectMeta;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn condition(status: &str, reason: Option<&str>) -> PodCondition {
        PodCondition {
            type_: "Ready".into(),
            status: status.into(),
            reason: reason.map(Into::into),
            ..Default::default()
        }
    }

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_is_the_same() {
        let first = transition(None, condition("False", Some("A")), at(1)).unwrap();
        assert_eq!(first.last_transition_time, Some(Time(at(1))));
        let known = [first];
        assert!(transition(&known, condition("False", Some("A")), at(2)).is_none());
        let other_reason = transition(&known, condition("False", Some("B")), at(2)).unwrap();
        assert_eq!(other_reason.last_transition_time, Some(Time(at(1))));
        let other_status = transition(&known, condition("True", None), at(2)).unwrap();
        assert_eq!(other_status.last_transition_time, Some(Time(at(2))));
    }

    #[test]
    fn a_patch_names_its_own_conditions_only_and_removes_the_fields_they_leave_out() {
        let pod = Pod {
            metadata: ObjectMeta {
                uid: Some("u".into()),
                resource_version: Some("7".into()),
                ..Default::default()
            },
            ..Default::default()
        };
        let patch = StatusPatch::new(&pod);
        assert!(patch.is_empty());
        let patch = patch
            .condition(&condition("True", None))
            .field("phase", "Failed");
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {
                "phase": "Failed",
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": null, "message": null,
                    "lastTransitionTime": null, "lastProbeTime": null, "observedGeneration": null,
                }],
            },
        });
        assert_eq!(patch.body(), expected);
        assert_eq!(
            patch.if_unchanged(&pod).body()["metadata"]["resourceVersion"],
            "7"
        );
    }
}
