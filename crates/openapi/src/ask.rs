//! Requests for documents: which document, in which encoding, and conditional requests.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::{Object, Status, json::json};
use registry::{Resource, Table};
use request::{Body, Query, respond};

use super::{
    Documents, Remote, by_place, custom_hash,
    descriptions::Descriptions,
    document::{self, Maker},
    documents::{EncodedDocument, Form, Index, Named, Sources},
    hash, members, older,
    packed::{self, Packed},
    upgrade, url,
};

/// Media types of the protobuf encodings; the first is used in responses.
const V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];
const V3_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
];
/// Upstream's media type of the index.
const INDEX: &str = "text/plain; charset=utf-8";
const YEAR: i64 = 365 * 24 * 60 * 60;

/// One request for a document.
pub struct DocumentRequest<'a> {
    pub table: Arc<Table>,
    pub documents: Arc<Documents>,
    /// The documents of aggregated servers.
    pub remote: Vec<Remote>,
    pub headers: &'a HeaderMap,
    pub query: &'a Query,
    /// Seconds since the epoch.
    pub now: i64,
}

type DocumentResponse = Result<Option<Response<Body>>, Status>;

impl DocumentRequest<'_> {
    /// The document at a path below `/openapi`; `None` if nothing is served there.
    pub async fn serve(&self, path: &str) -> DocumentResponse {
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

    /// The index of all documents.
    async fn index(&self) -> Result<Response<Body>, Status> {
        let remote = self.remote.iter();
        let remote = remote.map(|one| (one.place.clone(), one.url.clone(), one.hash.clone()));
        let remote: Vec<_> = remote.collect();
        let known = || {
            let known = self.documents.index.lock();
            let known = known.as_ref();
            let known =
                known.filter(|it| it.generation == self.table.generation && it.remote == remote);
            known.map(|it| (it.hash.clone(), it.body.clone()))
        };
        let (hash, body) = match known() {
            Some(known) => known,
            None => {
                let _making = self.documents.making.lock().await;
                match known() {
                    Some(known) => known,
                    None => self.make_index(remote.clone()).await?,
                }
            }
        };
        let mut response = self.answer(&hash, INDEX, || Body::whole(body));
        response.headers_mut().remove(header::VARY);
        Ok(response)
    }

    async fn make_index(
        &self,
        remote: Vec<(String, Option<String>, String)>,
    ) -> Result<(String, Bytes), Status> {
        let (table, documents) = (self.table.clone(), self.documents.clone());
        let hashes = blocking(move || {
            let places = by_place(&table);
            let hashes = documents.hashes(&table, &places);
            documents.retain(&places);
            hashes
        })
        .await?;
        let target = |url: String| json!({"serverRelativeURL": url});
        let paths = hashes.into_iter();
        let paths = paths.map(|(place, hash)| (place.clone(), target(url(&place, &hash))));
        let mut paths: Object = paths.collect();
        for remote in &self.remote {
            paths.shift_remove(remote.place.as_str());
            let made = remote.document.as_ref();
            let made = made.map(|_| url(&remote.place, &remote.hash));
            if let Some(url) = remote.url.clone().or(made) {
                paths.insert(remote.place.clone(), target(url));
            }
        }
        let body = Bytes::from(json!({"paths": paths}).to_string());
        let hash = hash(&body);
        *self.documents.index.lock() = Some(Index {
            generation: self.table.generation,
            remote,
            hash: hash.clone(),
            body: body.clone(),
        });
        Ok((hash, body))
    }

    /// One OpenAPI v3 document.
    async fn document(&self, place: &str) -> Result<Response<Body>, Status> {
        let remote = self.remote.iter().find(|remote| remote.place == place);
        let members = match remote {
            Some(_) => Vec::new(),
            None => members(&self.table, place),
        };
        let sources = match remote {
            Some(remote) if remote.document.is_some() => Sources {
                of: Vec::new(),
                with: Some(remote.hash.clone()),
            },
            None if !members.is_empty() || document::places(&self.table).contains(place) => {
                Sources::new(&members)
            }
            _ => return Ok(bare(StatusCode::NOT_FOUND)),
        };
        let Some((media, form)) = self.media(V3_PROTOBUF) else {
            return Ok(unacceptable());
        };
        let mut found = self.find(place, members, sources, form).await?;
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

    /// The OpenAPI v2 document.
    async fn swagger(&self) -> Result<Response<Body>, Status> {
        let Some((media, form)) = self.media(V2_PROTOBUF) else {
            return Ok(unacceptable());
        };
        let sources = older::Sources::new(&self.table, &self.remote);
        let hash = sources.hash();
        let document = match self.has(&hash) {
            true => None,
            false => Some(self.join(sources, form).await?),
        };
        Ok(self.packed(EncodedDocument { hash, document }, media))
    }

    /// The OpenAPI v2 document; missing pieces are made.
    async fn join(&self, sources: older::Sources, form: Form) -> Result<Packed, Status> {
        let known =
            |sources: &older::Sources| self.documents.older.lock()[form as usize].join(sources);
        if let Some(known) = known(&sources) {
            return Ok(known);
        }
        let _making = self.documents.making.lock().await;
        let (table, documents) = (self.table.clone(), self.documents.clone());
        let remote = self.remote.clone();
        blocking(move || {
            let packed = Descriptions::unpack();
            let maker = Maker::new(&table, packed.by_type());
            // The base first, then the custom resources; either may exist.
            for _ in 0..2 {
                let missing = documents.older.lock()[form as usize].missing(&sources);
                let made = missing.make(&maker, &remote, form);
                documents.older.lock()[form as usize].take(made, &sources);
            }
            let joined = documents.older.lock()[form as usize].join(&sources);
            joined.ok_or_else(|| Status::internal("a piece of the document is missing"))
        })
        .await?
    }

    /// A document, made if it is not cached.
    async fn find(
        &self,
        at: &str,
        members: Vec<Arc<Resource>>,
        of: Sources,
        form: Form,
    ) -> Result<EncodedDocument, Status> {
        let custom = custom_hash(at, &members);
        if let Some(hash) = custom.clone().filter(|hash| self.has(hash)) {
            let document = None;
            return Ok(EncodedDocument { hash, document });
        }
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
        let mut remote = self.remote.iter().filter(|one| one.place == at);
        let older = remote.find_map(|one| one.document.clone());
        blocking(move || {
            let value = match older {
                Some(older) => upgrade::v3(&older),
                None => {
                    let packed = Descriptions::unpack();
                    Maker::new(&table, packed.by_type()).v3(&place, &members)
                }
            };
            let named = Named {
                hash: custom.as_deref(),
                form: Some(form),
            };
            documents.put(&place, &of, &value, named)
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

    /// A document, compressed if the client accepts that.
    fn packed(&self, found: EncodedDocument, media: &str) -> Response<Body> {
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

    /// The document, or 304.
    fn answer(&self, hash: &str, media: &str, body: impl FnOnce() -> Body) -> Response<Body> {
        let mut response = respond::bytes(StatusCode::NOT_MODIFIED, media, "");
        if !self.has(hash) {
            *response.status_mut() = StatusCode::OK;
            *response.body_mut() = body();
        }
        // Quoted hex digits are a valid header value.
        if let Ok(etag) = format!("\"{hash}\"").parse() {
            response.headers_mut().insert(header::ETAG, etag);
        }
        let vary = HeaderValue::from_static("Accept");
        response.headers_mut().insert(header::VARY, vary);
        response
    }

    /// A document addressed by its hash is immutable.
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

    /// The first encoding in the client's Accept that is available.
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

/// Runs slow work on a blocking thread.
async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(Status::internal)
}

/// An empty response.
fn bare(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// 406.
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

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Registry;

    #[tokio::test]
    async fn a_document_is_made_once_until_its_resources_change() {
        let table = Registry::builtin().kept_table();
        let ask = DocumentRequest {
            table: table.clone(),
            documents: Arc::default(),
            remote: Vec::new(),
            headers: &HeaderMap::new(),
            query: &Query::default(),
            now: 0,
        };
        let members = members(&table, "apis/apps/v1");
        let find = async |members: &[Arc<Resource>]| {
            let of = Sources::new(members);
            let found = ask
                .find("apis/apps/v1", members.to_vec(), of, Form::Json)
                .await;
            found.unwrap().document.unwrap()
        };
        let made = find(&members).await;
        assert!(made.is_same(&find(&members).await), "the same bytes");
        assert!(
            !made.is_same(&find(&members[1..]).await),
            "of fewer resources"
        );
    }
}
