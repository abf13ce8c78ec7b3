//! CDI devices: vendors describe in files what a container needs to use a device, and a pod
//! requests `vendor.com/class=name`. A container with an undefined device, or one that two files of
//! a directory define, is rejected.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// A file of devices of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    /// For every container that uses any of the devices.
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

/// Changes of the OCI configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Mount>,
    hooks: Vec<Hook>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Node {
    path: String,
    host_path: Option<String>,
    r#type: Option<String>,
    major: Option<u64>,
    minor: Option<u64>,
    file_mode: Option<u32>,
    permissions: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    timeout: Option<i64>,
}

/// The kinds of OCI hooks.
const HOOKS: &[&str] = &[
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// Applies the edits of the named devices to a configuration.
pub(super) fn apply(spec: &mut Value, names: &[String], dirs: &[PathBuf]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let known = Known::read(dirs);
    let mut used = BTreeSet::new();
    for name in names {
        let (file, device) = known.find(name)?;
        if used.insert(file) {
            known.files[file].1.container_edits.apply(spec)?;
        }
        known.files[file].1.devices[device]
            .container_edits
            .apply(spec)?;
    }
    Ok(())
}

/// All CDI specs of this machine.
struct Known {
    files: Vec<(PathBuf, File)>,
    /// By a device's full name: its file, and its index there.
    devices: BTreeMap<String, Found>,
}

enum Found {
    At {
        dir: usize,
        file: usize,
        device: usize,
    },
    /// Two files of one directory define it.
    Twice { dir: usize },
}

impl Known {
    fn read(dirs: &[PathBuf]) -> Self {
        let mut known = Self {
            files: Vec::new(),
            devices: BTreeMap::new(),
        };
        for (number, dir) in dirs.iter().enumerate() {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
            paths.sort();
            for path in paths {
                match read(&path) {
                    Ok(Some(file)) => known.add(number, path, file),
                    Ok(None) => {}
                    // An invalid file must not block other devices.
                    Err(error) => tracing::warn!(path = %path.display(), error, "invalid CDI file"),
                }
            }
        }
        known
    }

    /// Later directories take precedence.
    fn add(&mut self, dir: usize, path: PathBuf, file: File) {
        let at = self.files.len();
        for (number, device) in file.devices.iter().enumerate() {
            let name = format!("{}={}", file.kind, device.name);
            let same = match self.devices.get(&name) {
                Some(Found::At { dir: other, .. } | Found::Twice { dir: other }) => *other == dir,
                None => false,
            };
            let found = if same {
                Found::Twice { dir }
            } else {
                Found::At {
                    dir,
                    file: at,
                    device: number,
                }
            };
            self.devices.insert(name, found);
        }
        self.files.push((path, file));
    }

    fn find(&self, name: &str) -> Result<(usize, usize)> {
        match self.devices.get(name) {
            Some(Found::At { file, device, .. }) => Ok((*file, *device)),
            Some(Found::Twice { .. }) => Err(Error::Invalid(format!(
                "CDI device {name:?} is described by more than one file"
            ))),
            None => Err(Error::Invalid(format!("unresolvable CDI device {name:?}"))),
        }
    }
}

fn read(path: &Path) -> Result<Option<File>, String> {
    let text = || fs::read_to_string(path).map_err(|error| error.to_string());
    let file: File = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => serde_json::from_str(&text()?).map_err(|error| error.to_string())?,
        Some("yaml") => {
            // Not into the type itself: the code of the YAML parser is large, and each type would have a copy of it.
            let value: Value =
                serde_saphyr::from_str(&text()?).map_err(|error| error.to_string())?;
            serde_json::from_value(value).map_err(|error| error.to_string())?
        }
        _ => return Ok(None),
    };
    if !file.kind.contains('/') {
        return Err(format!("{:?} is not vendor/class", file.kind));
    }
    Ok(Some(file))
}

impl Edits {
    fn apply(&self, spec: &mut Value) -> Result<()> {
        for variable in &self.env {
            let name = variable.split('=').next().unwrap_or_default();
            let same = |known: &Value| {
                known
                    .as_str()
                    .is_some_and(|known| known.split('=').next() == Some(name))
            };
            add(&mut spec["process"]["env"], json!(variable), same);
        }
        for node in &self.device_nodes {
            let (entry, rule) = node.resolve()?;
            let same = |known: &Value| known["path"] == node.path.as_str();
            add(&mut spec["linux"]["devices"], entry, same);
            add(&mut spec["linux"]["resources"]["devices"], rule, never);
        }
        for mount in &self.mounts {
            let mut options = mount.options.clone();
            if !options
                .iter()
                .any(|option| option == "bind" || option == "rbind")
            {
                options.push("bind".into());
            }
            let entry = json!({
                "destination": mount.container_path, "source": mount.host_path,
                "type": mount.r#type.as_deref().unwrap_or("bind"), "options": options,
            });
            add(&mut spec["mounts"], entry, never);
        }
        for hook in &self.hooks {
            if !HOOKS.contains(&hook.hook_name.as_str()) {
                return Err(Error::Invalid(format!("unknown hook {:?}", hook.hook_name)));
            }
            let mut entry = json!({ "path": hook.path, "args": hook.args, "env": hook.env });
            if let Some(timeout) = hook.timeout {
                entry["timeout"] = json!(timeout);
            }
            add(&mut spec["hooks"][&hook.hook_name], entry, never);
        }
        for gid in &self.additional_gids {
            // Never grant group root this way.
            if *gid != 0 {
                let groups = &mut spec["process"]["user"]["additionalGids"];
                add(groups, json!(gid), |known| *known == *gid);
            }
        }
        Ok(())
    }
}

