//! Registers CSI drivers of this node: writes the driver's node id and topology to Node and
//! CSINode, where schedulers, provisioners and attachers read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use csi::v1::NodeGetInfoResponse;
use k8s_openapi::{
    api::{
        core::v1::Node,
        storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use stdx::Backoff;
use tracing::warn;
use volume::storage;

use crate::{
    Config, Error, Result,
    plugins::{Handler, Plugin},
    volumes::{Drivers, RegisteredDriver, VolumeMetrics},
};

const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
/// How often a write with a conflict is tried.
const TRIES: u32 = 6;

/// How often the period of a driver's updates is read again; also the shortest one.
const PERIOD_CHECK: Duration = Duration::from_secs(10);

/// Registers drivers.
pub(crate) struct Registrar {
    pub config: Arc<Config>,
    pub drivers: Drivers,
    pub volumes: Arc<storage::Manager>,
    /// Held while Node and CSINode are written for one driver.
    pub writes: tokio::sync::Mutex<()>,
    pub metrics: VolumeMetrics,
}

#[async_trait]
impl Handler for Registrar {
    fn kind(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> std::result::Result<(), String> {
        let Plugin {
            name,
            endpoint,
            versions,
            ..
        } = plugin;
        let why = match highest(versions) {
            Some(_) => {
                let known = self.drivers.get(name);
                let known = known.filter(|known| !may_replace(plugin, &known.plugin));
                let Some(known) = known else { return Ok(()) };
                let (at, versions) = (&known.plugin.endpoint, &known.plugin.versions);
                format!(
                    "another driver with the same name is already registered at endpoint {at} with versions {versions:?}"
                )
            }
            None => format!(
                "none of the CSI versions reported by this driver are supported: {versions:?}"
            ),
        };
        Err(format!(
            "validation failed for CSI Driver {name} at endpoint {endpoint}: {why}"
        ))
    }

    async fn register(&self, plugin: &Plugin) -> std::result::Result<(), String> {
        let (metrics, driver) = (self.metrics.clone(), plugin.name.clone());
        let node = csi::Node::new(&plugin.endpoint, csi::TIMEOUT);
        let node = Arc::new(node.observed(move |method, took, code| {
            metrics.called(&driver, method, took, &csi::go_code(code));
        }));
        let info = node.info().await;
        let info = info.map_err(|status| {
            let error = csi::go_error(&status);
            format!(
                "error getting node info of CSI driver {}: {error}",
                plugin.name
            )
        })?;
        if info.node_id.is_empty() {
            let why = "error adding CSI driver node info: driverNodeID must not be empty";
            return Err(why.to_owned());
        }
        let _guard = self.writes.lock().await;
        // Another one may have registered meanwhile.
        self.validate(plugin)?;
        if let Err(error) = self.install(&plugin.name, &info).await {
            self.forget_unless_registered(&plugin.name).await;
            return Err(error.to_string());
        }
        self.drivers.insert(RegisteredDriver {
            plugin: plugin.clone(),
            node,
            limit_reached: Arc::default(),
        });
        Ok(())
    }

    /// Updates the limit of volumes in CSINode as often as the CSIDriver says, and when the limit
    /// was reached.
    async fn maintain(&self, plugin: &Plugin) {
        let clock = &self.config.clock;
        let Some(driver) = self.drivers.get(&plugin.name) else {
            return;
        };
        let mut updated = clock.now();
        loop {
            let is_reached = tokio::select! {
                () = clock.sleep(PERIOD_CHECK) => false,
                () = driver.limit_reached.notified() => true,
            };
            let now = clock.now();
            let period = self.update_period(&plugin.name).await;
            let is_due = period.is_some_and(|period| updated + period <= now || is_reached);
            if !is_due {
                continue;
            }
            updated = now;
            if let Err(error) = self.update(plugin, &driver.node).await {
                warn!(
                    driver = plugin.name,
                    error, "cannot update the limit of volumes"
                );
            }
        }
    }

    async fn deregister(&self, plugin: &Plugin) {
        if !self.drivers.remove(plugin) {
            return;
        }
        let _guard = self.writes.lock().await;
        // The driver may have registered again meanwhile.
        self.forget_unless_registered(&plugin.name).await;
    }
}

/// The highest version with the major number 1, such as `1.0.0` or `v1.2`.
fn highest(versions: &[String]) -> Option<Vec<u32>> {
    let numbers = |version: &String| -> Option<Vec<u32>> {
        let version = version.strip_prefix('v').unwrap_or(version);
        version.split('.').map(|part| part.parse().ok()).collect()
    };
    let known = versions.iter().filter_map(numbers);
    known.filter(|version| version.first() == Some(&1)).max()
}

/// Whether a driver takes the place of a registered one of the same name: after a restart of it,
/// with the same socket, or with a higher version, as upstream. Others cannot take over its volumes.
/// A registration that began before the known one is of a socket that was replaced meanwhile.
fn may_replace(plugin: &Plugin, known: &Plugin) -> bool {
    let is_later = plugin.id > known.id;
    let is_restarted = plugin.socket == known.socket;
    is_later && (is_restarted || highest(&plugin.versions) > highest(&known.versions))
}

impl Registrar {
    /// The period of updates that a CSIDriver sets.
    async fn update_period(&self, driver: &str) -> Option<Duration> {
        let driver = self.volumes.host().csi_driver(driver).await.ok()??;
        let seconds = driver.spec.node_allocatable_update_period_seconds?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    async fn update(&self, plugin: &Plugin, node: &csi::Node) -> std::result::Result<(), String> {
        let info = node.info().await;
        let info = info.map_err(|status| csi::go_error(&status))?;
        let _guard = self.writes.lock().await;
        let installed = self.install(&plugin.name, &info).await;
        installed.map_err(|error| error.to_string())
    }

    fn csi_nodes(&self) -> Api<CSINode> {
        Api::all(self.config.client.clone())
    }

    /// The node's CSINode, created if missing. One that an earlier Node of the same name owns is
    /// replaced.
    pub(crate) async fn ensure_csi_node(&self, node: &Node) -> Result<CSINode> {
        let api = self.csi_nodes();
        let name = &self.config.node_name;
        if let Some(found) = api.get_opt(name).await? {
            let mut owners = found.metadata.owner_references.iter().flatten();
            if owners.any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref()) {
                return Ok(found);
            }
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            api.delete(name, &params).await?;
        }
        let mut fresh = CSINode::default();
        fresh.metadata.name = Some(name.clone());
        fresh.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.clone(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            ..Default::default()
        }]);
        Ok(api.create(&PostParams::default(), &fresh).await?)
    }

    async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<()> {
        let topology = info
            .accessible_topology
            .clone()
            .unwrap_or_default()
            .segments;
        let node = self
            .retried(|| self.show_on_node(driver, &info.node_id, &topology))
            .await?;
        self.retried(|| async {
            let mut object = self.ensure_csi_node(&node).await?;
            if !add_driver(&mut object.spec, driver, info, &topology) {
                return Ok(());
            }
            let params = PostParams::default();
            let name = &self.config.node_name;
            self.csi_nodes().replace(name, &params, &object).await?;
            Ok(())
        })
        .await
    }

    /// Writes the driver's node id and topology labels to the Node and returns it.
    async fn show_on_node(
        &self,
        driver: &str,
        id: &str,
        topology: &BTreeMap<String, String>,
    ) -> Result<Node> {
        let api: Api<Node> = Api::all(self.config.client.clone());
        let node = api.get(&self.config.node_name).await?;
        let empty = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
        for (key, value) in topology {
            if let Some(known) = labels.get(key).filter(|known| *known != value) {
                return Err(Error::Other(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{known:?}"
                )));
            }
        }
        let mut ids = node_ids(&node);
        ids.insert(driver.to_owned(), id.to_owned());
        let ids = serde_json::to_string(&ids).unwrap_or_default();
        let annotations = node.metadata.annotations.as_ref();
        let shown = annotations.and_then(|all| all.get(NODE_ID));
        if shown == Some(&ids) && topology.keys().all(|key| labels.contains_key(key)) {
            return Ok(node);
        }
        let patch = json!({"metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": {NODE_ID: ids}, "labels": topology}});
        let params = PatchParams::default();
        let name = &self.config.node_name;
        Ok(api.patch(name, &params, &Patch::Merge(&patch)).await?)
    }

    /// Removes a driver that is not registered from Node and CSINode. `writes` is held.
    async fn forget_unless_registered(&self, driver: &str) {
        if self.drivers.get(driver).is_some() {
            return;
        }
        if let Err(error) = self.uninstall(driver).await {
            warn!(driver, %error, "cannot remove the driver from Node and CSINode");
        }
    }

    async fn uninstall(&self, driver: &str) -> Result<()> {
        self.retried(|| async {
            let name = &self.config.node_name;
            let Some(mut object) = self.csi_nodes().get_opt(name).await? else {
                return Ok(());
            };
            let before = object.spec.drivers.len();
            object.spec.drivers.retain(|known| known.name != driver);
            if object.spec.drivers.len() != before {
                let params = PostParams::default();
                self.csi_nodes().replace(name, &params, &object).await?;
            }
            Ok(())
        })
        .await?;
        self.retried(|| self.hide_on_node(driver)).await
    }

    async fn hide_on_node(&self, driver: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.config.client.clone());
        let node = api.get(&self.config.node_name).await?;
        let mut ids = node_ids(&node);
        if ids.remove(driver).is_none() {
            return Ok(());
        }
        let ids = match ids.is_empty() {
            true => serde_json::Value::Null,
            false => serde_json::to_string(&ids).unwrap_or_default().into(),
        };
        let patch = json!({"metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": {NODE_ID: ids}}});
        let params = PatchParams::default();
        let name = &self.config.node_name;
        api.patch(name, &params, &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Retries a write after a conflict.
    async fn retried<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        for _ in 1..TRIES {
            match attempt().await {
                Err(Error::Api(kube::Error::Api(status))) if status.code == 409 => {
                    self.config.clock.sleep(backoff.step()).await;
                }
                outcome => return outcome,
            }
        }
        attempt().await
    }
}

