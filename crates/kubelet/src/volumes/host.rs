//! The node and the API as volume plugins see them.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::{CSIDriver, TokenRequest, VolumeAttachment},
};
use kube::Api;
use parking_lot::Mutex;
use stdx::Blocking;
use tokio::sync::Notify;
use volume::{
    LinuxMounter, Mounter, TokenSpec,
    storage::{Host, Step, StepError},
};

use crate::{Config, plugins::Plugin, sources::Sources};

/// How long to wait for CSIDriver objects to be synced.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// The lifetime of a token for which a driver sets none.
const TOKEN_SECONDS: i64 = 3600;

/// A registered driver.
#[derive(Clone)]
pub(crate) struct RegisteredDriver {
    /// As described by itself.
    pub plugin: Plugin,
    pub node: Arc<csi::Node>,
    /// Notified when a volume could not be attached because the node has reached its limit.
    pub limit_reached: Arc<Notify>,
}

/// The CSI drivers registered on this node, by name.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    /// Guards the map only.
    registered: Arc<Mutex<HashMap<String, RegisteredDriver>>>,
}

impl Drivers {
    pub(crate) fn get(&self, name: &str) -> Option<RegisteredDriver> {
        self.registered.lock().get(name).cloned()
    }

    pub(crate) fn insert(&self, driver: RegisteredDriver) {
        let name = driver.plugin.name.clone();
        self.registered.lock().insert(name, driver);
    }

    /// Removes a driver unless it has registered again; returns whether it was removed.
    pub(crate) fn remove(&self, plugin: &Plugin) -> bool {
        let mut registered = self.registered.lock();
        let known = registered.get(&plugin.name);
        let is_same = known.is_some_and(|known| known.plugin.id == plugin.id);
        is_same && registered.remove(&plugin.name).is_some()
    }
}

/// The node for volume plugins.
pub(crate) struct NodeHost {
    pub config: Arc<Config>,
    pub nodes: Informer<Node>,
    pub csi_drivers: Informer<CSIDriver>,
    pub sources: Arc<Sources>,
    pub drivers: Drivers,
    /// Apart from the kubelet's other blocking work, so that volumes that hang do not delay it.
    pub blocking: Blocking,
}

fn not_tried(error: impl std::fmt::Display) -> StepError {
    StepError::NotTried(error.to_string())
}

impl NodeHost {
    fn status<T>(
        &self,
        read: impl FnOnce(&k8s_openapi::api::core::v1::NodeStatus) -> T,
    ) -> Option<T> {
        let node = self.nodes.get("", &self.config.node_name)?;
        node.status.as_ref().map(read)
    }
}

#[async_trait]
impl Host for NodeHost {
    fn node_name(&self) -> &str {
        &self.config.node_name
    }

    fn root_dir(&self) -> &Path {
        &self.config.root_dir
    }

    fn local_path_root(&self) -> &Path {
        &self.config.local_path_root
    }

    fn mounter(&self) -> &'static dyn Mounter {
        &LinuxMounter
    }
    fn blocking(&self) -> &Blocking {
        &self.blocking
    }

    fn driver(&self, name: &str) -> Option<Arc<csi::Node>> {
        self.drivers.get(name).map(|driver| driver.node)
    }

    async fn csi_driver(&self, name: &str) -> Step<Option<Arc<CSIDriver>>> {
        let synced = tokio::time::timeout(SYNC_TIMEOUT, self.csi_drivers.synced()).await;
        synced.map_err(|_| not_tried("the informer of CSIDrivers has not synced"))?;
        Ok(self.csi_drivers.get("", name))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Step<BTreeMap<String, String>> {
        let api: Api<Secret> = Api::namespaced(self.config.client.clone(), namespace);
        let secret = api.get(name).await.map_err(not_tried)?;
        let data = secret.data.unwrap_or_default().into_iter();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(data.map(|(key, value)| (key, text(value.0))).collect())
    }

    async fn attachment(&self, name: &str) -> Step<Option<VolumeAttachment>> {
        let api: Api<VolumeAttachment> = Api::all(self.config.client.clone());
        match api.get_opt(name).await {
            // The authorizer answers 403 for an attachment that does not exist.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
            found => found.map_err(not_tried),
        }
    }

    async fn tokens(&self, pod: &Pod, requests: &[TokenRequest]) -> Step<String> {
        let mut tokens = serde_json::Map::new();
        for request in requests {
            let wanted = TokenSpec {
                audience: request.audience.clone(),
                expiration_seconds: request.expiration_seconds.unwrap_or(TOKEN_SECONDS),
            };
            let now = self.config.clock.now();
            let token = self.sources.token(pod, &wanted, now).await;
            let token = token.map_err(not_tried)?;
            let status = serde_json::json!({
                "token": token.text,
                "expirationTimestamp": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(token.expires),
            });
            tokens.insert(request.audience.clone(), status);
        }
        Ok(serde_json::Value::Object(tokens).to_string())
    }

    fn is_reported_in_use(&self, volume: &str) -> bool {
        let reported = self.status(|status| {
            let mut names = status.volumes_in_use.iter().flatten();
            names.any(|name| name == volume)
        });
        reported == Some(true)
    }

    fn is_attached(&self, volume: &str) -> bool {
        let attached = self.status(|status| {
            let mut all = status.volumes_attached.iter().flatten();
            all.any(|attached| attached.name == volume)
        });
        attached == Some(true)
    }
    fn limit_reached(&self, driver: &str) {
        if let Some(driver) = self.drivers.get(driver) {
            driver.limit_reached.notify_one();
        }
    }
}
