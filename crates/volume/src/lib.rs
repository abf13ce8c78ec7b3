//! Volumes of pods: one plugin per file with one shape, listed in [`plugins::ALL`]; and persistent
//! volumes, which are mounted in steps ([`storage`]), listed in [`plugins::STORAGE`].
//!
//! A plugin first returns the API objects that its content comes from ([`Plugin::needs`], pure);
//! the caller fetches them; then the plugin makes the directory ([`Plugin::set_up`], idempotent,
//! called again when an object changed). Nothing here uses the API or waits. A volume that no
//! plugin claims is rejected with a readable error; nothing is mounted halfway.

pub mod atomic;
pub mod downward;
mod format;
mod image;
mod loop_device;
mod mounter;
mod options;
mod ownership;
mod payload;
pub mod plugins;
pub mod storage;
pub mod subpath;
mod tree;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret, Volume},
    apimachinery::pkg::api::resource::Quantity,
};

pub use mounter::{LinuxMounter, Mounter};
pub use options::MountOptions;
pub use ownership::give_to_group;
pub use tree::remove_tree;

/// Why a volume could not be set up or torn down.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No plugin handles this volume.
    #[error("volume {volume:?} is of type {kind}, which this node does not support")]
    Unsupported {
        /// The volume's name.
        volume: String,
        /// The field of its source.
        kind: String,
    },
    /// A ConfigMap, Secret or token that is not optional is missing.
    #[error("{kind} {name:?} not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key that the volume names is not in its source.
    #[error("references non-existent {kind} key: {key}")]
    MissingKey {
        /// `config` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// A path that would leave the volume.
    #[error("invalid path {path:?}: {why}")]
    InvalidPath {
        /// The path as written.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A field that the downward API does not have.
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    /// A resource that the downward API does not have.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// Huge pages that the pod does not request, or whose size is ambiguous.
    #[error("{0}")]
    HugePages(String),
    /// A hostPath that is not what its type says.
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    HostPathType {
        /// The path on the node.
        path: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A raw block volume whose path is something else.
    #[error("{0} is not a block device")]
    NotADevice(PathBuf),
    /// A persistent volume is still in the pod's directory.
    #[error("volume {0:?} is still published to the pod")]
    StillPublished(String),
    /// Something is still mounted in a directory to be removed.
    #[error("cannot remove {0}: something is still mounted there")]
    StillMounted(PathBuf),
    /// A file system operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl Error {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An API object that a volume's content comes from, in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A ConfigMap; the volume waits for it, unless optional.
    ConfigMap {
        /// Its name.
        name: String,
        /// Whether the volume works without it.
        optional: bool,
    },
    /// A Secret; the volume waits for it, unless optional.
    Secret {
        /// Its name.
        name: String,
        /// Whether the volume works without it.
        optional: bool,
    },
    /// A token of the pod's service account, bound to the pod.
    Token(TokenSpec),
}

/// A requested token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpec {
    /// The audience; empty means the API server.
    pub audience: String,
    /// The requested lifetime.
    pub expiration_seconds: i64,
}

/// The objects of a pod's needs. Missing ones are absent.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// By name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// By name.
    pub secrets: BTreeMap<String, Secret>,
    /// By request.
    pub tokens: BTreeMap<TokenSpec, String>,
}

/// Properties of the node that volumes can show.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// The node's allocatable resources: the limit of a container without one.
    pub allocatable: BTreeMap<String, Quantity>,
    /// The node's first address.
    pub host_ip: String,
}

/// One volume to set up.
pub struct Request<'a> {
    /// The pod, with its status if addresses are known.
    pub pod: &'a Pod,
    /// The volume of its spec.
    pub volume: &'a Volume,
    /// The volume's own directory.
    pub dir: &'a Path,
    /// The objects of its needs.
    pub objects: &'a Objects,
    /// Properties of the node.
    pub node: &'a NodeFacts,
    /// The mounter.
    pub mounter: &'a dyn Mounter,
}

/// A volume plugin.
pub trait Plugin: Sync {
    /// The name in directories and events: `kubernetes.io/empty-dir`.
    fn name(&self) -> &'static str;
    /// Whether the plugin handles this volume.
    fn claims(&self, volume: &Volume) -> bool;
    /// The objects that its content comes from.
    fn needs(&self, volume: &Volume) -> Vec<Need> {
        let _ = volume;
        Vec::new()
    }
    /// Whether `set_up` must run again when the pod's own metadata changed.
    fn shows_pod(&self, volume: &Volume) -> bool {
        let _ = volume;
        false
    }
    /// Makes the volume, or updates its content; returns the path to mount into containers.
    fn set_up(&self, request: &Request) -> Result<PathBuf>;
    /// Removes what `set_up` made in `dir`.
    fn tear_down(&self, dir: &Path, mounter: &dyn Mounter) -> Result<()> {
        mounter.unmount(dir)?;
        remove_tree(dir)
    }
}

