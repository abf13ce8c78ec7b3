//! Revisions of templates as ControllerRevisions: what DaemonSets and StatefulSets can go back to.

use std::sync::Arc;

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, runtime::RawExtension},
};
use kube::api::ObjectMeta;
use reconcile::{Error, Writer};
use serde_json::{Value, json};

use crate::{
    rounding::safe_hash,
    shared::{OWNER, Watched, controller_reference},
};

/// The label that tells a pod's revision.
pub const HASH: &str = "controller-revision-hash";

/// What a revision holds: a patch that puts the template back.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(template) = template.as_object_mut() {
        template.insert("$patch".into(), json!("replace"));
    }
    json!({"spec": {"template": template}})
}

/// The revisions of an owner, oldest first.
pub fn of(revisions: &Writer<ControllerRevision>, uid: &str) -> Vec<Arc<ControllerRevision>> {
    let mut all = revisions.cache().by_index(OWNER, uid);
    all.sort_by_key(|revision| (revision.revision, revision.metadata.name.clone()));
    all
}

enum Step {
    /// It is the newest already.
    Keep(Arc<ControllerRevision>),
    /// An old one becomes the newest again.
    Renew(Box<ControllerRevision>),
    Create(Box<ControllerRevision>),
}

fn decide<O: Watched>(
    owner: &O,
    selector: &LabelSelector,
    data: Value,
    known: &[Arc<ControllerRevision>],
    collisions: Option<i32>,
) -> Step {
    let next = known.last().map_or(1, |newest| newest.revision + 1);
    let same = known
        .iter()
        .rev()
        .find(|r| r.data.as_ref().map(|data| &data.0) == Some(&data));
    if let Some(same) = same {
        if same.revision + 1 == next {
            return Step::Keep(same.clone());
        }
        return Step::Renew(Box::new(ControllerRevision {
            revision: next,
            ..(**same).clone()
        }));
    }
    let hash = safe_hash(data.to_string().as_bytes(), collisions);
    let mut labels = selector.match_labels.clone().unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let metadata = ObjectMeta {
        name: Some(format!(
            "{}-{hash}",
            owner.meta().name.as_deref().unwrap_or_default()
        )),
        namespace: owner.meta().namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![controller_reference(owner)]),
        ..Default::default()
    };
    let data = Some(RawExtension(data));
    Step::Create(Box::new(ControllerRevision {
        metadata,
        data,
        revision: next,
    }))
}

/// Makes the template the newest revision and returns it.
pub async fn sync<O: Watched>(
    owner: &O,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    revisions: &Writer<ControllerRevision>,
    collisions: Option<i32>,
) -> Result<Arc<ControllerRevision>, Error> {
    let known = of(revisions, owner.meta().uid.as_deref().unwrap_or_default());
    let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
    match decide(owner, selector, data(template), &known, collisions) {
        Step::Keep(revision) => Ok(revision),
        Step::Renew(revision) => Ok(Arc::new(revisions.update(namespace, &revision).await?)),
        Step::Create(revision) => Ok(Arc::new(revisions.create(namespace, &revision).await?)),
    }
}

/// Deletes the oldest revisions that no pod has any more, beyond `limit`.
pub async fn trim(
    revisions: &Writer<ControllerRevision>,
    uid: &str,
    live: &[&str],
    limit: i32,
) -> Result<(), Error> {
    let unused: Vec<_> = of(revisions, uid)
        .into_iter()
        .filter(|revision| !live.contains(&hash(revision).as_str()))
        .collect();
    let surplus = unused
        .len()
        .saturating_sub(usize::try_from(limit).unwrap_or(0));
    for revision in &unused[..surplus] {
        revisions.delete(revision).await?;
    }
    Ok(())
}

/// The hash in a revision's label.
pub fn hash(revision: &ControllerRevision) -> String {
    let labels = revision.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(HASH).cloned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    fn revision(number: i64, data: Value) -> Arc<ControllerRevision> {
        let data = Some(RawExtension(data));
        Arc::new(ControllerRevision {
            revision: number,
            data,
            ..Default::default()
        })
    }

    fn told(data: Value, known: &[Arc<ControllerRevision>]) -> String {
        let selector = LabelSelector::default();
        match decide(&DaemonSet::default(), &selector, data, known, None) {
            Step::Keep(revision) => format!("keep {}", revision.revision),
            Step::Renew(revision) => format!("renew as {}", revision.revision),
            Step::Create(revision) => format!("create {}", revision.revision),
        }
    }

    #[test]
    fn a_known_template_is_used_again_under_a_new_number() {
        let known = [revision(1, json!("a")), revision(2, json!("b"))];
        assert_eq!(told(json!("a"), &[]), "create 1");
        assert_eq!(told(json!("b"), &known), "keep 2");
        assert_eq!(told(json!("c"), &known), "create 3");
        assert_eq!(told(json!("a"), &known), "renew as 3");
    }
}
