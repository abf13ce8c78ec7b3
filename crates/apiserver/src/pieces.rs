//! Lists, serialized a piece at a time as the client reads: objects are shared with the store, and
//! at most one piece of their serialized form (JSON, Table, YAML, protobuf) is in memory at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use http::{Response, StatusCode};
use machinery::{Object, Status, Value, json::json, protobuf, schema::Type};

use crate::{
    Body, Stored,
    handlers::read::ListPage,
    media::{Encoding, ResponseShape},
    output::{self, Output},
    respond, yaml,
};
use request::BodyError;

/// Lists up to this size are sent whole, with Content-Length.
const MAX_UNCHUNKED_BYTES: usize = 128 * 1024;
/// The size of a piece of a longer list. With its chunk header and trailer it fills the records of
/// one TLS write completely.
const PIECE: usize = 64 * 1024 - "fff8\r\n\r\n".len();

/// The encoding of items.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Yaml,
    Protobuf(&'static Type),
}

/// A list's bytes, produced a piece at a time.
struct Pieces {
    output: Output,
    form: Form,
    head: Option<Bytes>,
    objects: std::vec::IntoIter<Arc<Stored>>,
    tail: Bytes,
    is_first: bool,
    /// Bytes produced and not sent yet.
    rest: Bytes,
    is_done: bool,
}

impl Pieces {
    fn new(output: Output, form: Form, page: ListPage) -> Result<Self, Status> {
        let (head, tail) = match form {
            Form::Json => json_frame(&output, page.metadata),
            Form::Yaml => yaml_frame(&output, page.metadata, page.objects.is_empty())?,
            Form::Protobuf(schema) => protobuf_frame(&output, schema, &page),
        };
        Ok(Self {
            output,
            form,
            head: Some(head),
            objects: page.objects.into_iter(),
            tail,
            is_first: true,
            rest: Bytes::new(),
            is_done: false,
        })
    }

    fn is_over(&self) -> bool {
        self.is_done && self.rest.is_empty()
    }

    /// The next piece; all but the last have this size.
    fn next(&mut self, size: usize) -> Result<Option<Bytes>, Status> {
        if self.is_over() {
            return Ok(None);
        }
        if self.rest.len() >= size {
            return Ok(Some(self.rest.split_to(size)));
        }
        let mut out = BytesMut::with_capacity(size.min(MAX_UNCHUNKED_BYTES) + 8 * 1024);
        out.put_slice(&std::mem::take(&mut self.rest));
        if let Some(head) = self.head.take() {
            out.put_slice(&head);
        }
        while out.len() < size && !self.is_done {
            let Some(object) = self.objects.next() else {
                out.put_slice(&self.tail);
                self.is_done = true;
                break;
            };
            self.item(&object, &mut out)?;
        }
        let mut out = out.freeze();
        self.rest = out.split_off(size.min(out.len()));
        Ok(Some(out))
    }

    fn item(&mut self, object: &Stored, out: &mut BytesMut) -> Result<(), Status> {
        let is_first = std::mem::take(&mut self.is_first);
        match self.form {
            Form::Protobuf(schema) => {
                protobuf::list_item(&self.output.message(schema, object), out);
            }
            Form::Yaml => {
                let mut json = BytesMut::new();
                write_json(&self.output, object, &mut json);
                out.put_slice(yaml::item(&json)?.as_bytes());
            }
            Form::Json => {
                if !is_first {
                    out.put_u8(b',');
                }
                write_json(&self.output, object, out);
            }
        }
        Ok(())
    }
}

/// An item of a list, or a row of a Table.
fn write_json(output: &Output, object: &Stored, out: &mut BytesMut) {
    match output.wanted.shape {
        ResponseShape::Table => out.put_slice(output.row(object).to_string().as_bytes()),
        _ => output.item(object, out),
    }
}

/// The bytes before and after the items of a list.
fn json_frame(output: &Output, metadata: Value) -> (Bytes, Bytes) {
    let metadata = output.list_metadata(metadata);
    let head = if output.wanted.shape == ResponseShape::Table {
        let (version, columns) = (output.wanted.meta_version(), output.columns());
        format!(
            r#"{{"kind":"Table","apiVersion":"{version}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#
        )
    } else {
        let (kind, version) = output.list_kind();
        format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata},"items":["#)
    };
    (head.into(), Bytes::from_static(b"]}\n"))
}

