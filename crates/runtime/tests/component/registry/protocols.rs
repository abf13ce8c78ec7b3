//! Tokens, interrupted connections, redirects, multi-platform images, and concurrent pulls.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use runtime::images::{Images, Progress, Reference, Stage, registry::Credentials};
use serde_json::json;
use tokio::sync::Notify;

use super::{
    MANIFEST, Sample, digest,
    fake::{Fake, Manners},
    files, image, layer, sample, store,
};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

async fn pull(
    images: &Arc<Images>,
    fake: &Fake,
    rest: &str,
    credentials: &Credentials,
) -> Result<String, String> {
    let reference = Reference::parse(&fake.name(rest)).unwrap();
    let pulled = images
        .pull(
            &reference,
            &fake.registries(),
            credentials,
            &Arc::<Progress>::default(),
        )
        .await;
    pulled
        .map(|image| image.id)
        .map_err(|error| error.to_string())
}

fn ada() -> Credentials {
    Credentials {
        username: "ada".into(),
        password: "lovelace".into(),
        ..Credentials::default()
    }
}

/// One layer of incompressible bytes.
fn large() -> Sample {
    let mut noise = String::new();
    let mut seed = 1_u64;
    while noise.len() < 1 << 20 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push_str(&format!("{seed:x}"));
    }
    image(&[layer("noise", &noise)], json!({}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_had_for_a_password_or_for_another_token() {
    let manners = Manners {
        token: Some("sesame"),
        ..Manners::default()
    };
    let (fake, sample) = (Fake::start(manners).await, sample());
    fake.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = pull(&images, &fake, "app:v1", &Credentials::default()).await;
    assert!(anonymous.unwrap_err().contains("401"));
    let id = pull(&images, &fake, "app:v1", &ada()).await.unwrap();
    assert_eq!(id, digest(&sample.config));
    let asked = fake.seen();
    let asked = asked.iter().filter(|line| line.starts_with("/token"));
    assert_eq!(asked.count(), 2, "one token is enough for a pull");

    images.remove(&id).unwrap();
    let identity = Credentials {
        identity_token: "old/token".into(),
        ..Credentials::default()
    };
    pull(&images, &fake, "app:v1", &identity).await.unwrap();
    images.remove(&id).unwrap();
    let ready = Credentials {
        registry_token: "sesame".into(),
        ..Credentials::default()
    };
    let before = fake.seen().len();
    pull(&images, &fake, "app:v1", &ready).await.unwrap();
    let after = fake.seen().split_off(before);
    assert!(
        after.iter().all(|line| line.ends_with("Bearer sesame")),
        "{after:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_is_cut_off_goes_on_where_it_was() {
    let manners = Manners {
        cuts: AtomicUsize::new(2),
        cut_after: 200_000,
        ..Manners::default()
    };
    let (fake, sample) = (Fake::start(manners).await, large());
    fake.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    pull(&images, &fake, "app:v1", &Credentials::default())
        .await
        .unwrap();
    let blob = digest(&sample.layers[0].1);
    let seen = fake.seen();
    let ranges: Vec<_> = seen
        .iter()
        .filter(|line| line.contains(&blob))
        .map(|line| line.split_once(' ').map_or("", |(_, range)| range))
        .collect();
    assert_eq!(ranges, ["", "bytes=200000-", "bytes=400000-"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_to_another_host_are_followed_without_credentials() {
    let elsewhere = Fake::start(Manners::default()).await;
    let manners = Manners {
        token: Some("sesame"),
        redirect: Some(format!("http://{}", elsewhere.address)),
        ..Manners::default()
    };
    let (fake, sample) = (Fake::start(manners).await, sample());
    fake.put("v1", &sample);
    elsewhere.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    pull(&images, &fake, "app:v1", &ada()).await.unwrap();
    let seen = elsewhere.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|line| !line.contains("Bearer")), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_for_many_machines_is_the_image_of_this_one() {
    let fake = Fake::start(Manners::default()).await;
    let (ours, other) = (sample(), image(&[layer("other", "x")], json!({})));
    fake.put("ours", &ours);
    fake.put("other", &other);
    let entry = |sample: &Sample, architecture: &str| {
        json!({
            "mediaType": MANIFEST, "digest": digest(&sample.manifest), "size": sample.manifest.len(),
            "platform": { "architecture": architecture, "os": "linux" },
        })
    };
    let index = |entries: serde_json::Value| {
        json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }).to_string()
    };
    let both = index(json!([
        entry(&other, "s390x"),
        entry(&ours, super::architecture())
    ]));
    fake.put_manifest("v1", INDEX, both.as_bytes());
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = Credentials::default();
    let id = pull(&images, &fake, "app:v1", &anonymous).await.unwrap();
    assert_eq!(id, digest(&ours.config));
    let by_digest = format!("app@{}", digest(both.as_bytes()));
    assert_eq!(
        pull(&images, &fake, &by_digest, &anonymous).await.unwrap(),
        id
    );
    let known = images.need(&fake.name(&by_digest)).unwrap();
    assert_eq!(
        known.id, id,
        "the digest of the list is a name of the image"
    );
    assert_eq!(files(&images, &id), [["top"], ["base"], ["base"]]);

    let foreign = index(json!([entry(&other, "s390x")]));
    fake.put_manifest("v2", INDEX, foreign.as_bytes());
    let refused = pull(&images, &fake, "app:v2", &anonymous)
        .await
        .unwrap_err();
    assert!(refused.contains("no image for this machine"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pulls_at_once_fetch_a_shared_layer_once() {
    let fake = Fake::start(Manners::default()).await;
    let shared = large();
    let base = layer("noise", "shared");
    let [one, two] = ["one", "two"]
        .map(|name| image(&[base.clone(), layer(name, name)], json!({ "User": name })));
    fake.put("one", &one);
    fake.put("two", &two);
    fake.put("large", &shared);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = Credentials::default();
    let names = ["app:one", "app:two", "app:one", "app:large", "app:large"];
    let pulls = names.map(|name| pull(&images, &fake, name, &anonymous));
    for pulled in futures::future::join_all(pulls).await {
        pulled.unwrap();
    }
    let mut count: HashMap<String, usize> = HashMap::new();
    let is_fetch = |line: &&String| line.contains("/blobs/");
    for line in fake.seen().iter().filter(is_fetch) {
        *count.entry(line.clone()).or_default() += 1;
    }
    assert!(count.values().all(|times| *times == 1), "{count:?}");
    assert_eq!(images.list().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_stalls_holds_up_no_pull_from_another() {
    let stall = Arc::new(Notify::new());
    let slow = Fake::start(Manners {
        stall: Some(stall.clone()),
        cut_after: 100_000,
        ..Manners::default()
    })
    .await;
    let honest = Fake::start(Manners::default()).await;
    let sample = large();
    slow.put("v1", &sample);
    honest.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = Credentials::default();
    let held = pull(&images, &slow, "app:v1", &anonymous);
    let other = async {
        slow.stalled().await;
        let pulled = pull(&images, &honest, "app:v1", &anonymous).await;
        stall.notify_one();
        pulled.unwrap();
        let layer = digest(&sample.layers[0].1);
        assert!(honest.seen().iter().any(|line| line.contains(&layer)));
    };
    let (held, ()) = tokio::join!(held, other);
    held.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_another_registry_is_used_only_if_this_one_serves_it_too() {
    let (private, other) = (
        Fake::start(Manners::default()).await,
        Fake::start(Manners::default()).await,
    );
    let secret = layer("secret", "words");
    let sample = image(std::slice::from_ref(&secret), json!({}));
    private.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = Credentials::default();
    pull(&images, &private, "app:v1", &anonymous).await.unwrap();

    // A manifest that names its blobs, in a registry that does not have them.
    other.put_manifest("v1", MANIFEST, &sample.manifest);
    let refused = pull(&images, &other, "app:v1", &anonymous)
        .await
        .unwrap_err();
    assert!(refused.contains("no image"), "{refused}");
    let named = Reference::parse(&other.name("app:v1")).unwrap();
    assert!(images.get(&named.to_string()).unwrap().is_none());

    // A configuration that names its layer, with a blob of other content.
    let mut forged = image(&[layer("public", "words")], json!({ "User": "1" }));
    let config = String::from_utf8(forged.config).unwrap();
    let config = config.replace(&digest(&layer("public", "words")), &digest(&secret));
    let mut manifest: serde_json::Value = serde_json::from_slice(&forged.manifest).unwrap();
    manifest["config"]["digest"] = digest(config.as_bytes()).into();
    manifest["config"]["size"] = config.len().into();
    forged.config = config.into_bytes();
    forged.manifest = manifest.to_string().into_bytes();
    other.put("v2", &forged);
    let refused = pull(&images, &other, "app:v2", &anonymous)
        .await
        .unwrap_err();
    assert!(refused.contains("unpacks to"), "{refused}");

    // A repository that has the content serves it, and the image is the same.
    other.put("v3", &sample);
    pull(&images, &other, "app:v3", &anonymous).await.unwrap();
    let blob = digest(&sample.layers[0].1);
    let fetches = |fake: &Fake| fake.seen().iter().filter(|l| l.contains(&blob)).count();
    let fetched = fetches(&other);
    pull(&images, &other, "copy:v3", &anonymous).await.unwrap();
    assert_eq!(fetches(&other), fetched + 1, "another repository");
    // Now it is known that this repository has it.
    let before = other.seen().len();
    pull(&images, &other, "app:v3", &anonymous).await.unwrap();
    assert_eq!(other.seen().len(), before + 1, "only the manifest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_claims_to_have_a_stored_layer_gets_no_image_with_it() {
    let sample = image(&[layer("secret", "words")], json!({}));
    let private = Fake::start(Manners::default()).await;
    private.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let anonymous = Credentials::default();
    pull(&images, &private, "app:v1", &anonymous).await.unwrap();

    let secret = &sample.layers[0].1;
    // One byte, as for a range; the right size; a size that the manifest confirms.
    let wrong = vec![0; secret.len()];
    for lie in [vec![secret[0]], wrong, Vec::new()] {
        let mut manifest: serde_json::Value = serde_json::from_slice(&sample.manifest).unwrap();
        if lie.is_empty() {
            manifest["layers"][0]["size"] = 0.into();
        }
        let manners = Manners {
            lies: [(digest(secret), lie)].into(),
            ..Manners::default()
        };
        let liar = Fake::start(manners).await;
        liar.put("v1", &sample);
        liar.put_manifest("v1", MANIFEST, manifest.to_string().as_bytes());
        let refused = pull(&images, &liar, "app:v1", &anonymous)
            .await
            .unwrap_err();
        let reasons = ["bytes long", "has the digest"];
        assert!(reasons.iter().any(|r| refused.contains(r)), "{refused}");
        let named = Reference::parse(&liar.name("app:v1")).unwrap();
        assert!(images.get(&named.to_string()).unwrap().is_none());
    }
    // The stored content is unharmed.
    let name = private.name("app:v1");
    images.export(&name, &mut Vec::new()).unwrap();
    assert_eq!(files(&images, &name), [["secret"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_is_cancelled_while_it_unpacks_keeps_its_layers_from_being_swept() {
    let fake = Fake::start(Manners::default()).await;
    let slow = layer("zeros", &"\0".repeat(64 << 20));
    let sample = image(&[layer("base", "one"), slow], json!({}));
    fake.put("v1", &sample);
    let dir = tempfile::tempdir().unwrap();
    let images = store(dir.path());
    let reference = Reference::parse(&fake.name("app:v1")).unwrap();
    let (registries, anonymous) = (fake.registries(), Credentials::default());
    let watched = Arc::<Progress>::default();
    let mut parts = watched.watch();
    let unpacking = parts.wait_for(|parts| {
        let top = parts.last();
        top.is_some_and(|part| part.stage == Stage::Unpacking)
    });
    tokio::select! {
        pulled = images.pull(&reference, &registries, &anonymous, &watched) => panic!("{pulled:?}"),
        seen = unpacking => drop(seen.unwrap()),
    }
    images.sweep().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while images.list().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "unpacking does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let name = reference.to_string();
    assert_eq!(files(&images, &name), [["zeros"], ["base"]]);
}
