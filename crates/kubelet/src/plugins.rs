//! Plugins of the node that register themselves: each puts a socket into the registry directory, says
//! there what it is, and hears whether it was taken. One watcher serves all kinds; a kind is a
//! [`Handler`].

mod socket;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;

pub(crate) use watch::run;

/// What plugins of one kind mean to the kubelet.
#[async_trait]
pub(crate) trait Handler: Send + Sync {
    /// As plugins call themselves: `CSIPlugin`, `DevicePlugin`.
    fn kind(&self) -> &'static str;
    /// Whether this kubelet speaks a version of the plugin.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;
    /// Takes the plugin in.
    async fn register(&self, plugin: &Plugin) -> Result<(), String>;
    /// The plugin's socket is gone.
    async fn deregister(&self, plugin: &Plugin);
}

/// A plugin as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plugin {
    /// Its registration's number: a plugin that comes back has another one.
    pub id: u64,
    pub name: String,
    /// The socket that serves it.
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// All kinds.
pub(crate) type Handlers = Arc<[Arc<dyn Handler>]>;
