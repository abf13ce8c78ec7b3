//! A node with one CSI driver, and a fake API.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use csi::testing::{Driver, Options, Served};
use k8s_openapi::api::{
    core::v1::Pod,
    storage::v1::{CSIDriver, TokenRequest, VolumeAttachment},
};
use parking_lot::Mutex;
use serde_json::json;
use stdx::Blocking;
use tokio_util::sync::CancellationToken;
use volume::{
    LinuxMounter, Mounter,
    storage::{Failure, Host, Manager, Ready, Spec, Step, resolve},
};

pub(crate) const DRIVER: &str = "test.csi.example.com";
/// The deadline of a call.
const DEADLINE: Duration = Duration::from_millis(300);
/// The size of a disk that a test can fill.
const SMALL_DISK: u64 = 512 << 10;

/// Runs a test in a mount namespace of its own.
pub(crate) fn with_own_mounts<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};
    // SAFETY: this thread belongs to the test, which starts all of its other threads after this.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
}

pub(crate) struct TestHost {
    root: PathBuf,
    local_path: PathBuf,
    node: Arc<csi::Node>,
    pub is_registered: Mutex<bool>,
    pub csi_driver: Mutex<Option<Arc<CSIDriver>>>,
    pub secrets: Mutex<BTreeMap<String, String>>,
    pub attachment: Mutex<Option<VolumeAttachment>>,
    /// The node's status.
    pub in_use: Mutex<Vec<String>>,
    pub attached: Mutex<Vec<String>>,
    /// The drivers whose limit was reached.
    pub limits_reached: Mutex<Vec<String>>,
    /// Whether every volume is attached as soon as it is in use.
    attaches_all: Mutex<bool>,
    blocking: Blocking,
    looks: AtomicUsize,
}

impl TestHost {
    /// How often a plugin looked at a volume's files.
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Host for TestHost {
    fn node_name(&self) -> &str {
        "node"
    }
    fn root_dir(&self) -> &Path {
        &self.root
    }
    fn local_path_root(&self) -> &Path {
        &self.local_path
    }
    fn mounter(&self) -> &'static dyn Mounter {
        &LinuxMounter
    }
    fn blocking(&self) -> &Blocking {
        self.looks.fetch_add(1, Ordering::Relaxed);
        &self.blocking
    }
    fn driver(&self, name: &str) -> Option<Arc<csi::Node>> {
        (name == DRIVER && *self.is_registered.lock()).then(|| self.node.clone())
    }
    async fn csi_driver(&self, _: &str) -> Step<Option<Arc<CSIDriver>>> {
        Ok(self.csi_driver.lock().clone())
    }
    async fn secret(&self, _: &str, _: &str) -> Step<BTreeMap<String, String>> {
        Ok(self.secrets.lock().clone())
    }
    async fn attachment(&self, _: &str) -> Step<Option<VolumeAttachment>> {
        Ok(self.attachment.lock().clone())
    }
    async fn tokens(&self, _: &Pod, requests: &[TokenRequest]) -> Step<String> {
        Ok(format!("{} tokens", requests.len()))
    }
    fn is_reported_in_use(&self, volume: &str) -> bool {
        *self.attaches_all.lock() || self.in_use.lock().iter().any(|name| name == volume)
    }
    fn is_attached(&self, volume: &str) -> bool {
        *self.attaches_all.lock() || self.attached.lock().iter().any(|name| name == volume)
    }
    fn limit_reached(&self, driver: &str) {
        self.limits_reached.lock().push(driver.to_owned());
    }
}

pub(crate) struct Node {
    pub dir: tempfile::TempDir,
    pub host: Arc<TestHost>,
    pub driver: Driver,
    pub manager: Arc<Manager>,
    unstages: Option<tokio::task::JoinHandle<()>>,
    _served: Served,
}

impl Node {
    pub(crate) fn new(options: Options) -> Self {
        Self::in_dir(options, tempfile::tempdir().unwrap())
    }

    /// A node whose disk a test can fill.
    pub(crate) fn on_small_disk(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        LinuxMounter.tmpfs(dir.path(), Some(SMALL_DISK)).unwrap();
        Self::in_dir(options, dir)
    }

