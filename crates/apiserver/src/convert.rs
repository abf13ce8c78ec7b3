//! From bytes on the wire to objects, by the schema.

use machinery::{
    Object, Status, Value,
    decode::{self, Findings, Format},
    normalise, protobuf,
    schema::{self, Type},
};

use crate::{Resource, media, write::DeleteOptions};

/// How unknown and duplicate fields are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

impl FieldValidation {
    /// Reads the query parameter.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, Status> {
        match text {
            None | Some("") => Ok(Self::default()),
            Some("Ignore") => Ok(Self::Ignore),
            Some("Warn") => Ok(Self::Warn),
            Some("Strict") => Ok(Self::Strict),
            Some(other) => {
                let path = machinery::field::Path::new("fieldValidation");
                let known = ["Ignore", "Warn", "Strict"];
                let error = machinery::field::Error::not_supported(&path, other, &known);
                Err(Status::invalid(
                    "meta.k8s.io",
                    "CreateOptions",
                    "",
                    &[error],
                ))
            }
        }
    }
}

/// A decoded body and what to warn about.
pub(crate) struct Decoded {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
}

/// Decodes a body of the resource's kind.
pub(crate) fn decode(
    resource: &Resource,
    media: media::Body,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    if bytes.is_empty() {
        return Err(unreadable(resource, "unexpected end of JSON input"));
    }
    let decoded = decode_as(resource.schema, media, bytes);
    judge(
        resource,
        decoded.map_err(|why| unreadable(resource, &why))?,
        validation,
    )
}

fn decode_as(
    schema: Option<&'static Type>,
    media: media::Body,
    bytes: &[u8],
) -> Result<decode::Decoded, String> {
    match (media, schema) {
        (media::Body::Json, _) => decode::object(Format::Json, bytes, schema),
        (media::Body::Yaml, _) => decode::object(Format::Yaml, bytes, schema),
        (media::Body::Protobuf, Some(schema)) => {
            let envelope = protobuf::decode(bytes).map_err(|error| error.to_string())?;
            let object =
                protobuf::decode_message(schema, &envelope).map_err(|error| error.to_string())?;
            let mut findings = Findings::default();
            let object = normalise::object(schema, Value::Object(object), &mut findings)?;
            Ok(decode::Decoded {
                object,
                findings: Findings::default(),
            })
        }
        (media::Body::Protobuf, None) => Err("this kind has no protobuf form".to_owned()),
    }
}

/// Decodes a body that is no object of a resource, by its type, such as `core/v1.Binding`.
pub(crate) fn decode_type(name: &str, media: media::Body, bytes: &[u8]) -> Result<Object, Status> {
    let kind = name.rsplit('.').next().unwrap_or_default();
    let decoded = decode_as(schema::lookup(name), media, bytes).map_err(|why| {
        Status::bad_request(format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: {why}"
        ))
    })?;
    Ok(decoded.object)
}

/// Normalises an object that was made of an old one by a patch.
pub(crate) fn normalise(
    resource: &Resource,
    object: Object,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let mut findings = Findings::default();
    let value = Value::Object(object);
    let object = match resource.schema {
        Some(schema) => normalise::object(schema, value, &mut findings),
        None => normalise::unstructured(value, &mut findings),
    };
    let object = object.map_err(|why| unreadable(resource, &why))?;
    judge(resource, decode::Decoded { object, findings }, validation)
}

/// Turns findings into warnings or a refusal.
fn judge(
    resource: &Resource,
    decoded: decode::Decoded,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let decode::Decoded {
        mut object,
        mut findings,
    } = decoded;
    if let Some(definition) = &resource.definition {
        definition.prune(&mut object, &mut findings);
    }
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => findings.sentences().to_vec(),
        FieldValidation::Strict if findings.is_empty() => Vec::new(),
        FieldValidation::Strict => return Err(unreadable(resource, &findings.strict_error())),
    };
    Ok(Decoded { object, warnings })
}

fn unreadable(resource: &Resource, why: &str) -> Status {
    let kind = &resource.kind.names().kind;
    Status::bad_request(format!(
        "{kind} in version {:?} cannot be handled as a {kind}: {why}",
        resource.version
    ))
}

/// The options of a deletion.
pub(crate) fn delete_options(media: media::Body, bytes: &[u8]) -> Result<DeleteOptions, Status> {
    let refuse = |why: String| {
        Status::bad_request(format!(
            "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {why}"
        ))
    };
    let value = match media {
        media::Body::Protobuf => {
            decode_type("meta/v1.DeleteOptions", media, bytes).map(Value::Object)?
        }
        media::Body::Json => decode::tree(Format::Json, bytes).map_err(refuse)?.0,
        media::Body::Yaml => decode::tree(Format::Yaml, bytes).map_err(refuse)?.0,
    };
    if value.is_null() {
        return Ok(DeleteOptions::default());
    }
    machinery::json::from_value(value).map_err(|error| refuse(error.to_string()))
}

/// Refuses a body of another kind; fills in what was left out.
pub(crate) fn settle_kind(resource: &Resource, object: &mut Object) -> Result<(), Status> {
    let kind = &resource.kind.names().kind;
    let text = |object: &Object, key: &str| {
        object
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (given_version, given_kind) = (text(object, "apiVersion"), text(object, "kind"));
    let version_fits = given_version.is_empty() || given_version == resource.api_version;
    let kind_fits = given_kind.is_empty() || given_kind == *kind;
    if !version_fits || !kind_fits {
        return Err(Status::bad_request(format!(
            "{given_kind} in version {given_version:?} cannot be handled as a {kind}: the body must be of apiVersion {:?} and kind {kind:?}",
            resource.api_version
        )));
    }
    object.insert("apiVersion".to_owned(), resource.api_version.clone().into());
    object.insert("kind".to_owned(), kind.clone().into());
    Ok(())
}
