//! The schemas of a definition: kept as stored bytes until an object needs them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use kinds::Kind;
use machinery::Value;
use sha2::{Digest, Sha256};

use super::{kind::CustomKind, structural::Schema};

/// The schemas of all versions of a definition: objects stored in one are served in another. Parsed
/// when the first object needs them: most definitions of a cluster have no objects.
pub struct Schemas {
    /// Guards the stored definition; the bytes are shared with the store.
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
        // The lock cannot be poisoned by a failure: nothing panics while it is held.
        self.definition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a later revision with the same versions, so that the store can free the bytes of the
    /// previous one.
    pub(super) fn renew(&self, definition: Bytes) {
        *self.bytes() = definition;
    }

    /// The versions as written.
    pub(super) fn versions(&self) -> Vec<Value> {
        let definition = self.bytes().clone();
        let definition: Value = match machinery::json::from_slice(&definition) {
            Ok(definition) => definition,
            // Only bytes encoded from an object are stored.
            Err(error) => panic!("a stored CustomResourceDefinition is not an object: {error}"),
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

/// The schemas of all versions of a definition as written.
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

/// A fingerprint of the parts of a definition that affect its kinds.
pub(super) fn definition_fingerprint(definition: &Value) -> [u8; 32] {
    let is_leaving = definition["metadata"]["deletionTimestamp"].is_string();
    let mut hash = Sha256::new();
    hash.update([u8::from(is_leaving)]);
    hash.update(definition["metadata"]["uid"].to_string());
    hash.update(definition["spec"].to_string());
    hash.finalize().into()
}

/// A fingerprint of a schema.
pub fn fingerprint(schema: &Value) -> [u8; 32] {
    Sha256::digest(schema.to_string().as_bytes()).into()
}
