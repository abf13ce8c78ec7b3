//! The schemas of a definition: the store's bytes until an object needs them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use kinds::Kind;
use machinery::Value;
use sha2::{Digest, Sha256};

use super::{kind::CustomKind, structural::Schema};

/// The schemas of all versions of a definition: what is stored in one is served in another. They are read when an
/// object needs them: of most definitions of a cluster there is none.
pub struct Schemas {
    /// Guards the definition as it is stored; the bytes are the store's own.
    definition: Mutex<Bytes>,
    pub(super) read: OnceLock<Vec<(String, Schema)>>,
}

impl Schemas {
    pub fn new(definition: Bytes) -> Self {
        Self {
            definition: Mutex::new(definition),
            read: OnceLock::new(),
        }
    }

    pub(super) fn bytes(&self) -> MutexGuard<'_, Bytes> {
        // Nothing can fail while it is held.
        self.definition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a later revision of the definition, which says the same about its versions: the store's bytes of the one
    /// before can go.
    pub(super) fn renew(&self, definition: Bytes) {
        *self.bytes() = definition;
    }

    /// The versions as they were written.
    pub(super) fn versions(&self) -> Vec<Value> {
        let definition = self.bytes().clone();
        let definition: Value = match machinery::json::from_slice(&definition) {
            Ok(definition) => definition,
            // Only bytes that were encoded from an object are stored.
            Err(error) => panic!("a stored definition is no object: {error}"),
        };
        let versions = definition["spec"]["versions"].as_array();
        versions.cloned().unwrap_or_default()
    }

    fn all(&self) -> &[(String, Schema)] {
        self.read.get_or_init(|| {
            let read = |version: &Value| {
                let name = version["name"].as_str().unwrap_or_default().to_owned();
                (name, Schema::read(&version["schema"]["openAPIV3Schema"]))
            };
            self.versions().iter().map(read).collect()
        })
    }

    pub(super) fn get(&self, version: &str) -> Option<&Schema> {
        let mut all = self.all().iter();
        all.find(|(name, _)| name == version)
            .map(|(_, schema)| schema)
    }
}

/// The schemas of all versions of a definition as they were written.
pub struct OpenApis {
    of: Arc<Schemas>,
    by_version: HashMap<String, Value>,
}

impl OpenApis {
    /// Parses them.
    pub(super) fn read(of: &Arc<Schemas>) -> Self {
        let versions = of.versions().into_iter().map(|mut version| {
            let name = version["name"].as_str().unwrap_or_default().to_owned();
            (name, version["schema"]["openAPIV3Schema"].take())
        });
        Self {
            of: of.clone(),
            by_version: versions.collect(),
        }
    }

    /// Takes the schema of a version; `None` if it belongs to another definition.
    pub fn take(&mut self, kind: &CustomKind) -> Option<Value> {
        let is_same = Arc::ptr_eq(&self.of, kind.schemas());
        let version = &kind.names().version;
        is_same.then(|| self.by_version.remove(version).unwrap_or_default())
    }
}

/// Tells definitions apart whose kinds differ.
pub(super) fn definition_fingerprint(definition: &Value) -> [u8; 32] {
    let is_leaving = definition["metadata"]["deletionTimestamp"].is_string();
    let mut hash = Sha256::new();
    hash.update([u8::from(is_leaving)]);
    hash.update(definition["metadata"]["uid"].to_string());
    hash.update(definition["spec"].to_string());
    hash.finalize().into()
}

/// Tells schemas apart.
pub fn fingerprint(schema: &Value) -> [u8; 32] {
    Sha256::digest(schema.to_string().as_bytes()).into()
}
