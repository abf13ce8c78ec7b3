//! Keeps a cache in sync with the server: lists in pages, watches from there, resumes from the last
//! version after a disconnect, and lists again only if the server no longer has that version. An
//! error is logged and makes the service that reads the cache not ready.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use futures::stream::{BoxStream, StreamExt};
use http::{Request, Response, header::ACCEPT};
use http_body_util::BodyExt;
use kube::client::Body;
use lifecycle::Context;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use stdx::{Backoff, exposition::Histogram};
use tracing::{debug, error, warn};

use super::{
    metrics,
    saved::Saved,
    shared::Shared,
    slot::{Decoded, Slot},
};

const PAGE: u32 = 500;
/// The server ends a watch after this time; a client without data for longer gives up.
const WATCH_SECONDS: u32 = 300;
const GRACE: Duration = Duration::from_secs(30);
/// After this time without a first list, saved objects are used.
const UNREACHABLE: Duration = Duration::from_secs(2);
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// What to list and watch.
pub(super) struct Source {
    client: kube::Client,
    pub(super) path: String,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) metadata_only: bool,
    /// The objects in a file, for a start without a server.
    pub(super) saved: Option<Arc<Saved>>,
    /// The histogram of the processing times of changes.
    pub(super) latency: Arc<Histogram>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The version to resume from is too old (410), or unknown to a store that was restored (504).
    #[error("the server does not have this version: {0}")]
    Expired(String),
    #[error("{0}: {1}")]
    Refused(u16, String),
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error("cannot decode: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("no bytes from the server in time")]
    Silent,
}

impl Failure {
    /// Whether it is permanent: the server answered with a client error.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(400..=499, _)) && !matches!(self, Self::Refused(429, _))
    }
}

/// Reports to the service why its informer has no objects.
pub(super) struct Reporter {
    context: Context,
    source: String,
    /// Guards the last reported failure.
    reported: Mutex<Option<String>>,
}

impl Reporter {
    pub(super) fn new(context: &Context, source: String) -> Self {
        Self {
            context: context.clone(),
            source,
            reported: Mutex::default(),
        }
    }

    /// Reports a failed list or watch. A client error makes the service not ready; a transient one,
    /// such as a restart of the server, only before the first list.
    fn failed(&self, what: &str, failure: &Failure, is_synced: bool) {
        let text = format!("cannot {what} {}: {failure}", self.source);
        if is_synced && !failure.is_refusal() {
            debug!(source = self.source, error = %failure, "cannot {what}");
            return;
        }
        let mut reported = self.reported.lock();
        if reported.as_ref() == Some(&text) {
            return;
        }
        if failure.is_refusal() {
            warn!(source = self.source, error = %failure, "cannot {what}");
        } else {
            debug!(source = self.source, error = %failure, "cannot {what}");
        }
        self.context.set_problem(&self.source, Some(text.clone()));
        *reported = Some(text);
    }

    fn succeeded(&self) {
        if self.reported.lock().take().is_some() {
            self.context.set_problem(&self.source, None);
        }
    }
}

#[derive(Deserialize)]
#[serde(bound = "")]
struct List {
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    code: u16,
    reason: String,
    message: String,
}

#[derive(Deserialize)]
struct Versioned {
    metadata: ListMeta,
}

impl Source {
    pub(super) fn new(client: kube::Client, path: String) -> Self {
        Self {
            client,
            path,
            labels: None,
            fields: None,
            metadata_only: false,
            saved: None,
            latency: metrics::unseen(),
        }
    }

    /// The path with its selectors.
    pub(super) fn description(&self) -> String {
        let selectors = self.labels.iter().chain(&self.fields);
        let selectors = selectors.map(|selector| format!(" {selector}"));
        format!("{}{}", self.path, selectors.collect::<String>())
    }

