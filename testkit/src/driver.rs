//! A CSI driver on a machine: it runs in this process and sees the machine's files and mounts.

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use csi::testing::{Driver, Options};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use tokio::sync::oneshot;

use crate::{Machine, eventually};

/// A driver whose sockets are served on a machine as long as this value lives.
pub struct ServedDriver {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServedDriver {
    /// A driver on a machine whose kubelet, with this root directory, has registered it.
    pub fn registered(machine: &Machine, kubelet_root: &Path, options: Options) -> (Driver, Self) {
        let driver = Driver::new(options);
        let served = Self::new(machine, &driver, kubelet_root);
        eventually("the driver to be registered", || {
            let registered = driver.registered() == Some(true);
            registered.then_some(()).ok_or(driver.registration_error())
        });
        (driver, served)
    }

    /// Serves `driver` on a machine, below its kubelet's root directory.
    pub fn new(machine: &Machine, driver: &Driver, kubelet_root: &Path) -> Self {
        let mounts = File::open(format!("/proc/{}/ns/mnt", machine.inside()));
        let mounts = mounts.expect("the machine's mount namespace");
        let (driver, root) = (driver.clone(), kubelet_root.to_owned());
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            enter(&mounts);
            serve(&driver, root, &ready, stopped);
        });
        started.recv().expect("the driver serves");
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

/// Moves this thread into a mount namespace.
fn enter(mounts: &File) {
    // SAFETY: this thread was started for the driver alone and shares nothing of its file system
    // view with code that ran on it before.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.expect("a view of its own");
    let kind = Some(LinkNameSpaceType::Mount);
    rustix::thread::move_into_link_name_space(mounts.as_fd(), kind).expect("the namespace");
}

/// Everything runs on this thread, so that all of it is in the machine's mount namespace.
fn serve(driver: &Driver, root: PathBuf, ready: &mpsc::Sender<()>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let _served = driver.serve(&root).expect("sockets for the driver");
        let _ = ready.send(());
        let _ = stopped.await;
    });
}

impl Drop for ServedDriver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
