//! Serializes objects for responses: as stored, as a Table, or only metadata.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use machinery::json::json;
use machinery::{
    Object, Status, Value, field, protobuf,
    schema::{self, Type},
};
use stdx::Clock;

use crate::{
    Body, Resource, Stored,
    audit::Ticket,
    media::{self, Encoding, NegotiatedForm, ResponseShape},
    query::Query,
    respond,
};

pub(crate) use request::respond::PROTOBUF;
/// The type of metadata alone.
const PARTIAL: &str = "meta/v1.PartialObjectMetadata";

/// The form in which one request wants objects.
#[derive(Clone)]
pub(crate) struct Output {
    pub(crate) resource: Arc<Resource>,
    pub(crate) wanted: NegotiatedForm,
    /// Which part of the object a Table's rows carry.
    include: Include,
    /// For ages in Tables: a watch lives longer than an age.
    clock: Arc<dyn Clock>,
    /// The audit record, if it includes responses.
    audit: Option<Arc<Ticket>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

/// Rejects unknown values of `includeObject`.
pub(crate) fn check_include(query: &Query) -> Result<(), Status> {
    match query.get("includeObject") {
        None | Some("" | "None" | "Object" | "Metadata") => Ok(()),
        Some(other) => {
            let path = field::Path::new("includeObject");
            let why = "must be 'Metadata', 'Object', 'None', or empty";
            let error = field::Error::invalid(&path, other, why);
            Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: {error}"
            )))
        }
    }
}

impl Output {
    pub(crate) fn new(
        resource: Arc<Resource>,
        wanted: NegotiatedForm,
        query: &Query,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let include = match query.get("includeObject") {
            Some("None") => Include::None,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        };
        Self {
            resource,
            wanted,
            include,
            clock,
            audit: None,
        }
    }

    /// Records responses in the audit log.
    pub(crate) fn audited(mut self, ticket: Option<&Arc<Ticket>>) -> Self {
        self.audit = ticket.filter(|ticket| ticket.wants_response()).cloned();
        self
    }

    /// Records a response, as JSON.
    pub(crate) fn note(&self, json: impl FnOnce() -> Bytes) {
        if let Some(ticket) = &self.audit {
            ticket.response(json);
        }
    }

    /// One complete object.
    pub(crate) fn object(&self, object: &Stored) -> Bytes {
        let served = self.resource.serve(object);
        match self.wanted.shape {
            ResponseShape::Object => served.bytes(),
            ResponseShape::Metadata { .. } => self.partial(&served),
            ResponseShape::Table => self.table(
                std::slice::from_ref(&object),
                true,
                json!({"resourceVersion": object.revision.to_string()}),
            ),
        }
    }

    /// The response with one object.
    pub(crate) fn respond(&self, code: StatusCode, object: &Stored) -> Response<Body> {
        // A write is already committed; the mismatch is reported all the same.
        if let Err(status) = media::check_list(self.wanted, false, &self.resource) {
            return respond::status(&status);
        }
        self.note(|| self.object(object));
        if let Some(bytes) = self.protobuf(object) {
            return respond::bytes(code, PROTOBUF, bytes);
        }
        self.encoded(code, self.object(object))
    }