impl Node {
    /// The device and the cgroup rule that allows it.
    fn resolve(&self) -> Result<(Value, Value)> {
        let host = self.host_path.as_deref().unwrap_or(&self.path);
        let (mut kind, mut major, mut minor) = (self.r#type.clone(), self.major, self.minor);
        if kind.is_none() || (major.is_none() && kind.as_deref() != Some("p")) {
            let metadata = fs::metadata(host).map_err(Error::file(host))?;
            let found = match metadata.file_type() {
                found if found.is_char_device() => "c",
                found if found.is_block_device() => "b",
                found if found.is_fifo() => "p",
                _ => return Err(Error::Invalid(format!("{host} is not a device"))),
            };
            kind.get_or_insert(found.to_owned());
            major.get_or_insert(libc::major(metadata.rdev()).into());
            minor.get_or_insert(libc::minor(metadata.rdev()).into());
        }
        let access = self.permissions.as_deref().unwrap_or("rwm");
        let mut entry = json!({ "path": self.path, "type": kind, "major": major, "minor": minor });
        for (key, value) in [
            ("fileMode", self.file_mode),
            ("uid", self.uid),
            ("gid", self.gid),
        ] {
            if let Some(value) = value {
                entry[key] = json!(value);
            }
        }
        let rule = json!({
            "allow": true, "type": kind, "major": major, "minor": minor, "access": access,
        });
        Ok((entry, rule))
    }
}

/// Adds to a list, replacing an equal entry. A missing list is created.
fn add(list: &mut Value, entry: Value, same: impl Fn(&Value) -> bool) {
    match list {
        Value::Array(known) => {
            known.retain(|known| !same(known));
            known.push(entry);
        }
        other => *other = json!([entry]),
    }
}

fn never(_: &Value) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        fs::write(dir.join(name), text).unwrap();
    }

    #[test]
    fn a_named_device_brings_all_that_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "vendor.yaml",
            "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ncontainerEdits:\n  env: [ALL=1]\ndevices:\n\
             - name: '0'\n  containerEdits:\n    env: [GPU=0]\n    deviceNodes:\n    - {path: /dev/gpu0, hostPath: /dev/null, permissions: rw}\n\
             \x20   mounts:\n    - {hostPath: /lib/gpu, containerPath: /gpu, options: [ro]}\n    additionalGids: [44]\n\
             \x20   hooks:\n    - {hookName: createContainer, path: /bin/hook}\n",
        );
        let mut spec = json!({ "process": { "env": ["GPU=none", "PATH=/bin"] }, "mounts": [] });
        let names = ["vendor.com/gpu=0".to_owned()];
        apply(&mut spec, &names, &[dir.path().to_path_buf()]).unwrap();
        assert_eq!(
            spec["process"]["env"],
            json!(["PATH=/bin", "ALL=1", "GPU=0"])
        );
        assert_eq!(spec["process"]["user"]["additionalGids"], json!([44]));
        assert_eq!(
            spec["linux"]["devices"],
            json!([{ "path": "/dev/gpu0", "type": "c", "major": 1, "minor": 3 }])
        );
        assert_eq!(spec["linux"]["resources"]["devices"][0]["access"], "rw");
        assert_eq!(spec["mounts"][0]["options"], json!(["ro", "bind"]));
        assert_eq!(spec["hooks"]["createContainer"][0]["path"], "/bin/hook");
    }

    #[test]
    fn unknown_and_doubtful_devices_are_refused_and_later_directories_win() {
        let (low, high) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = |value: &str| {
            format!(
                r#"{{"kind":"v.com/d","devices":[{{"name":"a","containerEdits":{{"env":["V={value}"]}}}}]}}"#
            )
        };
        write(low.path(), "a.json", &file("low"));
        write(low.path(), "broken.json", "{");
        write(high.path(), "b.json", &file("high"));
        let dirs = [low.path().to_path_buf(), high.path().to_path_buf()];
        let ask = |name: &str| {
            let mut spec = json!({});
            apply(&mut spec, &[name.to_owned()], &dirs).map(|()| spec)
        };
        assert_eq!(
            ask("v.com/d=a").unwrap()["process"]["env"],
            json!(["V=high"])
        );
        let unknown = ask("v.com/d=b").unwrap_err().to_string();
        assert!(unknown.contains("unresolvable CDI device"), "{unknown}");
        write(high.path(), "c.json", &file("other"));
        let doubtful = ask("v.com/d=a").unwrap_err().to_string();
        assert!(doubtful.contains("more than one file"), "{doubtful}");
    }
}
