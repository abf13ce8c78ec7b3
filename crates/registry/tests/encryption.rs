//! Secrets on a real disk: encrypted in the log and in snapshots, and readable with the keys alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use registry::{Encryption, ObjectCodec, Registry, object_key};
use store::{
    Action, Codec, Durability, Freshness, Key, Op, Precondition, Store, embedded::Embedded,
};

const SECRET: &str = "nobody-may-read-this-on-the-disk";

fn codec(directory: &Path, providers: Option<&str>) -> ObjectCodec {
    let encryption = providers.map(|providers| {
        let path = directory.join("encryption.yaml");
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers: [{providers}]\n"
        );
        std::fs::write(&path, text).unwrap();
        Encryption::load(&path).unwrap()
    });
    ObjectCodec::new(Registry::builtin()).with_encryption(encryption)
}

fn key(name: &str, byte: u8) -> String {
    let secret = BASE64_STANDARD.encode([byte; 32]);
    format!("{{aesgcm: {{keys: [{{name: {name}, secret: '{secret}'}}]}}}}")
}

fn secret() -> (Key, Bytes) {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"a","namespace":"default"}},"data":{{"k":"{SECRET}"}}}}"#
    );
    (object_key("", "secrets", "default", "a"), json.into())
}

/// Whether a file below a directory has the secret in clear.
fn shows_secret(directory: &Path) -> bool {
    let mut entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.any(|entry| match entry.file_type().unwrap().is_dir() {
        true => shows_secret(&entry.path()),
        false => {
            let bytes = std::fs::read(entry.path()).unwrap();
            let wanted = SECRET.as_bytes();
            bytes.windows(wanted.len()).any(|part| part == wanted)
        }
    })
}

async fn write(store: &Arc<Embedded<ObjectCodec>>, codec: &ObjectCodec) {
    let (key, bytes) = secret();
    let draft = codec.load(&key, bytes).unwrap();
    let put = Op {
        key,
        precondition: Precondition::Any,
        action: Action::Put {
            draft,
            expires_in: None,
        },
    };
    store.commit(vec![put], Durability::Synced).await.unwrap();
}

async fn read(store: &Arc<Embedded<ObjectCodec>>) -> String {
    let (_, entry) = store.get(&secret().0, Freshness::Newest).await.unwrap();
    let object = entry.unwrap().object.parse();
    object["data"]["k"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_clear_in_memory_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (files, disk) = (directory.path(), directory.path().join("store"));
    let providers = format!("{}, {{identity: {{}}}}", key("one", 1));
    let plain = codec(files, None);
    let open = |providers: Option<&str>| Embedded::open(&disk, codec(files, providers));
    let store = open(Some(&providers)).unwrap();
    write(&store, &plain).await;
    assert!(!shows_secret(&disk), "the log");
    store.snapshot().await.unwrap();
    assert!(!shows_secret(&disk), "the snapshot");
    assert_eq!(read(&store).await, SECRET);
    store.close();
    drop(store);
    let store = open(Some(&providers)).unwrap();
    assert_eq!(read(&store).await, SECRET);
    store.close();
    drop(store);
    let refused = open(None).map(drop).unwrap_err().to_string();
    assert!(refused.contains("the value is encrypted"), "{refused}");
    let other = open(Some(&key("two", 2)))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(other.contains("no matching prefix found"), "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_in_clear_is_encrypted_with_the_next_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let (files, disk) = (directory.path(), directory.path().join("store"));
    let plain = codec(files, None);
    let store = Embedded::open(&disk, codec(files, None)).unwrap();
    write(&store, &plain).await;
    assert!(shows_secret(&disk));
    store.close();
    drop(store);
    let providers = format!("{}, {{identity: {{}}}}", key("one", 1));
    let store = Embedded::open(&disk, codec(files, Some(&providers))).unwrap();
    assert_eq!(read(&store).await, SECRET);
    store.snapshot().await.unwrap();
    store.close();
    drop(store);
    let store = Embedded::open(&disk, codec(files, Some(&key("one", 1)))).unwrap();
    assert_eq!(read(&store).await, SECRET, "without identity");
}
