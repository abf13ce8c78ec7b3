//! Which cluster, as whom, in which namespace.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use client::Kubeconfig;

use crate::{api::Api, args::Global};

/// Everything a command needs to talk to the server.
pub struct Session {
    pub api: Api,
    /// From `-n`, else from the context, else `default`.
    pub namespace: String,
    /// Whether `-n` was given.
    pub namespace_given: bool,
    kubeconfig: Kubeconfig,
    context: Option<String>,
}

impl Session {
    /// Reads the kubeconfig and prepares a client; nothing is sent yet.
    pub fn open(global: &Global, field_manager: &'static str) -> Result<Self> {
        let path = kubeconfig_path(global)?;
        let kubeconfig = Kubeconfig::read(&path)?;
        let context = global.context.clone();
        let (current, _, _) = kubeconfig.resolve(context.as_deref())?;
        let namespace = global
            .namespace
            .clone()
            .or_else(|| current.namespace.clone())
            .unwrap_or_else(|| "default".into());
        let client = kubeconfig.client(context.as_deref())?;
        Ok(Self {
            api: Api::new(client, field_manager),
            namespace,
            namespace_given: global.namespace.is_some(),
            kubeconfig,
            context,
        })
    }
}

impl Session {
    /// A client whose connections can be upgraded to streams.
    pub fn upgrading(&self) -> Result<client::kube::Client> {
        Ok(self.kubeconfig.upgrading_client(self.context.as_deref())?)
    }
}

/// `--kubeconfig`, then `$KUBECONFIG`, then `~/.kube/config`, then the local cluster's own.
fn kubeconfig_path(global: &Global) -> Result<PathBuf> {
    if let Some(path) = &global.kubeconfig {
        return Ok(path.clone());
    }
    if let Some(list) = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        let first = std::env::split_paths(&list).find(|path| path.exists());
        return first.with_context(|| format!("KUBECONFIG names no file that exists: {list:?}"));
    }
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    let local = PathBuf::from("/var/lib/mainstay/admin.kubeconfig");
    let found = home.into_iter().chain([local]).find(|path| path.exists());
    match found {
        Some(path) => Ok(path),
        None => bail!(
            "no kubeconfig found; start a cluster with `mainstay up`, or name one with --kubeconfig"
        ),
    }
}
