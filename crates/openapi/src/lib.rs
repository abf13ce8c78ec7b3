//! `/openapi/v2` and `/openapi/v3`: made when a client asks, one at a time, and kept compressed until the resources
//! change that they are made of. Of documents that only the index names, the hash alone is kept.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod custom;
mod descriptions;
mod document;
mod gnostic;
mod operation;
mod packed;
mod parameters;
mod paths;
mod plain;
mod remote;
mod shared;
mod upgrade;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::json::json;
use machinery::{Object, Status, Value};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use self::{descriptions::Descriptions, document::Maker, packed::Packed};
use registry::{Resource, Table, api_version};
pub use remote::Remote;
use request::{Body, Query, respond};

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
/// The place of the older form.
const V2: &str = "v2";
const YEAR: i64 = 365 * 24 * 60 * 60;

/// Documents that were made.
#[derive(Default)]
pub struct Documents {
    /// Guards the documents by place.
    known: Mutex<HashMap<String, Made>>,
    /// Held while documents are made: one at a time, and not twice the same.
    making: tokio::sync::Mutex<()>,
}

/// What a document is made of.
#[derive(Clone, Default)]
struct Sources {
    of: Vec<Arc<Resource>>,
    /// The hashes of what other servers say.
    with: Vec<String>,
}

impl Sources {
    fn new(of: Vec<Arc<Resource>>) -> Self {
        let with = Vec::new();
        Self { of, with }
    }

