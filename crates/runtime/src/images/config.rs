//! The image configuration, reduced to the fields that are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::registry::manifest::architecture;
use crate::error::{Error, Result};

/// The maximum size of the environment and command.
const MAX_SIZE: usize = 512 << 10;

/// The maximum size of the labels that are kept.
const MAX_LABELS: usize = 64 << 10;

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
    /// The image's labels, without very long ones.
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

    /// Rejects an image whose environment and command are too long: the node keeps them in memory, and no program could be
    /// started with them.
    pub(super) fn check_size(&self) -> Result<()> {
        let section = &self.config;
        let lists = [&section.env, &section.entrypoint, &section.cmd];
        let texts = [&section.user, &section.working_dir, &section.stop_signal];
        let all = lists.into_iter().flatten().chain(texts);
        let size: usize = all.map(|text| size_of::<String>() + text.len()).sum();
        match size <= MAX_SIZE {
            true => Ok(()),
            false => Err(Error::BadImage(format!(
                "environment and command of the image take {size} bytes, more than {MAX_SIZE}"
            ))),
        }
    }

    /// The labels that fit, the shortest first.
    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels: Vec<_> = self.config.labels.iter().collect();
        labels.sort_by_key(|(key, value)| key.len() + value.len());
        let mut left = MAX_LABELS;
        let fitting = labels.into_iter().map_while(|(key, value)| {
            left = left.checked_sub(2 * size_of::<String>() + key.len() + value.len())?;
            Some((key.clone(), value.clone()))
        });
        fitting.collect()
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
            labels: self.labels(),
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

    #[test]
    fn an_image_takes_little_memory() {
        let with = |env: usize, label: usize| {
            let config = serde_json::json!({"rootfs": {}, "config": {
                "Env": [format!("A={}", "x".repeat(env))],
                "Labels": {"short": "kept", "long": "x".repeat(label)}}});
            serde_json::from_value::<ConfigFile>(config).unwrap()
        };
        assert!(with(1000, 0).check_size().is_ok());
        assert!(with(MAX_SIZE, 0).check_size().is_err());
        assert_eq!(with(0, 1000).image_config().labels.len(), 2);
        let kept = with(0, MAX_LABELS).image_config().labels;
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["short"]);
    }
}
