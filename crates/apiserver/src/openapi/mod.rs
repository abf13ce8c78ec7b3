//! `/openapi/v2` and `/openapi/v3`: made when somebody asks. What is kept is only the hash of each
//! document, so that whoever has it already is told so at once.

mod custom;
mod descriptions;
mod document;
mod gnostic;
mod operation;
mod parameters;
mod paths;
mod plain;
mod shared;

use std::{collections::HashMap, sync::Arc};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::Object;
use machinery::json::json;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use self::{descriptions::Descriptions, document::Maker};
use crate::{
    Body, Resource,
    query::Query,
    registry::{Table, api_version},
    respond,
};

/// Media types of the protobuf forms; the first is what answers carry.
const V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];
const V3_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
];
/// What upstream says the index is.
const INDEX: &str = "text/plain; charset=utf-8";
const YEAR: i64 = 365 * 24 * 60 * 60;

/// Hashes of documents, each with the resources that it was made of.
#[derive(Default)]
pub(crate) struct Hashes {
    /// Guards the hashes by place.
    known: Mutex<HashMap<String, Made>>,
}

/// A document that was made: of what, and its hash.
struct Made {
    of: Vec<Arc<Resource>>,
    hash: String,
}

impl Hashes {
    /// The hash of a document, if it would be made of the same as before.
    fn get(&self, place: &str, of: &[Arc<Resource>]) -> Option<String> {
        let known = self.known.lock();
        let made = known.get(place)?;
        let same = made.of.len() == of.len()
            && made
                .of
                .iter()
                .zip(of)
                .all(|(one, other)| Arc::ptr_eq(one, other));
        same.then(|| made.hash.clone())
    }

    fn put(&self, place: &str, of: Vec<Arc<Resource>>, document: &[u8]) -> String {
        let hash: String = Sha256::digest(document)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let mut known = self.known.lock();
        let made = Made {
            of,
            hash: hash.clone(),
        };
        known.insert(place.to_owned(), made);
        hash
    }
}

/// One request for a document.
pub(crate) struct Ask<'a> {
    pub(crate) table: &'a Table,
    pub(crate) hashes: &'a Hashes,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: &'a Query,
    /// Seconds since the epoch.
    pub(crate) now: i64,
}