    fn are(&self, others: &Self) -> bool {
        let mut pairs = self.of.iter().zip(&others.of);
        self.of.len() == others.of.len()
            && self.with == others.with
            && pairs.all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// A document that was made: of what, its hash, and the forms that were asked for.
struct Made {
    of: Sources,
    hash: String,
    json: Option<Packed>,
    protobuf: Option<Packed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Protobuf,
}

/// A document in one form, and its hash.
struct Found {
    hash: String,
    document: Option<Packed>,
}

impl Documents {
    /// What is known of a document that would be made of the same as before.
    fn get(&self, place: &str, of: &Sources, form: Form) -> Option<Found> {
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
    fn put(&self, place: &str, of: &Sources, value: &Value, form: Option<Form>) -> Found {
        let text = value.to_string();
        let hash = hash(text.as_bytes());
        let document = form.map(|form| match form {
            Form::Json => Packed::new(text.as_bytes()),
            Form::Protobuf if place == V2 => Packed::new(&gnostic::v2(value)),
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
        match form {
            Some(Form::Json) => made.json.clone_from(&document),
            Some(Form::Protobuf) => made.protobuf.clone_from(&document),
            None => {}
        }
        known.insert(place.to_owned(), made);
        Found { hash, document }
    }

    /// Forgets documents at places that are gone.
    fn retain(&self, places: &BTreeMap<String, Sources>) {
        let is_there = |place: &String| place == V2 || places.contains_key(place);
        self.known.lock().retain(|place, _| is_there(place));
    }
}

fn hash(document: &[u8]) -> String {
    let digest = Sha256::digest(document);
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// One request for a document.
pub struct Ask<'a> {
    pub table: Arc<Table>,
    pub documents: Arc<Documents>,
    /// What other servers say.
    pub remote: Vec<Remote>,
    pub headers: &'a HeaderMap,
    pub query: &'a Query,
    /// Seconds since the epoch.
    pub now: i64,
}

type Answered = Result<Option<Response<Body>>, Status>;

impl Ask<'_> {
    /// The document at a path below `/openapi`; `None` when nothing is served there.
    pub async fn serve(&self, path: &str) -> Answered {
        if path == "/openapi/v2" {
            return self.swagger().await.map(Some);
        }
        match path.strip_prefix("/openapi/v3") {
            None => Ok(None),
            Some("") => self.index().await.map(Some),
            Some(place) => match place.strip_prefix('/') {
                None => Ok(None),
                Some(place) => self.document(place.trim_end_matches('/')).await.map(Some),
            },
        }
    }

    /// Every document with its place.
    async fn index(&self) -> Result<Response<Body>, Status> {
        let places = by_place(&self.table).into_iter();
        let places = places.map(|(place, of)| (place, Sources::new(of)));
        let places: BTreeMap<String, Sources> = places.collect();
        let known = |place: &str, of: &Sources| self.documents.get(place, of, Form::Json);
        if places.iter().any(|(place, of)| known(place, of).is_none()) {
            let _making = self.documents.making.lock().await;
            let (table, documents) = (self.table.clone(), self.documents.clone());
            let missing = places.clone();
            blocking(move || {
                let packed = Descriptions::unpack();
                let maker = Maker::new(&table, packed.by_type());
                for (place, of) in missing {
                    if documents.get(&place, &of, Form::Json).is_none() {
                        documents.put(&place, &of, &maker.v3(&place, &of.of), None);
                    }
                }
            })
            .await?;
            self.documents.retain(&places);
        }
        let paths = places.iter().filter_map(|(place, of)| {
            let found = known(place, of)?;
            let target = json!({"serverRelativeURL": url(place, &found.hash)});
            Some((place.clone(), target))
        });
        let mut paths: Object = paths.collect();
        for remote in &self.remote {
            paths.shift_remove(remote.place.as_str());
            let made = remote.document.as_ref();
            let made = made.map(|_| url(&remote.place, &remote.hash));
            if let Some(url) = remote.url.clone().or(made) {
                paths.insert(remote.place.clone(), json!({"serverRelativeURL": url}));
            }
        }
        let body = json!({"paths": paths}).to_string();
        let mut response = self.answer(&hash(body.as_bytes()), INDEX, || Body::whole(body));
        response.headers_mut().remove(header::VARY);
        Ok(response)
    }

    /// One document of the newer form.
    async fn document(&self, place: &str) -> Result<Response<Body>, Status> {
        let remote = self.remote.iter().find(|remote| remote.place == place);
        let sources = match remote {
            Some(remote) if remote.document.is_some() => Sources {
                of: Vec::new(),
                with: vec![remote.hash.clone()],
            },
            None if document::places(&self.table).contains(place) => {
                Sources::new(members(&self.table, place))
            }
            _ => return Ok(bare(StatusCode::NOT_FOUND)),
        };
        let Some((media, form)) = self.media(V3_PROTOBUF) else {
            return Ok(unacceptable());
        };
        let mut found = self.find(place, sources, form).await?;
        if let Some(remote) = remote {
            found.hash.clone_from(&remote.hash);
        }
        match self.query.filled("hash") {
            Some(asked) if asked != found.hash => Ok(moved(&url(place, &found.hash))),
            asked => {
                let mut response = self.packed(found, media);
                if asked.is_some() {
                    self.keep_for_good(response.headers_mut());
                }
                Ok(response)
            }
        }
    }

    /// Everything in one document of the older form.
    async fn swagger(&self) -> Result<Response<Body>, Status> {
        let Some((media, form)) = self.media(V2_PROTOBUF) else {
            return Ok(unacceptable());
        };
        let sources = Sources {
            of: self.table.all().to_vec(),
            with: self.remote.iter().map(|one| one.hash.clone()).collect(),
        };
        let found = self.find(V2, sources, form).await?;
        Ok(self.packed(found, media))
    }

    /// A document, made if it is not there.
    async fn find(&self, at: &str, of: Sources, form: Form) -> Result<Found, Status> {
        let known = || {
            let known = self.documents.get(at, &of, form);
            known.filter(|found| found.document.is_some() || self.has(&found.hash))
        };
        if let Some(found) = known() {
            return Ok(found);
        }
        let _making = self.documents.making.lock().await;
        if let Some(found) = known() {
            return Ok(found);
        }
        let (table, documents) = (self.table.clone(), self.documents.clone());
        let (place, of) = (at.to_owned(), of.clone());
        let remote = self.remote.clone();
        blocking(move || {
            let packed = Descriptions::unpack();
            let maker = Maker::new(&table, packed.by_type());
            let value = match place.as_str() {
                V2 => {
                    let mut whole = maker.v2();
                    remote::merge(&mut whole, &remote);
                    whole
                }
                place => {
                    let mut remote = remote.iter().filter(|one| one.place == place);
                    let older = remote.find_map(|one| one.document.as_ref());
                    match older {
                        Some(older) => upgrade::v3(older),
                        None => maker.v3(place, &of.of),
                    }
                }
            };
            documents.put(&place, &of, &value, Some(form))
        })
        .await
    }

    /// Whether the client has the document with this hash.
    fn has(&self, hash: &str) -> bool {
        let has = self.header(header::IF_NONE_MATCH);
        let is = |tag: &str| {
            let tag = tag.trim();
            tag == "*" || tag.trim_start_matches("W/").trim_matches('"') == hash
        };
        has.is_some_and(|list| list.split(',').any(is))
    }

    /// A document in the form that it is kept in, if the client takes that.
    fn packed(&self, found: Found, media: &str) -> Response<Body> {
        let Some(document) = found.document else {
            return self.answer(&found.hash, media, Body::empty);
        };
        if !packed::takes_gzip(self.headers) {
            return self.answer(&found.hash, media, || document.plain());
        }
        let mut response = self.answer(&found.hash, media, || document.compressed());
        if response.status() == StatusCode::OK {
            let gzip = HeaderValue::from_static("gzip");
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, gzip);
        }
        let vary = HeaderValue::from_static("Accept-Encoding");
        response.headers_mut().append(header::VARY, vary);
        response
    }

    /// The document, or that the client has it.
    fn answer(&self, hash: &str, media: &str, body: impl FnOnce() -> Body) -> Response<Body> {
        let mut response = respond::bytes(StatusCode::NOT_MODIFIED, media, "");
        if !self.has(hash) {
            *response.status_mut() = StatusCode::OK;
            *response.body_mut() = body();
        }
        // Hex digits between quotes are a valid header value.
        if let Ok(etag) = format!("\"{hash}\"").parse() {
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
    fn media(&self, protobuf: [&'static str; 2]) -> Option<(&'static str, Form)> {
        let accept = self.header(header::ACCEPT).unwrap_or_default();
        let accept = if accept.is_empty() { "*/*" } else { accept };
        let ranges = accept.split(',').map(|range| {
            let end = range.find(';').unwrap_or(range.len());
            range[..end].trim()
        });
        ranges.into_iter().find_map(|range| match range {
            "application/json" | "application/*" | "*/*" | "*" => Some((respond::JSON, Form::Json)),
            range if protobuf.contains(&range) => Some((protobuf[0], Form::Protobuf)),
            _ => None,
        })
    }
}

/// Runs what takes long where it keeps no request waiting.
async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(Status::internal)
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

/// Every place with the resources that its document is made of.
fn by_place(table: &Table) -> BTreeMap<String, Vec<Arc<Resource>>> {
    let places = document::places(table).into_iter();
    let mut all: BTreeMap<String, Vec<Arc<Resource>>> =
        places.map(|place| (place, Vec::new())).collect();
    for resource in table.all() {
        let at = place(&resource.group, &resource.version);
        all.entry(at).or_default().push(resource.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Registry;

    #[tokio::test]
    async fn a_document_is_made_once_until_its_resources_change() {
        let table = Registry::builtin().kept_table();
        let ask = Ask {
            table: table.clone(),
            documents: Arc::default(),
            remote: Vec::new(),
            headers: &HeaderMap::new(),
            query: &Query::default(),
            now: 0,
        };
        let all = Sources::new(table.all().to_vec());
        let made = ask.find(V2, all.clone(), Form::Json).await.unwrap();
        let again = ask.find(V2, all.clone(), Form::Json).await.unwrap();
        let (made_document, document) = (made.document.unwrap(), again.document.unwrap());
        assert!(made_document.is_same(&document), "the same bytes");
        let fewer = Sources::new(all.of[1..].to_vec());
        assert!(ask.documents.get(V2, &fewer, Form::Json).is_none());
    }
}
