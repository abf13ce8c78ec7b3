//! Security regressions: pods that change their volumes while the node works on them, and malicious
//! volumes.

use std::{
    fs,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{CWD, Mode, OFlags, RenameFlags, renameat_with},
    mount::MountFlags,
};
use volume::{LinuxMounter, MountOptions, Mounter, give_to_group, remove_tree, subpath};

use crate::support::with_own_mounts;

/// A volume in which a pod swaps a directory for a link to the node's files, as fast as it can.
struct Swapped {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    swapper: Option<std::thread::JoinHandle<()>>,
}

impl Swapped {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        for made in [volume.join("sub/deep"), outside.join("deep")] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(outside.join("secret"), "x").unwrap();
        fs::set_permissions(outside.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (one, other) = (volume.join("sub"), volume.join("link"));
        let stopped = stop.clone();
        let swapper = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
            }
        });
        Self {
            dir,
            stop,
            swapper: Some(swapper),
        }
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn assert_outside_is_untouched(&self) {
        let outside = self.dir.path().join("outside");
        let secret = fs::metadata(outside.join("secret")).unwrap();
        assert_eq!(secret.mode() & 0o7777, 0o600);
        assert!(outside.join("deep").is_dir());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(swapper) = self.swapper.take() {
            let _ = swapper.join();
        }
    }
}

#[test]
fn a_sub_path_never_leads_out_of_a_volume_that_changes_meanwhile() {
    with_own_mounts(|| async {
        let swapped = Swapped::new();
        let pod = swapped.dir.path().join("pod");
        for round in 0..2000 {
            let sub = ["sub", "sub/deep", "sub/new/er"][round % 3];
            let bound = subpath::prepare(&pod, "v", "c", 0, &swapped.volume(), sub, &LinuxMounter);
            if let Ok(bound) = bound {
                assert!(!bound.join("secret").exists(), "round {round}");
            }
        }
        subpath::clean_up(&pod, &LinuxMounter).unwrap();
        swapped.assert_outside_is_untouched();
    });
}

#[test]
fn files_outside_are_never_given_to_a_group() {
    let swapped = Swapped::new();
    // Every user may change files to their own group.
    let group = rustix::process::getgid().as_raw();
    for _ in 0..2000 {
        // A concurrent change is an error: it is retried.
        let _ = give_to_group(&swapped.volume(), group, false);
    }
    swapped.assert_outside_is_untouched();
}

#[test]
fn removal_never_follows_a_directory_that_becomes_a_link() {
    for _ in 0..200 {
        let swapped = Swapped::new();
        // Either may be missing at the last moment, but the swapper does not recreate the tree.
        while remove_tree(&swapped.volume()).is_err() {}
        assert!(!swapped.volume().exists());
        swapped.assert_outside_is_untouched();
    }
}

#[test]
fn a_tree_of_any_depth_is_given_to_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
    for _ in 0..20_000 {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "d", flags, Mode::empty()).unwrap();
    }
    let group = rustix::process::getgid().as_raw();
    // A thread with a small stack.
    let path = dir.path().to_owned();
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let given = small
        .spawn(move || give_to_group(&path, group, false))
        .unwrap();
    given.join().unwrap().unwrap();
    let deepest = rustix::fs::fstat(&here).unwrap();
    assert_eq!(deepest.st_mode & 0o2070, 0o2070);
    drop(here);
    remove_tree(dir.path()).unwrap();
}

#[test]
fn options_of_a_volume_lift_no_restriction_of_the_file_system_that_it_is_in() {
    with_own_mounts(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (disk, target) = (dir.path().join("disk"), dir.path().join("target"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&target).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("tmpfs", &disk, "tmpfs", flags, None).unwrap();
        let source = fs::File::open(&disk).unwrap();
        let options = MountOptions::new(&["noatime".to_owned()], true);
        LinuxMounter
            .bind(source.as_fd(), &target, &options)
            .unwrap();
        let now = options_of(&target);
        for wanted in ["ro", "nosuid", "nodev", "noexec", "noatime"] {
            assert!(now.contains(&wanted.to_owned()), "{now:?}");
        }
        LinuxMounter.unmount(&target).unwrap();
        LinuxMounter.unmount(&disk).unwrap();
    });
}

fn options_of(place: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let place = place.display().to_string();
    let mut lines = table.lines().map(|line| line.split(' '));
    let options = lines.find_map(|mut words| {
        (words.nth(4) == Some(&place)).then(|| words.next().unwrap_or_default())
    });
    options.unwrap().split(',').map(str::to_owned).collect()
}