impl Ask<'_> {
    /// The document at a path below `/openapi`; `None` when nothing is served there.
    pub(crate) fn serve(&self, path: &str) -> Option<Response<Body>> {
        if path == "/openapi/v2" {
            return Some(self.swagger());
        }
        match path.strip_prefix("/openapi/v3")? {
            "" => Some(self.index()),
            place => {
                let document = self.document(place.strip_prefix('/')?.trim_end_matches('/'));
                Some(document.unwrap_or_else(|| bare(StatusCode::NOT_FOUND)))
            }
        }
    }

    /// Every document with its place.
    fn index(&self) -> Response<Body> {
        let mut paths = Object::new();
        let places = document::places(self.table);
        let known = |place: &str| self.hashes.get(place, &members(self.table, place));
        let missing = places.iter().any(|place| known(place).is_none());
        let packed = missing.then(Descriptions::unpack);
        let maker = packed.as_ref().map(|packed| self.maker(packed));
        for place in places {
            let hash = known(&place).or_else(|| {
                let members = members(self.table, &place);
                let bytes = maker.as_ref()?.v3(&place, &members).to_string();
                Some(self.hashes.put(&place, members, bytes.as_bytes()))
            });
            if let Some(hash) = hash {
                let target = json!({"serverRelativeURL": url(&place, &hash)});
                paths.insert(place, target);
            }
        }
        let body = json!({"paths": paths}).to_string();
        let hash = self.hashes.put("v3", Vec::new(), body.as_bytes());
        let mut response = self.answer(&hash, INDEX, || body.into_bytes());
        response.headers_mut().remove(header::VARY);
        response
    }

    fn maker<'b>(&'b self, packed: &'b Descriptions) -> Maker<'b> {
        Maker::new(self.table, packed.by_type())
    }

    /// One document of the newer form.
    fn document(&self, place: &str) -> Option<Response<Body>> {
        if !document::places(self.table).contains(place) {
            return None;
        }
        let Some(media) = self.media(V3_PROTOBUF) else {
            return Some(unacceptable());
        };
        let members = members(self.table, place);
        let make = || self.maker(&Descriptions::unpack()).v3(place, &members);
        let mut made = None;
        let hash = self.hashes.get(place, &members).unwrap_or_else(|| {
            let bytes = made.insert(make()).to_string();
            self.hashes.put(place, members.clone(), bytes.as_bytes())
        });
        match self.query.filled("hash") {
            Some(asked) if asked != hash => Some(moved(&url(place, &hash))),
            asked => {
                let mut response = self.answer(&hash, media, || {
                    let document = made.unwrap_or_else(make);
                    match media {
                        respond::JSON => document.to_string().into_bytes(),
                        _ => gnostic::v3(&document),
                    }
                });
                if asked.is_some() {
                    self.keep_for_good(response.headers_mut());
                }
                Some(response)
            }
        }
    }

    /// Everything in one document of the older form.
    fn swagger(&self) -> Response<Body> {
        let Some(media) = self.media(V2_PROTOBUF) else {
            return unacceptable();
        };
        let all = self.table.all().to_vec();
        let make = || self.maker(&Descriptions::unpack()).v2();
        let mut made = None;
        let hash = self.hashes.get("v2", &all).unwrap_or_else(|| {
            let document = made.insert(make());
            self.hashes.put("v2", all, document.to_string().as_bytes())
        });
        self.answer(&hash, media, || {
            let document = made.unwrap_or_else(make);
            match media {
                respond::JSON => document.to_string().into_bytes(),
                _ => gnostic::v2(&document),
            }
        })
    }

    /// The document, or that the client has it.
    fn answer(&self, hash: &str, media: &str, body: impl FnOnce() -> Vec<u8>) -> Response<Body> {
        let etag = format!("\"{hash}\"");
        let has = self.header(header::IF_NONE_MATCH);
        let is = |tag: &str| tag == "*" || tag.trim_start_matches("W/") == etag;
        let has = has.is_some_and(|list| list.split(',').any(|tag| is(tag.trim())));
        let mut response = if has {
            respond::bytes(StatusCode::NOT_MODIFIED, media, "")
        } else {
            respond::bytes(StatusCode::OK, media, body())
        };
        // Hex digits between quotes are a valid header value.
        if let Ok(etag) = etag.parse() {
            response.headers_mut().insert(header::ETAG, etag);
        }
        let vary = HeaderValue::from_static("Accept");
        response.headers_mut().insert(header::VARY, vary);
        response
    }

    /// What is named by its hash never changes.
    fn keep_for_good(&self, headers: &mut HeaderMap) {
        let forever = HeaderValue::from_static("public, immutable");
        headers.insert(header::CACHE_CONTROL, forever);
        let expires = jiff::Timestamp::from_second(self.now + YEAR).ok();
        let expires = expires.map(|at| at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        if let Some(Ok(expires)) = expires.map(|text| text.parse()) {
            headers.insert(header::EXPIRES, expires);
        }
    }

    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The form that the client names first of those that there are.
    fn media(&self, protobuf: [&'static str; 2]) -> Option<&'static str> {
        let accept = self.header(header::ACCEPT).unwrap_or_default();
        let accept = if accept.is_empty() { "*/*" } else { accept };
        let ranges = accept.split(',').map(|range| {
            let end = range.find(';').unwrap_or(range.len());
            range[..end].trim()
        });
        ranges.into_iter().find_map(|range| match range {
            "application/json" | "application/*" | "*/*" | "*" => Some(respond::JSON),
            range if protobuf.contains(&range) => Some(protobuf[0]),
            _ => None,
        })
    }
}

/// A code and nothing else.
fn bare(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// Nothing that the client takes can be made.
fn unacceptable() -> Response<Body> {
    let mut response = bare(StatusCode::NOT_ACCEPTABLE);
    let vary = HeaderValue::from_static("Accept");
    response.headers_mut().insert(header::VARY, vary);
    response
}

fn moved(target: &str) -> Response<Body> {
    let mut response = respond::text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(target) = HeaderValue::from_str(target) {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

fn url(place: &str, hash: &str) -> String {
    format!("/openapi/v3/{place}?hash={hash}")
}

fn place(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", api_version(group, version))
}

/// The resources that the document at a place is made of.
fn members(table: &Table, at: &str) -> Vec<Arc<Resource>> {
    let of = |one: &&Arc<Resource>| place(&one.group, &one.version) == at;
    table.all().iter().filter(of).cloned().collect()
}
