//! The objects that every cluster has from its start, and those through which clients reach this
//! server; the latter are corrected when they are changed.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use machinery::json::{Key, json};
use machinery::{Object, Status, Value};
use store::Freshness;

use crate::{
    LocalService, Resource, failure, identity, kubernetes_service, meta,
    servers::{LOOK_EVERY, Servers},
    started::ServerState,
    write::{self, Write, WritePath},
};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];
const REPAIR_EVERY: Duration = Duration::from_secs(10);

/// What the objects of every cluster are made from.
pub(crate) struct Bootstrap {
    pub(crate) writes: Arc<WritePath>,
    pub(crate) state: Arc<ServerState>,
    /// The client of the server's own tasks.
    pub(crate) api: LocalService,
    /// The name of this server if there may be others over the same store.
    pub(crate) server_name: Option<String>,
    /// The Service networks; the first is primary.
    pub(crate) service_cidrs: Vec<(IpAddr, u8)>,
    /// PEM of the client CA and of the front proxy's CA.
    pub(crate) client_ca: String,
    pub(crate) front_proxy_ca: String,
}

/// One object that must exist.
pub(crate) struct RequiredObject {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) object: Value,
}

/// Creates missing objects, and writes these servers' addresses into the endpoints of the
/// `kubernetes` Service. Fails only if the store fails.
pub(crate) async fn ensure(
    bootstrap: &Bootstrap,
    servers: &BTreeSet<SocketAddr>,
) -> Result<(), Status> {
    for name in NAMESPACES {
        let object = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        });
        create(
            bootstrap,
            RequiredObject {
                group: "",
                plural: "namespaces",
                object,
            },
        )
        .await?;
    }
    for wanted in fixed(bootstrap) {
        create(bootstrap, wanted).await?;
    }
    create(bootstrap, token_tracking(bootstrap)).await?;
    create_or_correct(bootstrap, authentication(bootstrap), AUTHENTICATION).await?;
    ready_range(bootstrap).await?;
    kubernetes_service::repair(bootstrap, servers).await
}

/// The addresses of all live servers: this one, and others over the same store.
pub(crate) async fn living(bootstrap: &Bootstrap, servers: &Servers) -> BTreeSet<SocketAddr> {
    let own = bootstrap.state.advertise();
    let port = bootstrap.state.port.get().copied().unwrap_or(own.port());
    let mut living = BTreeSet::from([SocketAddr::new(own.ip(), port)]);
    if bootstrap.server_name.is_some() {
        match identity::leases(&bootstrap.api).await {
            Ok(leases) => living.extend(servers.living(&leases, bootstrap.writes.clock.now())),
            Err(why) => tracing::warn!(why, "cannot read the leases of other API servers"),
        }
    }
    // The Service has one IP family.
    living.retain(|address| address.is_ipv4() == own.is_ipv4());
    living
}

/// The ConfigMap that says since when the use of tokens from Secrets is recorded.
fn token_tracking(bootstrap: &Bootstrap) -> RequiredObject {
    let today = bootstrap
        .writes
        .clock
        .now()
        .strftime("%Y-%m-%d")
        .to_string();
    let name = "kube-apiserver-legacy-service-account-token-tracking";
    let object = json!({
        "metadata": {"name": name, "namespace": "kube-system"}, "data": {"since": today},
    });
    RequiredObject {
        group: "",
        plural: "configmaps",
        object,
    }
}

/// Fields of `extension-apiserver-authentication` that this server sets; keys added by others are
/// kept.
const AUTHENTICATION: &[&[&str]] = &[
    &["data", "client-ca-file"],
    &["data", "requestheader-client-ca-file"],
    &["data", "requestheader-allowed-names"],
    &["data", "requestheader-username-headers"],
    &["data", "requestheader-uid-headers"],
    &["data", "requestheader-group-headers"],
    &["data", "requestheader-extra-headers-prefix"],
];

fn authentication(bootstrap: &Bootstrap) -> RequiredObject {
    let object = json!({
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {
            "client-ca-file": bootstrap.client_ca,
            "requestheader-client-ca-file": bootstrap.front_proxy_ca,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        },
    });
    RequiredObject {
        group: "",
        plural: "configmaps",
        object,
    }
}

/// Marks the first ServiceCIDR ready.
async fn ready_range(bootstrap: &Bootstrap) -> Result<(), Status> {
    let name = json!({"metadata": {"name": "kubernetes"}});
    let table = bootstrap.writes.registry.table();
    let found = table
        .any_version("networking.k8s.io", "servicecidrs")
        .cloned();
    drop(table);
    let Some(resource) = found else { return Ok(()) };
    let now = meta::time(bootstrap.writes.clock.now());
    let change = move |old: &Object| {
        let mut object = old.clone();
        let conditions = get(old, &["status", "conditions"]);
        let mut conditions = conditions.as_array().into_iter().flatten();
        if !meta::is_deleting(old) && !conditions.any(|condition| condition["type"] == "Ready") {
            let ready = json!([{
                "type": "Ready", "status": "True", "reason": "", "lastTransitionTime": now,
                "message": "Kubernetes default Service CIDR is ready",
            }]);
            set(&mut object, &["status", "conditions"], ready);
        }
        Ok(object)
    };
    let mut write = own_write(bootstrap, resource, &name);
    write.subresource = "status".to_owned();
    if is_unreadable(&write).await? {
        return Ok(());
    }
    match write::update(&write, &change).await {
        Err(status) if status.reason != "NotFound" => Err(status),
        _ => Ok(()),
    }
}

