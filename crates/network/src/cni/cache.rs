//! Records of attached pods, one file each. Kept across reboots, like the leases that plugins give:
//! only the same configuration and result can release them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{config::List, plugin::Call, runtime_config};
use crate::{AttachRequest, Error, Result};

/// An attachment, and how it was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub sandbox_id: String,
    pub network: String,
    pub interface: String,
    netns: PathBuf,
    args: String,
    /// The `runtimeConfig` for the plugins' capabilities.
    pub runtime_config: Value,
    /// The configuration at the attachment.
    pub list: Value,
    /// The last plugin's result; `None` until all have run.
    pub result: Option<Value>,
}

impl Record {
    pub(super) fn new(list: &List, request: &AttachRequest, interface: &str) -> Self {
        Self {
            sandbox_id: request.sandbox_id.clone(),
            network: list.name.clone(),
            interface: interface.to_owned(),
            netns: request.netns.clone(),
            args: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                request.namespace, request.name, request.sandbox_id, request.uid
            ),
            runtime_config: runtime_config::runtime_config(request),
            list: list.source.clone(),
            result: None,
        }
    }

    pub(super) fn call(&self) -> Call {
        Call {
            container_id: self.sandbox_id.clone(),
            netns: Some(self.netns.clone()),
            interface: self.interface.clone(),
            args: self.args.clone(),
        }
    }
}

/// The directory of records.
#[derive(Debug)]
pub(super) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(super) fn open(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        Ok(Self { dir })
    }

    fn path(&self, sandbox_id: &str) -> PathBuf {
        self.dir.join(sandbox_id)
    }

    pub(super) fn save(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.sandbox_id);
        let beside = path.with_extension("new");
        let write = || {
            fs::write(&beside, serde_json::to_vec(record)?)?;
            fs::rename(&beside, &path)
        };
        write().map_err(Error::file(&path))
    }

    pub(super) fn get(&self, sandbox_id: &str) -> Result<Option<Record>> {
        let path = self.path(sandbox_id);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(parse(&bytes, &path)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(path)(error)),
        }
    }

    pub(super) fn records(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.dir)
            .map_err(Error::file(&self.dir))?
            .flatten()
        {
            let path = entry.path();
            if path.extension().is_some() {
                continue;
            }
            let bytes = fs::read(&path).map_err(Error::file(&path))?;
            match parse(&bytes, &path) {
                Ok(record) => records.push(record),
                Err(error) => tracing::warn!(%error, "cannot read CNI attachment record"),
            }
        }
        Ok(records)
    }

    pub(super) fn remove(&self, sandbox_id: &str) -> Result<()> {
        let path = self.path(sandbox_id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file(path)(error))
            }
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &[u8], path: &Path) -> Result<Record> {
    serde_json::from_slice(bytes).map_err(|error| Error::file(path)(error.into()))
}