/// The same in YAML, whose keys are sorted.
fn yaml_frame(output: &Output, metadata: Value, is_empty: bool) -> Result<(Bytes, Bytes), Status> {
    let metadata = output.list_metadata(metadata);
    let write = |value: Value| yaml::from_json(value.to_string().as_bytes());
    let open = |key: &str| match is_empty {
        true => format!("{key}: []\n"),
        false => format!("{key}:\n"),
    };
    if output.wanted.shape == ResponseShape::Table {
        let head = write(json!({
            "kind": "Table", "apiVersion": output.wanted.meta_version(), "metadata": metadata,
            "columnDefinitions": output.columns(),
        }))?;
        return Ok(((head + &open("rows")).into(), Bytes::new()));
    }
    let (kind, version) = output.list_kind();
    let head = write(json!({"apiVersion": version}))? + &open("items");
    let tail = write(json!({"kind": kind, "metadata": metadata}))?;
    Ok((head.into(), tail.into()))
}

fn protobuf_frame(output: &Output, schema: &'static Type, page: &ListPage) -> (Bytes, Bytes) {
    let none = Object::new();
    let metadata = page.metadata.as_object().unwrap_or(&none);
    // A message starts with its length. Messages of whole objects are cached; those of metadata are
    // made twice.
    let each = page.objects.iter();
    let sizes = each.map(|object| output.message(schema, object).len());
    let (kind, version) = output.list_kind();
    let (head, tail) = protobuf::list_frame(version, kind, metadata, sizes);
    (head.into(), tail.into())
}

/// Records a list in the audit log, if responses are recorded.
pub(crate) fn note(output: &Output, page: &ListPage) {
    output.note(|| {
        let page = ListPage {
            objects: page.objects.clone(),
            metadata: page.metadata.clone(),
        };
        let all = Pieces::new(output.clone(), Form::Json, page);
        let all = all.and_then(|mut all| all.next(usize::MAX));
        all.ok().flatten().unwrap_or_default()
    });
}

/// The response with a list.
pub(crate) fn respond(output: Output, page: ListPage) -> Response<Body> {
    note(&output, &page);
    let (form, media) = match (output.message_type(), output.wanted.encoding) {
        (Some(schema), _) => (Form::Protobuf(schema), output::PROTOBUF),
        (None, Encoding::Yaml) => (Form::Yaml, "application/yaml"),
        (None, _) => (Form::Json, respond::JSON),
    };
    send(output, form, page, media).unwrap_or_else(|status| respond::status(&status))
}

fn send(
    output: Output,
    form: Form,
    page: ListPage,
    media: &'static str,
) -> Result<Response<Body>, Status> {
    let mut pieces = Pieces::new(output, form, page)?;
    let first = pieces.next(MAX_UNCHUNKED_BYTES)?.unwrap_or_default();
    if pieces.is_over() {
        return Ok(respond::bytes(StatusCode::OK, media, first));
    }
    let mut response = respond::bytes(StatusCode::OK, media, Bytes::new());
    *response.body_mut() = Body::stream(YieldingBody {
        first,
        pieces,
        has_sent: false,
    });
    Ok(response)
}

/// The body of a long list. It yields after each piece, so that small requests do not wait for
/// large ones.
struct YieldingBody {
    first: Bytes,
    pieces: Pieces,
    has_sent: bool,
}

impl Stream for YieldingBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.has_sent) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let this = &mut *self;
        let piece = match this.first.len() {
            // A panic ends the response, not the connection's task, which may serve other streams.
            0 => catch_unwind(AssertUnwindSafe(|| this.pieces.next(PIECE)))
                .unwrap_or_else(|_| Err(Status::internal("a list made the server panic"))),
            left => Ok(Some(this.first.split_to(left.min(PIECE)))),
        };
        let piece = piece
            .map_err(|status| BodyError::from(status.message))
            .transpose();
        this.has_sent = piece.is_some();
        Poll::Ready(piece)
    }
}
