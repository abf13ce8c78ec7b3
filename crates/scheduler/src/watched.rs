//! A pod as the scheduler's watch stores it: its identity and the scheduler's projection. The API
//! object is projected and dropped while decoding, so that fifty thousand pods need only the memory
//! of their projections.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use client::FromJson;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Resource, api::ObjectMeta};
use parking_lot::Mutex;

use crate::{
    pod::{PodInfo, Pods, has_ended, node_name},
    spec_memo::Outline,
};

/// One version of a pod.
#[derive(Debug)]
pub(crate) struct WatchedPod {
    /// Name, namespace, uid and resourceVersion.
    metadata: ObjectMeta,
    /// Its node, when it has one.
    pub(crate) node: Option<Arc<str>>,
    /// Whether its containers have ended for good.
    pub(crate) ended: bool,
    /// The scheduler's projection.
    pub(crate) info: Arc<PodInfo>,
}

/// Templates and labels that pods share. One per process, because decoding has no other way to
/// access it.
static SHARED: LazyLock<Mutex<Pods>> = LazyLock::new(Mutex::default);

impl WatchedPod {
    fn new(pod: &Pod, node: Option<&str>, info: PodInfo) -> Self {
        let meta = &pod.metadata;
        Self {
            metadata: ObjectMeta {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                ..ObjectMeta::default()
            },
            node: node.map(Arc::from),
            ended: has_ended(pod),
            info: Arc::new(info),
        }
    }

    /// The pod, completely decoded from its JSON text.
    fn decoded(text: &str) -> Result<Self, serde_json::Error> {
        let pod = Pod::from_json(text)?;
        let info = SHARED.lock().info(&pod);
        Ok(Self::new(&pod, node_name(&pod), info))
    }
}

