//! CNI network configuration files: a list of plugins, or a single plugin.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::version::{self, Version};
use crate::{Error, Result};

/// A network: plugins that run one after the other.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub name: String,
    pub version: Version,
    /// The versions that the file allows, if it lists several.
    versions: Vec<Version>,
    pub disable_check: bool,
    pub disable_gc: bool,
    pub plugins: Vec<Plugin>,
    /// The file in the form of a list.
    pub source: Value,
}

/// One plugin of a network.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    /// The name of its executable.
    pub kind: String,
    /// Its part of the file.
    source: Map<String, Value>,
}

/// The first valid configuration in a directory.
pub(super) fn load(dir: &Path) -> Result<List> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none(dir)),
        Err(error) => return Err(Error::file(dir)(error)),
    };
    let is_config = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conf" | "conflist" | "json"))
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(is_config);
    files.sort();
    let mut trouble = None;
    for path in files {
        match read(&path) {
            Ok(list) => return Ok(list),
            // As other runtimes do: a file that is still being written must not hide a valid one.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "not a network configuration");
                trouble.get_or_insert(error);
            }
        }
    }
    Err(trouble.unwrap_or_else(|| none(dir)))
}

fn none(dir: &Path) -> Error {
    Error::NoCniConfig(dir.to_path_buf())
}

fn read(path: &Path) -> Result<List> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    let wrong = |message: String| Error::Cni {
        network: path.display().to_string(),
        message,
    };
    let file: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    List::parse(file).map_err(|error| match error {
        Error::Cni { message, .. } => wrong(message),
        other => other,
    })
}

impl List {
    /// From a file's content, or from a record.
    pub(super) fn parse(file: Value) -> Result<Self> {
        let source = as_list(file);
        let name = source["name"].as_str().unwrap_or_default().to_owned();
        let wrong = |message: String| Error::Cni {
            network: name.clone(),
            message,
        };
        if !is_name(&name) {
            return Err(wrong(format!("{name:?} is not a network's name")));
        }
        let version = match source["cniVersion"].as_str() {
            Some(text) => text.parse().map_err(wrong)?,
            None => Version::V0_1_0,
        };
        let texts = source["cniVersions"].as_array().into_iter().flatten();
        let versions = texts.filter_map(|text| text.as_str()?.parse().ok());
        let entries = source["plugins"].as_array().cloned().unwrap_or_default();
        if entries.is_empty() {
            return Err(wrong("no plugins are configured".into()));
        }
        let plugins = entries.into_iter().map(Plugin::parse);
        Ok(Self {
            version,
            versions: versions.collect(),
            disable_check: is_set(&source["disableCheck"]),
            disable_gc: is_set(&source["disableGC"]),
            plugins: plugins.collect::<Result<_, String>>().map_err(wrong)?,
            name,
            source,
        })
    }

    /// Chooses the version: the highest of the file that we and every plugin support. A plugin that
    /// does not report its versions is assumed to support the file's.
    pub(super) fn agree(&mut self, spoken: &[Vec<Version>]) -> Result<()> {
        let mut wanted = self.versions.clone();
        wanted.push(self.version);
        wanted.sort();
        let known = |version: &Version| version::ALL.contains(version);
        let silent = |version: &Version| {
            let dumb = |speaks: &&Vec<Version>| !speaks.is_empty() && !speaks.contains(version);
            spoken.iter().position(|speaks| dumb(&speaks))
        };
        let chosen = wanted
            .iter()
            .rev()
            .find(|version| known(version) && silent(version).is_none());
        if let Some(chosen) = chosen {
            self.version = *chosen;
            self.source["cniVersion"] = json!(chosen.to_string());
            return Ok(());
        }
        let message = match silent(&self.version) {
            Some(at) if known(&self.version) => format!(
                "plugin {:?} does not support configuration version {}",
                self.plugins[at].kind, self.version
            ),
            _ => format!("unknown configuration version {}", self.version),
        };
        Err(Error::Cni {
            network: self.name.clone(),
            message,
        })
    }
}

impl Plugin {
    fn parse(entry: Value) -> Result<Self, String> {
        let Value::Object(source) = entry else {
            return Err("a plugin is not an object".into());
        };
        let kind = source.get("type").and_then(Value::as_str);
        let kind = kind.unwrap_or_default().to_owned();
        if kind.is_empty() || kind.contains('/') {
            return Err(format!("{kind:?} is not a plugin's type"));
        }
        Ok(Self { kind, source })
    }