    fn request(&self, query: &[(&str, &str)], accept: &str) -> Result<Request<Body>, Failure> {
        let mut uri = format!("{}?", self.path);
        let selectors = [
            ("labelSelector", &self.labels),
            ("fieldSelector", &self.fields),
        ];
        let selectors = selectors
            .iter()
            .filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        for (name, value) in query.iter().copied().chain(selectors) {
            uri.push_str(name);
            uri.push('=');
            escape(value, &mut uri);
            uri.push('&');
        }
        uri.pop();
        let accept = if self.metadata_only {
            accept
        } else {
            "application/json"
        };
        let request = Request::get(uri)
            .header(ACCEPT, accept)
            .extension(feed::WantsObjects)
            .body(Body::empty());
        request.map_err(|error| Failure::Client(kube::Error::HttpError(error)))
    }

    /// The complete list and its version. Saved objects fill an empty cache when no server answers.
    async fn list_or_load(&self, cache: &Shared) -> Result<(Vec<Arc<Slot>>, String), Failure> {
        let list = self.list(&cache.decoded);
        let Some(saved) = self.saved.as_ref().filter(|_| !cache.has_synced()) else {
            return list.await;
        };
        tokio::pin!(list);
        match tokio::time::timeout(UNREACHABLE, &mut list).await {
            Ok(Err(error)) if !error.is_refusal() => {
                saved.load(cache).await;
                Err(error)
            }
            Ok(outcome) => outcome,
            Err(_) => {
                saved.load(cache).await;
                list.await
            }
        }
    }

    /// The complete list and its version.
    async fn list(&self, decoded: &Decoded) -> Result<(Vec<Arc<Slot>>, String), Failure> {
        let (limit, mut token) = (PAGE.to_string(), String::new());
        let mut slots = Vec::new();
        loop {
            let mut query = vec![("limit", limit.as_str())];
            if !token.is_empty() {
                query.push(("continue", token.as_str()));
            }
            let mut response = self.send(self.request(&query, METADATA_LIST)?).await?;
            let (version, next) = match response.extensions_mut().remove::<feed::Page>() {
                Some(page) => {
                    let objects = page.objects.into_iter();
                    slots.extend(objects.filter_map(|object| self.shared(object, decoded)));
                    (page.revision.to_string(), page.next)
                }
                None => {
                    let bytes = response.into_body().collect_bytes().await?;
                    let list: List = serde_json::from_slice(&bytes)?;
                    let items = list.items.unwrap_or_default();
                    slots.extend(items.iter().filter_map(|item| self.typed(item, decoded)));
                    let version = list.metadata.resource_version.unwrap_or_default();
                    (version, list.metadata.r#continue)
                }
            };
            match next.filter(|token| !token.is_empty()) {
                Some(next) => token = next,
                None => return Ok((slots, version)),
            }
        }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let response = self.client.send(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await?;
        let status: Status = serde_json::from_slice(&bytes).unwrap_or_default();
        Err(refusal(code, status))
    }

    /// Watches from `version` until the stream ends, updating `version`.
    async fn watch(
        &self,
        cache: &Shared,
        version: &mut String,
        reporter: &Reporter,
    ) -> Result<(), Failure> {
        let seconds = WATCH_SECONDS.to_string();
        let query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", seconds.as_str()),
            ("resourceVersion", version.as_str()),
        ];
        let mut response = self.send(self.request(&query, METADATA_ONLY)?).await?;
        reporter.succeeded();
        let changes = response.extensions_mut().remove::<feed::Changes>();
        match changes.and_then(|changes| changes.take()) {
            Some(changes) => self.follow(changes, cache, version).await,
            None => self.read(response.into_body(), cache, version).await,
        }
    }

    /// Applies events of a server in this process.
    async fn follow(
        &self,
        mut changes: BoxStream<'static, Vec<feed::Change>>,
        cache: &Shared,
        version: &mut String,
    ) -> Result<(), Failure> {
        while let Some(burst) = changes.next().await {
            for change in burst {
                let begun = Instant::now();
                self.apply(change, cache, version)?;
                self.latency.took(begun.elapsed());
            }
        }
        Ok(())
    }

    fn apply(
        &self,
        change: feed::Change,
        cache: &Shared,
        version: &mut String,
    ) -> Result<(), Failure> {
        let decoded = &cache.decoded;
        let reached = match change {
            feed::Change::Added(object) | feed::Change::Modified(object) => {
                let reached = object.revision();
                if let Some(slot) = self.shared(object, decoded) {
                    cache.store(slot);
                }
                reached
            }
            feed::Change::Deleted(object) => {
                let reached = object.revision();
                if let Some(slot) = self.shared(object, decoded) {
                    cache.forget(slot);
                }
                reached
            }
            feed::Change::Bookmark(reached) => reached,
            feed::Change::Failed {
                code,
                reason,
                message,
            } => {
                let status = Status {
                    code,
                    reason,
                    message,
                };
                return Err(refusal(code, status));
            }
        };
        *version = reached.to_string();
        cache.advance(version);
        Ok(())
    }

    /// Applies lines of a server over a connection.
    async fn read(
        &self,
        mut body: Body,
        cache: &Shared,
        version: &mut String,
    ) -> Result<(), Failure> {
        let mut buffer = BytesMut::new();
        let silence = Duration::from_secs(WATCH_SECONDS.into()) + GRACE;
        loop {
            let frame = tokio::time::timeout(silence, body.frame()).await;
            let Some(frame) = frame.map_err(|_| Failure::Silent)? else {
                return Ok(());
            };
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let mut searched = buffer.len();
            buffer.extend_from_slice(&data);
            while let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(searched + end);
                buffer.advance(1);
                searched = 0;
                if !line.is_empty() {
                    let begun = Instant::now();
                    self.take(cache, &line, version)?;
                    self.latency.took(begun.elapsed());
                }
            }
        }
    }

