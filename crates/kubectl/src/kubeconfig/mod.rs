//! Kubeconfig files: which ones are read, how they are merged, and the resulting server and
//! identity.

pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod exec;
pub(crate) mod plugin_policy;
pub(crate) mod tokens;
pub(crate) mod typed;
mod validation;
mod verifier;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{
    args::Global,
    json::{list, str_of},
};

/// The lists of a kubeconfig, each with its content field.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    ("clusters", "cluster"),
    ("users", "user"),
    ("contexts", "context"),
];

/// Fields with file names, relative to the kubeconfig.
const FILES: &[(&str, &str)] = &[
    ("clusters", "certificate-authority"),
    ("users", "client-certificate"),
    ("users", "client-key"),
    ("users", "tokenFile"),
];

/// The kubeconfig of a local cluster, used if no other exists.
const LOCAL: &str = "/var/lib/mainstay/admin.kubeconfig";

/// The kubeconfig files.
#[derive(Debug, Clone, Default)]
pub(crate) struct KubeconfigFiles {
    /// In order of precedence.
    pub files: Vec<PathBuf>,
    /// Whether `--kubeconfig` names the only one.
    pub is_explicit: bool,
    /// Whether they come from the environment.
    pub is_environment: bool,
}

impl KubeconfigFiles {
    /// `--kubeconfig`, else `$KUBECONFIG`, else `~/.kube/config`.
    pub(crate) fn new(global: &Global) -> Self {
        if let Some(path) = global
            .kubeconfig
            .clone()
            .filter(|path| !path.as_os_str().is_empty())
        {
            return Self {
                files: vec![path],
                is_explicit: true,
                is_environment: false,
            };
        }
        if let Some(named) = std::env::var_os("KUBECONFIG").filter(|named| !named.is_empty()) {
            let mut files: Vec<PathBuf> = Vec::new();
            for path in std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
                if !files.contains(&path) {
                    files.push(path);
                }
            }
            return Self {
                files,
                is_explicit: false,
                is_environment: true,
            };
        }
        Self {
            files: vec![home().join(".kube/config")],
            is_explicit: false,
            is_environment: false,
        }
    }

    /// The file for new entries.
    pub(crate) fn default_file(&self) -> Option<&PathBuf> {
        let existing = self.files.iter().find(|path| path.exists());
        existing.or(self.files.last())
    }
}

/// The user's home directory.
pub(crate) fn home() -> PathBuf {
    std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default()
}

/// Larger kubeconfigs of other users are not read.
const MAX_SIZE: u64 = 16 << 20;

/// A kubeconfig file; an absent file is empty.
pub(crate) fn read_file(path: &Path) -> Result<Value> {
    parse(path, std::fs::read_to_string(path))
}

/// The same for a file that another user has put there: not a pipe or a device, which could be read
/// without end.
pub(crate) fn read_regular_file(path: &Path) -> Result<Value> {
    use std::{io::Read, os::unix::fs::OpenOptionsExt};
    let read = || {
        let mut options = std::fs::OpenOptions::new();
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file = options
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > MAX_SIZE {
            return Err(std::io::Error::other("not a file of a kubeconfig's size"));
        }
        let mut text = String::new();
        file.take(MAX_SIZE).read_to_string(&mut text)?;
        Ok(text)
    };
    parse(path, read())
}

fn parse(path: &Path, text: std::io::Result<String>) -> Result<Value> {
    let text = match text {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(json!({})),
        Err(error) => {
            let shown = path.display();
            let verb = match error.kind() {
                std::io::ErrorKind::IsADirectory => "read",
                _ => "open",
            };
            let why = crate::error::io_reason(&error);
            bail!("error loading config file \"{shown}\": {verb} {shown}: {why}")
        }
    };
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let value: Value = serde_saphyr::from_str(&text).map_err(|error| {
        // The rest shows the line.
        let error = error.to_string();
        let first = error.lines().next().unwrap_or_default();
        let first = first.trim_start_matches("error: ");
        anyhow::anyhow!(
            "error loading config file \"{}\": yaml: {first}",
            path.display()
        )
    })?;
    check_type(&value).map_err(|why| {
        anyhow::anyhow!("error loading config file \"{}\": {why}", path.display())
    })?;
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(json!({})),
        _ => bail!(
            "error loading config file \"{}\": not a kubeconfig",
            path.display()
        ),
    }
}

