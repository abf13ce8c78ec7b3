//! The cluster, the credentials and the namespace of a command.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::{Error, Result};
use serde_json::Value;

use crate::{
    api::{Api, ApiOptions, PatchType, Query},
    args::Global,
    discovery::Discovery,
    error,
    kubeconfig::{self, connection::Connection},
    record,
};

/// Everything that a command needs for requests.
pub(crate) struct Session {
    pub api: Api,
    pub discovery: Discovery,
    /// From `-n`, else from the context, else `default`.
    pub namespace: String,
    /// Whether `-n` was given: objects of other namespaces are rejected.
    pub namespace_given: bool,
    pub connection: Connection,
    /// The command line that objects are annotated with (`--record`).
    pub change_cause: Option<String>,
    /// Errors about single files, of a command that continues with the others.
    deferred: Mutex<Vec<Error>>,
}

impl Session {
    /// Reads the kubeconfig and makes a client; nothing is sent yet.
    pub(crate) fn open(global: &Global, field_manager: &str, command: &str) -> Result<Self> {
        let config = kubeconfig::load(global)?;
        let connection = Connection::resolve(&config, global)?;
        let given = global.namespace.clone().filter(|name| !name.is_empty());
        let namespace_given = given.is_some();
        let namespace = given
            .or_else(|| connection.namespace.clone())
            .unwrap_or_else(|| "default".into());
        let options = ApiOptions {
            field_manager: field_manager.to_owned(),
            command: command.to_owned(),
            server: connection.server.clone(),
            verbosity: global.request_log_level(),
            timeout: timeout(&global.request_timeout)?,
            compression: !global.disable_compression,
            tokens: connection.tokens(),
        };
        let api = Api::new(connection.client(false)?, options);
        let discovery = Discovery::new(
            api.clone(),
            Some(discovery_cache(global, &connection.host())),
        );
        Ok(Self {
            api,
            discovery,
            namespace,
            namespace_given,
            connection,
            change_cause: None,
            deferred: Mutex::default(),
        })
    }

    /// Lets the command end with these errors, whatever else it does.
    pub(crate) fn report_at_the_end(&self, errors: Vec<Error>) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.extend(errors);
    }

    /// The result of a command with those errors.
    pub(crate) fn end(&self, result: Result<()>) -> Result<()> {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        error::join(result, std::mem::take(&mut deferred))
    }

    /// Annotates an object, or a merge patch of one, with the command that changes it (`--record`).
    pub(crate) fn record(&self, object: &mut Value) {
        if let Some(cause) = &self.change_cause {
            record::annotate(object, cause);
        }
    }

    /// The same for an object whose change was sent already: sends a patch.
    pub(crate) async fn record_afterwards(&self, path: &str, query: &Query) -> Result<()> {
        if self.change_cause.is_some() {
            let mut patch = Value::default();
            self.record(&mut patch);
            self.api
                .patch(path, PatchType::Merge, &patch, query)
                .await?;
        }
        Ok(())
    }

    /// A client whose connections can be upgraded.
    pub(crate) fn upgrading(&self) -> Result<client::kube::Client> {
        self.connection.client(true)
    }
}

fn timeout(text: &str) -> Result<Option<std::time::Duration>> {
    // Only with a unit may it be negative, which is none.
    let is_wrong = text.parse::<i64>().is_ok_and(i64::is_negative);
    let duration = crate::duration::parse_signed(text).ok();
    let duration = duration.filter(|_| !is_wrong).ok_or_else(|| {
        anyhow::anyhow!(
            "Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding \
             time unit (e.g. 1s | 2m | 3h)"
        )
    })?;
    let (is_negative, duration) = duration;
    Ok((!duration.is_zero() && !is_negative).then_some(duration))
}

/// The discovery cache of one server.
fn discovery_cache(global: &Global, host: &str) -> PathBuf {
    let base = global.cache_dir.clone();
    let base = base.or_else(|| std::env::var_os("KUBECACHEDIR").map(PathBuf::from));
    let base = base.unwrap_or_else(|| kubeconfig::home().join(".kube/cache"));
    let safe: String = host
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        })
        .collect();
    base.join("discovery").join(safe)
}
