//! `/openapi/v2` and `/openapi/v3`: made on request, one at a time, and cached compressed until
//! their resources change. The hash of a document of only custom resources is computed from their
//! definitions: the index need not make such documents.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ask;
mod custom;
mod descriptions;
mod document;
mod documents;
mod gnostic;
mod older;
mod operation;
mod packed;
mod parameters;
mod paths;
mod plain;
mod remote;
mod shared;
mod upgrade;

use std::{collections::BTreeMap, sync::Arc};

use registry::{Resource, Table, api_version};
use sha2::{Digest, Sha256};

pub use ask::DocumentRequest;
pub use documents::Documents;
use documents::Form;
pub use remote::Remote;

fn hash(document: &[u8]) -> String {
    hex(&Sha256::digest(document))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The hash of a document of only custom resources, computed from their definitions.
fn custom_hash(place: &str, members: &[Arc<Resource>]) -> Option<String> {
    let mut hash = Sha256::new();
    hash.update(descriptions::build());
    hash.update(place);
    for member in members {
        hash.update(member.definition.as_ref()?.published());
    }
    (!members.is_empty()).then(|| hex(&hash.finalize()))
}

fn url(place: &str, hash: &str) -> String {
    format!("/openapi/v3/{place}?hash={hash}")
}

fn place(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", api_version(group, version))
}

/// The resources of the document at a path.
fn members(table: &Table, at: &str) -> Vec<Arc<Resource>> {
    let of = |one: &&Arc<Resource>| place(&one.group, &one.version) == at;
    table.discoverable().filter(of).cloned().collect()
}

type ByPlace = BTreeMap<String, Vec<Arc<Resource>>>;

/// Every path with the resources of its document.
fn by_place(table: &Table) -> ByPlace {
    let places = document::places(table).into_iter();
    let mut all: ByPlace = places.map(|place| (place, Vec::new())).collect();
    for resource in table.discoverable() {
        let at = place(&resource.group, &resource.version);
        all.entry(at).or_default().push(resource.clone());
    }
    all
}