    /// Applies one line of a watch.
    fn take(&self, cache: &Shared, line: &[u8], version: &mut String) -> Result<(), Failure> {
        let event: WatchEvent = serde_json::from_slice(line)?;
        match event.r#type {
            "ERROR" => {
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                return Err(refusal(status.code, status));
            }
            "BOOKMARK" => {
                let bookmark: Versioned = serde_json::from_str(event.object.get())?;
                *version = bookmark.metadata.resource_version.unwrap_or_default();
                cache.advance(version);
                return Ok(());
            }
            _ => {}
        }
        let Some(slot) = self.typed(event.object, &cache.decoded) else {
            return Ok(());
        };
        let seen = slot.version().into_owned();
        match event.r#type {
            "ADDED" | "MODIFIED" => cache.store(slot),
            "DELETED" => cache.forget(slot),
            other => warn!(path = self.path, r#type = other, "unknown watch event"),
        }
        cache.advance(&seen);
        *version = seen;
        Ok(())
    }

    /// An object received over a connection.
    fn typed(&self, raw: &RawValue, decoded: &Decoded) -> Option<Arc<Slot>> {
        let object = (decoded.decode)(raw.get());
        self.or_left_out(object.map(|object| Slot::typed(object, decoded)))
    }

    /// An object shared with the server.
    fn shared(&self, object: feed::Object, decoded: &Decoded) -> Option<Arc<Slot>> {
        self.or_left_out(Slot::stored(object, self.metadata_only, decoded))
    }

    /// Whatever the API server stores can be decoded; an object that cannot is logged and skipped,
    /// since it must not hide all others.
    fn or_left_out<T>(&self, decoded: Result<T, serde_json::Error>) -> Option<T> {
        decoded
            .inspect_err(|error| {
                error!(path = self.path, %error, "cannot decode object, skipping it");
            })
            .ok()
    }
}

/// Lists and watches until it is dropped.
pub(super) async fn run(source: Source, cache: Arc<Shared>, reporter: Reporter) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
    loop {
        let mut version = match source.list_or_load(&cache).await {
            Ok((slots, version)) => {
                cache.replace(slots);
                cache.advance(&version);
                debug!(path = source.path, version, "listed");
                if let Some(saved) = &source.saved {
                    saved.set_listed();
                }
                cache.synced.send_replace(true);
                reporter.succeeded();
                version
            }
            Err(error) => {
                reporter.failed("list", &error, cache.has_synced());
                tokio::time::sleep(backoff.step()).await;
                continue;
            }
        };
        watch_until_expired(&source, &cache, &mut version, &mut backoff, &reporter).await;
    }
}

