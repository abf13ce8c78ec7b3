//! Valid and malicious archives.

use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

use super::*;

/// An archive with unchecked names.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(mut self, name: &str, kind: EntryType, link: &str, content: &[u8]) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str) -> Self {
        self.entry(name, EntryType::Regular, "", b"content")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(name, EntryType::Symlink, target, b"")
    }
}

/// Unpacks below a directory that has a victim file beside it.
fn unpack(tar: Tar, limits: Limits) -> (tempfile::TempDir, Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("victim"), "untouched").unwrap();
    let root = dir.path().join("root");
    let result = Unpacker::new(&root, Vec::new(), limits)
        .unwrap()
        .unpack(tar.0.as_slice());
    assert_eq!(
        fs::read_to_string(dir.path().join("victim")).unwrap(),
        "untouched"
    );
    (dir, result)
}

fn refusal(tar: Tar) -> String {
    unpack(tar, Limits::default()).1.unwrap_err().to_string()
}

#[test]
fn names_and_links_that_lead_out_are_refused() {
    let cases = [
        (Tar::default().file("/etc/passwd"), "absolute path"),
        (Tar::default().file("../victim"), "climbs"),
        (Tar::default().file("a/../../victim"), "climbs"),
        (
            Tar::default().link("up", "../..").file("up/victim"),
            "leads out",
        ),
        (
            Tar::default().link("a", "b").link("b", "a").file("a/x"),
            "too many links",
        ),
        (
            Tar::default().entry("x", EntryType::Link, "../victim", b""),
            "climbs",
        ),
        (
            Tar::default().entry("x", EntryType::Link, "/etc/passwd", b""),
            "absolute path",
        ),
        (Tar::default().file(".wh..."), "whiteout"),
    ];
    for (tar, reason) in cases {
        let refused = refusal(tar);
        assert!(
            refused.contains(reason),
            "{refused:?} does not say {reason:?}"
        );
    }
}

#[test]
fn absolute_links_stay_inside() {
    let tar = Tar::default()
        .link("run", "/var/run")
        .file("run/pid")
        .file("var/run/other");
    let (dir, result) = unpack(tar, Limits::default());
    result.unwrap();
    assert!(dir.path().join("root/var/run/pid").exists());
    assert!(dir.path().join("root/var/run/other").exists());
    // A file that replaces a link must not be written through it.
    let tar = Tar::default().link("x", "../victim").file("x");
    let (dir, result) = unpack(tar, Limits::default());
    result.unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("root/x")).unwrap(),
        "content"
    );
}

#[test]
fn more_than_the_limits_is_refused() {
    let limits = Limits {
        bytes: 10,
        entries: 100,
    };
    let bomb = Tar::default().file("a").file("b");
    assert!(
        unpack(bomb, limits)
            .1
            .unwrap_err()
            .to_string()
            .contains("larger than allowed")
    );
    let limits = Limits {
        bytes: 1000,
        entries: 1,
    };
    assert!(
        unpack(Tar::default().file("a").file("b"), limits)
            .1
            .is_err()
    );
}

#[test]
fn whiteouts_are_converted_for_overlayfs() {
    let tar = Tar::default().file("dir/.wh..wh..opq").file("dir/.wh.gone");
    let (dir, result) = unpack(tar, Limits::default());
    result.unwrap();
    let gone = fs::symlink_metadata(dir.path().join("root/dir/gone")).unwrap();
    assert!(gone.file_type().is_char_device());
    assert!(!dir.path().join("root/dir/.wh.gone").exists());
}

#[test]
fn hard_links_modes_and_files_of_layers_below_are_kept() {
    let below = tempfile::tempdir().unwrap();
    fs::write(below.path().join("lower"), "from below").unwrap();
    symlink("/etc/shadow", below.path().join("trap")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tar = Tar::default()
        .file("one")
        .entry("two", EntryType::Link, "one", b"")
        .entry("three", EntryType::Link, "lower", b"");
    let lower = vec![below.path().to_path_buf()];
    let unpacker = Unpacker::new(dir.path(), lower.clone(), Limits::default()).unwrap();
    unpacker.unpack(tar.0.as_slice()).unwrap();
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(dir.path().join(name)).unwrap().ino()
    };
    assert_eq!(inode("one"), inode("two"));
    assert_eq!(
        fs::read_to_string(dir.path().join("three")).unwrap(),
        "from below"
    );
    let mode = fs::metadata(dir.path().join("one"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o644);
    let trap = Tar::default().entry("x", EntryType::Link, "trap", b"");
    let unpacker = Unpacker::new(dir.path(), lower, Limits::default()).unwrap();
    assert!(unpacker.unpack(trap.0.as_slice()).is_err());
}

#[test]
fn attributes_are_kept_but_for_those_of_overlayfs() {
    let with = |name: &str, value: &[u8]| {
        let mut archive = tar::Builder::new(Vec::new());
        let key = format!("SCHILY.xattr.{name}");
        archive
            .append_pax_extensions([(key.as_str(), value)])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o4755);
        archive.append_data(&mut header, "file", &b""[..]).unwrap();
        Tar(archive.into_inner().unwrap())
    };
    // CAP_NET_RAW in the kernel's format.
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let (dir, result) = unpack(with("security.capability", &capability), Limits::default());
    result.unwrap();
    let file = dir.path().join("root/file");
    let kept = crate::xattrs::get(&file, "security.capability").unwrap();
    assert_eq!(kept.as_deref(), Some(&capability[..]));
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o4755);
    assert!(refusal(with("trusted.overlay.opaque", b"y")).contains("not allowed"));
}

#[test]
fn directories_are_nested_only_so_deep_also_through_links() {
    // Each link leads to the end of the one before it.
    let level = "/d".repeat(40);
    let mut tar = Tar::default();
    for number in 1..=38 {
        let before = match number {
            1 => String::new(),
            _ => format!("l{}", number - 1),
        };
        let end = format!("{before}{level}");
        let end = end.trim_start_matches('/');
        tar = tar
            .entry(&format!("{end}/"), EntryType::Directory, "", b"")
            .link(&format!("l{number}"), end);
    }
    let refused = refusal(tar);
    assert!(refused.contains("nested too deeply"), "{refused}");
}

#[test]
fn copies_of_files_in_layers_below_count_as_content() {
    let below = tempfile::tempdir().unwrap();
    fs::write(below.path().join("lower"), "0123456789").unwrap();
    let limits = Limits {
        bytes: 25,
        entries: 100,
    };
    let links = |count: usize| {
        let dir = tempfile::tempdir().unwrap();
        let tar = (0..count).fold(Tar::default(), |tar, number| {
            tar.entry(&number.to_string(), EntryType::Link, "lower", b"")
        });
        let lower = vec![below.path().to_path_buf()];
        let unpacker = Unpacker::new(dir.path(), lower, limits).unwrap();
        unpacker.unpack(tar.0.as_slice())
    };
    links(2).unwrap();
    let refused = links(3).unwrap_err().to_string();
    assert!(refused.contains("larger than allowed"), "{refused}");
}

#[test]
fn only_so_many_names_of_directories_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut unpacker = Unpacker::new(dir.path(), Vec::new(), Limits::default()).unwrap();
    let long = PathBuf::from("n".repeat(4000));
    for _ in 0..10_000 {
        unpacker.keep_time(&long, TimeSpec::new(1, 0));
    }
    let kept = unpacker.directories.len() * long.as_os_str().len();
    assert!(kept > 0 && kept <= MAX_KEPT_NAMES, "{kept}");
}
