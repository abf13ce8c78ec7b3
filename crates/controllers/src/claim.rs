//! Adoption: an owner adopts the orphans that its selector matches and releases objects that no
//! longer match. Only one owner is an object's controller.

use std::sync::Arc;

use client::{Api, Informer, informer::Labelled};
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use reconcile::{Error, Selector, Writer};
use serde_json::json;

use crate::shared::{OWNER, Watched, controller_of, controller_reference, orphans_of};

/// The objects of a namespace without a controller that a selector matches. Others are not decoded: there may be many.
pub(crate) fn selected_orphans<K: Watched>(
    informer: &Informer<K>,
    namespace: &str,
    selector: &Selector,
) -> Vec<Arc<K>> {
    let orphans = informer.entries_by_index(OWNER, &orphans_of(namespace));
    let selected = orphans
        .iter()
        .filter(|orphan| selector.matches_with(|key| orphan.label(key)));
    selected.map(|orphan| informer.read_entry(orphan)).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Claim {
    Own,
    Adopt,
    Release,
    Ignore,
}

fn decide<O: Resource, K: Resource>(owner: &O, selected: bool, object: &K) -> Claim {
    let owner_leaves = owner.meta().deletion_timestamp.is_some();
    match controller_of(object) {
        Some(controller) if Some(&controller.uid) != owner.meta().uid.as_ref() => Claim::Ignore,
        Some(_) if selected => Claim::Own,
        Some(_) if owner_leaves => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_leaves || !selected || object.meta().deletion_timestamp.is_some() => {
            Claim::Ignore
        }
        None => Claim::Adopt,
    }
}

/// The objects that `owner` controls, after adopting and releasing. Adopted objects get the
/// `finalizer`, if given, and released ones lose it.
pub(crate) async fn claim<O, K>(
    owner: &O,
    owners: &Api<O>,
    selector: &Selector,
    writer: &Writer<K>,
    objects: Vec<Arc<K>>,
    finalizer: Option<&str>,
) -> Result<Vec<Arc<K>>, Error>
where
    O: Watched,
    K: Watched + Resource<Scope = NamespaceResourceScope>,
{
    let mut owned = Vec::new();
    let (mut adopt, mut release) = (Vec::new(), Vec::new());
    for object in objects {
        match decide(
            owner,
            selector.matches(object.meta().labels.as_ref()),
            &*object,
        ) {
            Claim::Own => owned.push(object),
            Claim::Adopt => adopt.push(object),
            Claim::Release => release.push(object),
            Claim::Ignore => {}
        }
    }
    if !adopt.is_empty() && still_there(owner, owners).await? {
        for object in adopt {
            owned.extend(
                write_owners(writer, &object, Some(owner), finalizer)
                    .await?
                    .map(Arc::new),
            );
        }
    }
    let released = release
        .iter()
        .map(|object| write_owners::<O, K>(writer, object, None, finalizer));
    for released in reconcile::join_bounded(released).await {
        released?;
    }
    Ok(owned)
}

/// Reads the owner from the API server, not from the cache: an owner that is being deleted must not
/// adopt.
async fn still_there<O: Watched>(owner: &O, owners: &Api<O>) -> Result<bool, Error> {
    let name = owner.meta().name.clone().unwrap_or_default();
    let fresh = owners.get_opt(&name).await?;
    Ok(fresh.is_some_and(|fresh| {
        fresh.meta().uid == owner.meta().uid && fresh.meta().deletion_timestamp.is_none()
    }))
}

/// Adds `adopter` to the object's owners, or removes its controller. `None` if the object is gone.
async fn write_owners<O, K>(
    writer: &Writer<K>,
    object: &K,
    adopter: Option<&O>,
    finalizer: Option<&str>,
) -> Result<Option<K>, Error>
where
    O: Watched,
    K: Watched + Resource<Scope = NamespaceResourceScope>,
{
    let meta = object.meta();
    let mut owners = meta.owner_references.clone().unwrap_or_default();
    match adopter {
        Some(adopter) => owners.push(controller_reference(adopter)),
        None => owners.retain(|owner| owner.controller != Some(true)),
    }
    // The resourceVersion guards the lists, which a merge patch replaces as a whole.
    let mut patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners,
    }});
    if let Some(finalizer) = finalizer {
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        finalizers.retain(|known| known != finalizer);
        finalizers.extend(adopter.map(|_| finalizer.to_owned()));
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    match writer
        .patch(namespace, meta.name.as_deref().unwrap_or_default(), &patch)
        .await
    {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() || error.code() == Some(422) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{apps::v1::ReplicaSet, core::v1::Pod},
        apimachinery::pkg::apis::meta::v1::Time,
    };
    use kube::api::ObjectMeta;

    use super::*;
    use crate::pods::samples;

    fn owner(uid: &str) -> ReplicaSet {
        let metadata = ObjectMeta {
            uid: Some(uid.into()),
            ..Default::default()
        };
        ReplicaSet {
            metadata,
            ..Default::default()
        }
    }

    fn owned_by(owner: &ReplicaSet) -> Pod {
        let mut pod = samples::pod("a", None);
        pod.metadata.owner_references = Some(vec![controller_reference(owner)]);
        pod
    }

    #[test]
    fn an_owner_keeps_adopts_and_releases_by_its_selector_and_never_touches_anothers() {
        let (mine, other, orphan) = (owner("1"), owner("2"), samples::pod("a", None));
        assert_eq!(decide(&mine, true, &owned_by(&mine)), Claim::Own);
        assert_eq!(decide(&mine, false, &owned_by(&mine)), Claim::Release);
        assert_eq!(decide(&mine, true, &owned_by(&other)), Claim::Ignore);
        assert_eq!(decide(&mine, true, &orphan), Claim::Adopt);
        assert_eq!(decide(&mine, false, &orphan), Claim::Ignore);
    }

    #[tokio::test]
    async fn orphans_are_found_by_namespace_and_selector() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let sets = Informer::<ReplicaSet>::builder(client::in_process(refused));
        let sets = Watched::indexed(sets).offline();
        for (namespace, name, app, is_owned) in [
            ("ns", "orphan", "a", false),
            ("ns", "other", "b", false),
            ("ns", "owned", "a", true),
            ("far", "orphan", "a", false),
        ] {
            let metadata = ObjectMeta {
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                uid: Some(format!("{namespace}-{name}")),
                labels: Some([("app".to_owned(), app.to_owned())].into()),
                owner_references: is_owned.then(|| vec![controller_reference(&owner("1"))]),
                ..Default::default()
            };
            sets.upsert(ReplicaSet {
                metadata,
                ..Default::default()
            });
        }
        let selector = Selector::labels(&[("app".to_owned(), "a".to_owned())].into());
        let found = selected_orphans(&sets, "ns", &selector);
        let uids: Vec<_> = found
            .iter()
            .map(|set| set.metadata.uid.as_deref())
            .collect();
        assert_eq!(uids, [Some("ns-orphan")]);
    }

    #[test]
    fn objects_being_deleted_neither_adopt_nor_are_adopted() {
        let mut dying = owner("1");
        dying.metadata.deletion_timestamp = Some(Time(samples::at(1)));
        let mut leaving = samples::pod("a", None);
        leaving.metadata.deletion_timestamp = Some(Time(samples::at(1)));
        assert_eq!(
            decide(&dying, true, &samples::pod("a", None)),
            Claim::Ignore
        );
        assert_eq!(decide(&dying, false, &owned_by(&dying)), Claim::Ignore);
        assert_eq!(decide(&owner("1"), true, &leaving), Claim::Ignore);
    }
}
