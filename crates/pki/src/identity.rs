//! The identity of a cluster: its CAs and the keys of service account tokens. A server that has
//! them belongs to the cluster; other certificates are made from them on each machine.

use std::{collections::BTreeMap, fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{Error, files, public_key_hash};

const FILES: [&str; 6] = [
    "ca.crt",
    "ca.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "sa.key",
    "sa.pub",
];

/// The files, by name. Their content is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity(BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl Identity {
    /// The identity in a PKI directory; `None` if it has no CA.
    pub fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let mut found = BTreeMap::new();
        for name in names(dir)? {
            if let Some(content) = files::read(&dir.join(&name))? {
                found.insert(name, content);
            }
        }
        Ok(found.contains_key("ca.crt").then_some(Self(found)))
    }

    /// Writes the files into an empty PKI directory.
    pub fn install(&self, dir: &Path) -> Result<(), Error> {
        files::private_dir(dir)?;
        // The CA's certificate is last: without it the directory counts as empty.
        let (last, first): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|(name, _)| *name == "ca.crt");
        for (name, content) in first.into_iter().chain(last) {
            files::write(&dir.join(name), content)?;
        }
        Ok(())
    }

    /// Removes the files from a directory.
    pub fn remove(dir: &Path) -> Result<(), Error> {
        for name in names(dir)? {
            let path = dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::File {
                        path,
                        source: error,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The hash of the CA's public key, which identifies the cluster.
    pub fn ca_hash(&self) -> Result<String, Error> {
        public_key_hash(self.0.get("ca.crt").map_or(&[], Vec::as_slice))
    }

    /// As JSON of names and base64.
    pub fn to_json(&self) -> serde_json::Value {
        let encode = |(name, content): (&String, &Vec<u8>)| {
            (name.clone(), BASE64_STANDARD.encode(content).into())
        };
        serde_json::Value::Object(self.0.iter().map(encode).collect())
    }

    /// The reverse; unknown names are rejected.
    pub fn from_json(json: &serde_json::Value) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Certificate(format!("keys of a cluster: {why}"));
        let mut found = BTreeMap::new();
        for (name, content) in json.as_object().ok_or_else(|| wrong("not an object"))? {
            if !FILES.contains(&name.as_str()) && !is_former_key(name) {
                return Err(wrong(&format!("{name:?} is unknown")));
            }
            let content = content.as_str().unwrap_or_default();
            let content = BASE64_STANDARD.decode(content);
            found.insert(name.clone(), content.map_err(|e| wrong(&e.to_string()))?);
        }
        match FILES.iter().find(|name| !found.contains_key(**name)) {
            Some(missing) => Err(wrong(&format!("{missing} is missing"))),
            None => Ok(Self(found)),
        }
    }
}

/// A public key that verifies tokens of a former key.
fn is_former_key(name: &str) -> bool {
    let middle = name
        .strip_prefix("sa-")
        .and_then(|rest| rest.strip_suffix(".pub"));
    middle.is_some_and(|text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names: Vec<String> = FILES.map(str::to_owned).into();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            let path = dir.to_owned();
            return Err(Error::File { path, source });
        }
    };
    let entries = entries.flatten().map(|entry| entry.file_name());
    let former = entries.filter_map(|name| name.into_string().ok());
    names.extend(former.filter(|name| is_former_key(name)));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Names, Pki};

    #[test]
    fn the_keys_of_a_cluster_make_the_same_cluster_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        assert_eq!(Identity::read(&one).unwrap(), None);
        let pki = Pki::ensure(&one, &Names::default()).unwrap();
        fs::write(one.join("sa-1.pub"), fs::read(one.join("sa.pub")).unwrap()).unwrap();
        let identity = Identity::read(&one).unwrap().unwrap();
        assert_eq!(identity.ca_hash().unwrap(), pki.ca().public_key_hash());
        let copied = Identity::from_json(&identity.to_json()).unwrap();
        copied.install(&two).unwrap();
        let other = Pki::ensure(&two, &Names::default()).unwrap();
        assert_eq!(other.ca().pem(), pki.ca().pem());
        assert_eq!(Identity::read(&two).unwrap().unwrap(), identity);
        // Only CAs and keys are included.
        assert!(!identity.to_json().to_string().contains("apiserver"));
        Identity::remove(&two).unwrap();
        assert_eq!(Identity::read(&two).unwrap(), None);
    }

    #[test]
    fn key_archives_with_foreign_paths_or_missing_keys_are_refused() {
        for wrong in [
            serde_json::json!({"../ca.crt": ""}),
            serde_json::json!({"ca.crt": ""}),
            serde_json::json!({"sa-/x.pub": ""}),
            serde_json::json!([]),
        ] {
            assert!(Identity::from_json(&wrong).is_err(), "{wrong}");
        }
    }
}