/// Whether a document is a kubeconfig of the only version, and its lists are lists.
fn check_type(config: &Value) -> Result<()> {
    let text = |field: &str, usual: &'static str| match str_of(&config[field]) {
        "" => usual.to_owned(),
        text => text.to_owned(),
    };
    let (kind, version) = (text("kind", "Config"), text("apiVersion", "v1"));
    if kind != "Config" || version != "v1" {
        bail!("no kind {kind:?} is registered for version {version:?}");
    }
    let kinds = [
        ("clusters", "NamedCluster"),
        ("contexts", "NamedContext"),
        ("users", "NamedAuthInfo"),
    ];
    for (section, kind) in kinds {
        let found = match &config[section] {
            Value::Null | Value::Array(_) => continue,
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::Object(_) => "object",
        };
        bail!(
            "json: cannot unmarshal {found} into Go struct field Config.{section} of type []v1.{kind}"
        );
    }
    Ok(())
}

/// All files merged: the first that defines a name or sets a value wins.
pub(crate) fn load(global: &Global) -> Result<Value> {
    let mut places = KubeconfigFiles::new(global);
    if places.is_explicit
        && let Some(path) = places.files.first()
        && !path.exists()
    {
        bail!("stat {}: no such file or directory", path.display());
    }
    let is_absent = !places.files.iter().any(|path| path.exists());
    if is_absent && !places.is_environment && Path::new(LOCAL).exists() {
        places.files = vec![LOCAL.into()];
    }
    let mut merged = json!({"apiVersion": "v1", "kind": "Config"});
    for path in &places.files {
        let mut file = read_file(path)?;
        absolute(&mut file, path);
        merge(&mut merged, file);
    }
    Ok(merged)
}

/// The same with file names as they are written, for `config view`.
pub(crate) fn load_as_written(files: &[PathBuf]) -> Result<Value> {
    let mut merged = json!({"apiVersion": "v1", "kind": "Config"});
    for path in files {
        merge(&mut merged, read_file(path)?);
    }
    Ok(merged)
}

/// Makes file names absolute, relative to the kubeconfig's directory.
fn absolute(file: &mut Value, path: &Path) {
    let directory = path.parent().map(Path::to_owned).unwrap_or_default();
    for (section, field) in FILES {
        let inner = inner_field(section);
        for entry in file[*section].as_array_mut().into_iter().flatten() {
            let Some(name) = entry[inner][*field]
                .as_str()
                .filter(|name| !name.is_empty())
            else {
                continue;
            };
            if Path::new(name).is_relative() {
                let name = directory.join(name).display().to_string();
                entry[inner][*field] = Value::String(name);
            }
        }
    }
    for entry in file
        .pointer_mut("/users")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let command = str_of(&entry["user"]["exec"]["command"]).to_owned();
        // A command with a slash is relative to the kubeconfig, one without is searched in PATH.
        if command.contains('/') && Path::new(&command).is_relative() {
            entry["user"]["exec"]["command"] =
                Value::String(directory.join(command).display().to_string());
        }
    }
}

/// `cluster` of `clusters`.
pub(crate) fn inner_field(section: &str) -> &'static str {
    let found = SECTIONS.iter().find(|(name, _)| *name == section);
    found.map_or("context", |(_, inner)| inner)
}

fn merge(into: &mut Value, file: Value) {
    let Value::Object(file) = file else { return };
    for (key, value) in file {
        let known = &mut into[key.as_str()];
        match value {
            Value::Array(more) if known.is_array() => {
                let Some(known) = known.as_array_mut() else {
                    continue;
                };
                for entry in more {
                    if !known.iter().any(|known| known["name"] == entry["name"]) {
                        known.push(entry);
                    }
                }
            }
            value => {
                if known.is_null() || *known == "" {
                    *known = value;
                }
            }
        }
    }
}

/// The content of an entry by its name.
pub(crate) fn entry<'a>(config: &'a Value, section: &str, name: &str) -> Option<&'a Value> {
    let found = list(&config[section]).find(|entry| entry["name"] == name)?;
    Some(&found[inner_field(section)])
}

