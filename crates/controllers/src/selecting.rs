//! Kinds whose objects select others by labels, such as ReplicaSets their pods. An index finds those that can select an
//! object, so that a new pod is not compared with all workloads of its namespace.

use std::{collections::BTreeMap, sync::Arc};

use client::{Informer, informer};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::ReplicationController,
    policy::v1::PodDisruptionBudget,
};
use kube::Resource;
use reconcile::{Key, Selector};

use crate::shared::{SELECTS, selected_key};

/// A kind whose objects select others of their namespace.
pub(crate) trait Selecting: informer::Object + Resource<DynamicType = ()> {
    /// What it selects.
    fn selector(&self) -> Selector;
}

macro_rules! selecting {
    ($($kind:ty: $spec:ident => $selector:expr),* $(,)?) => {
        $(impl Selecting for $kind {
            fn selector(&self) -> Selector {
                self.spec.as_ref().map_or_else(Selector::nothing, |$spec| $selector)
            }
        })*
    };
}

selecting! {
    ReplicaSet: spec => Selector::from_label_selector(Some(&spec.selector)),
    Deployment: spec => Selector::from_label_selector(Some(&spec.selector)),
    DaemonSet: spec => Selector::from_label_selector(Some(&spec.selector)),
    StatefulSet: spec => Selector::from_label_selector(Some(&spec.selector)),
    Job: spec => Selector::from_label_selector(spec.selector.as_ref()),
    PodDisruptionBudget: spec => Selector::from_label_selector(spec.selector.as_ref()),
    ReplicationController: spec => {
        let labels = spec.selector.as_ref().filter(|labels| !labels.is_empty());
        labels.map_or_else(Selector::nothing, Selector::labels)
    },
}

/// Adds the index that [`selecting`] reads.
pub(crate) fn indexed<K: Selecting>(builder: informer::Builder<K>) -> informer::Builder<K> {
    builder.index(SELECTS, |object: &K| {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        let selector = object.selector();
        vec![match selector.required_label() {
            Some((label, value)) => selected_key(namespace, label, value),
            None => any_label_key(namespace),
        }]
    })
}

/// The index key of a namespace's objects whose selectors require no certain label.
fn any_label_key(namespace: &str) -> String {
    format!("{namespace} ")
}

/// The objects of a namespace that select an object with these labels.
pub(crate) fn selecting<K: Selecting>(
    informer: &Informer<K>,
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
) -> Vec<Arc<K>> {
    let own = labels.into_iter().flatten();
    let own = own.map(|(label, value)| selected_key(namespace, label, value));
    let keys = own.chain([any_label_key(namespace)]);
    keys.flat_map(|key| informer.by_index(SELECTS, &key))
        .filter(|object| object.selector().matches(labels))
        .collect()
}

/// The keys of the objects that select this one.
pub(crate) fn keys_selecting<K: Selecting>(
    informer: &Informer<K>,
    selected: &impl Resource,
) -> Vec<Key> {
    let meta = selected.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let found = selecting(informer, namespace, meta.labels.as_ref());
    found
        .iter()
        .map(|found| Key::from_object(&**found))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shared::Watched;

    #[tokio::test]
    async fn the_objects_whose_selectors_match_are_found_whatever_their_form() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let sets = Watched::indexed(Informer::<ReplicaSet>::builder(client::in_process(refused)));
        let sets = sets.offline();
        let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
        for (namespace, name, selector) in [
            ("a", "web", json!({"matchLabels": {"app": "web"}})),
            (
                "a",
                "both",
                json!({"matchLabels": {"app": "web", "tier": "front"}}),
            ),
            ("a", "other", json!({"matchLabels": {"app": "other"}})),
            ("a", "several", expression("In", &["web", "api"])),
            ("a", "not", expression("NotIn", &["web"])),
            ("b", "web", json!({"matchLabels": {"app": "web"}})),
        ] {
            let set = json!({"metadata": {"namespace": namespace, "name": name, "uid": name},
                "spec": {"selector": selector}});
            sets.upsert(serde_json::from_value(set).unwrap());
        }
        for (namespace, labels, expected) in [
            ("a", vec![("app", "web")], vec!["several", "web"]),
            (
                "a",
                vec![("app", "web"), ("tier", "front")],
                vec!["both", "several", "web"],
            ),
            ("a", vec![("app", "other")], vec!["not", "other"]),
            ("a", vec![], vec!["not"]),
            ("b", vec![("app", "web")], vec!["web"]),
            ("c", vec![("app", "web")], vec![]),
        ] {
            let labels = labels.into_iter();
            let labels: BTreeMap<String, String> = labels
                .map(|(label, value)| (label.into(), value.into()))
                .collect();
            let found = selecting(&sets, namespace, Some(&labels));
            let mut names: Vec<_> = found
                .iter()
                .map(|set| set.metadata.name.as_deref().unwrap())
                .collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{namespace} {labels:?}");
        }
    }
}
