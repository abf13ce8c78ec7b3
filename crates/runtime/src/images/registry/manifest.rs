//! Manifests and indexes of OCI and docker, which differ only in their media types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

pub(in crate::images) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A descriptor of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::images) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: &str, size: u64) -> Self {
        let (media_type, digest) = (media_type.to_owned(), digest.to_owned());
        Self {
            media_type,
            digest,
            size,
            platform: None,
            annotations: None,
        }
    }
}

/// The platform of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::images) struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

/// An image manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::images) struct Manifest {
    #[serde(default)]
    pub schema_version: u32,
    #[serde(default)]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    pub(crate) fn new(config: &str, config_size: u64, layers: Vec<Descriptor>) -> Self {
        let config = Descriptor::new(CONFIG, config, config_size);
        Self {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            config,
            layers,
        }
    }
}

/// A manifest or an index.
#[derive(Debug)]
pub(in crate::images) enum Document {
    Manifest(Manifest),
    Index(Vec<Descriptor>),
}

impl Document {
    /// Detected by content: media types are often missing or wrong.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |error: serde_json::Error| Error::BadImage(format!("manifest: {error}"));
        let value: Value = serde_json::from_slice(bytes).map_err(bad)?;
        if let Some(list) = value.get("manifests") {
            let list = serde_json::from_value(list.clone()).map_err(bad)?;
            return Ok(Self::Index(list));
        }
        if value.get("fsLayers").is_some() {
            return Err(Error::BadImage(
                "manifests of schema 1 are not supported".into(),
            ));
        }
        serde_json::from_value(value)
            .map(Self::Manifest)
            .map_err(bad)
    }
}

/// This machine's architecture in image terms.
pub(in crate::images) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// The manifest for this machine. An entry without a platform is used if it is the only one.
pub(in crate::images) fn pick(list: &[Descriptor]) -> Option<&Descriptor> {
    let fits = |entry: &&Descriptor| {
        let platform = entry.platform.as_ref();
        platform.is_some_and(|p| p.os == "linux" && p.architecture == architecture())
    };
    let only = || {
        list.first()
            .filter(|entry| list.len() == 1 && entry.platform.is_none())
    };
    list.iter().find(fits).or_else(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_for_this_machine_is_picked() {
        let entry = |os: &str, architecture: &str, digest: &str| {
            let (os, architecture) = (os.to_owned(), architecture.to_owned());
            let platform = Some(Platform {
                os,
                architecture,
                ..Platform::default()
            });
            Descriptor {
                platform,
                ..Descriptor::new("", digest, 1)
            }
        };
        let list = [
            entry("windows", architecture(), "a"),
            entry("linux", "mips", "b"),
            entry("linux", architecture(), "c"),
        ];
        assert_eq!(pick(&list).unwrap().digest, "c");
        assert_eq!(pick(&list[..2]), None);
        assert!(pick(&[Descriptor::new("", "d", 1)]).is_some());
    }
}
