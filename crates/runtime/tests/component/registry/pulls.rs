//! Pulls by tag and digest, resumed, with passwords, mirrors and CAs; and archives.

use std::{fs, sync::Arc};

use runtime::images::{
    Progress, Reference, Stage,
    registry::{Credentials, Host, Registries},
};

use super::{Registry, Sample, digest, files, gzip, layer, sample, store};

fn unwatched() -> Arc<Progress> {
    Arc::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_by_tag_and_by_digest_continued_and_removed() {
    let (registry, sample, dir) = (
        Registry::start(false),
        sample(),
        tempfile::tempdir().unwrap(),
    );
    registry.push("team/app", &sample).await;
    let images = store(dir.path());
    let name = format!("{}/team/app:v1", registry.address);
    let reference = Reference::parse(&name).unwrap();
    let anonymous = Credentials::default();
    let watched = unwatched();
    let progress = watched.watch();

    // An interrupted download is resumed, not restarted.
    let (_, first) = &sample.layers[0];
    let part = dir
        .path()
        .join("staging")
        .join(format!("{}.part", digest(first).replace(':', "-")));
    fs::write(&part, &first[..10]).unwrap();
    let image = images
        .pull(&reference, &registry.registries(), &anonymous, &watched)
        .await
        .unwrap();
    assert_eq!(image.id, digest(&sample.config));
    let parts = progress.borrow().clone();
    assert_eq!(parts.len(), 4, "the configuration and three layers");
    assert!(
        parts
            .iter()
            .all(|part| part.stage == Stage::Done && part.have == part.size && part.size > 0),
        "{parts:?}"
    );
    assert_eq!(
        (image.config.user.as_str(), image.config.cmd.as_slice()),
        ("7", &["/top".to_owned()][..])
    );
    assert_eq!(files(&images, &name), [["top"], ["base"], ["base"]]);

    let by_digest = format!("{}/team/app@{}", registry.address, digest(&sample.manifest));
    let (exact, registries) = (Reference::parse(&by_digest).unwrap(), registry.registries());
    let again = images
        .pull(&exact, &registries, &anonymous, &unwatched())
        .await;
    assert_eq!(again.unwrap().id, image.id);
    let wrong = format!("{}/team/app@sha256:{}", registry.address, "0".repeat(64));
    let wrong = images
        .pull(
            &Reference::parse(&wrong).unwrap(),
            &registry.registries(),
            &anonymous,
            &unwatched(),
        )
        .await;
    assert!(wrong.is_err());

    // Export, and import into another store.
    let mut archive = Vec::new();
    images.export(&name, &mut archive).unwrap();
    let other = tempfile::tempdir().unwrap();
    let imported = store(other.path()).import(archive.as_slice()).unwrap();
    assert_eq!(imported[0].id, image.id);
    assert_eq!(
        files(&store(other.path()), &name),
        [["top"], ["base"], ["base"]]
    );

    images.remove(&image.id).unwrap();
    assert!(images.list().unwrap().is_empty());
    assert_eq!(
        fs::read_dir(dir.path().join("layers")).unwrap().count(),
        0,
        "layers are swept"
    );
    assert_eq!(
        fs::read_dir(dir.path().join("blobs/sha256"))
            .unwrap()
            .count(),
        0,
        "blobs are swept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_a_private_registry_and_mirrors_are_tried_first() {
    let (registry, sample, dir) = (
        Registry::start(true),
        sample(),
        tempfile::tempdir().unwrap(),
    );
    registry.push("app", &sample).await;
    let images = store(dir.path());
    let reference = Reference::parse(&format!("{}/app:v1", registry.address)).unwrap();
    let refused = images
        .pull(
            &reference,
            &registry.registries(),
            &Credentials::default(),
            &unwatched(),
        )
        .await;
    assert!(refused.unwrap_err().to_string().contains("401"));
    let ada = Credentials {
        username: "ada".into(),
        password: "lovelace".into(),
        ..Default::default()
    };
    images
        .pull(&reference, &registry.registries(), &ada, &unwatched())
        .await
        .unwrap();

    // An image of an unreachable registry is pulled from its mirror with the mirror's own password:
    // the pod's credentials are only for the registry in the image's name.
    let mirrored = Reference::parse("registry.invalid/app:v1").unwrap();
    let host = Host {
        mirrors: vec![format!("http://{}", registry.address)],
        ..Host::default()
    };
    let mut registries = Registries {
        hosts: [("registry.invalid".to_owned(), host)].into(),
    };
    let refused = images
        .pull(&mirrored, &registries, &ada, &unwatched())
        .await;
    assert!(refused.is_err());
    let own = Host {
        username: "ada".into(),
        password: "lovelace".into(),
        ..Host::default()
    };
    registries.hosts.insert(registry.address.clone(), own);
    let anonymous = Credentials::default();
    let image = images
        .pull(&mirrored, &registries, &anonymous, &unwatched())
        .await
        .unwrap();
    assert!(
        image.tags.contains("registry.invalid/app:v1"),
        "{:?}",
        image.tags
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_must_be_named() {
    let (registry, sample, dir) = (Registry::with_tls(), sample(), tempfile::tempdir().unwrap());
    registry.push("app", &sample).await;
    let images = store(dir.path());
    let reference = Reference::parse(&format!("{}/app:v1", registry.address)).unwrap();
    let anonymous = Credentials::default();
    let refused = images
        .pull(&reference, &Registries::default(), &anonymous, &unwatched())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let plain = registry.plain();
    let refused = images
        .pull(&reference, &plain, &anonymous, &unwatched())
        .await;
    assert!(refused.is_err(), "it speaks TLS only");
    let pulled = images
        .pull(&reference, &registry.registries(), &anonymous, &unwatched())
        .await;
    assert_eq!(pulled.unwrap().id, digest(&sample.config));
    let file = dir.path().join("ca.pem");
    fs::write(
        &file,
        registry.registries().hosts[&registry.address]
            .ca
            .clone()
            .unwrap(),
    )
    .unwrap();
    let host = Host {
        ca_file: Some(file),
        ..Host::default()
    };
    let registries = Registries {
        hosts: [(registry.address.clone(), host)].into(),
    };
    images.remove(&digest(&sample.config)).unwrap();
    images
        .pull(&reference, &registries, &anonymous, &unwatched())
        .await
        .unwrap();
}

#[test]
fn docker_archives_are_imported_and_inconsistent_ones_are_refused() {
    let sample = sample();
    let plain: Vec<Vec<u8>> = vec![
        layer("base", "one"),
        layer(".wh.base", ""),
        layer("top", "three"),
    ];
    let archive =
        |config: &[u8], layers: &[Vec<u8>]| Sample::docker_archive(layers, config, "app:old");
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let imported = images
        .import(gzip(&archive(&sample.config, &plain)).as_slice())
        .unwrap();
    assert_eq!(imported[0].id, digest(&sample.config));
    assert!(images.get("app:old").unwrap().is_some());

    let mut swapped = plain.clone();
    swapped.swap(0, 2);
    let empty = tempfile::tempdir().unwrap();
    let images = store(empty.path());
    let refused = images
        .import(archive(&sample.config, &swapped).as_slice())
        .unwrap_err();
    assert!(refused.to_string().contains("unpacks to"), "{refused}");
    assert!(images.list().unwrap().is_empty(), "nothing looks complete");
    let elsewhere = String::from_utf8(sample.config.clone())
        .unwrap()
        .replace("linux", "plan9");
    let refused = images
        .import(archive(elsewhere.as_bytes(), &plain).as_slice())
        .unwrap_err();
    assert!(refused.to_string().contains("plan9"), "{refused}");
    assert!(images.import(&b"not an archive at all"[..]).is_err());
}
