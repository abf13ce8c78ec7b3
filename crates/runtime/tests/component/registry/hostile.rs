//! Malicious images: every one is rejected with a reason, and nothing of it is stored.

use std::{fs, path::Path, sync::Arc};

use runtime::images::{Images, Limits, Progress, Reference, registry::Credentials};
use serde_json::json;
use tar::EntryType;

use super::{
    Sample, digest,
    fake::{Fake, Manners},
    gzip, image, layer, sample, store,
};

/// Name, kind, target and size.
type RawEntry<'a> = (&'a str, EntryType, &'a str, usize);

/// A layer with unchecked names and links.
fn raw(entries: &[RawEntry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, kind, link, size) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(*size as u64);
        header.set_device_major(0).unwrap();
        header.set_device_minor(0).unwrap();
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.resize(out.len() + size.next_multiple_of(512), b'x');
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// Checks that nothing of an image is left.
fn assert_clean(dir: &Path, images: &Images) {
    assert!(images.list().unwrap().is_empty());
    images.sweep().unwrap();
    for place in ["layers", "blobs/sha256", "staging"] {
        let left: Vec<_> = fs::read_dir(dir.join(place)).unwrap().flatten().collect();
        assert!(left.is_empty(), "{place}: {left:?}");
    }
}

fn refused(layers: &[Vec<u8>], limits: Limits) -> String {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let root = dir.path().join("store");
    let images = Images::open(root.clone()).unwrap().with_limits(limits);
    let config = image(layers, json!({})).config;
    let archive = Sample::docker_archive(layers, &config, "bad:1");
    let error = images.import(archive.as_slice()).unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert_clean(&root, &images);
    error.to_string()
}

#[test]
fn layers_that_write_outside_the_root_are_refused_and_leave_nothing() {
    use EntryType::{Char, Link, Regular, Symlink};
    let cases: &[(&[RawEntry<'_>], &str)] = &[
        (&[("/etc/passwd", Regular, "", 1)], "absolute path"),
        (&[("../../victim", Regular, "", 1)], "climbs"),
        (&[("a/../../../victim", Regular, "", 1)], "climbs"),
        (
            &[
                ("up", Symlink, "../../../..", 0),
                ("up/victim", Regular, "", 1),
            ],
            "leads out",
        ),
        (&[("x", Link, "../../victim", 0)], "climbs"),
        (&[("x", Link, "/etc/shadow", 0)], "absolute path"),
        (
            &[("up", Symlink, "../../..", 0), ("x", Link, "up/victim", 0)],
            "missing",
        ),
        (&[("x", Link, "nothing", 0)], "missing"),
        (&[("hide", Char, "", 0)], "would hide a file"),
        (&[(".wh...", Regular, "", 0)], "whiteout"),
        (
            &[
                ("a", Symlink, "b", 0),
                ("b", Symlink, "a", 0),
                ("a/x", Regular, "", 1),
            ],
            "too many links",
        ),
    ];
    for (entries, reason) in cases {
        let said = refused(&[layer("base", "x"), raw(entries)], Limits::default());
        assert!(said.contains(reason), "{said:?} does not say {reason:?}");
    }
}

#[test]
fn layers_beyond_the_size_limits_are_refused() {
    let limits = Limits {
        bytes: 1 << 20,
        entries: 50,
    };
    let zeros = "\0".repeat(2 << 20);
    let said = refused(&[layer("bomb", &zeros)], limits);
    assert!(said.contains("larger than allowed"), "{said}");
    let names: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), EntryType::Regular, "", 0))
        .collect();
    let said = refused(&[raw(&many)], limits);
    assert!(said.contains("larger than allowed"), "{said}");
    // A name that would exhaust memory.
    let name = raw(&[("././@LongLink", EntryType::GNULongName, "", 4 << 20)]);
    let said = refused(&[name], Limits::default());
    assert!(said.contains("header is larger than allowed"), "{said}");
    let attributes = raw(&[("x", EntryType::XHeader, "", 4 << 20)]);
    let said = refused(&[attributes], Limits::default());
    assert!(said.contains("header is larger than allowed"), "{said}");
    let said = refused(&vec![layer("same", "x"); 501], Limits::default());
    assert!(said.contains("501 layers"), "{said}");
    // Endless padding.
    let mut endless = layer("a", "x");
    endless.resize(80 << 20, 0);
    let said = refused(&[endless], Limits::default());
    assert!(said.contains("has data after its end"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_does_not_match_its_digest_or_size_is_refused() {
    let sample = sample();
    let victim = digest(&sample.layers[0].1);
    let other = gzip(&layer("evil-in-many-more-words", "something else"));
    let mut same_size = sample.layers[0].1.clone();
    *same_size.last_mut().unwrap() ^= 1;
    for (lie, reason) in [(same_size, "has the digest"), (other, "bytes long")] {
        let manners = Manners {
            lies: [(victim.clone(), lie)].into(),
            ..Manners::default()
        };
        let fake = Fake::start(manners).await;
        fake.put("v1", &sample);
        let dir = tempfile::tempdir().unwrap();
        let images = store(dir.path());
        let reference = Reference::parse(&fake.name("app:v1")).unwrap();
        let (anonymous, unwatched) = (Credentials::default(), Arc::<Progress>::default());
        let error = images
            .pull(&reference, &fake.registries(), &anonymous, &unwatched)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error:?} does not say {reason:?}");
        images.sweep().unwrap();
        assert!(images.list().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path().join("layers")).unwrap().count(), 0);
    }
    // A manifest with another digest than requested.
    let fake = Fake::start(Manners::default()).await;
    fake.put_manifest(&digest(b"another"), super::MANIFEST, &sample.manifest);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let name = fake.name(&format!("app@{}", digest(b"another")));
    let error = images
        .pull(
            &Reference::parse(&name).unwrap(),
            &fake.registries(),
            &Credentials::default(),
            &Arc::default(),
        )
        .await
        .unwrap_err();
    assert!(error.to_string().contains("has the digest"), "{error}");
}
