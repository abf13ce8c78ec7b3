//! Objects that every cluster has beside those of the API server: the `kube-dns` Service, whose
//! address pods use as resolver (each node answers for it; it needs no endpoints), the ConfigMap
//! `coredns` with its Corefile, the default StorageClass, two ConfigMaps that joining machines
//! read: kubeadm's `cluster-info`, and the cluster's settings for nodes; and one with the names of all servers, if there
//! may be several. The two for joining machines are created again as soon as they are deleted.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use client::kube::{
    self,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use client::{Api, Event, FromJson as _, Informer};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service as KubeService},
    storage::v1::StorageClass,
};
use lifecycle::{Context, Run, Service};
use pki::Pki;
use serde_json::json;
use tokio::sync::watch;
use tracing::warn;

use crate::{
    Part, Role, Settings,
    addresses::names,
    agent::{CONFIG_MAP, Facts},
    agreed::Agreed,
    marker::Marker,
    storage,
};

/// kubeadm's ConfigMap for joining machines.
const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");
/// How long to wait before a deleted ConfigMap is created again after an error, as while its namespace is deleted.
const RETRY: Duration = Duration::from_secs(5);

const LOST: &str = "an informer of ConfigMaps ended";

/// Creates the objects.
pub(crate) struct Addons {
    pub client: kube::Client,
    pub settings: Settings,
    pub role: Role,
    pub pki: Arc<Pki>,
    /// The settings with the host's current addresses.
    pub current: watch::Receiver<Settings>,
}

impl Service for Addons {
    fn name(&self) -> &'static str {
        "addons"
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let [infos, facts] = [CLUSTER_INFO, CONFIG_MAP].map(|(namespace, name)| {
                Informer::<ConfigMap>::builder(self.client.clone())
                    .namespace(namespace)
                    .fields(format!("metadata.name={name}"))
                    .start(&context)
            });
            let (mut infos, mut facts) = (infos.subscribe(), facts.subscribe());
            self.ensure().await?;
            // From here on a missing store is data loss.
            Marker::update(&self.settings.data_dir, |marker| {
                marker.store |= self.is_embedded();
                marker.agreed = Some(Agreed::new(&self.settings));
                marker.command = self.role.command().to_owned();
            })?;
            context.ready();
            let mut current = self.current.clone();
            let mut is_missing = false;
            loop {
                let event = tokio::select! {
                    biased;
                    () = context.shutdown() => return Ok(()),
                    changed = current.changed() => {
                        changed?;
                        self.ensure_cluster_info().await?;
                        self.ensure_server_names().await?;
                        continue;
                    }
                    event = infos.next() => Some(event.ok_or(LOST)?),
                    event = facts.next() => Some(event.ok_or(LOST)?),
                    () = tokio::time::sleep(RETRY), if is_missing => None,
                };
                // Changes are left alone: the servers of a cluster have different addresses.
                if is_missing || matches!(event, Some(Event::Deleted(_))) {
                    let restored = self.restore_for_joining().await;
                    is_missing = restored.is_err();
                    if let Err(error) = restored {
                        warn!(%error, "cannot restore the ConfigMaps for joining machines");
                    }
                }
            }
        })
    }
}

impl Addons {
    fn is_embedded(&self) -> bool {
        self.settings.storage == storage::Config::Embedded
    }

    async fn ensure(&self) -> Result<(), kube::Error> {
        self.ensure_server_names().await?;
        self.ensure_dns().await?;
        if self.settings.runs(Part::Dns) {
            self.ensure_corefile().await?;
        }
        if self.settings.runs(Part::LocalPath) {
            self.ensure_class().await?;
        }
        self.ensure_for_joining().await
    }

    /// What joining machines read.
    async fn ensure_for_joining(&self) -> Result<(), kube::Error> {
        self.ensure_cluster_info().await?;
        self.ensure_facts().await
    }

    /// Creates what joining machines read where it is missing.
    async fn restore_for_joining(&self) -> Result<(), kube::Error> {
        if self.is_missing(CLUSTER_INFO).await? {
            self.ensure_cluster_info().await?;
        }
        if self.is_missing(CONFIG_MAP).await? {
            self.ensure_facts().await?;
        }
        Ok(())
    }