/// Keeps the endpoints of the `kubernetes` Service correct for as long as the server runs.
pub(crate) async fn keep(bootstrap: Bootstrap, servers: Servers, mut known: BTreeSet<SocketAddr>) {
    let every = match bootstrap.server_name {
        Some(_) => LOOK_EVERY,
        None => REPAIR_EVERY,
    };
    let clock = &bootstrap.writes.clock;
    let mut repaired = clock.now();
    let mut advertised = bootstrap.state.advertised.subscribe();
    loop {
        tokio::select! {
            () = clock.sleep(every) => {}
            _ = advertised.changed() => {}
        }
        let living = living(&bootstrap, &servers).await;
        let now = clock.now();
        let is_due = now.duration_since(repaired).unsigned_abs() >= REPAIR_EVERY;
        if living == known && !is_due {
            continue;
        }
        if living != known {
            tracing::info!(servers = ?living, "the set of API servers changed");
        }
        match ensure(&bootstrap, &living).await {
            Ok(()) => (known, repaired) = (living, now),
            Err(status) => tracing::warn!(%status, "cannot repair bootstrap objects"),
        }
    }
}

fn fixed(bootstrap: &Bootstrap) -> Vec<RequiredObject> {
    let cidrs: Vec<String> = bootstrap
        .service_cidrs
        .iter()
        .map(|(base, length)| format!("{base}/{length}"))
        .collect();
    let class = |name: &str, value: i64, about: &str| RequiredObject {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        object: json!({"metadata": {"name": name}, "value": value, "description": about}),
    };
    vec![
        RequiredObject {
            group: "networking.k8s.io",
            plural: "servicecidrs",
            object: json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}),
        },
        class(
            "system-node-critical",
            2_000_001_000,
            "For pods that are critical for their node.",
        ),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "For pods that are critical for the cluster.",
        ),
    ]
}

/// The write that creates or corrects an object.
fn own_write(bootstrap: &Bootstrap, resource: Arc<Resource>, object: &Value) -> Write {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    let namespace = match resource.namespaced() {
        true => text("namespace"),
        false => "",
    };
    let writes = &bootstrap.writes;
    writes.own_write(resource, namespace, text("name"), "create")
}

fn decoded(resource: &Resource, object: Value) -> Result<Object, Status> {
    let object = object.as_object().cloned().unwrap_or_default();
    let mut decoded = resource.normalise(object).map_err(Status::internal)?;
    resource.name_kind(&mut decoded.object);
    Ok(decoded.object)
}

async fn create(bootstrap: &Bootstrap, wanted: RequiredObject) -> Result<(), Status> {
    let table = bootstrap.writes.registry.table();
    let found = table.any_version(wanted.group, wanted.plural).cloned();
    drop(table);
    let Some(resource) = found else { return Ok(()) };
    let write = own_write(bootstrap, resource.clone(), &wanted.object);
    let key = resource.key(&write.namespace, &write.name);
    let read = match bootstrap.writes.store.get(&key, Freshness::Newest).await {
        // It exists. The store has logged it.
        Err(store::Error::Unreadable(_)) => return Ok(()),
        read => read.map_err(failure::of_store)?,
    };
    if read.1.is_some() {
        return Ok(());
    }
    let object = decoded(&resource, wanted.object)?;
    match write::create(&write, object.clone(), || Ok(object.clone())).await {
        Err(status) if status.reason != "AlreadyExists" => Err(status),
        _ => Ok(()),
    }
}

/// Whether the stored object cannot be read. It is left as it is.
async fn is_unreadable(write: &Write) -> Result<bool, Status> {
    let key = write.resource.key(&write.namespace, &write.name);
    match write.path.store.get(&key, Freshness::Newest).await {
        Err(store::Error::Unreadable(_)) => Ok(true),
        read => read.map(|_| false).map_err(failure::of_store),
    }
}

/// Creates an object, or corrects the given fields of an existing one.
pub(crate) async fn create_or_correct(
    bootstrap: &Bootstrap,
    wanted: RequiredObject,
    parts: &'static [&'static [&'static str]],
) -> Result<(), Status> {
    let found = bootstrap
        .writes
        .registry
        .table()
        .any_version(wanted.group, wanted.plural)
        .cloned();
    let Some(resource) = found else { return Ok(()) };
    let target = decoded(&resource, wanted.object.clone())?;
    let write = own_write(bootstrap, resource.clone(), &wanted.object);
    create(bootstrap, wanted).await?;
    if is_unreadable(&write).await? {
        return Ok(());
    }
    let change = move |old: &Object| {
        let mut object = old.clone();
        for part in parts {
            set(&mut object, part, get(&target, part));
        }
        resource.kind.default(&mut object);
        Ok(object)
    };
    write::update(&write, &change).await.map(|_| ())
}

fn get(object: &Object, path: &[&str]) -> Value {
    let mut value = object.get(path[0]);
    for key in &path[1..] {
        value = value.and_then(|value| value.get(key));
    }
    value.cloned().unwrap_or_default()
}

fn set(object: &mut Object, path: &[&str], value: Value) {
    match path {
        [key] => drop(object.insert((*key).to_owned(), value)),
        [key, rest @ ..] => {
            let below = object.entry(Key::new(key)).or_insert_with(|| json!({}));
            if let Some(below) = below.as_object_mut() {
                set(below, rest, value);
            }
        }
        [] => {}
    }
}
