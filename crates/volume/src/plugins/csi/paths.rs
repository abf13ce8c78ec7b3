//! The paths of CSI volumes on the node, and their records. Drivers run in containers that use the
//! same paths, so that they are upstream's.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::NAME;
use crate::{
    Error, Result, entries,
    storage::{PodMount, Staged},
};

/// The record file of a directory.
const RECORD: &str = "vol_data.json";

/// Between a driver's name and its volume handle.
const SEPARATOR: char = '^';

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The unique name of a volume in this plugin.
pub(super) fn volume_name(driver: &str, handle: &str) -> String {
    format!("{driver}{SEPARATOR}{handle}")
}

/// The driver and the handle of a volume.
pub(super) fn split(volume: &str) -> (&str, &str) {
    volume.split_once(SEPARATOR).unwrap_or((volume, ""))
}

/// The name of the VolumeAttachment of a volume and node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hash(&format!("{handle}{driver}{node}")))
}

/// The handle of a CSI ephemeral volume.
pub(super) fn inline_handle(pod: &str, name: &str) -> String {
    format!("csi-{}", hash(&format!("{pod}{name}")))
}

fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins").join(NAME)
}

/// The staging path of a volume.
pub(super) fn staging(root: &Path, volume: &str, name: &str, is_block: bool) -> PathBuf {
    if is_block {
        return devices(root).join("staging").join(name);
    }
    let (driver, handle) = split(volume);
    let dir = plugin_dir(root).join(driver).join(hash(handle));
    dir.join("globalmount")
}

fn devices(root: &Path) -> PathBuf {
    plugin_dir(root).join("volumeDevices")
}

/// The target path of a pod's volume: a directory or a device.
pub(super) fn target(root: &Path, mount: &PodMount) -> PathBuf {
    if mount.is_block {
        return publish_dir(root, &mount.name).join(&mount.pod);
    }
    mount.dir(root, NAME).join("mount")
}

/// Where the devices of a volume are published.
pub(super) fn publish_dir(root: &Path, name: &str) -> PathBuf {
    devices(root).join("publish").join(name)
}

/// The directory of a device's records.
pub(super) fn device_dir(root: &Path, name: &str) -> PathBuf {
    devices(root).join(name)
}

/// The directory of a pod volume's record.
pub(super) fn record_dir(root: &Path, mount: &PodMount) -> PathBuf {
    if mount.is_block {
        return device_dir(root, &mount.name).join("data");
    }
    mount.dir(root, NAME)
}

/// The contents of a record.
pub(super) type Record = BTreeMap<String, String>;

/// Writes a record atomically.
pub(super) fn save(dir: &Path, record: &Record) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let (file, fresh) = (dir.join(RECORD), dir.join(".vol_data.json.new"));
    let text = serde_json::to_vec(record).unwrap_or_default();
    fs::write(&fresh, text).map_err(Error::io("write", &fresh))?;
    fs::rename(&fresh, &file).map_err(Error::io("write", &file))
}

/// Reads a record.
pub(super) fn load(dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()
}

/// Removes a record directory that contains only the record.
pub(super) fn remove_record(dir: &Path) -> Result<()> {
    for file in [RECORD, ".vol_data.json.new"] {
        ignore_missing(fs::remove_file(dir.join(file)), dir)?;
    }
    ignore_missing(fs::remove_dir(dir), dir)
}

/// Removes an empty directory or a file that a driver should have removed.
pub(super) fn remove_target(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => ignore_missing(fs::remove_dir(path), path),
        Ok(_) => ignore_missing(fs::remove_file(path), path),
        Err(error) => ignore_missing(Err(error), path),
    }
}

fn ignore_missing(removed: io::Result<()>, path: &Path) -> Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Rejects names of persistent volumes whose devices would be where those of all others are.
pub(super) fn check_device_name(name: &str) -> std::result::Result<(), String> {
    match name {
        "staging" | "publish" => Err(format!(
            "raw block volumes cannot have the name {name:?}: the directory of all of them has it"
        )),
        _ => Ok(()),
    }
}

