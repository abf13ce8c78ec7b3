//! ControllerRevisions: the template history of DaemonSets and StatefulSets.

use std::{collections::BTreeSet, sync::Arc};

use client::{Api, FromJson as _};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, runtime::RawExtension},
};
use kube::{Resource, api::ObjectMeta};
use reconcile::{Error, Selector, Writer};
use serde_json::{Map, Value, json};

use crate::{
    claim,
    shared::{OWNER, Watched, controller_reference},
    templatehash::short_hash,
};

/// The revision label of pods; DaemonSets also label their revisions with it.
pub(crate) const HASH: &str = "controller-revision-hash";
/// The maximum length of the owner's name in a revision's name, before the hash.
const PREFIX_LENGTH: usize = 223;

/// The data of a revision: a patch that restores the template, with sorted keys. Clients compare
/// these bytes to find a template's revision.
pub(crate) fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(template) = template.as_object_mut() {
        template.entry("metadata").or_insert_with(|| json!({}));
        template.insert("$patch".into(), json!("replace"));
    }
    sorted(json!({"spec": {"template": template}}))
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let entries = entries.into_iter().map(|(key, value)| (key, sorted(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// The template of a revision.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.get("spec")?.get("template")?;
    PodTemplateSpec::from_value(template).ok()
}

/// All revisions of an owner, oldest first.
pub(crate) struct History {
    revisions: Vec<Arc<ControllerRevision>>,
    /// The label of revisions with their hash.
    label: &'static str,
}

/// The revision of the current template.
pub(crate) struct Newest {
    pub revision: Arc<ControllerRevision>,
    /// Other revisions of the same template.
    pub duplicates: Vec<Arc<ControllerRevision>>,
    /// The collision count.
    pub collisions: Option<i32>,
}

#[derive(Debug)]
enum Step {
    /// The template's revision is the newest.
    Keep(Arc<ControllerRevision>),
    /// An older revision becomes the newest again.
    Renew(Box<ControllerRevision>),
    /// No revision has the template; the new revision's number.
    Create(i64),
}

impl History {
    /// The revisions of `owner`, after adopting and releasing.
    pub(crate) async fn read<O>(
        owner: &O,
        owners: &Api<O>,
        selector: &LabelSelector,
        revisions: &Writer<ControllerRevision>,
        label: &'static str,
    ) -> Result<Self, Error>
    where
        O: Watched + Resource<Scope = NamespaceResourceScope>,
    {
        let cache = revisions.cache();
        let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
        let mut known = cache.by_index(OWNER, owner.meta().uid.as_deref().unwrap_or_default());
        let selector = Selector::from_label_selector(Some(selector));
        known.extend(claim::selected_orphans(cache, namespace, &selector));
        let known = claim::claim(owner, owners, &selector, revisions, known, None).await?;
        Ok(Self::new(known, label))
    }

    fn new(mut revisions: Vec<Arc<ControllerRevision>>, label: &'static str) -> Self {
        revisions.sort_by_key(|revision| {
            let meta = &revision.metadata;
            (
                revision.revision,
                meta.creation_timestamp.clone(),
                meta.name.clone(),
            )
        });
        Self { revisions, label }
    }

    /// Makes the template the newest revision.
    pub(crate) async fn sync<O: Watched>(
        &self,
        owner: &O,
        template: &PodTemplateSpec,
        revisions: &Writer<ControllerRevision>,
        api: &Api<ControllerRevision>,
        collisions: Option<i32>,
    ) -> Result<Newest, Error> {
        let data = data(template);
        let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
        let (revision, collisions) = match self.decide(&data) {
            Step::Keep(revision) => (revision, collisions),
            Step::Renew(revision) => {
                let renewed = revisions.update(namespace, &revision).await?;
                (Arc::new(renewed), collisions)
            }
            Step::Create(number) => {
                let new =
                    |collisions| self.new_revision(owner, template, number, &data, collisions);
                create(revisions, api, namespace, new, collisions).await?
            }
        };
        let others = self
            .revisions
            .iter()
            .filter(|other| other.metadata.uid != revision.metadata.uid && holds(other, &data));
        let duplicates = others.cloned().collect();
        Ok(Newest {
            revision,
            duplicates,
            collisions,
        })
    }

    fn decide(&self, data: &Value) -> Step {
        let same = self.revisions.iter().rev().find(|known| holds(known, data));
        let others = self.revisions.iter().filter(|known| !holds(known, data));
        let next = others.map(|other| other.revision).max().unwrap_or(0) + 1;
        match same {
            Some(same) if same.revision >= next => Step::Keep(same.clone()),
            Some(same) => Step::Renew(Box::new(ControllerRevision {
                revision: next,
                ..(**same).clone()
            })),
            None => Step::Create(next),
        }
    }

    fn new_revision<O: Watched>(
        &self,
        owner: &O,
        template: &PodTemplateSpec,
        number: i64,
        data: &Value,
        collisions: Option<i32>,
    ) -> ControllerRevision {
        let hash = short_hash(data.to_string().as_bytes(), collisions);
        let meta = template.metadata.as_ref();
        let mut labels = meta
            .and_then(|meta| meta.labels.clone())
            .unwrap_or_default();
        labels.insert(self.label.to_owned(), hash.clone());
        let owner_name = owner.meta().name.as_deref().unwrap_or_default();
        // Object names are ASCII.
        let prefix = &owner_name[..owner_name.len().min(PREFIX_LENGTH)];
        let metadata = ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: owner.meta().namespace.clone(),
            labels: Some(labels),
            // `kubectl rollout history` reads the change cause from them.
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![controller_reference(owner)]),
            ..Default::default()
        };
        ControllerRevision {
            metadata,
            data: Some(RawExtension(data.clone())),
            revision: number,
        }
    }

    /// Revisions beyond the limit, oldest first. `live` ones are kept, and count only with
    /// `live_count`.
    pub(crate) fn expired(
        &self,
        newest: &ControllerRevision,
        live: impl Fn(&ControllerRevision) -> bool,
        limit: i32,
        live_count: bool,
    ) -> Vec<Arc<ControllerRevision>> {
        let old = self
            .revisions
            .iter()
            .filter(|known| known.metadata.uid != newest.metadata.uid);
        let counted = old
            .clone()
            .filter(|known| live_count || !live(known))
            .count();
        let surplus = counted.saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        let dead = old.filter(|known| !live(known));
        dead.take(surplus).cloned().collect()
    }
}

fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().map(|data| &data.0) == Some(data)
}

/// Creates a revision under the first name that no other template has.
async fn create(
    revisions: &Writer<ControllerRevision>,
    api: &Api<ControllerRevision>,
    namespace: &str,
    new: impl Fn(Option<i32>) -> ControllerRevision,
    mut collisions: Option<i32>,
) -> Result<(Arc<ControllerRevision>, Option<i32>), Error> {
    loop {
        let revision = new(collisions);
        match revisions.create(namespace, &revision).await {
            Ok(created) => return Ok((Arc::new(created), collisions)),
            Err(error) if error.reason() == "AlreadyExists" => {
                let name = revision.metadata.name.as_deref().unwrap_or_default();
                let taken = api.get(name).await?;
                if taken.data == revision.data {
                    return Ok((Arc::new(taken), collisions));
                }
                collisions = Some(collisions.unwrap_or(0) + 1);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Deletes revisions.
pub(crate) async fn delete(
    revisions: &Writer<ControllerRevision>,
    expired: &[Arc<ControllerRevision>],
) -> Result<(), Error> {
    for revision in expired {
        revisions.delete(revision).await?;
    }
    Ok(())
}

/// The revision hashes or names in the pods' labels.
pub(crate) fn revisions_of<'a>(
    pods: impl IntoIterator<Item = &'a Arc<k8s_openapi::api::core::v1::Pod>>,
) -> BTreeSet<&'a str> {
    let labels = pods
        .into_iter()
        .filter_map(|pod| pod.metadata.labels.as_ref());
    labels
        .filter_map(|labels| labels.get(HASH))
        .map(String::as_str)
        .collect()
}

/// The hash in a revision's label.
pub(crate) fn hash<'a>(revision: &'a ControllerRevision, label: &str) -> &'a str {
    let labels = revision.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(label))
        .map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    fn revision(number: i64, data: &str) -> Arc<ControllerRevision> {
        let metadata = ObjectMeta {
            uid: Some(format!("{number}-{data}")),
            name: Some(format!("r{number}")),
            ..Default::default()
        };
        Arc::new(ControllerRevision {
            metadata,
            revision: number,
            data: Some(RawExtension(json!(data))),
        })
    }

    fn history(revisions: &[(i64, &str)]) -> History {
        let revisions = revisions
            .iter()
            .map(|(number, data)| revision(*number, data));
        History::new(revisions.collect(), HASH)
    }

    #[test]
    fn a_known_template_is_used_again_under_a_new_number() {
        for (known, data, expected) in [
            (&[][..], "a", "create 1"),
            (&[(1, "a"), (2, "b")], "b", "keep 2"),
            (&[(1, "a"), (2, "b")], "c", "create 3"),
            (&[(1, "a"), (2, "b")], "a", "renew as 3"),
            (&[(1, "a"), (2, "b"), (2, "a")], "a", "renew as 3"),
            (&[(1, "a"), (5, "a")], "a", "keep 5"),
        ] {
            let seen = match history(known).decide(&json!(data)) {
                Step::Keep(revision) => format!("keep {}", revision.revision),
                Step::Renew(revision) => format!("renew as {}", revision.revision),
                Step::Create(number) => format!("create {number}"),
            };
            assert_eq!(seen, expected, "{known:?} {data}");
        }
    }

    #[test]
    fn the_data_is_the_patch_that_clients_compute_byte_for_byte() {
        let template: PodTemplateSpec = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]},
        }))
        .unwrap();
        let expected = r#"{"spec":{"template":{"$patch":"replace","metadata":{},"spec":{"containers":[{"image":"i","name":"c","resources":{}}]}}}}"#;
        assert_eq!(data(&template).to_string(), expected);
    }

    #[test]
    fn a_new_revision_has_the_labels_of_the_template_and_the_annotations_of_the_owner() {
        let mut set = DaemonSet::default();
        set.metadata.name = Some("d".repeat(240));
        let cause = ("kubernetes.io/change-cause".to_owned(), "why".to_owned());
        set.metadata.annotations = Some([cause.clone()].into());
        let template: PodTemplateSpec =
            serde_json::from_value(json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
        let data = data(&template);
        let history = history(&[]);
        let new = |collisions| history.new_revision(&set, &template, 4, &data, collisions);
        let (one, other) = (new(None), new(Some(1)));
        assert_ne!(
            one.metadata.name, other.metadata.name,
            "a collision changes the name"
        );
        assert_eq!(one.metadata.annotations, Some([cause].into()));
        let labels = one.metadata.labels.clone().unwrap();
        assert_eq!(labels["a"], "b");
        assert_eq!(
            one.metadata.name.unwrap(),
            format!("{}-{}", "d".repeat(223), labels[HASH])
        );
    }

    #[test]
    fn the_oldest_that_no_pod_has_go_first() {
        let known = history(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]);
        let newest = revision(5, "e");
        let live = |revision: &ControllerRevision| revision.revision == 1;
        for (limit, live_count, expected) in [
            (10, false, vec![]),
            (3, false, vec![]),
            (3, true, vec![2]),
            (1, false, vec![2, 3]),
            (1, true, vec![2, 3, 4]),
            (0, false, vec![2, 3, 4]),
            (-1, false, vec![]),
        ] {
            let expired = known.expired(&newest, live, limit, live_count);
            let numbers: Vec<_> = expired.iter().map(|revision| revision.revision).collect();
            assert_eq!(numbers, expected, "{limit} {live_count}");
        }
    }
}
