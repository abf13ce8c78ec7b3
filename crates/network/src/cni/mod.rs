//! A pod network made by CNI plugins: configuration from a directory, plugins as executables,
//! results recorded so that attachments can be checked and removed, also by a later process and
//! after a reboot.
//!
//! Each attachment uses the first configuration in the directory; an attached pod is checked and
//! detached with the configuration that it was attached with.

mod cache;
mod config;
mod plugin;
mod result;
mod runtime_config;
mod version;

pub(crate) use runtime_config::bits;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use self::{
    cache::{Cache, Record},
    config::List,
    plugin::{Command, PluginFailure, Plugins},
    result::Addresses,
    version::Version,
};
use crate::{
    AttachRequest, Attachment, Error, IpNet, PodNetwork, Result, Status, loopback::raise_loopback,
};

/// The pod's interface, as Kubernetes expects it.
const INTERFACE: &str = "eth0";

/// The file that records the plugin directories.
const BIN_DIRS: &str = "plugins.json";

/// Detaches every pod that a runtime with this state directory attached, and returns their number.
/// Plugins that fail are logged and skipped.
pub async fn cleanup_cni(state_dir: &Path) -> Result<usize> {
    let note = state_dir.join(BIN_DIRS);
    let Ok(text) = std::fs::read(&note) else {
        return Ok(0);
    };
    let network = CniNetwork {
        conf_dir: PathBuf::new(),
        plugins: Plugins::new(serde_json::from_slice(&text).unwrap_or_default()),
        cache: Cache::open(state_dir.join("results"))?,
    };
    let mut detached = 0;
    for record in network.cache.records()? {
        match network.delete(&record, None).await {
            Ok(()) => detached += 1,
            Err(error) => warn!(sandbox = record.sandbox_id, %error, "cannot detach sandbox"),
        }
    }
    Ok(detached)
}

/// The directories of configurations, plugins and records.
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// The first file here with the extension `.conf`, `.conflist` or `.json` is the pods' network.
    pub conf_dir: PathBuf,
    /// Where plugins are searched, in this order.
    pub bin_dirs: Vec<PathBuf>,
    /// Where results are recorded; must survive a reboot, as leases of plugins do.
    pub state_dir: PathBuf,
}

impl CniConfig {
    /// Reads the records of an earlier run; runs nothing yet.
    pub fn build(self) -> Result<Arc<CniNetwork>> {
        let cache = Cache::open(self.state_dir.join("results"))?;
        // For a cleanup that does not know our configuration.
        let note = self.state_dir.join(BIN_DIRS);
        let text = serde_json::to_vec(&self.bin_dirs).unwrap_or_default();
        std::fs::write(&note, text).map_err(Error::file(&note))?;
        Ok(Arc::new(CniNetwork {
            plugins: Plugins::new(self.bin_dirs),
            conf_dir: self.conf_dir,
            cache,
        }))
    }
}

/// A pod network made by CNI plugins.
pub struct CniNetwork {
    conf_dir: PathBuf,
    plugins: Plugins,
    cache: Cache,
}

impl CniNetwork {
    /// The network for new pods, in a version that all of its plugins support.
    async fn current(&self) -> Result<List> {
        let mut list = config::load(&self.conf_dir)?;
        let mut spoken = Vec::new();
        for plugin in &list.plugins {
            spoken.push(self.plugins.versions(&plugin.kind).await?);
        }
        list.agree(&spoken)?;
        Ok(list)
    }

    async fn add(&self, list: &List, request: &AttachRequest) -> Result<Record> {
        let mut record = Record::new(list, request, INTERFACE);
        // Recorded before the first plugin runs, so that a crash leaves nothing unknown.
        self.cache.save(&record)?;
        for plugin in &list.plugins {
            let input = plugin.input(list, &record.runtime_config, record.result.as_ref());
            let answer = self
                .plugins
                .run(Command::Add, &plugin.kind, &record.call(), &input)
                .await?;
            record.result = Some(result::complete(answer, &plugin.kind, list.version)?);
        }
        self.cache.save(&record)?;
        Ok(record)
    }

    /// Runs CHECK for an attachment.
    async fn check(&self, record: &Record) -> Result<()> {
        let list = List::parse(record.list.clone())?;
        if list.disable_check || list.version < Version::V0_4_0 {
            return Ok(());
        }
        for plugin in &list.plugins {
            let input = plugin.input(&list, &record.runtime_config, record.result.as_ref());
            let call = record.call();
            self.plugins
                .run(Command::Check, &plugin.kind, &call, &input)
                .await?;
        }
        Ok(())
    }

