//! Plugin registration: a plugin puts a socket into the registry directory, describes itself there,
//! and receives the result of its registration. One watcher serves all plugin types; each type has a
//! [`Handler`].

mod socket;
mod watch;

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;

pub(crate) use watch::run;

/// Registers plugins of one type.
#[async_trait]
pub(crate) trait Handler: Send + Sync {
    /// The plugin type: `CSIPlugin`, `DevicePlugin`.
    fn kind(&self) -> &'static str;
    /// Whether this kubelet supports a version of the plugin.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;
    /// Registers the plugin.
    async fn register(&self, plugin: &Plugin) -> Result<(), String>;
    /// Maintains a registered plugin. Never returns; dropped when its socket is gone.
    async fn maintain(&self, plugin: &Plugin) {
        let _ = plugin;
        std::future::pending().await
    }
    /// The plugin's socket is gone.
    async fn deregister(&self, plugin: &Plugin);
}

/// A plugin as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plugin {
    /// The number of the registration: a plugin that registers again has another one.
    pub id: u64,
    pub name: String,
    /// The socket in the registry.
    pub socket: PathBuf,
    /// The socket that serves the plugin.
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// The handlers of all plugin types.
pub(crate) type Handlers = Arc<[Arc<dyn Handler>]>;