/// The node ids by driver, from the Node's annotation.
fn node_ids(node: &Node) -> BTreeMap<String, String> {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(NODE_ID));
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Adds a driver to the list; returns whether the list changed.
fn add_driver(
    spec: &mut CSINodeSpec,
    name: &str,
    info: &NodeGetInfoResponse,
    topology: &BTreeMap<String, String>,
) -> bool {
    let count = info.max_volumes_per_node;
    let count = (count > 0).then(|| i32::try_from(count).unwrap_or(i32::MAX));
    let keys: BTreeSet<&String> = topology.keys().collect();
    let keys: Vec<String> = keys.into_iter().cloned().collect();
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    if spec.drivers.contains(&driver) {
        return false;
    }
    spec.drivers.retain(|known| known.name != name);
    spec.drivers.push(driver);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_listed_once_with_its_limit_and_topology() {
        let mut spec = CSINodeSpec::default();
        let info = |max: i64| NodeGetInfoResponse {
            node_id: "n-1".into(),
            max_volumes_per_node: max,
            accessible_topology: None,
        };
        let topology = BTreeMap::from([("z".to_owned(), "1".to_owned())]);
        assert!(add_driver(&mut spec, "d", &info(0), &topology));
        assert!(!add_driver(&mut spec, "d", &info(0), &topology));
        assert!(add_driver(&mut spec, "d", &info(1 << 40), &topology));
        assert_eq!(spec.drivers.len(), 1);
        let driver = &spec.drivers[0];
        assert_eq!(driver.topology_keys.as_deref(), Some(&["z".to_owned()][..]));
        let count = driver.allocatable.as_ref().and_then(|all| all.count);
        assert_eq!(count, Some(i32::MAX));
    }

    #[test]
    fn only_versions_of_the_first_protocol_are_supported() {
        let highest = |versions: &[&str]| {
            let versions: Vec<String> = versions.iter().map(|&it| it.to_owned()).collect();
            highest(&versions)
        };
        assert_eq!(highest(&["1.0.0"]), Some(vec![1, 0, 0]));
        assert_eq!(
            highest(&["0.3.0", "v1.9", "1.10.0", "2.0.0"]),
            Some(vec![1, 10, 0])
        );
        assert_eq!(highest(&["0.3.0", "x", "", "1.x"]), None);
    }

    #[test]
    fn a_driver_does_not_take_the_name_of_a_registered_one() {
        let numbered = |id: u64, socket: &str, version: &str| Plugin {
            id,
            name: "d".into(),
            socket: socket.into(),
            endpoint: String::new(),
            versions: vec![version.to_owned()],
        };
        let plugin = |socket: &str, version: &str| numbered(2, socket, version);
        let known = numbered(1, "/registry/d.sock", "1.2.0");
        assert!(!may_replace(&plugin("/registry/x.sock", "1.2.0"), &known));
        assert!(!may_replace(&plugin("/registry/x.sock", "1.0.0"), &known));
        assert!(
            may_replace(&plugin("/registry/d.sock", "1.0.0"), &known),
            "restarted"
        );
        assert!(
            may_replace(&plugin("/registry/x.sock", "1.3.0"), &known),
            "updated"
        );
        // The socket was replaced while the driver took long to answer; if this registration
        // replaced the later one, it would be removed at once, and the driver with it.
        assert!(!may_replace(
            &numbered(0, "/registry/d.sock", "1.2.0"),
            &known
        ));
    }
}
