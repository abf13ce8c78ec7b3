//! kube-rs in process: the calls that controllers, scheduler and kubelet make.

use std::{collections::BTreeMap, time::Duration};

use crate::support::Server;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt, watcher},
};
use machinery::json::json;

fn map(name: &str) -> ConfigMap {
    let data = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    ConfigMap {
        data: Some(data),
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_live_and_die_through_a_typed_client() {
    let server = Server::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let made = maps
        .create(&PostParams::default(), &map("a"))
        .await
        .unwrap();
    assert!(made.uid().is_some());
    let patch = Patch::Merge(json!({"data": {"k": "w"}}));
    let patched = maps
        .patch("a", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(patched.data.unwrap()["k"], "w");
    let listed = maps.list(&ListParams::default()).await.unwrap();
    assert!(listed.items.iter().any(|map| map.name_any() == "a"));
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_every_change_in_order() {
    let server = Server::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let start = maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut stream = maps
        .watch(&WatchParams::default(), &start)
        .await
        .unwrap()
        .boxed();
    let writer = maps.clone();
    let writes = async move {
        for n in 0..20 {
            writer
                .create(&PostParams::default(), &map(&format!("m{n}")))
                .await
                .unwrap();
        }
    };
    let reads = async {
        for n in 0..20 {
            let event = tokio::time::timeout(Duration::from_secs(20), stream.next())
                .await
                .unwrap();
            let WatchEvent::Added(seen) = event.unwrap().unwrap() else {
                panic!("an addition")
            };
            assert_eq!(seen.name_any(), format!("m{n}"));
        }
    };
    futures::join!(writes, reads);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streaming_watcher_of_kube_runtime_works() {
    let server = Server::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    maps.create(&PostParams::default(), &map("before"))
        .await
        .unwrap();
    let config = watcher::Config::default().streaming_lists();
    let mut seen = watcher(maps.clone(), config).applied_objects().boxed();
    let mut names = Vec::new();
    while !names.contains(&"before".to_owned()) {
        let next = tokio::time::timeout(Duration::from_secs(20), seen.next())
            .await
            .unwrap();
        names.push(next.unwrap().unwrap().name_any());
    }
    maps.create(&PostParams::default(), &map("after"))
        .await
        .unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), seen.next())
        .await
        .unwrap();
    assert_eq!(next.unwrap().unwrap().name_any(), "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_written_apart_from_the_rest() {
    let server = Server::start().await;
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = pods
        .create(
            &PostParams::default(),
            &machinery::json::from_value(pod).unwrap(),
        )
        .await
        .unwrap();
    assert_eq!(pod.status.unwrap().phase.unwrap(), "Pending");
    let patch = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"nodeName": "x"}}));
    let patched = pods
        .patch_status("p", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(patched.status.unwrap().phase.unwrap(), "Running");
    assert!(patched.spec.unwrap().node_name.is_none());
    let patch =
        Patch::Merge(json!({"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}}));
    let patched = pods
        .patch("p", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(patched.status.unwrap().phase.unwrap(), "Running");
    assert_eq!(patched.metadata.labels.unwrap()["a"], "b");
    let selected = pods
        .list(&ListParams::default().fields("status.phase=Running"))
        .await
        .unwrap();
    assert_eq!(selected.items.len(), 1);
}