    async fn is_missing(&self, (namespace, name): (&str, &str)) -> Result<bool, kube::Error> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        Ok(maps.get_opt(name).await?.is_none())
    }

    async fn ensure_facts(&self) -> Result<(), kube::Error> {
        let (namespace, name) = CONFIG_MAP;
        let facts = Facts::publish(&self.settings);
        self.ensure_map(namespace, name, facts).await
    }

    /// The names in this server's certificate: no node gets a certificate for them, whichever server approves it.
    async fn ensure_server_names(&self) -> Result<(), kube::Error> {
        let current = self.current.borrow().clone();
        // A single server knows its own names.
        let Ok(Some(server)) = current.server_name() else {
            return Ok(());
        };
        let names = names(&current, self.role).of_apiserver();
        let names = Vec::from_iter(names).join(" ");
        let entry = BTreeMap::from([(server, names)]);
        self.ensure_map("kube-system", controllers::csr::approving::SERVERS, entry)
            .await
    }

    /// A kubeconfig without credentials: the server and the CA.
    async fn ensure_cluster_info(&self) -> Result<(), kube::Error> {
        let server = self.current.borrow().server_url();
        let info = self.pki.cluster_info(&server);
        let info = BTreeMap::from([("kubeconfig".to_owned(), info)]);
        let (namespace, name) = CLUSTER_INFO;
        self.ensure_map(namespace, name, info).await
    }

    /// Creates a ConfigMap, or corrects these keys; other keys are kept.
    async fn ensure_map(
        &self,
        namespace: &str,
        name: &str,
        data: BTreeMap<String, String>,
    ) -> Result<(), kube::Error> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let known = match maps.get_opt(name).await? {
            Some(there) => there.data.unwrap_or_default(),
            None => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(name.to_owned()),
                        ..ObjectMeta::default()
                    },
                    data: Some(data.clone()),
                    ..ConfigMap::default()
                };
                match maps.create(&PostParams::default(), &map).await {
                    // Another server was first: its map may lack these keys.
                    Err(kube::Error::Api(status)) if status.code == 409 => BTreeMap::new(),
                    outcome => return outcome.map(drop),
                }
            }
        };
        if data
            .iter()
            .all(|(key, value)| known.get(key) == Some(value))
        {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"data": data}));
        let params = PatchParams::default();
        maps.patch(name, &params, &patch).await.map(drop)
    }

    /// Creates the default class; an existing one is left alone.
    async fn ensure_class(&self) -> Result<(), kube::Error> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let class = controllers::localpath::class();
        let name = class.metadata.name.as_deref().unwrap_or_default();
        if classes.get_opt(name).await?.is_some() {
            return Ok(());
        }
        created(classes.create(&PostParams::default(), &class).await)
    }

    /// Creates the Corefile of the cluster's DNS; an existing one is left alone.
    async fn ensure_corefile(&self) -> Result<(), kube::Error> {
        let (namespace, name) = dns::cluster::SETTINGS;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        if maps.get_opt(name).await?.is_some() {
            return Ok(());
        }
        let text = dns::corefile::default_text(&self.settings.cluster_domain);
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(BTreeMap::from([(
                    "k8s-app".to_owned(),
                    "kube-dns".to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(dns::corefile::KEY.to_owned(), text)])),
            ..ConfigMap::default()
        };
        created(maps.create(&PostParams::default(), &map).await)
    }

    async fn ensure_dns(&self) -> Result<(), kube::Error> {
        let services: Api<KubeService> = Api::namespaced(self.client.clone(), "kube-system");
        if services.get_opt("kube-dns").await?.is_some() {
            return Ok(());
        }
        let service = dns_service(&self.settings.all_cluster_dns());
        created(services.create(&PostParams::default(), &service).await)
    }
}

/// Another server of the same cluster may have created it first.
fn created<T>(outcome: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

fn dns_service(addresses: &[IpAddr]) -> KubeService {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol, "targetPort": 53});
    let service = json!({
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
        "spec": {
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilyPolicy": if addresses.len() > 1 { "PreferDualStack" } else { "SingleStack" },
            "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")]}});
    // The literal above is a valid Service, so this cannot fail.
    KubeService::from_value(&service).unwrap_or_default()
}
