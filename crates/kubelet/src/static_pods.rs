//! Static pods from files: they run without the API server, which shows a mirror pod of each.

mod manifest;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::Api;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    core::Core,
    dispatch,
    inotify::Watch,
    pod::spec::{self, HASH_ANNOTATION, MIRROR_ANNOTATION},
    registry::{Message, PublishedPod},
};

/// All pods of the manifests in the directory.
pub(crate) fn read_all(core: &Core) -> Vec<Arc<Pod>> {
    let Some(dir) = &core.config.static_pods_dir else {
        return vec![];
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files
        .into_iter()
        .filter(|file| is_manifest(file))
        .flat_map(|file| match manifest::read(&file, &core.config.node_name) {
            Ok(pods) => pods,
            Err(error) => {
                warn!(file = %file.display(), error, "invalid static pod manifest");
                Vec::new()
            }
        })
        .map(Arc::new)
        .collect()
}

/// Hidden files are ignored: editors write to them.
fn is_manifest(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    !name.as_encoded_bytes().starts_with(b".") && file.is_file()
}

/// Starts workers for the static pods.
pub(crate) fn begin_with(core: &Arc<Core>, pods: &[Arc<Pod>]) {
    core.registry.set_from_files(pods);
    for pod in pods {
        adopt(core, pod);
    }
}

/// Follows the directory, starting with `current`. Never returns.
pub(crate) async fn follow(core: Arc<Core>, mut current: Vec<Arc<Pod>>) {
    let Some(dir) = core.config.static_pods_dir.clone() else {
        return;
    };
    let Ok(watch) = Watch::new(&dir, false) else {
        warn!(dir = %dir.display(), "cannot watch static pods");
        return;
    };
    while watch.changed().await.is_ok() {
        let fresh = read_all(&core);
        core.registry.set_from_files(&fresh);
        let is_in =
            |list: &[Arc<Pod>], pod: &Pod| list.iter().any(|p| spec::uid(p) == spec::uid(pod));
        for pod in current.iter().filter(|pod| !is_in(&fresh, pod)) {
            end(&core, pod);
        }
        for pod in fresh.iter().filter(|pod| !is_in(&current, pod)) {
            adopt(&core, pod);
        }
        current = fresh;
    }
}

/// Begins with a pod. One that takes the place of another waits until that has ended: they may share ports, volumes and
/// the name of their mirror.
fn adopt(core: &Arc<Core>, pod: &Arc<Pod>) {
    info!(pod = spec::described(pod), "static pod found");
    let before = predecessors(core, pod);
    if before.is_empty() {
        dispatch::dispatch_pod(core, pod.clone());
    }
    let (core, pod) = (core.clone(), pod.clone());
    core.clone().context.spawn("mirror", async move {
        let waits = !before.is_empty();
        for mut predecessor in before {
            // The channel closes with the predecessor's worker.
            while predecessor.changed().await.is_ok() {}
        }
        if waits && core.registry.is_from_file(spec::uid(&pod)) {
            dispatch::dispatch_pod(&core, pod.clone());
        }
        keep_mirror(&core, &pod).await;
    });
}

/// Ends a pod that no file describes. Its mirror shows it until it has ended.
fn end(core: &Arc<Core>, pod: &Arc<Pod>) {
    let uid = spec::uid(pod).to_owned();
    let seen = core.registry.follow(&uid);
    core.registry.send(&uid, Message::Removed);
    let (core, pod) = (core.clone(), pod.clone());
    core.clone().context.spawn("mirror", async move {
        if let Some(mut seen) = seen {
            // The channel closes with the pod's worker. A file may describe the pod again.
            while seen.changed().await.is_ok() && !core.registry.is_from_file(&uid) {}
        }
        if !core.registry.is_from_file(&uid) {
            delete_mirror_of(&core, &pod).await;
        }
    });
}

/// Static pods of the same name that have not ended.
fn predecessors(core: &Core, pod: &Pod) -> Vec<watch::Receiver<PublishedPod>> {
    let of = |pod: &Pod| (spec::namespace(pod).to_owned(), spec::name(pod).to_owned());
    let same = |seen: &PublishedPod| {
        spec::is_static(&seen.pod)
            && of(&seen.pod) == of(pod)
            && spec::uid(&seen.pod) != spec::uid(pod)
    };
    let all = core.registry.pods().into_iter().filter(same);
    all.filter_map(|seen| core.registry.follow(spec::uid(&seen.pod)))
        .collect()
}

/// The mirror pod of a static pod.
fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    let hash = spec::annotation(pod, HASH_ANNOTATION)
        .unwrap_or_default()
        .to_owned();
    mirror.metadata.uid = None;
    mirror
        .metadata
        .annotations
        .get_or_insert_with(BTreeMap::new)
        .insert(MIRROR_ANNOTATION.into(), hash);
    if let (Some(name), Some(uid)) = (node.metadata.name.clone(), node.metadata.uid.clone()) {
        mirror.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name,
            uid,
            controller: Some(true),
            ..Default::default()
        }]);
    }
    mirror
}