    /// Fills the disk.
    pub(crate) fn fill_disk(&self) {
        let filler = vec![0; 2 * SMALL_DISK as usize];
        let full = std::fs::write(self.dir.path().join("filler"), filler);
        assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    pub(crate) fn free_disk(&self) {
        let _ = std::fs::remove_file(self.dir.path().join("filler"));
    }

    fn in_dir(options: Options, dir: tempfile::TempDir) -> Self {
        let root = dir.path().join("kubelet");
        let driver = Driver::new(options);
        let served = driver.serve(&root).unwrap();
        let socket = root.join("plugins").join(DRIVER).join("csi.sock");
        let host = Arc::new(TestHost {
            local_path: dir.path().join("local-path"),
            node: Arc::new(csi::Node::new(socket, DEADLINE)),
            root,
            is_registered: Mutex::new(true),
            csi_driver: Mutex::default(),
            secrets: Mutex::default(),
            attachment: Mutex::default(),
            in_use: Mutex::default(),
            attached: Mutex::default(),
            limits_reached: Mutex::default(),
            attaches_all: Mutex::default(),
            blocking: Blocking::new(1),
            looks: AtomicUsize::default(),
        });
        let manager = manager(&host);
        let mut node = Self {
            dir,
            host,
            driver,
            manager,
            unstages: None,
            _served: served,
        };
        node.set_csi_driver(json!({"attachRequired": false}));
        node.begin();
        node
    }

    fn begin(&mut self) {
        self.unstages = Some(tokio::spawn(self.manager.clone().run()));
    }

    /// Restarts the kubelet: all it knows is on disk.
    pub(crate) async fn restart(&mut self) {
        if let Some(unstages) = self.unstages.take() {
            unstages.abort();
            let _ = unstages.await;
        }
        // Work on files ends with the process; here the only thread for it ends it first.
        self.host.blocking.run(|| ()).await.unwrap();
        // From the node's status.
        let reported = self.manager.in_use().borrow().iter().cloned().collect();
        self.manager = manager(&self.host);
        self.manager.rebuild(&reported).unwrap();
        self.begin();
        self.manager.unstage_idle();
    }

    /// Attaches every volume as soon as it is in use.
    pub(crate) fn attach_all(&self) {
        *self.host.attaches_all.lock() = true;
        let object = json!({"metadata": {"name": "a"}, "spec": {"attacher": DRIVER, "nodeName": "node", "source": {}},
            "status": {"attached": true}});
        *self.host.attachment.lock() = Some(serde_json::from_value(object).unwrap());
    }

    pub(crate) fn set_csi_driver(&self, spec: serde_json::Value) {
        let object = json!({"metadata": {"name": DRIVER}, "spec": spec});
        *self.host.csi_driver.lock() = Some(Arc::new(serde_json::from_value(object).unwrap()));
    }

    pub(crate) async fn set_up(&self, pod: &Pod, spec: &Spec) -> Result<Ready, Failure> {
        set_up(&self.manager, pod, spec, false).await
    }

    pub(crate) fn target(&self, pod: &str, volume: &str) -> String {
        let dir = self.dir.path().join("kubelet/pods").join(pod);
        let dir = dir.join("volumes/kubernetes.io~csi").join(volume);
        dir.join("mount").to_string_lossy().into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(unstages) = self.unstages.take() {
            unstages.abort();
        }
        // A mount exists only if the disk is a small one.
        let _ = LinuxMounter.unmount(self.dir.path());
    }
}

fn manager(host: &Arc<TestHost>) -> Arc<Manager> {
    Arc::new(Manager::new(host.clone(), Arc::new(stdx::SystemClock)))
}

pub(crate) async fn set_up(
    manager: &Manager,
    pod: &Pod,
    spec: &Spec,
    again: bool,
) -> Result<Ready, Failure> {
    let plugin = resolve::plugin(spec).unwrap();
    manager
        .set_up(pod, spec, plugin, again, &CancellationToken::new())
        .await
}

pub(crate) fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"serviceAccountName": "default", "containers": []}}))
    .unwrap()
}

/// A persistent volume of the driver.
pub(crate) fn volume(name: &str) -> Spec {
    persistent(
        name,
        json!({"accessModes": ["ReadWriteOnce"],
               "csi": {"driver": DRIVER, "volumeHandle": format!("h-{name}")}}),
    )
}

pub(crate) fn persistent(name: &str, mut spec: serde_json::Value) -> Spec {
    spec["claimRef"] = json!({"uid": "c"});
    let inline =
        json!({"name": format!("vol-{name}"), "persistentVolumeClaim": {"claimName": "c"}});
    let from = |value| Arc::new(serde_json::from_value(value).unwrap());
    let claim = Arc::new(serde_json::from_value(json!({"metadata": {"uid": "c"}})).unwrap());
    resolve::claimed(
        &serde_json::from_value(inline).unwrap(),
        claim,
        from(json!({"metadata": {"name": name}, "spec": spec})),
        Default::default(),
    )
    .unwrap()
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
