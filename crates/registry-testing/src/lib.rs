//! For unit tests of the API server's crates: a store with simple kinds, and a reader.

#![forbid(unsafe_code)]
// Only tests use this crate.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use kinds::{Column, Kind, Names, Scope};
use machinery::{Object, Value};
use store::{Action, Durability, Op, Precondition, embedded::Embedded};

use registry::{Draft, ObjectCodec, Reader, Registry, Store};

/// A kind without behaviour.
struct Plain {
    names: Names,
    scope: Scope,
}

impl Kind for Plain {
    fn names(&self) -> &Names {
        &self.names
    }

    fn scope(&self) -> Scope {
        self.scope
    }

    fn schema(&self) -> Option<&'static str> {
        None
    }

    fn selectable_fields(&self, object: &Object) -> Vec<(std::borrow::Cow<'static, str>, String)> {
        let node = object
            .get("spec")
            .and_then(|spec| spec.get("nodeName"))
            .and_then(Value::as_str);
        match node {
            Some(node) if self.names.plural == "pods" => {
                vec![("spec.nodeName".into(), node.to_owned())]
            }
            _ => Vec::new(),
        }
    }

    fn columns(&self) -> &'static [Column] {
        &[]
    }

    fn row(&self, _: &Object, _: i64) -> Vec<Value> {
        Vec::new()
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const KINDS: &[(&str, &str, &str, Scope)] = &[
    ("", "Namespace", "namespaces", Scope::Cluster),
    ("", "Node", "nodes", Scope::Cluster),
    ("", "PersistentVolume", "persistentvolumes", Scope::Cluster),
    (
        "",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        Scope::Namespaced,
    ),
    ("", "Pod", "pods", Scope::Namespaced),
    ("", "ServiceAccount", "serviceaccounts", Scope::Namespaced),
    ("", "Secret", "secrets", Scope::Namespaced),
    ("", "LimitRange", "limitranges", Scope::Namespaced),
    ("", "ResourceQuota", "resourcequotas", Scope::Namespaced),
    (
        "storage.k8s.io",
        "StorageClass",
        "storageclasses",
        Scope::Cluster,
    ),
    ("storage.k8s.io", "CSIDriver", "csidrivers", Scope::Cluster),
    (
        "resource.k8s.io",
        "ResourceSlice",
        "resourceslices",
        Scope::Cluster,
    ),
    (
        "resource.k8s.io",
        "ResourceClaim",
        "resourceclaims",
        Scope::Namespaced,
    ),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        "volumeattachments",
        Scope::Cluster,
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        "priorityclasses",
        Scope::Cluster,
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        "runtimeclasses",
        Scope::Cluster,
    ),
    (
        "networking.k8s.io",
        "IngressClass",
        "ingressclasses",
        Scope::Cluster,
    ),
    (RBAC, "ClusterRole", "clusterroles", Scope::Cluster),
    (
        RBAC,
        "ClusterRoleBinding",
        "clusterrolebindings",
        Scope::Cluster,
    ),
    (RBAC, "Role", "roles", Scope::Namespaced),
    (RBAC, "RoleBinding", "rolebindings", Scope::Namespaced),
];

fn kind(group: &str, kind: &str, plural: &str, scope: Scope) -> &'static dyn Kind {
    let names = Names {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        short_names: Vec::new(),
        categories: Vec::new(),
    };
    Box::leak(Box::new(Plain { names, scope }))
}

/// A store with objects, and a reader.
pub struct World {
    _directory: tempfile::TempDir,
    store: Store,
    registry: Arc<Registry>,
    pub reader: Reader,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    pub fn new() -> Self {
        let kinds = KINDS
            .iter()
            .map(|(group, name, plural, scope)| kind(group, name, plural, *scope));
        let registry = Registry::with(kinds);
        let directory = tempfile::tempdir().unwrap();
        let codec = ObjectCodec::new(registry.clone());
        let store: Store = Embedded::open(directory.path(), codec).unwrap();
        let reader = Reader::new(store.clone(), registry.clone());
        Self {
            _directory: directory,
            store,
            registry,
            reader,
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates or replaces an object.
    pub async fn put(&self, group: &str, plural: &str, json: Value) -> u64 {
        let object = object(json);
        let resource = self
            .registry
            .table()
            .any_version(group, plural)
            .cloned()
            .unwrap();
        let key = resource.key(kinds::tree::namespace(&object), kinds::tree::name(&object));
        let mut full = Object::new();
        full.insert("apiVersion".to_owned(), resource.api_version.clone().into());
        full.insert("kind".to_owned(), resource.kind.names().kind.clone().into());
        full.extend(object);
        let bytes = Bytes::from(machinery::json::to_vec(&full).unwrap());
        let fields = |object: &Object| resource.kind.selectable_fields(object);
        let draft = Draft::from_bytes(bytes, fields).unwrap();
        let action = Action::Put {
            draft,
            expires_in: None,
        };
        self.commit(Op {
            key,
            precondition: Precondition::Any,
            action,
        })
        .await
    }

    pub async fn delete(&self, group: &str, plural: &str, namespace: &str, name: &str) -> u64 {
        let resource = self
            .registry
            .table()
            .any_version(group, plural)
            .cloned()
            .unwrap();
        let key = resource.key(namespace, name);
        self.commit(Op {
            key,
            precondition: Precondition::Any,
            action: Action::Delete,
        })
        .await
    }

    async fn commit(&self, op: Op<Draft>) -> u64 {
        self.store
            .commit(vec![op], Durability::Relaxed)
            .await
            .unwrap()
            .revision
    }
}

/// A JSON object.
pub fn object(json: Value) -> Object {
    let Value::Object(object) = json else {
        panic!("not an object: {json}")
    };
    object
}
