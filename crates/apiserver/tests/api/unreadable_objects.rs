//! Objects whose stored bytes cannot be read: requests for them get a 500 that names them, and everything else is
//! served.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::ObjectCodec;
use async_trait::async_trait;
use futures::StreamExt;
use machinery::json::{Value, json};
use parking_lot::Mutex;
use registry::{Draft, Stored, object_key};
use store::{
    Action, Committed, Durability, Entry, Error, Freshness, Key, ListRequest, Listed, Op,
    Precondition, Revision, Store, Unreadable, Watch,
};

use tokio::sync::watch;

use crate::support::{AnyStore, Server, admin, eventually};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A store in which the values of some keys cannot be read, as etcd's may be, and whose requests can be made to fail.
struct Damaged {
    inner: AnyStore,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    /// Guards the keys that cannot be read.
    keys: Mutex<BTreeSet<Key>>,
    /// Guards a key and how many of its deletions fail.
    deletions: Mutex<(Key, usize)>,
    /// Whether watches end.
    is_cut: watch::Sender<bool>,
}

impl Faults {
    fn over(self: &Arc<Self>) -> impl FnOnce(AnyStore) -> AnyStore + use<> {
        let faults = self.clone();
        |inner| Arc::new(Damaged { inner, faults })
    }

    /// Whether these operations fail.
    fn fails(&self, ops: &[Op<Draft>]) -> bool {
        let (key, left) = &mut *self.deletions.lock();
        let mut deletions = ops.iter().filter(|op| matches!(op.action, Action::Delete));
        let fails = *left > 0 && deletions.any(|op| op.key == *key);
        *left -= usize::from(fails);
        fails
    }

    fn unreadable(&self, is_read: impl Fn(&Key) -> bool) -> Vec<Unreadable> {
        let keys = self.keys.lock();
        let keys = keys.iter().filter(|key| is_read(key));
        keys.map(|key| Unreadable {
            key: key.clone(),
            revision: 1,
            why: format!("{}: EOF", String::from_utf8_lossy(key)),
        })
        .collect()
    }
}

#[async_trait]
impl Store<ObjectCodec> for Damaged {
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<Stored>>), Error> {
        match self.faults.unreadable(|damaged| damaged == key) {
            none if none.is_empty() => self.inner.get(key, freshness).await,
            unreadable => Err(Error::Unreadable(unreadable)),
        }
    }

    async fn list(&self, request: ListRequest) -> Result<Listed<Stored>, Error> {
        let in_list = |damaged: &Key| damaged.starts_with(&request.prefix);
        let unreadable = self.faults.unreadable(in_list);
        if !unreadable.is_empty() && !request.skip_unreadable {
            return Err(Error::Unreadable(unreadable));
        }
        let mut listed = self.inner.list(request).await?;
        let is_readable =
            |entry: &Entry<Stored>| !unreadable.iter().any(|one| one.key == entry.key);
        listed.entries.retain(is_readable);
        listed.unreadable = unreadable;
        Ok(listed)
    }

    async fn commit(
        &self,
        ops: Vec<Op<Draft>>,
        durability: Durability,
    ) -> Result<Committed<Stored>, Error> {
        if self.faults.fails(&ops) {
            return Err(Error::Unavailable("a fault".to_owned()));
        }
        self.inner.commit(ops, durability).await
    }

    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<Stored>, Error> {
        let mut cut = self.faults.is_cut.subscribe();
        if *cut.borrow_and_update() {
            return Err(Error::Unavailable("cut".to_owned()));
        }
        let events = self.inner.watch(prefix, after).await?;
        let end = async move { drop(cut.wait_for(|is_cut| *is_cut).await) };
        Ok(events.take_until(Box::pin(end)).boxed())
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
    let faults = Arc::new(Faults::default());
    let server = Server::over(faults.over()).await;
    for name in ["broken", "whole"] {
        let made = admin(&server, "POST", MAPS, json!({"metadata": {"name": name}})).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let key = object_key("", "configmaps", "default", "broken");
    faults.keys.lock().insert(key.clone());

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

    faults.keys.lock().clear();
    let mended = admin(&server, "DELETE", &broken, Value::Null).await;
    assert_eq!(mended.code, 200, "{}", mended.body);
}

fn definition(plural: &str) -> Value {
    let kind = plural.to_uppercase();
    json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    })
}

async fn until(server: &Server, path: &str, code: u16) {
    let answer = || admin(server, "GET", path, Value::Null);
    eventually(|| async { (answer().await.code == code).then_some(()) }).await;
}