    /// The plugin's input: its part of the file, the network's name and version, the runtimeConfig
    /// of its capabilities, and the previous plugin's result.
    pub(super) fn input(
        &self,
        list: &List,
        runtime_config: &Value,
        previous: Option<&Value>,
    ) -> Value {
        let mut input = self.source.clone();
        input.insert("name".into(), json!(list.name));
        input.insert("cniVersion".into(), json!(list.version.to_string()));
        let capabilities = input.remove("capabilities");
        let wanted = |name: &str| capabilities.as_ref().is_some_and(|all| is_set(&all[name]));
        if let Some(offered) = runtime_config.as_object() {
            let passed: Map<String, Value> = offered
                .iter()
                .filter(|(name, _)| wanted(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            if !passed.is_empty() {
                input.insert("runtimeConfig".into(), Value::Object(passed));
            }
        }
        if let Some(previous) = previous {
            input.insert("prevResult".into(), previous.clone());
        }
        Value::Object(input)
    }
}

/// Converts the file of a single plugin to a list.
fn as_list(file: Value) -> Value {
    if file.get("plugins").is_some() {
        return file;
    }
    let mut list = Map::new();
    for key in [
        "name",
        "cniVersion",
        "cniVersions",
        "disableCheck",
        "disableGC",
    ] {
        if let Some(value) = file.get(key) {
            list.insert(key.into(), value.clone());
        }
    }
    list.insert("plugins".into(), json!([file]));
    Value::Object(list)
}

/// Some files use strings instead of booleans.
fn is_set(value: &Value) -> bool {
    value.as_bool().unwrap_or(value.as_str() == Some("true"))
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(file: Value) -> List {
        List::parse(file).unwrap()
    }

    #[test]
    fn the_first_good_file_is_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let none = load(dir.path()).unwrap_err().to_string();
        assert!(none.contains("no network configuration"), "{none}");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("00-half.conflist", "{\"name\": ");
        write("05-ignored.txt", "{}");
        let bad = load(dir.path()).unwrap_err().to_string();
        assert!(bad.contains("00-half.conflist"), "{bad}");
        write(
            "20-two.conf",
            r#"{"name":"two","type":"ptp","cniVersion":"0.3.1"}"#,
        );
        write(
            "10-one.conflist",
            r#"{"name":"one","plugins":[{"type":"bridge"}]}"#,
        );
        assert_eq!(load(dir.path()).unwrap().name, "one");
        fs::remove_file(dir.path().join("10-one.conflist")).unwrap();
        let two = load(dir.path()).unwrap();
        assert_eq!(
            (two.name.as_str(), two.plugins[0].kind.as_str()),
            ("two", "ptp")
        );
    }

    #[test]
    fn invalid_network_configurations_are_refused() {
        for (file, reason) in [
            (
                json!({ "name": "a/b", "plugins": [{ "type": "x" }] }),
                "name",
            ),
            (json!({ "name": "a", "plugins": [] }), "no plugins"),
            (json!({ "name": "a", "plugins": [{}] }), "type"),
            (
                json!({ "name": "a", "plugins": [{ "type": "../sh" }] }),
                "type",
            ),
            (json!({ "name": "a", "plugins": ["x"] }), "object"),
            (
                json!({ "name": "a", "cniVersion": "x", "plugins": [{ "type": "x" }] }),
                "version",
            ),
        ] {
            let refused = List::parse(file).unwrap_err().to_string();
            assert!(
                refused.contains(reason),
                "{refused:?} does not say {reason:?}"
            );
        }
    }

    #[test]
    fn the_highest_version_that_all_speak_is_used() {
        let versions = |texts: &[&str]| -> Vec<Version> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let file = json!({
            "name": "n", "cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0", "9.0.0"],
            "plugins": [{ "type": "a" }, { "type": "b" }],
        });
        let mut all = list(file.clone());
        all.agree(&[vec![], vec![]]).unwrap();
        assert_eq!(all.version, Version::V1_1_0);
        let mut some = list(file.clone());
        some.agree(&[versions(&["0.4.0", "1.0.0"]), versions(&["1.0.0", "1.1.0"])])
            .unwrap();
        assert_eq!(some.version.to_string(), "1.0.0");
        assert_eq!(some.source["cniVersion"], "1.0.0");
        let refused = list(file)
            .agree(&[vec![], versions(&["0.2.0"])])
            .unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("\"b\" does not support configuration version 0.4.0"),
            "{refused}"
        );
        let mut future = list(json!({ "name": "n", "cniVersion": "9.0.0", "type": "a" }));
        assert!(
            future
                .agree(&[vec![]])
                .unwrap_err()
                .to_string()
                .contains("9.0.0")
        );
    }

    #[test]
    fn a_plugin_gets_only_the_capabilities_it_declares() {
        let file = json!({
            "name": "n", "cniVersion": "1.0.0",
            "plugins": [{ "type": "portmap", "capabilities": { "portMappings": true, "mac": false } }],
        });
        let list = list(file);
        let offered = json!({ "portMappings": [1], "mac": "x", "ips": [] });
        let input = list.plugins[0].input(&list, &offered, Some(&json!({ "ips": [] })));
        let expected = json!({
            "type": "portmap", "name": "n", "cniVersion": "1.0.0",
            "runtimeConfig": { "portMappings": [1] }, "prevResult": { "ips": [] },
        });
        assert_eq!(input, expected);
    }
}
