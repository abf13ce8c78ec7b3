//! Objects whose stored bytes cannot be read: requests for them get a 500 that names them, and everything else is
//! served.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::ObjectCodec;
use async_trait::async_trait;
use machinery::json::{Value, json};
use parking_lot::Mutex;
use registry::{Draft, Stored, object_key};
use store::{
    Committed, Durability, Entry, Error, Freshness, Key, ListRequest, Listed, Op, Revision, Store,
    Unreadable, Watch,
};

use crate::support::{AnyStore, Server, admin};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A store in which the values of some keys cannot be read, as etcd's may be.
struct Damaged {
    inner: AnyStore,
    /// Guards the keys.
    keys: Arc<Mutex<BTreeSet<Key>>>,
}

impl Damaged {
    fn check(&self, is_read: impl Fn(&Key) -> bool) -> Result<(), Error> {
        let keys = self.keys.lock();
        let unreadable = keys
            .iter()
            .filter(|key| is_read(key))
            .map(|key| Unreadable {
                key: key.clone(),
                revision: 1,
                why: format!("{}: EOF", String::from_utf8_lossy(key)),
            });
        match unreadable.collect::<Vec<_>>() {
            none if none.is_empty() => Ok(()),
            keys => Err(Error::Unreadable(keys)),
        }
    }
}

#[async_trait]
impl Store<ObjectCodec> for Damaged {
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<Stored>>), Error> {
        self.check(|damaged| damaged == key)?;
        self.inner.get(key, freshness).await
    }

    async fn list(&self, request: ListRequest) -> Result<Listed<Stored>, Error> {
        self.check(|damaged| damaged.starts_with(&request.prefix))?;
        self.inner.list(request).await
    }

    async fn commit(
        &self,
        ops: Vec<Op<Draft>>,
        durability: Durability,
    ) -> Result<Committed<Stored>, Error> {
        self.inner.commit(ops, durability).await
    }

    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<Stored>, Error> {
        self.inner.watch(prefix, after).await
    }

    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_object_is_a_500_that_names_it_and_others_are_served() {
    let keys = Arc::new(Mutex::new(BTreeSet::new()));
    let damaged = keys.clone();
    let server = Server::over(|inner| {
        Arc::new(Damaged {
            inner,
            keys: damaged,
        })
    })
    .await;
    for name in ["broken", "whole"] {
        let made = admin(&server, "POST", MAPS, json!({"metadata": {"name": name}})).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let key = object_key("", "configmaps", "default", "broken");
    keys.lock().insert(key.clone());

    let (broken, whole) = (format!("{MAPS}/broken"), format!("{MAPS}/whole"));
    let body = json!({"metadata": {"name": "broken"}, "data": {"a": "b"}});
    // An alpha feature of Kubernetes that is off.
    let ignore = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    for (method, path, body) in [
        ("GET", broken.as_str(), Value::Null),
        ("GET", MAPS, Value::Null),
        ("GET", "/api/v1/configmaps?limit=1", Value::Null),
        ("PUT", &broken, body.clone()),
        ("PATCH", &broken, json!({"data": {"a": "b"}})),
        ("DELETE", &broken, Value::Null),
        ("DELETE", &broken, ignore),
        ("DELETE", MAPS, Value::Null),
    ] {
        let refused = admin(&server, method, path, body).await;
        assert_eq!(refused.code, 500, "{method} {path}: {}", refused.body);
        let status = refused.json();
        assert_eq!(status["reason"], "InternalError", "{}", refused.body);
        let message = status["message"].as_str().unwrap();
        assert!(
            message.contains(std::str::from_utf8(&key).unwrap()),
            "{message}"
        );
    }
    for (method, path, body, code) in [
        ("POST", MAPS, body, 409),
        ("GET", &whole, Value::Null, 200),
        ("PATCH", &whole, json!({"data": {"a": "b"}}), 200),
        (
            "GET",
            "/api/v1/namespaces/kube-system/configmaps",
            Value::Null,
            200,
        ),
        ("GET", "/api/v1/secrets", Value::Null, 200),
        ("GET", "/metrics", Value::Null, 200),
        ("DELETE", &whole, Value::Null, 200),
    ] {
        let answer = admin(&server, method, path, body).await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
    }

    keys.lock().clear();
    let mended = admin(&server, "DELETE", &broken, Value::Null).await;
    assert_eq!(mended.code, 200, "{}", mended.body);
}
