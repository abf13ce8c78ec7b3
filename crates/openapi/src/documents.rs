//! Documents that were made, and what they were made of.

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

/// Documents that were made.
#[derive(Default)]
pub struct Documents {
    /// Guards the documents below `/openapi/v3` by place.
    pub(super) known: Mutex<HashMap<String, Made>>,
    /// Guards the index of these.
    pub(super) index: Mutex<Option<Index>>,
    /// Guards the pieces of the older document, as JSON and as protobuf.
    pub(super) older: Mutex<[older::Pieces; 2]>,
    /// Held while documents are made: one at a time, and not twice the same.
    pub(super) making: tokio::sync::Mutex<()>,
}

/// What a document is made of. Resources that are gone are not kept for it.
#[derive(Clone, Default)]
pub(super) struct Sources {
    pub(super) of: Vec<Weak<Resource>>,
    /// The hash of what another server says.
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

/// A document that was made: of what, its hash, and the forms that were asked for.
pub(super) struct Made {
    pub(super) of: Sources,
    pub(super) hash: String,
    json: Option<Packed>,
    protobuf: Option<Packed>,
}

/// The index of all documents, and what it was made of: a moment of the registry, and what other servers say.
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

/// A document in one form, and its hash.
pub(super) struct Found {
    pub(super) hash: String,
    pub(super) document: Option<Packed>,
}

impl Documents {
    /// What is known of a document that would be made of the same as before.
    pub(super) fn get(&self, place: &str, of: &Sources, form: Form) -> Option<Found> {
        let known = self.known.lock();
        let made = known.get(place)?;
        let document = match form {
            Form::Json => &made.json,
            Form::Protobuf => &made.protobuf,
        };
        made.of.are(of).then(|| Found {
            hash: made.hash.clone(),
            document: document.clone(),
        })
    }

    /// Keeps a document, or its hash alone.
    pub(super) fn put(&self, place: &str, of: &Sources, value: &Value, named: Named<'_>) -> Found {
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
        let mut made = before.unwrap_or_else(|| Made {
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
        Found { hash, document }
    }

    /// The hash of every document; those that are not of custom resources alone are made for it.
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

    /// Forgets documents at places that are gone.
    pub(super) fn retain(&self, places: &ByPlace) {
        let is_there = |place: &String| places.contains_key(place);
        self.known.lock().retain(|place, _| is_there(place));
    }
}

/// How a document is kept: its hash, if that does not follow from its text, and in which form.
pub(super) struct Named<'a> {
    pub(super) hash: Option<&'a str>,
    pub(super) form: Option<Form>,
}