/// The plugin for a volume, or an error if there is none.
pub fn plugin_for(volume: &Volume) -> Result<&'static dyn Plugin> {
    plugins::ALL
        .iter()
        .copied()
        .find(|plugin| plugin.claims(volume))
        .ok_or_else(|| Error::Unsupported {
            volume: volume.name.clone(),
            kind: plugins::source_name(volume),
        })
}

/// The directory of a volume below the pod's directory.
pub fn volume_dir(pod_dir: &Path, plugin: &str, volume: &str) -> PathBuf {
    pod_dir
        .join("volumes")
        .join(plugin.replace('/', "~"))
        .join(volume)
}

/// Tears down a pod's own volumes, after its persistent volumes were unpublished. A failure does
/// not affect the others; the first one is returned.
pub fn tear_down_all(pod_dir: &Path, mounter: &dyn Mounter) -> Result<()> {
    let mut outcome = subpath::clean_up(pod_dir, mounter);
    if let Some((_, left)) = storage::mounts_of_pod(pod_dir)?.into_iter().next() {
        return outcome.and(Err(Error::StillPublished(left.name)));
    }
    let volumes = pod_dir.join("volumes");
    for kind in entries(&volumes)? {
        let escaped = kind
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .replace('~', "/");
        let plugin = plugins::ALL.iter().find(|plugin| plugin.name() == escaped);
        for dir in entries(&kind)? {
            let down = match plugin {
                Some(plugin) => plugin.tear_down(&dir, mounter),
                None => mounter.unmount(&dir).and_then(|()| remove_tree(&dir)),
            };
            outcome = outcome.and(down);
        }
    }
    outcome?;
    remove_tree(&volumes)
}

/// The paths in a directory; empty if it does not exist.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("read directory", dir)(error)),
    }
}

#[cfg(test)]
mod testing {
    //! A mounter that only records.
    use std::path::{Path, PathBuf};

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    pub(crate) struct FakeMounter(pub Mutex<Vec<PathBuf>>);

    impl Mounter for FakeMounter {
        fn tmpfs(&self, dir: &Path, _: Option<u64>) -> Result<()> {
            self.0.lock().push(dir.to_owned());
            Ok(())
        }
        fn bind_fd(&self, _: std::os::fd::BorrowedFd<'_>, target: &Path) -> Result<()> {
            self.0.lock().push(target.to_owned());
            Ok(())
        }
        fn bind(
            &self,
            _: std::os::fd::BorrowedFd<'_>,
            target: &Path,
            _: &MountOptions,
        ) -> Result<()> {
            self.0.lock().push(target.to_owned());
            Ok(())
        }
        fn mount(&self, _: &Path, target: &Path, _: &str, _: &MountOptions) -> Result<()> {
            self.0.lock().push(target.to_owned());
            Ok(())
        }
        fn unmount_unused(&self, dir: &Path) -> Result<()> {
            self.unmount(dir)
        }
        fn unmount(&self, dir: &Path) -> Result<()> {
            self.0.lock().retain(|mounted| mounted != dir);
            Ok(())
        }
        fn is_mounted(&self, dir: &Path) -> Result<bool> {
            Ok(self.0.lock().iter().any(|mounted| mounted == dir))
        }
    }

    pub(crate) fn set_up(
        volume: serde_json::Value,
        pod: Pod,
        objects: Objects,
        dir: &Path,
    ) -> Result<PathBuf> {
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let node = NodeFacts::default();
        let mounter = FakeMounter::default();
        let request = Request {
            pod: &pod,
            volume: &volume,
            dir,
            objects: &objects,
            node: &node,
            mounter: &mounter,
        };
        plugin_for(&volume)?.set_up(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_a_plugin_is_refused_by_its_type() {
        for (kind, source) in [
            (
                "persistentVolumeClaim",
                serde_json::json!({"claimName": "c"}),
            ),
            (
                "iscsi",
                serde_json::json!({"targetPortal": "p", "iqn": "q", "lun": 1}),
            ),
            ("vsphereVolume", serde_json::json!({"volumePath": "p"})),
            ("flocker", serde_json::json!({})),
            ("gitRepo", serde_json::json!({"repository": "r"})),
        ] {
            let volume = serde_json::json!({"name": "data", kind: source});
            let volume: Volume = serde_json::from_value(volume).unwrap();
            let error = plugin_for(&volume).err().unwrap().to_string();
            let expected =
                format!("volume \"data\" is of type {kind}, which this node does not support");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn every_plugin_has_its_own_name_and_claims_nothing_empty() {
        let mut names: Vec<_> = plugins::ALL.iter().map(|plugin| plugin.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plugins::ALL.len());
        for plugin in plugins::ALL {
            assert!(!plugin.claims(&Volume::default()), "{}", plugin.name());
        }
    }
}
