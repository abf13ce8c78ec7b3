//! Cached documents, and their inputs.

use std::{
    cell::OnceCell,
    collections::HashMap,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use machinery::Value;
use parking_lot::Mutex;
use registry::{Resource, Table};

use super::{
    ByPlace, custom_hash, descriptions::Descriptions, document::Maker, gnostic, hash, older,
    packed::Packed,
};

/// Cached documents.
#[derive(Default)]
pub struct Documents {
    /// Guards the documents below `/openapi/v3` by path.
    pub(super) known: Mutex<HashMap<String, CachedDocument>>,
    /// Guards the index.
    pub(super) index: Mutex<Option<Index>>,
    /// Guards the pieces of the OpenAPI v2 document, as JSON and as protobuf.
    pub(super) older: Mutex<[older::Pieces; 2]>,
    /// Held while documents are made: one at a time, and none twice.
    pub(super) making: tokio::sync::Mutex<()>,
}

/// The inputs of a document. Weak, so that removed resources are freed.
#[derive(Clone, Default)]
pub(super) struct Sources {
    pub(super) of: Vec<Weak<Resource>>,
    /// The hash of an aggregated server's document.
    pub(super) with: Option<String>,
}

impl Sources {
    pub(super) fn new(of: &[Arc<Resource>]) -> Self {
        let of = of.iter().map(Arc::downgrade).collect();
        Self { of, with: None }
    }

    pub(super) fn are(&self, others: &Self) -> bool {
        let mut pairs = self.of.iter().zip(&others.of);
        self.of.len() == others.of.len()
            && self.with == others.with
            && pairs.all(|(one, other)| one.ptr_eq(other))
    }
}

/// A cached document: its inputs, its hash, and the requested encodings.
pub(super) struct CachedDocument {
    pub(super) of: Sources,
    pub(super) hash: String,
    json: Option<Packed>,
    protobuf: Option<Packed>,
}

/// The index of all documents, and its inputs: the registry's generation, and the documents of
/// aggregated servers.
pub(super) struct Index {
    pub(super) generation: u64,
    pub(super) remote: Vec<(String, Option<String>, String)>,
    pub(super) hash: String,
    pub(super) body: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Protobuf,
}

/// A document in one encoding, and its hash.
pub(super) struct EncodedDocument {
    pub(super) hash: String,
    pub(super) document: Option<Packed>,
}

impl Documents {
    /// The cached document, if its inputs are unchanged.
    pub(super) fn get(&self, place: &str, of: &Sources, form: Form) -> Option<EncodedDocument> {
        let known = self.known.lock();
        let made = known.get(place)?;
        let document = match form {
            Form::Json => &made.json,
            Form::Protobuf => &made.protobuf,
        };
        made.of.are(of).then(|| EncodedDocument {
            hash: made.hash.clone(),
            document: document.clone(),
        })
    }

    /// Caches a document, or only its hash.
    pub(super) fn put(
        &self,
        place: &str,
        of: &Sources,
        value: &Value,
        named: Named<'_>,
    ) -> EncodedDocument {
        let text = value.to_string();
        let hash = match named.hash {
            Some(hash) => hash.to_owned(),
            None => hash(text.as_bytes()),
        };
        let document = named.form.map(|form| match form {
            Form::Json => Packed::new(text.as_bytes()),
            Form::Protobuf => Packed::new(&gnostic::v3(value)),
        });
        let mut known = self.known.lock();
        let before = known.remove(place).filter(|made| made.hash == hash);
        let mut made = before.unwrap_or_else(|| CachedDocument {
            of: Sources::default(),
            hash: hash.clone(),
            json: None,
            protobuf: None,
        });
        made.of = of.clone();
        match named.form {
            Some(Form::Json) => made.json.clone_from(&document),
            Some(Form::Protobuf) => made.protobuf.clone_from(&document),
            None => {}
        }
        known.insert(place.to_owned(), made);
        EncodedDocument { hash, document }
    }

    /// The hash of every document; those not only of custom resources are made for it.
    pub(super) fn hashes(&self, table: &Table, places: &ByPlace) -> Vec<(String, String)> {
        let packed = OnceCell::new();
        let maker = OnceCell::new();
        let hash = |place: &String, members: &Vec<Arc<Resource>>| {
            if let Some(hash) = custom_hash(place, members) {
                return hash;
            }
            let of = Sources::new(members);
            if let Some(known) = self.get(place, &of, Form::Json) {
                return known.hash;
            }
            let packed: &Descriptions = packed.get_or_init(Descriptions::unpack);
            let maker = maker.get_or_init(|| Maker::new(table, packed.by_type()));
            let named = Named {
                hash: None,
                form: None,
            };
            self.put(place, &of, &maker.v3(place, members), named).hash
        };
        let places = places.iter();
        places
            .map(|(place, members)| (place.clone(), hash(place, members)))
            .collect()
    }

    /// Drops documents at paths that no longer exist.
    pub(super) fn retain(&self, places: &ByPlace) {
        let is_there = |place: &String| places.contains_key(place);
        self.known.lock().retain(|place, _| is_there(place));
    }
}

/// How a document is cached: its hash, if not computed from its text, and its encoding.
pub(super) struct Named<'a> {
    pub(super) hash: Option<&'a str>,
    pub(super) form: Option<Form>,
}
