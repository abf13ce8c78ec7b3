//! Lists and watches of informers in the server's process: shared objects instead of bytes, with
//! the same authorization.

use std::time::Duration;

use apiserver::User;
use client::{Event, Informer};
use futures::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    client::Body,
};
use lifecycle::Context;
use machinery::json::json;
use tokio_util::sync::CancellationToken;

use crate::support::Server;

const PATH: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, value: &str) -> ConfigMap {
    let pair = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(pair("app", name)),
            ..ObjectMeta::default()
        },
        data: Some(pair("key", value)),
        ..ConfigMap::default()
    }
}

async fn ask(client: &kube::Client, query: &str, wanted: bool) -> Response<Body> {
    let mut request = Request::get(format!("{PATH}?{query}"));
    if wanted {
        request = request.extension(feed::WantsObjects);
    }
    client
        .send(request.body(Body::empty()).unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn pages_and_changes_are_handed_over_to_those_who_ask_and_may() {
    let server = Server::start().await;
    let admin = server.admin();
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &map(name, "1"))
            .await
            .unwrap();
    }
    let plain = ask(&admin, "limit=2", false).await;
    assert!(plain.extensions().get::<feed::Page>().is_none());
    let first = ask(&admin, "limit=2&labelSelector=app", true).await;
    let first = first.extensions().get::<feed::Page>().unwrap().clone();
    let names: Vec<_> = first.objects.iter().map(|object| object.name()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(first.objects[0].label("app"), Some("a"));
    let next = format!("limit=2&labelSelector=app&continue={}", first.next.unwrap());
    let second = ask(&admin, &next, true).await;
    let second = second.extensions().get::<feed::Page>().unwrap().clone();
    assert_eq!((second.objects.len(), &second.next), (1, &None));

    let query = format!("watch=true&resourceVersion={}", second.revision);
    let changes = ask(&admin, &query, true).await;
    let changes = changes.extensions().get::<feed::Changes>().unwrap().clone();
    let mut changes = changes.take().unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    let burst = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
    let burst = burst.unwrap().unwrap();
    assert!(matches!(&burst[..], [feed::Change::Deleted(object)]
            if object.name() == "b" && object.revision() > second.revision));

    let stranger = server.client(User::new("nobody", [""; 0]));
    for query in ["limit=2", "watch=true"] {
        let refused = ask(&stranger, query, true).await;
        assert_eq!(refused.status(), 403);
        assert!(refused.extensions().get::<feed::Page>().is_none());
        assert!(refused.extensions().get::<feed::Changes>().is_none());
    }
}

#[tokio::test]
async fn an_informer_beside_the_server_follows_every_change() {
    let server = Server::start().await;
    let admin = server.admin();
    let stop = CancellationToken::new();
    let context = Context::standalone("test", stop.clone());
    let informer = Informer::<ConfigMap>::builder(admin.clone())
        .namespace("default")
        .labels("app")
        .index("key", |map| {
            map.data
                .iter()
                .flat_map(|data| data.get("key").cloned())
                .collect()
        })
        .start(&context);
    informer.synced().await;
    let mut events = informer.subscribe();
    let maps: Api<ConfigMap> = Api::namespaced(admin, "default");
    maps.create(&PostParams::default(), &map("a", "1"))
        .await
        .unwrap();
    let patch = json!({"data": {"key": "2"}});
    let params = PatchParams::default();
    let changed = maps
        .patch("a", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    informer
        .reached(changed.metadata.resource_version.as_deref().unwrap())
        .await;
    assert_eq!(informer.by_index("key", "2").len(), 1);
    assert!(informer.by_index("key", "1").is_empty());
    let selected = informer.select_in("default", |object| object.label("app") == Some("a"));
    assert!(selected[0].metadata.managed_fields.is_none());
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let mut next = async || {
        let next = tokio::time::timeout(Duration::from_secs(10), events.next());
        next.await.unwrap().unwrap()
    };
    assert!(matches!(next().await, Event::Added(_)));
    let Event::Modified { old, new } = next().await else {
        panic!("not modified");
    };
    let value = |map: &ConfigMap| map.data.as_ref().unwrap()["key"].clone();
    assert_eq!((value(&old), value(&new)), ("1".to_owned(), "2".to_owned()));
    assert!(matches!(next().await, Event::Deleted(_)));
    assert!(informer.get("default", "a").is_none());
    stop.cancel();
}