impl FromJson for WatchedPod {
    fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        if let Some((pod, node, info)) = SHARED.lock().recent(text) {
            return Ok(Self::new(&pod, node.as_deref(), info));
        }
        let Some(outline) = Outline::read(text) else {
            return Self::decoded(text);
        };
        let spec = outline.remembered_spec();
        let digest = SHARED.lock().digest(&outline);
        let (pod, node) = outline.into_pod();
        let known = SHARED.lock().known(&pod, digest);
        let watched = match known {
            Some(info) => Self::new(&pod, node.as_deref(), info),
            None => {
                let watched = Self::decoded(text)?;
                SHARED.lock().remember(digest, &watched.info);
                watched
            }
        };
        SHARED.lock().remember_recent(spec, &watched.info);
        Ok(watched)
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_watched_pod_has_the_path_of_pods_and_keeps_only_needed_fields() {
        assert_eq!(WatchedPod::url_path(&(), None), Pod::url_path(&(), None));
        let pod = |name: &str| {
            let meta = json!({"name": name, "namespace": "d", "uid": name, "resourceVersion": "7",
                "annotations": {"large": "text"}, "labels": {"app": "web"}});
            let spec = json!({"nodeName": "n1", "containers": []});
            let pod = json!({"metadata": meta, "spec": spec, "status": {"phase": "Failed"}});
            <WatchedPod as client::FromJson>::from_json(&pod.to_string()).unwrap()
        };
        let (one, other) = (pod("a"), pod("b"));
        assert_eq!(one.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(one.metadata.annotations, None);
        assert_eq!((one.node.as_deref(), one.ended), (Some("n1"), true));
        assert!(Arc::ptr_eq(&one.info.template, &other.info.template));
        assert!(Arc::ptr_eq(&one.info.label_set, &other.info.label_set));
    }

    fn pod(name: &str, spec: &serde_json::Value, status: &serde_json::Value) -> String {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r",
            "controller": true});
        let meta = json!({"name": name, "namespace": "d", "uid": name, "resourceVersion": "7",
            "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web"}, "ownerReferences": [owner]});
        json!({"metadata": meta, "spec": spec, "status": status}).to_string()
    }

    #[test]
    fn a_pod_whose_spec_is_known_is_the_same_as_when_all_of_it_is_decoded() {
        let container =
            |cpu: &str| json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
        let spec = |cpu: &str| json!({"containers": [container(cpu)], "priority": 7});
        let mut bound = spec("2");
        bound["nodeName"] = json!("n1");
        let running = json!({"phase": "Running", "startTime": "2026-01-01T00:00:09Z",
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 0, "image": "i",
                "imageID": "i", "resources": {"requests": {"cpu": "3"}}}]});
        let waiting = json!({"phase": "Pending", "nominatedNodeName": "n2", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no",
             "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        for (spec, status) in [
            (&spec("2"), &json!({"phase": "Pending"})),
            (&bound, &json!({"phase": "Pending"})),
            (&spec("2"), &waiting),
            (&spec("1"), &waiting),
            (&bound, &running),
            (&json!(null), &json!(null)),
        ] {
            for name in ["a", "b"] {
                let text = pod(name, spec, status);
                let (seen, whole) = (
                    <WatchedPod as client::FromJson>::from_json(&text).unwrap(),
                    WatchedPod::decoded(&text).unwrap(),
                );
                assert_eq!(format!("{seen:?}"), format!("{whole:?}"), "{text}");
                assert!(Arc::ptr_eq(&seen.info.template, &whole.info.template));
            }
        }
    }

    /// A spec with random fields in the API's order, as text; fields after `nodeName` may contain its name.
    fn random_spec(random: &mut impl rand::Rng) -> String {
        let mut fields = vec![format!(
            r#""containers":[{{"name":"c","resources":{{"requests":{{"cpu":"{}"}}}}}}]"#,
            random.random_range(1..3)
        )];
        let choices = [
            r#""restartPolicy":"Always""#,
            r#""nodeSelector":{"nodeName":"n1","x":"y"}"#,
            r#""nodeSelector":{"x":"y"}"#,
            r#""nodeName":"n1""#,
            r#""nodeName":"""#,
            r#""nodeName":"n\u0031""#,
            r#""tolerations":[{"key":",\"nodeName\":\"n1\""}]"#,
            r#""priority":7"#,
        ];
        let mut last = "";
        for choice in choices {
            let name = choice.split(':').next().unwrap_or_default();
            if name != last && random.random_bool(0.5) {
                fields.push(choice.to_owned());
                last = name;
            }
        }
        if random.random_bool(0.1) {
            let other = random.random_range(0..fields.len());
            fields.swap(0, other);
        }
        format!("{{{}}}", fields.join(","))
    }

    #[test]
    fn random_pods_in_any_order_are_the_same_as_when_all_of_them_is_decoded() {
        use rand::{Rng, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        let mut quick = 0;
        for number in 0..3000 {
            let name = number % 7;
            let spec = random_spec(&mut random);
            let pick = |random: &mut rand::rngs::StdRng, all: &[&'static str]| {
                all[random.random_range(0..all.len())]
            };
            let labels = pick(
                &mut random,
                &["", r#","labels":{"app":"a"}"#, r#","labels":{"app":"b"}"#],
            );
            let space = pick(&mut random, &["d", "e"]);
            let status = pick(
                &mut random,
                &[
                    "",
                    r#","status":{}"#,
                    r#","status":{"phase":"Failed"}"#,
                    r#","status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"r"}]}"#,
                    r#","status":{"phase":"Running","containerStatuses":[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"i"}]}"#,
                    r#","status":{"containerStatuses":[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"i","resources":{"requests":{"cpu":"3"}}}]}"#,
                ],
            );
            let head = pick(
                &mut random,
                &[
                    r#""apiVersion":"v1","kind":"Pod""#,
                    r#""kind":"Pod","apiVersion":"v1""#,
                ],
            );
            let meta = format!(
                r#""metadata":{{"name":"r{name}","namespace":"{space}","uid":"r{name}"{labels}}}"#
            );
            let text = format!(r#"{{{head},{meta},"spec":{spec}{status}}}"#);
            quick += usize::from(SHARED.lock().recent(&text).is_some());
            let seen = <WatchedPod as client::FromJson>::from_json(&text).unwrap();
            let whole = WatchedPod::decoded(&text).unwrap();
            assert_eq!(format!("{seen:?}"), format!("{whole:?}"), "{text}");
        }
        assert!(quick > 100, "{quick}");
    }
}