/// Every volume that may be staged according to the records. A record counts only where the kubelet
/// would write it: drivers can write to these directories, and what it names is removed later.
pub(super) fn staged(root: &Path) -> Vec<Staged> {
    let mut found = Vec::new();
    let list = |dir: &Path| entries(dir).unwrap_or_default();
    let is_in_place = |staged: &Staged, dir: &Path| match staged.is_block {
        true => check_device_name(&staged.name).is_ok() && device_dir(root, &staged.name) == dir,
        false => staging(root, &staged.volume, &staged.name, false).parent() == Some(dir),
    };
    let mut take = |dir: &Path, record: Option<Record>, is_block| {
        let staged = record.and_then(|record| from_record(&record, is_block));
        found.extend(staged.filter(|staged| is_in_place(staged, dir)));
    };
    for driver in list(&plugin_dir(root)) {
        if driver.ends_with("volumeDevices") {
            continue;
        }
        for volume in list(&driver) {
            if !volume.join(RECORD).exists() {
                remove_unrecorded(&volume);
                continue;
            }
            take(&volume, load(&volume), false);
        }
    }
    for device in list(&devices(root)) {
        take(&device, load(&device.join("data")), true);
    }
    found
}

/// Removes what is left of a stage that ended before its record was written, for example on a full
/// disk: the driver was never called. Only empty directories are removed.
fn remove_unrecorded(dir: &Path) {
    let removed = ignore_missing(fs::remove_dir(dir.join("globalmount")), dir)
        .and_then(|()| remove_record(dir));
    if let Err(error) = removed {
        tracing::debug!(dir = %dir.display(), %error, "cannot remove directory");
    }
}

fn from_record(record: &Record, is_block: bool) -> Option<Staged> {
    let volume = volume_name(record.get("driverName")?, record.get("volumeHandle")?);
    let name = record.get("specVolID").cloned().unwrap_or_default();
    Some(Staged {
        volume,
        name,
        is_block,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_those_that_drivers_expect() {
        let root = Path::new("/k");
        let mount = |is_block| PodMount {
            pod: "uid".into(),
            name: "pv".into(),
            is_block,
        };
        let shown = |path: PathBuf| path.to_string_lossy().into_owned();
        assert_eq!(
            shown(staging(root, "d.io^h", "pv", false)),
            "/k/plugins/kubernetes.io/csi/d.io/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount"
        );
        assert_eq!(
            shown(target(root, &mount(false))),
            "/k/pods/uid/volumes/kubernetes.io~csi/pv/mount"
        );
        assert_eq!(
            shown(staging(root, "d.io^h", "pv", true)),
            "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv"
        );
        assert_eq!(
            shown(target(root, &mount(true))),
            "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv/uid"
        );
        assert_eq!(split("d.io^a^b"), ("d.io", "a^b"));
        let name = attachment_name("h", "d.io", "n");
        assert!(name.starts_with("csi-") && name.len() == 68);
    }

    #[test]
    fn possibly_staged_volumes_are_found_by_their_record() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let record = |name: Option<&str>| {
            let mut record = Record::from([
                ("driverName".to_owned(), "d.io".to_owned()),
                ("volumeHandle".to_owned(), "h".to_owned()),
            ]);
            record.extend(name.map(|name| ("specVolID".to_owned(), name.to_owned())));
            record
        };
        let dir = staging(root, "d.io^h", "", false);
        save(dir.parent().unwrap(), &record(None)).unwrap();
        let device = PodMount {
            pod: "u".into(),
            name: "raw".into(),
            is_block: true,
        };
        save(&record_dir(root, &device), &record(Some("raw"))).unwrap();
        let found = staged(root);
        assert_eq!(found.len(), 2);
        assert!(found.iter().any(|one| one.is_block && one.name == "raw"));
        remove_record(dir.parent().unwrap()).unwrap();
        assert_eq!(staged(root).len(), 1);
    }

    #[test]
    fn records_that_a_driver_wrote_elsewhere_name_no_volume() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let record = |driver: &str, name: &str| {
            let fields = [
                ("driverName", driver),
                ("volumeHandle", "h"),
                ("specVolID", name),
            ];
            Record::from(fields.map(|(key, value)| (key.to_owned(), value.to_owned())))
        };
        let plugins = plugin_dir(root);
        for (dir, record) in [
            ("d.io/elsewhere", record("d.io", "pv")),
            ("d.io/other", record("../../..", "pv")),
            ("volumeDevices/raw/data", record("d.io", "../../../../pods")),
            ("volumeDevices/raw2/data", record("d.io", "raw3")),
            ("volumeDevices/staging/data", record("d.io", "staging")),
        ] {
            save(&plugins.join(dir), &record).unwrap();
            let found = staged(root);
            assert!(found.is_empty(), "{dir}: {found:?}");
        }
        save(
            &plugins.join("volumeDevices/raw/data"),
            &record("d.io", "raw"),
        )
        .unwrap();
        assert_eq!(staged(root).len(), 1);
    }
}
