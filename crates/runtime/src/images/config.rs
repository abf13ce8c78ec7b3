//! The image configuration, reduced to the fields that are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::registry::manifest::architecture;
use crate::error::{Error, Result};

/// The part of an image configuration that containers are created from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `user`, `uid`, `user:group`…
    pub user: String,
    /// `KEY=value`.
    pub env: Vec<String>,
    /// The program.
    pub entrypoint: Vec<String>,
    /// Its arguments, or the program itself.
    pub cmd: Vec<String>,
    /// The working directory.
    pub working_dir: String,
    /// The stop signal.
    pub stop_signal: String,
    /// The image's labels.
    pub labels: BTreeMap<String, String>,
}

/// The configuration file, whose digest is the image id.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default, deserialize_with = "null_is_default")]
    config: Section,
    pub rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    #[serde(default, deserialize_with = "null_is_default")]
    pub diff_ids: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Section {
    #[serde(deserialize_with = "null_is_default")]
    user: String,
    #[serde(deserialize_with = "null_is_default")]
    env: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    working_dir: String,
    #[serde(deserialize_with = "null_is_default")]
    stop_signal: String,
    #[serde(deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
}

/// Builders write `null` for empty values.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl ConfigFile {
    /// Rejects an image for another platform; old images may not state one.
    pub(super) fn check_platform(&self) -> Result<()> {
        let fits = |found: &str, wanted: &str| found.is_empty() || found == wanted;
        if fits(&self.os, "linux") && fits(&self.architecture, architecture()) {
            return Ok(());
        }
        Err(Error::BadImage(format!(
            "the image is for {}/{}",
            self.os, self.architecture
        )))
    }

    pub(super) fn image_config(&self) -> ImageConfig {
        let section = &self.config;
        ImageConfig {
            user: section.user.clone(),
            env: section.env.clone(),
            entrypoint: section.entrypoint.clone(),
            cmd: section.cmd.clone(),
            working_dir: section.working_dir.clone(),
            stop_signal: section.stop_signal.clone(),
            labels: section.labels.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_missing_parts_are_empty() {
        let text = r#"{"architecture":"amd64","os":"linux","config":{"Env":null,"Cmd":["sh"]},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let file: ConfigFile = serde_json::from_str(text).unwrap();
        assert_eq!(file.image_config().cmd, ["sh"]);
        assert!(file.image_config().env.is_empty());
        assert!(serde_json::from_str::<ConfigFile>(r#"{"config":null,"rootfs":{}}"#).is_ok());
    }
}
