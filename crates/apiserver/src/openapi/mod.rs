//! `/openapi/v2` and `/openapi/v3`: made when somebody asks. What is kept is only the hash of each
//! document, so that whoever has it already is told so at once.

mod custom;
mod descriptions;
mod document;
mod gnostic;

use std::{collections::HashMap, sync::Arc};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Map, json};
use sha2::{Digest, Sha256};

use self::descriptions::Descriptions;
use crate::{
    Body, Resource,
    query::Query,
    registry::{Table, api_version},
    respond,
};

/// Media types of the protobuf form; the first is what answers carry.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];
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
        match path.strip_prefix("/openapi/v3")?.trim_matches('/') {
            "" => Some(self.index()),
            place => self.group_version(place),
        }
    }

    /// Every group version with the place of its document.
    fn index(&self) -> Response<Body> {
        let mut paths = Map::new();
        let places = document::group_versions(self.table);
        let hash = |group: &str, version: &str| {
            let members = members(self.table, group, version);
            (self.hashes.get(&place(group, version), &members), members)
        };
        let missing = places
            .iter()
            .any(|(group, version)| hash(group, version).0.is_none());
        let packed = missing.then(Descriptions::unpack);
        let all = packed
            .as_ref()
            .map(Descriptions::by_type)
            .unwrap_or_default();
        for (group, version) in places {
            let place = place(&group, &version);
            let (known, members) = hash(&group, &version);
            let hash = known.unwrap_or_else(|| {
                let bytes = document::v3(&members, &group, &version, &all).to_string();
                self.hashes.put(&place, members, bytes.as_bytes())
            });
            paths.insert(
                place.clone(),
                json!({"serverRelativeURL": url(&place, &hash)}),
            );
        }
        let body = json!({"paths": paths}).to_string();
        let hash = self.hashes.put("v3", Vec::new(), body.as_bytes());
        self.answer(&hash, respond::JSON, || body.into_bytes())
    }

    fn group_version(&self, path: &str) -> Option<Response<Body>> {
        let mut all = document::group_versions(self.table).into_iter();
        let (group, version) = all.find(|(group, version)| place(group, version) == path)?;
        if !self.accepts(respond::JSON) {
            return Some(respond::text(StatusCode::NOT_ACCEPTABLE, ""));
        }
        let members = members(self.table, &group, &version);
        let make = || {
            let packed = Descriptions::unpack();
            document::v3(&members, &group, &version, &packed.by_type()).to_string()
        };
        let mut made = None;
        let hash = self.hashes.get(path, &members).unwrap_or_else(|| {
            let bytes = made.insert(make());
            self.hashes.put(path, members.clone(), bytes.as_bytes())
        });
        match self.query.filled("hash") {
            Some(asked) if asked != hash => Some(moved(&url(path, &hash))),
            asked => {
                let mut response = self.answer(&hash, respond::JSON, || {
                    made.unwrap_or_else(make).into_bytes()
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
        let protobuf = PROTOBUF.iter().any(|media| self.names(media)) && !self.prefers_json();
        if !protobuf && !self.accepts(respond::JSON) {
            return respond::text(StatusCode::NOT_ACCEPTABLE, "");
        }
        let all = self.table.all().to_vec();
        let make = || document::v2(self.table, &Descriptions::unpack().by_type());
        let mut made = None;
        let hash = self.hashes.get("v2", &all).unwrap_or_else(|| {
            let document = made.insert(make());
            self.hashes.put("v2", all, document.to_string().as_bytes())
        });
        let media = if protobuf { PROTOBUF[0] } else { respond::JSON };
        self.answer(&hash, media, || {
            let document = made.unwrap_or_else(make);
            if protobuf {
                gnostic::encode(&document)
            } else {
                document.to_string().into_bytes()
            }
        })
    }

    /// The document, or that the client has it.
    fn answer(&self, hash: &str, media: &str, body: impl FnOnce() -> Vec<u8>) -> Response<Body> {
        let etag = format!("\"{hash}\"");
        let has = self.header(header::IF_NONE_MATCH);
        let has = has.is_some_and(|list| list.split(',').any(|tag| tag.trim() == etag));
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

    fn alternatives(&self) -> impl Iterator<Item = &str> {
        let accept = self.header(header::ACCEPT).unwrap_or("*/*");
        let media = |range: &'_ str| range.find(';').unwrap_or(range.len());
        accept
            .split(',')
            .map(move |range| range[..media(range)].trim())
    }

    fn names(&self, media: &str) -> bool {
        self.alternatives()
            .any(|range| range.eq_ignore_ascii_case(media))
    }

    /// Whether JSON comes first of what we have.
    fn prefers_json(&self) -> bool {
        let known = |range: &&str| json_range(range) || PROTOBUF.contains(range);
        self.alternatives().find(known).is_some_and(json_range)
    }

    fn accepts(&self, media: &str) -> bool {
        self.alternatives()
            .any(|range| json_range(range) || range == media)
    }
}

fn json_range(range: &str) -> bool {
    matches!(range, "application/json" | "application/*" | "*/*")
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

fn members(table: &Table, group: &str, version: &str) -> Vec<Arc<Resource>> {
    let of = |resource: &&Arc<Resource>| resource.group == group && resource.version == version;
    table.all().iter().filter(of).cloned().collect()
}