async fn watch_until_expired(
    source: &Source,
    cache: &Shared,
    version: &mut String,
    backoff: &mut Backoff,
    reporter: &Reporter,
) {
    loop {
        let before = version.clone();
        let outcome = source.watch(cache, version, reporter).await;
        // There was progress, or the watch lasted its full time: the server is healthy.
        if *version != before || matches!(outcome, Ok(())) {
            backoff.reset();
        }
        match outcome {
            Ok(()) => {}
            Err(Failure::Expired(message)) => {
                debug!(path = source.path, message, "listing again");
                tokio::time::sleep(backoff.step()).await;
                return;
            }
            Err(error) => reporter.failed("watch", &error, true),
        }
        tokio::time::sleep(backoff.step()).await;
    }
}

fn refusal(code: u16, status: Status) -> Failure {
    // As in client-go. The server has asked its store for the newest version.
    let is_future = code == 504 && status.message.contains("Too large resource version");
    if code == 410 || status.reason == "Expired" || status.reason == "Gone" || is_future {
        return Failure::Expired(status.message);
    }
    Failure::Refused(code, status.message)
}

fn escape(value: &str, out: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use futures::{StreamExt, stream};
    use http::Response;
    use http_body_util::{Full, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::{Bytes, Frame};
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::Informer;

    type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

    /// Answers requests in order and records them; afterwards watches stay open.
    fn server(answers: Vec<Answer>) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock().push(request.uri().to_string());
            let answer = answers.lock().pop_front();
            async move { Ok::<_, Infallible>(answer.unwrap_or_else(open)) }
        });
        (crate::in_process(service), asked)
    }

    fn json(code: u16, body: String) -> Answer {
        let body = Full::new(Bytes::from(body)).boxed_unsync();
        Response::builder().status(code).body(body).unwrap()
    }

    fn list(version: u32, items: &[String]) -> Answer {
        let items = items.join(",");
        let meta = format!(r#"{{"resourceVersion":"{version}"}}"#);
        json(200, format!(r#"{{"metadata":{meta},"items":[{items}]}}"#))
    }

    fn open() -> Answer {
        let frames = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    /// A watch that sends these lines in pieces of seven bytes.
    fn watch(lines: &[String]) -> Answer {
        let text = lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>();
        let pieces: Vec<_> = text
            .as_bytes()
            .chunks(7)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        Response::new(StreamBody::new(stream::iter(pieces).boxed()).boxed_unsync())
    }

    fn object(name: &str, version: u32) -> String {
        let name = format!(r#""name":"{name}","namespace":"default","uid":"{name}""#);
        format!(r#"{{"metadata":{{{name},"resourceVersion":"{version}","managedFields":[{{}}]}}}}"#)
    }

    fn event(kind: &str, object: &str) -> String {
        format!(r#"{{"type":"{kind}","object":{object}}}"#)
    }

    async fn versions(informer: &Informer<ConfigMap>, wanted: &[&str]) {
        let reached = async {
            let mut changes = informer.subscribe();
            loop {
                let seen: Vec<_> = informer
                    .list()
                    .iter()
                    .map(|map| map.metadata.resource_version.clone().unwrap())
                    .collect();
                if seen == wanted {
                    return;
                }
                changes.next().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached)
            .await
            .expect("never reached");
    }

    #[tokio::test]
    async fn a_cut_watch_resumes_from_the_last_version_and_bookmarks_count() {
        let (client, asked) = server(vec![
            list(
                5,
                &[
                    object("a", 1),
                    object("b", 2),
                    r#"{"metadata":7}"#.to_owned(),
                ],
            ),
            watch(&[
                event("MODIFIED", &object("a", 6)),
                event("DELETED", &object("b", 7)),
            ]),
            watch(&[event(
                "BOOKMARK",
                r#"{"metadata":{"resourceVersion":"20"}}"#,
            )]),
            watch(&[event("ADDED", &object("c", 21))]),
        ]);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer = Informer::<ConfigMap>::builder(client)
            .fields("metadata.name!=x")
            .start(&context);
        versions(&informer, &["6", "21"]).await;
        assert!(informer.has_synced());
        assert!(
            informer
                .get("default", "a")
                .unwrap()
                .metadata
                .managed_fields
                .is_none()
        );
        let asked = asked.lock();
        assert_eq!(
            asked[0],
            "/api/v1/configmaps?limit=500&fieldSelector=metadata.name%21%3Dx"
        );
        let from: Vec<_> = asked[1..4]
            .iter()
            .map(|uri| uri.contains("watch=true"))
            .collect();
        assert_eq!(from, [true; 3]);
        assert!(asked[1].contains("resourceVersion=5&"), "{}", asked[1]);
        assert!(asked[2].contains("resourceVersion=7&"), "{}", asked[2]);
        assert!(asked[3].contains("resourceVersion=20&"), "{}", asked[3]);
        stop.cancel();
    }

    #[tokio::test]
    async fn a_compacted_version_leads_to_a_relist_that_sends_the_difference() {
        let gone = r#"{"code":410,"reason":"Expired","message":"too old"}"#;
        let (client, asked) = server(vec![
            json(503, "{}".to_owned()),
            list(5, &[object("a", 1), object("b", 2)]),
            watch(&[event("ERROR", gone)]),
            list(9, &[object("b", 8)]),
        ]);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer = Informer::<ConfigMap>::builder(client)
            .namespace("default")
            .start(&context);
        versions(&informer, &["8"]).await;
        let asked = asked.lock();
        assert!(asked[3].starts_with("/api/v1/namespaces/default/configmaps?limit=500"));
        stop.cancel();
    }

    #[tokio::test]
    async fn a_version_that_a_restored_store_never_had_leads_to_a_relist() {
        let future = r#"{"code":504,"reason":"Timeout","message":"Too large resource version: 5, current: 3"}"#;
        let (client, asked) = server(vec![
            list(5, &[object("a", 1), object("b", 4)]),
            json(
                504,
                r#"{"code":504,"reason":"Timeout","message":"overloaded"}"#.to_owned(),
            ),
            json(504, future.to_owned()),
            list(3, &[object("a", 2)]),
            watch(&[event("ADDED", &object("c", 4))]),
        ]);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer = Informer::<ConfigMap>::builder(client).start(&context);
        versions(&informer, &["2", "4"]).await;
        let asked = asked.lock();
        for (number, version) in [(1, 5), (2, 5), (4, 3)] {
            let from = format!("resourceVersion={version}");
            assert!(asked[number].ends_with(&from), "{}", asked[number]);
        }
        stop.cancel();
    }

    #[tokio::test]
    async fn a_refused_list_is_a_problem_of_the_service_until_it_is_allowed() {
        let forbidden = r#"{"code":403,"reason":"Forbidden","message":"no such right"}"#;
        let (client, _asked) = server(vec![
            json(403, forbidden.to_owned()),
            json(403, forbidden.to_owned()),
            list(5, &[object("a", 1)]),
        ]);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer = Informer::<ConfigMap>::builder(client).start(&context);
        let mut problems = context.problems();
        let refused = problems.wait_for(|problems| !problems.is_empty());
        let refused = tokio::time::timeout(Duration::from_secs(10), refused).await;
        let refused = refused.expect("nothing was reported").unwrap().clone();
        let text = "cannot list /api/v1/configmaps: 403: no such right";
        assert_eq!(refused.values().collect::<Vec<_>>(), [text]);
        tokio::time::timeout(Duration::from_secs(10), informer.synced())
            .await
            .expect("never listed");
        let cleared = problems.wait_for(|problems| problems.is_empty());
        tokio::time::timeout(Duration::from_secs(10), cleared)
            .await
            .expect("the problem stayed")
            .unwrap();
        stop.cancel();
    }

    #[tokio::test]
    async fn a_service_whose_condition_has_no_time_is_read() {
        let condition = r#"{"type":"Ready","status":"True","lastTransitionTime":null}"#;
        let meta = r#""metadata":{"name":"a","namespace":"default","resourceVersion":"1"}"#;
        let service = format!(r#"{{{meta},"status":{{"conditions":[{condition}]}}}}"#);
        let (client, _asked) = server(vec![list(5, &[service])]);
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer =
            Informer::<k8s_openapi::api::core::v1::Service>::builder(client).start(&context);
        informer.synced().await;
        assert!(informer.get("default", "a").is_some());
        stop.cancel();
    }
}