/// Sets an entry's content.
pub(crate) fn set_entry(config: &mut Value, section: &str, name: &str, content: Value) {
    let inner = inner_field(section);
    if !config[section].is_array() {
        config[section] = json!([]);
    }
    let Some(entries) = config[section].as_array_mut() else {
        return;
    };
    match entries.iter_mut().find(|entry| entry["name"] == name) {
        Some(entry) => entry[inner] = content,
        None => entries.push(json!({inner: content, "name": name})),
    }
}

/// Removes an entry; false when there is none.
pub(crate) fn remove_entry(config: &mut Value, section: &str, name: &str) -> bool {
    let Some(entries) = config[section].as_array_mut() else {
        return false;
    };
    let before = entries.len();
    entries.retain(|entry| entry["name"] != name);
    entries.len() < before
}

/// Writes a file atomically: a new one is readable by its owner only, another keeps its owner and permissions, also if
/// root changes the file of a user.
pub(crate) fn write_file(path: &Path, config: &Value) -> Result<()> {
    use std::{
        io::Write,
        os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    };
    if let Some(directory) = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
    {
        std::fs::create_dir_all(directory)?;
    }
    let text = crate::output::yaml::to_string(&typed::typed(config));
    // The target of a link is replaced, not the link.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(name);
    let _ = std::fs::remove_file(&temporary);
    let mut options = std::fs::OpenOptions::new();
    let opened = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary);
    let written = opened.and_then(|mut file| {
        if let Ok(known) = std::fs::metadata(&target) {
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (known.uid(), known.gid()) {
                // Only root may give files away.
                let _ = fchown(&file, Some(known.uid()), Some(known.gid()));
            }
            file.set_permissions(known.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        std::fs::rename(&temporary, &target)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn the_first_file_wins_and_paths_are_relative_to_their_file() {
        let mut first = file(
            "current-context: \"\"\nclusters: [{name: a, cluster: {certificate-authority: ca.pem}}]",
        );
        absolute(&mut first, Path::new("/x/config"));
        let mut merged = json!({});
        merge(&mut merged, first);
        merge(
            &mut merged,
            file(
                "current-context: two\nclusters: [{name: a, cluster: {server: s}}, {name: b, cluster: {server: t}}]",
            ),
        );
        merge(&mut merged, file("current-context: three"));
        assert_eq!(merged["current-context"], "two");
        assert_eq!(
            entry(&merged, "clusters", "a").unwrap()["certificate-authority"],
            "/x/ca.pem"
        );
        assert_eq!(entry(&merged, "clusters", "b").unwrap()["server"], "t");
    }

    #[test]
    fn documents_that_are_no_kubeconfig_are_refused() {
        for (text, expected) in [
            ("apiVersion: v1\nkind: Config", None),
            ("clusters: []", None),
            (
                "apiVersion: v2",
                Some("no kind \"Config\" is registered for version \"v2\""),
            ),
            (
                "kind: Pod",
                Some("no kind \"Pod\" is registered for version \"v1\""),
            ),
            (
                "users: {}",
                Some("cannot unmarshal object into Go struct field Config.users"),
            ),
        ] {
            let error = check_type(&file(text)).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{text}");
            assert!(
                error
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_file_keeps_its_owner_and_permissions() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        write_file(&path, &json!({})).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let is_root = chown(&path, Some(54_321), Some(54_322)).is_ok();
        write_file(&path, &json!({"current-context": "a"})).unwrap();
        assert_eq!(mode(&path), 0o640);
        let metadata = path.metadata().unwrap();
        assert!(!is_root || (metadata.uid(), metadata.gid()) == (54_321, 54_322));
    }

    #[test]
    fn a_written_kubeconfig_has_all_sections_in_order() {
        let config =
            file("contexts: [{name: b, context: {}}, {name: a, context: {}}]\npreferences: {}");
        assert_eq!(
            crate::output::yaml::to_string(&typed::typed(&config)),
            "apiVersion: v1\nclusters: null\ncontexts:\n- context:\n    cluster: \"\"\n    user: \"\"\n  name: a\n\
             - context:\n    cluster: \"\"\n    user: \"\"\n  name: b\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
        );
    }
}
