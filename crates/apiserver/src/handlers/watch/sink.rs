//! What a watch sends in one burst: lines of JSON or frames of protobuf for a connection, shared
//! objects for an informer of this process.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use machinery::{Object, Status, Value, json::json, protobuf};
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
use store::Revision;

use crate::{Resource, Stored, media::ResponseShape, output::Output, respond};

/// Maximum bytes of a burst.
const BURST: usize = 64 * 1024;
/// Maximum objects of a burst.
const OBJECTS: usize = 256;

/// The change of an object, as the watcher's selectors see it.
#[derive(Clone, Copy)]
pub(super) enum WatchEvent {
    Added,
    Modified,
    Deleted,
}

impl WatchEvent {
    fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// Encodes the events of one watch.
pub(super) struct Encoder {
    pub(super) output: Output,
    sent: Counter,
    sizes: Histogram,
    /// Whether a Table's columns have been sent.
    columns_sent: bool,
}

/// Collects the events of a burst.
pub(super) trait Sink: Default {
    /// What is sent at once.
    type Burst;

    /// Whether the burst is to be sent.
    fn is_full(&self) -> bool;

    fn event(&mut self, encoder: &mut Encoder, change: WatchEvent, object: &Arc<Stored>);

    fn bookmark(&mut self, encoder: &mut Encoder, reached: Revision, initial_end: bool);

    fn error(&mut self, output: &Output, status: &Status);

    /// The collected events; `None` if there are none.
    fn burst(self) -> Option<Self::Burst>;
}

/// Events for a connection.
#[derive(Default)]
pub(super) struct Text(BytesMut);

impl Sink for Text {
    type Burst = Bytes;

    fn is_full(&self) -> bool {
        self.0.len() >= BURST
    }

    fn event(&mut self, encoder: &mut Encoder, change: WatchEvent, object: &Arc<Stored>) {
        let before = self.0.len();
        encoder.encode(change.name(), object, &mut self.0);
        encoder.sent(self.0.len() - before);
    }

    fn bookmark(&mut self, encoder: &mut Encoder, reached: Revision, initial_end: bool) {
        self.0.put_slice(&encoder.bookmark(reached, initial_end));
    }

    fn error(&mut self, output: &Output, status: &Status) {
        self.0.put_slice(&error_event(output, status));
    }

    fn burst(self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.freeze())
    }
}

/// Events for an informer of this process.
#[derive(Default)]
pub(super) struct Objects(Vec<feed::Change>);

impl Sink for Objects {
    type Burst = Vec<feed::Change>;

    fn is_full(&self) -> bool {
        self.0.len() >= OBJECTS
    }

    fn event(&mut self, encoder: &mut Encoder, change: WatchEvent, object: &Arc<Stored>) {
        let object = served(&encoder.output.resource, object);
        encoder.sent(object.size());
        self.0.push(match change {
            WatchEvent::Added => feed::Change::Added(object),
            WatchEvent::Modified => feed::Change::Modified(object),
            WatchEvent::Deleted => feed::Change::Deleted(object),
        });
    }

    fn bookmark(&mut self, _: &mut Encoder, reached: Revision, _: bool) {
        self.0.push(feed::Change::Bookmark(reached));
    }

    fn error(&mut self, _: &Output, status: &Status) {
        self.0.push(feed::Change::Failed {
            code: status.code,
            reason: status.reason.clone(),
            message: status.message.clone(),
        });
    }

    fn burst(self) -> Option<Vec<feed::Change>> {
        (!self.0.is_empty()).then_some(self.0)
    }
}

/// The object in the resource's version; shared with the store if that is its stored version.
pub(in crate::handlers) fn served(resource: &Resource, object: &Arc<Stored>) -> feed::Object {
    match resource.serve(object) {
        registry::Served::Stored(_) => object.clone(),
        registry::Served::Converted(converted) => converted,
    }
}

impl Encoder {
    pub(super) fn new(output: Output, (sent, sizes): (Counter, Histogram)) -> Self {
        Self {
            output,
            sent,
            sizes,
            columns_sent: false,
        }
    }

    fn sent(&self, size: usize) {
        self.sent.inc();
        self.sizes.observe(size as f64);
    }

    fn encode(&mut self, kind: &str, object: &Stored, out: &mut BytesMut) {
        if let Some(body) = self.output.protobuf(object) {
            return frame(kind, &body, out);
        }
        out.reserve(object.size() + 64);
        out.put_slice(br#"{"type":""#);
        out.put_slice(kind.as_bytes());
        out.put_slice(br#"","object":"#);
        match self.output.wanted.shape {
            ResponseShape::Object => out.put_slice(&self.output.resource.serve(object).bytes()),
            ResponseShape::Metadata { .. } => out.put_slice(&self.output.object(object)),
            ResponseShape::Table => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let metadata = json!({"resourceVersion": object.revision.to_string()});
                out.put_slice(&self.output.table(&[object], columns, metadata));
            }
        }
        out.put_slice(b"}\n");
    }

    /// How far the watch is: an object of which nothing but the revision is known.
    fn bookmark(&mut self, reached: Revision, initial_end: bool) -> Bytes {
        let (kind, version) = match self.output.wanted.shape {
            ResponseShape::Table => self.output.resource_kind(),
            _ => self.output.kind(),
        };
        let mut metadata = json!({"resourceVersion": reached.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = Object::from_iter([
            ("kind".to_owned(), kind.into()),
            ("apiVersion".to_owned(), version.into()),
            ("metadata".to_owned(), metadata),
        ]);
        if let Some(schema) = self.output.message_type() {
            let mut out = BytesMut::new();
            frame("BOOKMARK", &protobuf::encode(schema, &object), &mut out);
            return out.freeze();
        }
        let object = match self.output.wanted.shape {
            ResponseShape::Table => self.table_bookmark(object, reached),
            _ => Value::Object(object),
        };
        format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into()
    }

    /// The bookmark is a row, too.
    fn table_bookmark(&mut self, object: Object, reached: Revision) -> Value {
        let columns = match std::mem::replace(&mut self.columns_sent, true) {
            true => Value::Null,
            false => self.output.columns(),
        };
        let cells = self.output.resource.kind.row(&object, self.output.now());
        let row = self.output.row_of(cells, &object);
        let metadata = json!({"resourceVersion": reached.to_string()});
        self.output.table_of(columns, vec![row], metadata)
    }
}

/// One frame of a protobuf stream: its length and the event with the object's body.
pub(super) fn frame(kind: &str, body: &[u8], out: &mut BytesMut) {
    let event = protobuf::watch_event(kind, body);
    out.put_u32(event.len() as u32);
    out.put_slice(&event);
}

fn error_event(output: &Output, status: &Status) -> Bytes {
    let mut out = BytesMut::new();
    if let (Some(_), Some(body)) = (output.message_type(), respond::status_message(status)) {
        frame("ERROR", &body, &mut out);
        return out.freeze();
    }
    out.put_slice(br#"{"type":"ERROR","object":"#);
    out.put_slice(&status.to_bytes());
    out.put_slice(b"}\n");
    out.freeze()
}