    /// Runs DEL, the last plugin first.
    async fn delete(&self, record: &Record, netns: Option<&Path>) -> Result<()> {
        let list = List::parse(record.list.clone())?;
        // Older plugins do not expect the previous result.
        let previous = record
            .result
            .as_ref()
            .filter(|_| list.version >= Version::V0_4_0);
        let mut call = record.call();
        call.netns = netns.filter(|path| path.exists()).map(Path::to_path_buf);
        for plugin in list.plugins.iter().rev() {
            let input = plugin.input(&list, &record.runtime_config, previous);
            self.plugins
                .run(Command::Del, &plugin.kind, &call, &input)
                .await?;
        }
        self.cache.remove(&record.sandbox_id)
    }

    /// Runs GC: plugins free what belongs to no known attachment.
    async fn collect(&self) -> Result<()> {
        let list = match self.current().await {
            Ok(list) => list,
            Err(error) => {
                debug!(%error, "no CNI network for garbage collection");
                return Ok(());
            }
        };
        if list.disable_gc || list.version < Version::V1_1_0 {
            return Ok(());
        }
        let known = self.cache.records()?;
        let valid: Vec<Value> = known
            .iter()
            .filter(|record| record.network == list.name)
            .map(|record| json!({ "containerID": record.sandbox_id, "ifname": record.interface }))
            .collect();
        for plugin in &list.plugins {
            let mut input = plugin.input(&list, &Value::Null, None);
            input["cni.dev/valid-attachments"] = json!(valid);
            // A failed GC must not block the node: it is retried at the next start.
            let empty_call = plugin::Call::default();
            let done = self
                .plugins
                .run(Command::Gc, &plugin.kind, &empty_call, &input)
                .await;
            if let Err(error) = done {
                warn!(plugin = plugin.kind, error = error.message, "CNI GC failed");
            }
        }
        Ok(())
    }

    async fn troubles(&self) -> Result<()> {
        let list = self.current().await?;
        if list.version < Version::V1_1_0 {
            return Ok(());
        }
        for plugin in &list.plugins {
            let input = plugin.input(&list, &Value::Null, None);
            let empty_call = plugin::Call::default();
            self.plugins
                .run(Command::Status, &plugin.kind, &empty_call, &input)
                .await?;
        }
        Ok(())
    }
}

#[async_trait]
impl PodNetwork for CniNetwork {
    async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
        raise_loopback(&request.netns).await?;
        if let Some(record) = self.cache.get(&request.sandbox_id)? {
            if let Some(known) = record.attachment()? {
                self.check(&record).await?;
                return Ok(known);
            }
            // An earlier attachment was interrupted.
            self.delete(&record, Some(&request.netns)).await?;
        }
        let list = self.current().await?;
        let made = match self.add(&list, &request).await {
            Ok(record) => record.attachment(),
            Err(error) => Err(error),
        };
        match made {
            Ok(Some(attachment)) => Ok(attachment),
            failed => {
                let netns = Some(request.netns.as_path());
                if let Err(undo) = self.detach(&request.sandbox_id, netns).await {
                    warn!(sandbox = request.sandbox_id, error = %undo, "cannot undo a partial attachment");
                }
                Err(failed.err().unwrap_or_else(|| Error::Cni {
                    network: list.name,
                    message: "no plugin returned an IP address".into(),
                }))
            }
        }
    }

    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment> {
        let record = self.cache.get(sandbox_id).ok()??;
        record.attachment().ok()?
    }

    async fn detach(&self, sandbox_id: &str, netns: Option<&Path>) -> Result<()> {
        match self.cache.get(sandbox_id)? {
            Some(record) => self.delete(&record, netns).await,
            None => Ok(()),
        }
    }

    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()> {
        for record in self.cache.records()? {
            if !alive.contains(&record.sandbox_id) {
                info!(sandbox = record.sandbox_id, "detaching removed sandbox");
                if let Err(error) = self.delete(&record, None).await {
                    warn!(sandbox = record.sandbox_id, %error, "cannot detach sandbox");
                }
            }
        }
        self.collect().await
    }

    async fn set_pod_cidrs(&self, _cidrs: Vec<IpNet>) -> Result<()> {
        // Plugins assign the addresses.
        Ok(())
    }

    async fn status(&self) -> Status {
        match self.troubles().await {
            Ok(()) => Status::Ready,
            Err(error) => Status::NotReady(error.to_string()),
        }
    }
}

impl Record {
    /// The addresses of a pod whose plugins have all run.
    fn attachment(&self) -> Result<Option<Attachment>> {
        let Some(result) = &self.result else {
            return Ok(None);
        };
        let addresses =
            Addresses::from_result(result, &self.interface).map_err(|message| Error::Cni {
                network: self.network.clone(),
                message,
            })?;
        Ok((!addresses.0.is_empty()).then(|| Attachment {
            addresses: addresses.0,
            interface: self.interface.clone(),
        }))
    }
}

impl From<PluginFailure> for Error {
    fn from(trouble: PluginFailure) -> Self {
        Self::CniPlugin {
            plugin: trouble.plugin,
            command: trouble.command,
            message: trouble.message,
        }
    }
}
