//! Watch: a stream of bytes shared between watchers, filtered by the stored objects' headers. The
//! store ends a watch that does not keep up, and the client gets 410.

pub(super) mod sink;

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::streaming::messages;
use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt, stream::BoxStream};
use http::StatusCode;
use machinery::{Status, field, text};
use parking_lot::Mutex;
use rand::Rng;
use request::heavy;
use store::{Event, Freshness, ListRequest, Revision, WatchItem};
use tokio::time::{Instant, Sleep};

use self::sink::{Encoder, Objects, Sink, Text, WatchEvent};
use super::read::{self, Reads};
use crate::{
    Body, Resource, Stored, failure,
    media::Encoding,
    output::Output,
    pipeline::Request,
    query::Query,
    respond::{self, Answer},
    selection::Selection,
};
use connect::{Streams, handshake_head, handshake_response};
use flowcontrol::Seat;
use http_server::Stopped;

/// The bookmark interval of a quiet watch.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Media types that can be streamed.
const STREAMS: &[&str] = &[
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Where a watch starts.
enum Start {
    /// With the existing objects, at least as fresh as this.
    State(Freshness),
    /// With events after a revision.
    After(Revision),
    /// With events from now on.
    Now,
}

struct Options {
    start: Start,
    bookmarks: bool,
    /// Whether a bookmark marks the end of the initial events.
    mark: bool,
    lasts: Duration,
}

impl Options {
    fn parse(query: &Query, at_least: Duration) -> Result<Self, Status> {
        check(query)?;
        let version = query
            .filled("resourceVersion")
            .map(read::revision)
            .transpose()
            .map_err(Status::unknown)?;
        let initial = query
            .get("sendInitialEvents")
            .map(|_| query.flag("sendInitialEvents"));
        let start = match (initial, version) {
            (Some(true) | None, None) => Start::State(Freshness::Newest),
            (Some(true), Some(least)) => Start::State(Freshness::AtLeast(least)),
            (None, Some(0)) => Start::State(Freshness::AtLeast(0)),
            (Some(false), None | Some(0)) => Start::Now,
            (_, Some(after)) => Start::After(after),
        };
        let timeout = query.get("timeoutSeconds").map(text::parse_int);
        let timeout = timeout.transpose().map_err(Status::bad_request)?;
        let lasts = match timeout.map(u64::try_from) {
            Some(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
            // Randomized, so that watches that began together do not reconnect together.
            _ => at_least.mul_f64(rand::rng().random_range(1.0..2.0)),
        };
        let bookmarks = query.flag("allowWatchBookmarks");
        Ok(Self {
            start,
            bookmarks,
            mark: initial == Some(true) && bookmarks,
            lasts,
        })
    }
}

/// Rejects invalid combinations of watch parameters.
fn check(query: &Query) -> Result<(), Status> {
    let mut errors = field::Errors::new();
    let path = field::Path::new("resourceVersionMatch");
    let matching = query.filled("resourceVersionMatch");
    let initial = query.get("sendInitialEvents").is_some();
    if initial && matching != Some("NotOlderThan") {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(field::Error::forbidden(&path, why));
    }
    if let Some(matching) = matching {
        if !initial {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(field::Error::forbidden(&path, why));
        }
        if matching != "NotOlderThan" {
            errors.push(field::Error::not_supported(
                &path,
                matching,
                &["NotOlderThan"],
            ));
        }
    }
    // A watch without a resourceVersion starts from the current state.
    let from_state = matches!(query.get("resourceVersion"), None | Some("" | "0"));
    if query.filled("continue").is_some() && (matching.is_some() || (!initial && from_state)) {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(field::Error::forbidden(&path, why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors))
}

/// Streams events until the client, the timeout or the server ends the watch.
pub(crate) async fn watch(reads: &Reads, mut request: Request, resource: Arc<Resource>) -> Answer {
    let output = read::output(&reads.clock, &request, &resource)?;
    if output.wanted.encoding == Encoding::Yaml {
        return Err(Status::not_acceptable(STREAMS));
    }
    let selection = Selection::from_request(&resource, &request)?;
    let options = Options::parse(&request.query, reads.watch_timeout)?;
    let media = if output.message_type().is_some() {
        STREAM
    } else {
        respond::JSON
    };
    if request
        .parts
        .extensions
        .get::<feed::WantsObjects>()
        .is_some()
    {
        let stream = start_stream::<Objects>(reads, &request, &output, selection, options).await;
        let mut response = respond::bytes(StatusCode::OK, media, Bytes::new());
        response.extensions_mut().insert(feed::Changes::new(stream));
        return Ok(response);
    }
    let stream = start_stream::<Text>(reads, &request, &output, selection, options).await;
    if ::streaming::is_websocket(&request.parts.headers) {
        return Ok(over_websocket(
            &reads.streams,
            &mut request,
            &output,
            stream,
        ));
    }
    Ok(streaming(media, stream.map(Ok)))
}

/// The stream of events. Once the parameters are valid, errors are sent as events.
async fn start_stream<S: Sink + 'static>(
    reads: &Reads,
    request: &Request,
    output: &Output,
    selection: Selection,
    options: Options,
) -> BoxStream<'static, S::Burst>
where
    S::Burst: Send,
{
    match Watcher::<S>::begin(reads, request, output.clone(), selection, options).await {
        Ok(watcher) => watcher.boxed(),
        Err(status) => {
            let mut sink = S::default();
            sink.error(output, &status);
            futures::stream::iter(sink.burst()).boxed()
        }
    }
}

/// One event per message: text for JSON, bytes for protobuf.
fn over_websocket(
    streams: &Streams,
    request: &mut Request,
    output: &Output,
    stream: BoxStream<'static, Bytes>,
) -> http::Response<Body> {
    let (form, framed) = match output.message_type() {
        Some(_) => (messages::Form::Binary, true),
        None => (messages::Form::Text, false),
    };
    let mut head = handshake_head(&mut request.parts);
    match messages::events(&mut head, form) {
        Err(refused) => handshake_response(refused),
        Ok((agreed, pending)) => {
            let events = stream.flat_map(move |burst| futures::stream::iter(split(burst, framed)));
            streams.run(request.audit.clone(), pending.send(events));
            handshake_response(agreed)
        }
    }
}

/// The single events of a burst, without a frame's length but with the newline of a JSON line.
fn split(mut burst: Bytes, framed: bool) -> impl Iterator<Item = Bytes> + Send {
    std::iter::from_fn(move || {
        if burst.is_empty() {
            return None;
        }
        if framed {
            let length = usize::try_from(burst.try_get_u32().ok()?).ok()?;
            return Some(burst.split_to(length.min(burst.len())));
        }
        let line = burst.iter().position(|byte| *byte == b'\n');
        Some(burst.split_to(line.map_or(burst.len(), |end| end + 1)))
    })
}

fn streaming(
    media: &str,
    stream: impl futures::Stream<Item = Result<Bytes, request::BodyError>> + Send + 'static,
) -> http::Response<Body> {
    let mut response = respond::bytes(StatusCode::OK, media, Bytes::new());
    *response.body_mut() = Body::stream(stream);
    response
}

struct Watcher<S> {
    encoder: Encoder,
    sink: PhantomData<fn() -> S>,
    selection: Selection,
    initial: std::vec::IntoIter<Arc<Stored>>,
    /// Held until the initial events are sent.
    seat: Option<Seat>,
    _counted: Counted,
    mark: bool,
    events: store::Watch<Stored>,
    /// Why the conversion of events failed.
    unconverted: Option<Unconverted>,
    /// All events up to this revision have been sent.
    reached: Revision,
    bookmarks: bool,
    /// The revision of the last bookmark or event sent.
    reported: Revision,
    next_bookmark: Pin<Box<Sleep>>,
    ends: Pin<Box<Sleep>>,
    stopped: Stopped,
    /// Whether the stream yields to other tasks.
    rests: bool,
    over: bool,
}

/// Guards the error of a failed conversion.
type Unconverted = Arc<Mutex<Option<Status>>>;

/// Events with converted objects; they end at the first failure.
fn converted(
    events: store::Watch<Stored>,
    resource: Arc<Resource>,
) -> (store::Watch<Stored>, Option<Unconverted>) {
    let failed = Unconverted::default();
    let noted = failed.clone();
    let events = events.then(move |item| {
        let (resource, noted) = (resource.clone(), noted.clone());
        async move {
            match item {
                Ok(item) => match convert_item(item, &resource).await {
                    Ok(item) => Some(Ok(item)),
                    Err(status) => {
                        *noted.lock() = Some(status);
                        None
                    }
                },
                Err(error) => Some(Err(error)),
            }
        }
    });
    let until_failed = events
        .take_while(|item| std::future::ready(item.is_some()))
        .filter_map(std::future::ready);
    (until_failed.boxed(), Some(failed))
}

async fn convert_item(
    item: WatchItem<Stored>,
    resource: &Resource,
) -> Result<WatchItem<Stored>, Status> {
    let WatchItem::Events { revision, events } = item else {
        return Ok(item);
    };
    let mut events: Vec<Event<Stored>> = events.to_vec();
    let entries = || {
        let both = events
            .iter()
            .flat_map(|event| [&event.current, &event.previous]);
        both.flatten()
    };
    let objects = entries().map(|entry| entry.object.clone()).collect();
    let mut objects = resource.convert_all(objects).await?.into_iter();
    for event in &mut events {
        for entry in [&mut event.current, &mut event.previous]
            .into_iter()
            .flatten()
        {
            if let Some(object) = objects.next() {
                entry.object = object;
            }
        }
    }
    Ok(WatchItem::Events {
        revision,
        events: events.into(),
    })
}

/// Counts one watcher until dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(watchers: &Arc<AtomicUsize>) -> Self {
        watchers.fetch_add(1, Ordering::Relaxed);
        Self(watchers.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Sink> Watcher<S> {
    async fn begin(
        reads: &Reads,
        request: &Request,
        output: Output,
        selection: Selection,
        options: Options,
    ) -> Result<Self, Status> {
        let (store, resource) = (&reads.store, &output.resource);
        let (namespace, _) = request.info.place();
        let prefix = match selection.name() {
            Some(name) if !resource.namespaced() || !namespace.is_empty() => {
                resource.key(namespace, name)
            }
            _ => resource.prefix(namespace),
        };
        let mut initial = Vec::new();
        let after = match options.start {
            Start::After(after) => after,
            Start::Now => store.revision().await.map_err(failure::of_store)?,
            Start::State(freshness) => {
                let ask = ListRequest {
                    prefix: prefix.clone(),
                    from: None,
                    limit: None,
                    freshness,
                    skip_unreadable: false,
                };
                let listed = store.list(ask).await.map_err(failure::of_store)?;
                let objects = listed.entries.into_iter().map(|entry| entry.object);
                let objects: Vec<Arc<Stored>> = objects.collect();
                if resource.converts() {
                    heavy::mark_large(objects.iter().map(|object| object.size()).sum()).await;
                }
                let objects = resource.convert_all(objects).await?.into_iter();
                initial = objects.filter(|object| selection.matches(object)).collect();
                listed.revision
            }
        };
        let metrics = reads.metrics.watch_events(&resource.labels);
        let events = store.watch(prefix, after).await;
        let mut events = events.map_err(failure::of_store)?;
        let mut unconverted = None;
        if resource.converts() {
            (events, unconverted) = converted(events, resource.clone());
        }
        Ok(Self {
            events,
            unconverted,
            initial: initial.into_iter(),
            seat: request.take_seat().map(Seat::while_sending),
            _counted: Counted::new(&resource.watchers),
            mark: options.mark,
            reached: after,
            reported: after,
            bookmarks: options.bookmarks,
            next_bookmark: Box::pin(tokio::time::sleep(BOOKMARK_EVERY)),
            ends: Box::pin(tokio::time::sleep(options.lasts)),
            stopped: Stopped::new(reads.streams.stopping.clone()),
            rests: false,
            over: false,
            encoder: Encoder::new(output, metrics),
            sink: PhantomData,
            selection,
        })
    }

    /// The next initial events, and the bookmark that ends them.
    fn next_initial(&mut self) -> Option<S::Burst> {
        let mut out = S::default();
        while !out.is_full() {
            let Some(object) = self.initial.next() else {
                break;
            };
            out.event(&mut self.encoder, WatchEvent::Added, &object);
        }
        if self.initial.len() == 0 && std::mem::take(&mut self.mark) {
            self.bookmark(true, &mut out);
        }
        out.burst()
    }

    /// Events that occurred and are not sent yet.
    fn next_events(&mut self, context: &mut Context<'_>) -> Option<S::Burst> {
        let mut out = S::default();
        while !self.over && !out.is_full() {
            let Poll::Ready(item) = self.events.poll_next_unpin(context) else {
                break;
            };
            self.append_item(item, &mut out);
        }
        out.burst()
    }

    /// A bookmark, if the client wants them and has not got this revision.
    fn news(&mut self) -> Option<S::Burst> {
        let mut out = S::default();
        if self.bookmarks && self.reached > self.reported {
            self.bookmark(false, &mut out);
        }
        out.burst()
    }

    fn bookmark(&mut self, initial_end: bool, out: &mut S) {
        self.reported = self.reached;
        out.bookmark(&mut self.encoder, self.reached, initial_end);
    }

    fn append_item(&mut self, item: Option<Result<WatchItem<Stored>, store::Error>>, out: &mut S) {
        match item {
            Some(Ok(WatchItem::Events { revision, events })) => {
                for event in events.iter() {
                    self.append_event(event, out);
                }
                self.reached = revision;
            }
            Some(Ok(WatchItem::Progress(revision))) => self.reached = self.reached.max(revision),
            Some(Err(error)) => {
                self.over = true;
                out.error(&self.encoder.output, &failure::of_store(error));
            }
            None => {
                self.over = true;
                let failed = self.unconverted.as_ref();
                if let Some(status) = failed.and_then(|failed| failed.lock().take()) {
                    out.error(&self.encoder.output, &status);
                }
            }
        }
    }

    /// Writes an event as this client's selectors see it.
    fn append_event(&mut self, event: &Event<Stored>, out: &mut S) {
        let seen = |entry: &Option<store::Entry<Stored>>| {
            entry
                .as_ref()
                .map(|entry| entry.object.clone())
                .filter(|o| self.selection.matches(o))
        };
        let (change, object) = match (seen(&event.previous), seen(&event.current)) {
            (None, None) => return,
            (None, Some(object)) => (WatchEvent::Added, object),
            (Some(_), Some(object)) => (WatchEvent::Modified, object),
            (Some(object), None) => (WatchEvent::Deleted, Arc::new(object.at(event.revision))),
        };
        out.event(&mut self.encoder, change, &object);
        self.reported = event.revision;
    }
}

impl<S: Sink> Stream for Watcher<S> {
    type Item = S::Burst;

    /// The next bytes to send; `None` ends the watch.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Burst>> {
        let this = &mut *self;
        if Pin::new(&mut this.stopped).poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut this.rests) {
            // The initial events can be many; yield to other tasks after each part.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(bytes) = this.next_initial() {
            this.rests = this.initial.len() > 0;
            return Poll::Ready(Some(bytes));
        }
        this.seat = None;
        if let Some(bytes) = this.next_events(context) {
            return Poll::Ready(Some(bytes));
        }
        while !this.over && this.next_bookmark.as_mut().poll(context).is_ready() {
            let next = Instant::now() + BOOKMARK_EVERY;
            this.next_bookmark.as_mut().reset(next);
            if let Some(bytes) = this.news() {
                return Poll::Ready(Some(bytes));
            }
        }
        if !this.over && this.ends.as_mut().poll(context).is_ready() {
            this.over = true;
            if let Some(bytes) = this.news() {
                return Poll::Ready(Some(bytes));
            }
        }
        if this.over {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::{sink::frame, *};

    #[test]
    fn bursts_are_cut_into_events() {
        let lines: Vec<Bytes> = split(Bytes::from_static(b"{\"a\":1}\n{}\n"), false).collect();
        assert_eq!(lines, ["{\"a\":1}\n", "{}\n"]);
        let mut burst = BytesMut::new();
        frame("ADDED", b"x", &mut burst);
        let first = burst.len();
        frame("DELETED", b"yy", &mut burst);
        let frames: Vec<Bytes> = split(burst.clone().freeze(), true).collect();
        assert_eq!(
            frames,
            [burst[4..first].to_vec(), burst[first + 4..].to_vec()]
        );
    }
}
