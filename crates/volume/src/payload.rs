//! The files of a volume before they are written: path → bytes, mode, owner.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, KeyToPath, Secret},
};

use crate::{Error, Result};

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its content.
    pub data: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
    /// The owner, if not root.
    pub owner: Option<u32>,
}

/// All files by their path in the volume.
pub(crate) type Payload = BTreeMap<String, File>;

/// An item's path may not leave the volume nor look like the atomic writer's own files.
pub(crate) fn check_path(path: &str) -> Result<()> {
    let refuse = |why| {
        Err(Error::InvalidPath {
            path: path.to_owned(),
            why,
        })
    };
    if path.is_empty() {
        return refuse("must not be empty");
    }
    if path.starts_with('/') {
        return refuse("must be a relative path");
    }
    if Path::new(path)
        .components()
        .any(|part| part == Component::ParentDir)
    {
        return refuse("must not contain '..'");
    }
    if path.starts_with("..") {
        return refuse("must not start with '..'");
    }
    if path.len() > 4096 || path.split('/').any(|part| part.len() > 255) {
        return refuse("is too long");
    }
    Ok(())
}

/// Keys of a source as files: all of them, or the listed items.
pub(crate) fn select(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
    kind: &'static str,
) -> Result<Payload> {
    let file = |data: &[u8], mode: i32| File {
        data: data.to_vec(),
        mode: mode as u32,
        owner: None,
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data
            .iter()
            .map(|(key, v)| (key.clone(), file(v, default_mode)))
            .collect());
    };
    let mut payload = Payload::new();
    for item in items {
        check_path(&item.path)?;
        match data.get(&item.key) {
            Some(value) => {
                payload.insert(
                    item.path.clone(),
                    file(value, item.mode.unwrap_or(default_mode)),
                );
            }
            None if optional => {}
            None => {
                return Err(Error::MissingKey {
                    kind,
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(payload)
}

/// A ConfigMap's text and binary keys.
pub(crate) fn config_map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map
        .data
        .iter()
        .flatten()
        .map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    let binary = map
        .binary_data
        .iter()
        .flatten()
        .map(|(key, ByteString(v))| (key.clone(), v.clone()));
    text.chain(binary).collect()
}

/// A Secret's keys.
pub(crate) fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret
        .data
        .iter()
        .flatten()
        .map(|(key, ByteString(v))| (key.clone(), v.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "..data"] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "a..b", "a/..b"] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_named_key_that_is_missing_fails_unless_optional() {
        let items = [KeyToPath {
            key: "k".into(),
            path: "p".into(),
            mode: Some(0o400),
        }];
        let none = BTreeMap::new();
        assert!(select(&none, Some(&items), 0o644, false, "config").is_err());
        assert!(
            select(&none, Some(&items), 0o644, true, "config")
                .unwrap()
                .is_empty()
        );
        let some = BTreeMap::from([("k".to_owned(), b"v".to_vec())]);
        let payload = select(&some, Some(&items), 0o644, false, "config").unwrap();
        assert_eq!(
            payload["p"],
            File {
                data: b"v".to_vec(),
                mode: 0o400,
                owner: None
            }
        );
    }
}