    /// The message type, if protobuf is wanted.
    pub(crate) fn message_type(&self) -> Option<&'static Type> {
        if self.wanted.encoding != Encoding::Protobuf {
            return None;
        }
        match self.wanted.shape {
            ResponseShape::Metadata { .. } => schema::lookup(PARTIAL),
            _ => self.resource.schema,
        }
    }

    /// The kind and version of one object in the response.
    pub(crate) fn kind(&self) -> (&str, &str) {
        match self.wanted.shape {
            ResponseShape::Object => self.resource_kind(),
            ResponseShape::Metadata { .. } => ("PartialObjectMetadata", self.wanted.meta_version()),
            ResponseShape::Table => ("Table", self.wanted.meta_version()),
        }
    }

    /// The kind and version of the resource itself.
    pub(crate) fn resource_kind(&self) -> (&str, &str) {
        let names = self.resource.kind.names();
        (names.kind.as_str(), self.resource.api_version.as_str())
    }

    pub(crate) fn list_kind(&self) -> (&str, &str) {
        match self.wanted.shape {
            ResponseShape::Metadata { .. } => {
                ("PartialObjectMetadataList", self.wanted.meta_version())
            }
            _ => (
                self.resource.kind.names().list_kind.as_str(),
                self.resource.api_version.as_str(),
            ),
        }
    }

    /// One object as protobuf, if that is wanted.
    pub(crate) fn protobuf(&self, object: &Stored) -> Option<Vec<u8>> {
        let schema = self.message_type()?;
        let served = self.resource.serve(object);
        let (kind, version) = self.kind();
        Some(match self.wanted.shape {
            ResponseShape::Metadata { .. } => {
                protobuf::envelope(version, kind, &metadata_message(schema, &served))
            }
            _ => protobuf::envelope(version, kind, &served.message(schema)),
        })
    }

    /// An object's message as an item of a protobuf list.
    pub(crate) fn message(&self, schema: &'static Type, object: &Stored) -> Bytes {
        let served = self.resource.serve(object);
        match self.wanted.shape {
            ResponseShape::Metadata { .. } => metadata_message(schema, &served).into(),
            _ => served.message(schema),
        }
    }

    /// The response of a success without an object.
    pub(crate) fn status(&self, status: &Status) -> Response<Body> {
        match self.wanted.shape {
            ResponseShape::Object => respond::status_as(status, self.wanted.encoding),
            _ => respond::status(status),
        }
    }

    /// JSON, transcoded to the wanted encoding.
    pub(crate) fn encoded(&self, code: StatusCode, json: Bytes) -> Response<Body> {
        match self.wanted.encoding {
            Encoding::Json | Encoding::Protobuf => respond::line(code, &json),
            Encoding::Yaml => match crate::yaml::from_json(&json) {
                Ok(yaml) => respond::bytes(code, "application/yaml", yaml),
                Err(status) => respond::status(&status),
            },
        }
    }

    /// A list's metadata for the response.
    pub(crate) fn list_metadata(&self, mut metadata: Value) -> Value {
        // Lists of custom objects always have `continue`, as upstream.
        if self.resource.custom && self.wanted.shape == ResponseShape::Object {
            let fields = metadata.as_object_mut();
            fields.map(|fields| fields.entry("continue").or_insert_with(|| "".into()));
        }
        metadata
    }

    /// One item of a list.
    pub(crate) fn item(&self, object: &Stored, out: &mut BytesMut) {
        let object = &*self.resource.serve(object);
        match self.wanted.shape {
            ResponseShape::Metadata { .. } => out.put_slice(&self.partial(object)),
            _ if self.resource.custom => out.put_slice(&object.bytes()),
            _ => {
                out.put_u8(b'{');
                out.put_slice(&object.item());
            }
        }
    }

    /// A Table of objects.
    pub(crate) fn table(&self, objects: &[&Stored], with_columns: bool, metadata: Value) -> Bytes {
        let columns = match with_columns {
            true => self.columns(),
            false => Value::Null,
        };
        let rows: Vec<Value> = objects.iter().map(|object| self.row(object)).collect();
        self.table_of(columns, rows, metadata).to_string().into()
    }

    /// The column definitions of a Table.
    pub(crate) fn columns(&self) -> Value {
        let columns = self.resource.kind.columns();
        let columns = columns.iter().map(|column| {
            json!({
                "name": column.name, "type": column.kind, "format": column.format,
                "description": column.description, "priority": column.priority,
            })
        });
        columns.collect::<Vec<_>>().into()
    }

    /// A Table of finished rows.
    pub(crate) fn table_of(&self, columns: Value, rows: Vec<Value>, metadata: Value) -> Value {
        json!({
            "kind": "Table", "apiVersion": self.wanted.meta_version(), "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    /// Seconds since the epoch, for ages.
    pub(crate) fn now(&self) -> i64 {
        self.clock.now().as_second()
    }

    /// An object's metadata alone.
    fn partial(&self, object: &Stored) -> Bytes {
        let version = self.wanted.meta_version();
        let metadata = object.metadata();
        let mut out = BytesMut::with_capacity(metadata.len() + 96);
        out.put_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
        out.put_slice(version.as_bytes());
        out.put_slice(br#"","metadata":"#);
        out.put_slice(&metadata);
        out.put_u8(b'}');
        out.freeze()
    }

    /// An object as a row of a Table.
    pub(crate) fn row(&self, stored: &Stored) -> Value {
        let object: Object = self.resource.parse(stored);
        let cells = self.resource.kind.row(&object, self.now());
        let mut row = self.row_of(cells, &object);
        if let Some(conditions) = self.resource.kind.row_conditions(&object) {
            row["conditions"] = conditions;
        }
        row
    }

    /// A row with the part of its object that `includeObject` selects.
    pub(crate) fn row_of(&self, cells: Vec<Value>, object: &Object) -> Value {
        let beside = match self.include {
            Include::None => Value::Null,
            Include::Object => Value::Object(object.clone()),
            Include::Metadata => {
                let metadata = object.get("metadata").cloned().unwrap_or_default();
                json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": self.wanted.meta_version(),
                    "metadata": metadata,
                })
            }
        };
        json!({"cells": cells, "object": beside})
    }
}

/// An object's metadata alone, as a protobuf message.
fn metadata_message(schema: &'static Type, object: &Stored) -> Vec<u8> {
    let metadata = object.parse_metadata();
    let object = Object::from_iter([("metadata".to_owned(), metadata)]);
    protobuf::message(schema, &object)
}