/// Creates the definitions and one object of each.
async fn define(server: &Server, plurals: &[&str]) {
    for plural in plurals {
        let made = admin(server, "POST", DEFINITIONS, definition(plural)).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let path = format!("/apis/example.com/v1/{plural}");
        until(server, &path, 200).await;
        let object = json!({
            "apiVersion": "example.com/v1", "kind": plural.to_uppercase(), "metadata": {"name": "a"},
        });
        let made = admin(server, "POST", &path, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Group, resource, namespace and name of the objects that cannot be read.
const DAMAGED: [(&str, &str, &str, &str); 14] = [
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
        "broken.example.com",
    ),
    (
        "apiregistration.k8s.io",
        "apiservices",
        "",
        "v1.remote.example.com",
    ),
    ("apiregistration.k8s.io", "apiservices", "", "v1.apps"),
    (FLOW_CONTROL, "flowschemas", "", "service-accounts"),
    (FLOW_CONTROL, "flowschemas", "", "exempt"),
    (
        FLOW_CONTROL,
        "prioritylevelconfigurations",
        "",
        "workload-low",
    ),
    (RBAC, "clusterroles", "", "view"),
    (
        RBAC,
        "rolebindings",
        "kube-system",
        "system:controller:token-cleaner",
    ),
    ("networking.k8s.io", "servicecidrs", "", "kubernetes"),
    ("", "namespaces", "", "kube-public"),
    ("", "services", "default", "kubernetes"),
    (
        "discovery.k8s.io",
        "endpointslices",
        "default",
        "kubernetes",
    ),
    (
        "",
        "configmaps",
        "kube-system",
        "extension-apiserver-authentication",
    ),
    (
        "scheduling.k8s.io",
        "priorityclasses",
        "",
        "system-node-critical",
    ),
];

/// A role that was created after the damage permits its users what it says.
async fn other_roles_count(server: &Server) {
    let role = json!({"metadata": {"name": "reader"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]},
    ]});
    let path = "/apis/rbac.authorization.k8s.io/v1";
    let made = admin(server, "POST", &format!("{path}/clusterroles"), role).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let binding = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "someone"}],
    });
    let bindings = format!("{path}/clusterrolebindings");
    let made = admin(server, "POST", &bindings, binding).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(
        server.client(apiserver::User::new("someone", ["system:authenticated"])),
        "default",
    );
    eventually(|| async { maps.list(&Default::default()).await.ok() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_starts_without_the_objects_that_cannot_be_read() {
    let server = Server::over(|store| store).await;
    define(&server, &["broken", "whole"]).await;
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let remote = json!({
        "metadata": {"name": "v1.remote.example.com"},
        "spec": {
            "group": "remote.example.com", "version": "v1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": {"namespace": "default", "name": "remote"},
        },
    });
    let made = admin(&server, "POST", services, remote).await;
    assert_eq!(made.code, 201, "{}", made.body);
    until(&server, "/readyz", 200).await;

    let faults = Arc::new(Faults::default());
    for (group, plural, namespace, name) in DAMAGED {
        let key = object_key(group, plural, namespace, name);
        let (_, stored) = server.store.get(&key, Freshness::Newest).await.unwrap();
        assert!(stored.is_some(), "{plural} {name}");
        faults.keys.lock().insert(key);
    }
    let server = server.restart_over(faults.over()).await;
    until(&server, "/readyz", 200).await;
    let group = "/apis/example.com/v1";
    for (path, code) in [
        (format!("{DEFINITIONS}/broken.example.com"), 500),
        (format!("{services}/v1.apps"), 500),
        (format!("{group}/broken/a"), 404),
        (format!("{group}/whole/a"), 200),
        (format!("{DEFINITIONS}/whole.example.com"), 200),
        ("/apis/apps/v1/deployments".to_owned(), 200),
        ("/apis/remote.example.com/v1".to_owned(), 404),
        ("/metrics".to_owned(), 200),
        // Deleted only if no definition has the group and version.
        (format!("{services}/v1.example.com"), 200),
    ] {
        let answer = admin(&server, "GET", &path, Value::Null).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
    }
    // Definitions are still followed, and names of unreadable ones are taken.
    define(&server, &["later"]).await;
    let taken = admin(&server, "POST", DEFINITIONS, definition("broken")).await;
    assert_eq!(taken.code, 409, "{}", taken.body);
    other_roles_count(&server).await;

    faults.keys.lock().clear();
    let server = server.restart().await;
    until(&server, &format!("{group}/broken/a"), 200).await;
    until(&server, &format!("{group}/whole/a"), 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_a_definition_is_finished_after_errors_of_the_store() {
    let faults = Arc::new(Faults::default());
    let server = Server::over(faults.over()).await;
    define(&server, &["gone"]).await;
    let name = "gone.example.com";
    let key = object_key(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
        name,
    );
    *faults.deletions.lock() = (key, 2);
    let path = format!("{DEFINITIONS}/{name}");
    let deleted = admin(&server, "DELETE", &path, Value::Null).await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    until(&server, &path, 404).await;
    assert_eq!(faults.deletions.lock().1, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_another_server_deletes_while_watches_are_cut_is_not_served() {
    let faults = Arc::new(Faults::default());
    let server = Server::over(faults.over()).await;
    define(&server, &["gone", "whole"]).await;
    faults.is_cut.send_replace(true);
    let name = "gone.example.com";
    let key = object_key(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
        name,
    );
    let op = Op {
        key,
        precondition: Precondition::Exists,
        action: Action::Delete,
    };
    let committed = server.store.commit(vec![op], Durability::Synced).await;
    committed.unwrap();
    faults.is_cut.send_replace(false);
    until(&server, "/apis/example.com/v1/gone", 404).await;
    until(&server, "/apis/example.com/v1/whole/a", 200).await;
}
