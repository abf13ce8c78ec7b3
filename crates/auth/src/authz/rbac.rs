//! RBAC. A background task keeps an index; requests read the newest one without waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use lifecycle::Context;
use machinery::{Object, Status};
use stdx::Backoff;
use tokio::sync::Notify;

use super::{
    Attributes, Authorizer, Decision,
    index::{Index, Objects},
    policy,
};
use registry::Reader;

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";
pub(super) const FIRST: Duration = Duration::from_millis(20);
pub(super) const LONGEST: Duration = Duration::from_secs(5);
pub(super) const KINDS: [&str; 4] = [
    "clusterroles",
    "roles",
    "clusterrolebindings",
    "rolebindings",
];

/// The authorizer, and the index for rules reviews.
#[derive(Clone)]
pub struct Rbac {
    reader: Reader,
    index: Arc<ArcSwap<Index>>,
    written: Arc<AtomicBool>,
}

impl Rbac {
    /// Uses the defaults until it has read the store.
    pub fn new(reader: Reader) -> Self {
        let index = Arc::new(ArcSwap::from_pointee(Index::new(&defaults())));
        Self {
            reader,
            index,
            written: Arc::default(),
        }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The newest index.
    pub fn index(&self) -> Arc<Index> {
        self.index.load_full()
    }

    async fn list_objects(&self) -> Result<Objects, Status> {
        // A role or binding that cannot be read allows nothing.
        let list = async |kind| {
            let readable = self.reader.list_readable(GROUP, kind).await?;
            Ok::<Vec<Object>, Status>(readable.parsed())
        };
        Ok(Objects {
            cluster_roles: list(KINDS[0]).await?,
            roles: list(KINDS[1]).await?,
            cluster_role_bindings: list(KINDS[2]).await?,
            role_bindings: list(KINDS[3]).await?,
        })
    }

    /// Builds the index from the store. Until the defaults are written there, missing ones count
    /// too: the components that write them need them.
    pub async fn refresh(&self) -> Result<(), Status> {
        let mut objects = self.list_objects().await?;
        if !self.written.load(Ordering::Acquire) {
            objects.add_missing(defaults());
        }
        self.index.store(Arc::new(Index::new(&objects)));
        Ok(())
    }

    /// The defaults are in the store now: from here on only the store counts.
    pub async fn defaults_written(&self) -> Result<(), Status> {
        self.written.store(true, Ordering::Release);
        self.refresh().await
    }

    /// Rebuilds the index after changes; several changes are coalesced.
    async fn follow(self, changed: Arc<Notify>) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            match self.refresh().await {
                Ok(()) => {
                    backoff.reset();
                    changed.notified().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read roles and bindings");
                    tokio::time::sleep(backoff.step()).await;
                }
            }
        }
    }
}

/// The objects of the default policy.
pub(super) fn defaults() -> Objects {
    let policy = &*policy::DEFAULTS;
    let roles = |cluster: bool| {
        let chosen = policy
            .roles
            .iter()
            .filter(move |role| role.namespace.is_empty() == cluster);
        chosen.map(policy::Role::to_object).collect()
    };
    let bindings = |cluster: bool| {
        let all = policy.bindings.iter();
        let chosen = all.filter(move |binding| binding.namespace.is_empty() == cluster);
        chosen.map(policy::Binding::to_object).collect()
    };
    Objects {
        cluster_roles: roles(true),
        roles: roles(false),
        cluster_role_bindings: bindings(true),
        role_bindings: bindings(false),
    }
}

#[async_trait]
impl Authorizer for Rbac {
    fn name(&self) -> &'static str {
        "rbac"
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let index = self.index.load();
        if index.allows(attributes) {
            return Decision::Allow;
        }
        Decision::NoOpinion(index.complaint(attributes.user, attributes.namespace))
    }

    fn reason(&self, attributes: &Attributes<'_>) -> Option<String> {
        self.index.load().reason(attributes)
    }

    fn start(&self, context: &Context) {
        let changed = Arc::new(Notify::new());
        for kind in KINDS {
            let (reader, changed) = (self.reader.clone(), changed.clone());
            context.spawn("rbac-watch", async move {
                reader.tell_of_changes(GROUP, kind, &changed).await;
            });
        }
        context.spawn("rbac-index", self.clone().follow(changed));
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use registry_testing::World;
    use request::User;

    fn asks<'a>(user: &'a User, namespace: &'a str) -> Attributes<'a> {
        Attributes {
            user,
            verb: "get",
            is_resource: true,
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace,
            name: "x",
            path: "",
            field_selector: "",
            label_selector: "",
        }
    }

    async fn until(rbac: &Rbac, attributes: &Attributes<'_>, expected: bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while (rbac.authorize(attributes).await == Decision::Allow) != expected {
            assert!(
                tokio::time::Instant::now() < deadline,
                "still not {expected}"
            );
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_new_binding_counts_and_a_deleted_one_does_not() {
        let world = World::new();
        let rbac = Rbac::new(world.reader.clone());
        let eve = User::new("eve", [""; 0]);
        assert_ne!(rbac.authorize(&asks(&eve, "team")).await, Decision::Allow);
        let stop = CancellationToken::new();
        rbac.start(&Context::standalone("test", stop.clone()));
        let role = json!({"metadata": {"name": "reader"},
                          "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        world.put(GROUP, "clusterroles", role).await;
        let binding = json!({
            "metadata": {"name": "b", "namespace": "team"},
            "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "User", "name": "eve"}],
        });
        world.put(GROUP, "rolebindings", binding).await;
        until(&rbac, &asks(&eve, "team"), true).await;
        until(&rbac, &asks(&eve, "other"), false).await;
        world.delete(GROUP, "rolebindings", "team", "b").await;
        until(&rbac, &asks(&eve, "team"), false).await;
        stop.cancel();
    }
}
