//! Pulling images from registries.

pub(super) mod manifest;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How registries are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registries {
    /// By host and port, as they stand in image names.
    pub hosts: BTreeMap<String, Host>,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Host {
    /// Tried before the registry itself, in this order: `https://mirror:5000`.
    pub mirrors: Vec<String>,
    /// Without TLS. Never for a host that is not named here.
    pub plain_http: bool,
    /// Certificates of authorities to trust beside the system's, as PEM.
    pub ca: Option<String>,
}
