//! Finds the [`Template`] of a pod without decoding its spec again: most pods have the same spec as
//! another pod of their workload, or as an earlier version of the same pod without a node. The JSON
//! text of the spec is compared, not the decoded spec.
//!
//! The memo stores two hashes of the text with random keys of this process, so that no user can
//! construct a spec that collides with another one.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    marker::PhantomData,
    sync::{Arc, Weak},
};

use k8s_openapi::{
    api::core::v1::{Pod, PodCondition, PodResourceClaimStatus, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::ObjectMeta;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{recent_specs::RememberedSpec, template::Template, token_volume::suffixes};

/// A pod with the fields that change between its versions decoded, and the others as JSON text.
#[derive(Deserialize)]
pub(crate) struct Outline<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata<'a> {
    name: Option<String>,
    pub(crate) namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    pub(crate) labels: Option<std::collections::BTreeMap<String, String>>,
    #[serde(borrow)]
    pub(crate) owner_references: Option<&'a RawValue>,
}

/// The fields of a spec as JSON text, except `nodeName`, which is decoded.
#[derive(Default)]
struct Spec<'a> {
    node: Option<String>,
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    phase: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    resource_claim_statuses: Option<Vec<PodResourceClaimStatus>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    resources: Option<IgnoredAny>,
    allocated_resources: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ContainerStatus {
    resources: Option<IgnoredAny>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Spec<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for Fields<'a> {
    type Value = Spec<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a spec")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut spec = Spec::default();
        while let Some(Key(key)) = map.next_key()? {
            if key == "nodeName" {
                spec.node = map.next_value()?;
            } else {
                let value: &'de RawValue = map.next_value()?;
                spec.fields.push((key, value));
            }
        }
        Ok(spec)
    }
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Outline<'a> {
    /// The outline of a pod; `None` if the JSON is invalid, or if the scheduler also needs fields of the
    /// status that the outline does not contain.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let outline: Self = serde_json::from_str(text).ok()?;
        outline.is_plain().then_some(outline)
    }

    /// The outline of a pod whose spec is known.
    pub(crate) fn without_spec(
        metadata: Metadata<'a>,
        node: Option<&str>,
        status: Option<Status>,
    ) -> Option<Self> {
        let spec = Spec {
            node: node.map(str::to_owned),
            fields: Vec::new(),
        };
        let outline = Self {
            metadata,
            spec,
            status,
        };
        outline.is_plain().then_some(outline)
    }

    /// For a running pod the resources in its status count as well as the requests in its spec.
    fn is_plain(&self) -> bool {
        self.status.as_ref().is_none_or(|status| {
            let statuses = [&status.container_statuses, &status.init_container_statuses];
            let mut statuses = statuses.into_iter().flatten().flatten();
            statuses.all(|container| container.resources.is_none())
                && status.resources.is_none()
                && status.allocated_resources.is_none()
        })
    }

    /// The text of the spec, to recognise the next pod with the same one.
    pub(crate) fn remembered_spec(&self) -> Option<RememberedSpec> {
        RememberedSpec::new(&self.metadata, &self.spec.fields)
    }

    /// The pod without its spec, and the name of its node, if it has one.
    pub(crate) fn into_pod(self) -> (Pod, Option<String>) {
        let metadata = self.metadata;
        let pod = Pod {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                generation: metadata.generation,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                labels: metadata.labels,
                ..ObjectMeta::default()
            },
            spec: None,
            status: self.status.map(|status| PodStatus {
                phase: status.phase,
                start_time: status.start_time,
                nominated_node_name: status.nominated_node_name,
                conditions: status.conditions,
                resource_claim_statuses: status.resource_claim_statuses,
                ..PodStatus::default()
            }),
        };
        (pod, self.spec.node.filter(|node| !node.is_empty()))
    }
}

/// Templates by the hashes of the text that they were decoded from.
#[derive(Debug, Default)]
pub(crate) struct SpecMemo {
    keys: (RandomState, RandomState),
    known: HashMap<(u64, u64), Weak<Template>>,
    /// The number of templates in use at the last cleanup.
    kept: usize,
}

impl SpecMemo {
    /// The hashes of all fields that determine a template. They are written into one buffer first: hashing many short
    /// strings takes several times as long.
    pub(crate) fn digest(&self, outline: &Outline<'_>) -> (u64, u64) {
        let metadata = &outline.metadata;
        let mut all = Vec::with_capacity(4096);
        let mut put = |part: Option<&str>| {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            all.extend_from_slice(&length.to_le_bytes());
            let start = all.len();
            all.extend_from_slice(part.unwrap_or_default().as_bytes());
            for suffix in suffixes(part.unwrap_or_default()) {
                all[start + suffix.start..start + suffix.end].fill(b'*');
            }
        };
        put(metadata.namespace.as_deref());
        put(metadata.owner_references.map(RawValue::get));
        for (name, value) in metadata.labels.iter().flatten() {
            put(Some(name));
            put(Some(value));
        }
        // Separates the labels from the fields.
        put(None);
        for (name, value) in &outline.spec.fields {
            put(Some(name));
            put(Some(value.get()));
        }
        (self.keys.0.hash_one(&all), self.keys.1.hash_one(&all))
    }

    pub(crate) fn get(&self, digest: (u64, u64)) -> Option<Arc<Template>> {
        self.known.get(&digest)?.upgrade()
    }

    pub(crate) fn put(&mut self, digest: (u64, u64), template: &Arc<Template>) {
        if self.known.len() > 2 * self.kept + 1024 {
            self.known.retain(|_, known| known.strong_count() > 0);
            self.kept = self.known.len();
        }
        self.known.insert(digest, Arc::downgrade(template));
    }
}