/// Creates the mirror pod if it is missing, and replaces one of an older manifest.
async fn keep_mirror(core: &Core, pod: &Pod) {
    let client = core.config.client.clone();
    let api: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(pod));
    let nodes: Api<Node> = Api::all(client);
    while core.registry.is_from_file(spec::uid(pod)) {
        let attempt = async {
            let node = nodes.get(&core.config.node_name).await?;
            let mirror = mirror_of(pod, &node);
            let tell = |mirror: Pod| {
                let message = Message::Mirror(Some(Arc::new(mirror)));
                core.registry.send(spec::uid(pod), message);
            };
            // A node may only read its own pods, and so not a pod that does not exist: create
            // first.
            match api.create(&PostParams::default(), &mirror).await {
                Ok(made) => {
                    tell(made);
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
            let old = api.get(spec::name(pod)).await?;
            if spec::annotation(&old, MIRROR_ANNOTATION) == Some(spec::uid(pod)) {
                tell(old);
                return Ok(());
            }
            api.delete(spec::name(&old), &only(&old)).await?;
            tell(api.create(&PostParams::default(), &mirror).await?);
            Ok::<_, kube::Error>(())
        };
        match attempt.await {
            Ok(()) if core.registry.is_from_file(spec::uid(pod)) => return,
            // The manifest was removed meanwhile.
            Ok(()) => return delete_mirror_of(core, pod).await,
            Err(error) => warn!(pod = spec::described(pod), %error, "cannot create mirror pod"),
        }
        core.config.clock.sleep(Duration::from_secs(2)).await;
    }
}

/// Deletes the mirror pod of a static pod whose manifest is gone. A pod of another manifest may have its name by now.
async fn delete_mirror_of(core: &Core, pod: &Pod) {
    let api: Api<Pod> = Api::namespaced(core.config.client.clone(), spec::namespace(pod));
    // A node may not read a pod that does not exist.
    if let Ok(mirror) = api.get(spec::name(pod)).await
        && spec::annotation(&mirror, MIRROR_ANNOTATION) == Some(spec::uid(pod))
    {
        delete_mirror(core, &mirror).await;
    }
}

async fn delete_mirror(core: &Core, mirror: &Pod) {
    let api: Api<Pod> = Api::namespaced(core.config.client.clone(), spec::namespace(mirror));
    match api.delete(spec::name(mirror), &only(mirror)).await {
        Ok(_) => {}
        // It is deleted already, or another one has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => warn!(pod = spec::described(mirror), %error, "cannot delete mirror pod"),
    }
}

/// Deletes this pod at once, and no other of its name.
fn only(pod: &Pod) -> DeleteParams {
    let uid = Preconditions {
        uid: pod.metadata.uid.clone(),
        resource_version: None,
    };
    DeleteParams::default().grace_period(0).preconditions(uid)
}

/// Handles an event of the API's watch for a mirror pod.
pub(crate) fn mirror_changed(core: &Arc<Core>, mirror: &Arc<Pod>, exists: bool) {
    let mirrored = core.registry.mirrored(mirror);
    if let Some(pod) = &mirrored {
        let message = Message::Mirror(exists.then(|| mirror.clone()));
        core.registry.send(spec::uid(pod), message);
    }
    let (core, mirror) = (core.clone(), mirror.clone());
    core.clone().context.spawn("mirror", async move {
        let is_leaving = mirror.metadata.deletion_timestamp.is_some();
        match (mirrored, exists) {
            // A mirror pod without its static pod is deleted. One that a user has deleted goes at once, and is made again.
            (None, true) => delete_mirror(&core, &mirror).await,
            (Some(_), true) if is_leaving => delete_mirror(&core, &mirror).await,
            (Some(pod), false) => keep_mirror(&core, &pod).await,
            _ => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_names_the_pod_that_it_shows() {
        let mut pod = Pod::default();
        pod.metadata.annotations = Some([(HASH_ANNOTATION.to_owned(), "u1".to_owned())].into());
        let mirror = mirror_of(&pod, &Node::default());
        assert!(spec::is_mirror(&mirror));
        assert_eq!(spec::annotation(&mirror, MIRROR_ANNOTATION), Some("u1"));
    }

    #[test]
    fn hidden_files_and_directories_are_no_manifests() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["web.yaml", "web", ".web.yaml"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("more.yaml")).unwrap();
        let is = |name: &str| is_manifest(&dir.path().join(name));
        assert!(is("web.yaml") && is("web") && !is(".web.yaml") && !is("more.yaml") && !is("no"));
    }
}
