//! Decodes request bodies into objects by the schema.

pub(crate) mod patched;
mod unrecognized;

use machinery::{
    Object, Status, Value,
    decode::{self, Findings, Format},
    field, normalise, protobuf,
    schema::{self, Type},
};

use crate::{Resource, media, write::DeleteOptions};

/// The `fieldValidation` of a request: how unknown and duplicate fields are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

impl FieldValidation {
    /// Reads the query parameter.
    pub(crate) fn parse(text: Option<&str>, errors: &mut field::Errors) -> Self {
        match text.unwrap_or_default() {
            "" => Self::default(),
            "Ignore" => Self::Ignore,
            "Warn" => Self::Warn,
            "Strict" => Self::Strict,
            other => {
                let path = field::Path::new("fieldValidation");
                let known = ["", "Ignore", "Strict", "Warn"];
                errors.push(field::Error::not_supported(&path, other, &known));
                Self::default()
            }
        }
    }
}

/// A decoded body, with warnings.
pub(crate) struct Decoded {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
}

/// Decodes a body of the resource's kind. apiVersion and kind are optional, except for custom
/// resources.
pub(crate) fn decode(
    resource: &Resource,
    media: media::Body,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let decoded = decode_as(resource.schema, media, bytes)
        .ok()
        .filter(|decoded| unrecognized::is_own(resource, &decoded.object))
        .filter(|decoded| !resource.custom || unrecognized::says_all(&decoded.object));
    let Some(decoded) = decoded else {
        return Err(unrecognized::explain(resource, media, bytes));
    };
    let mut decoded = check_decoded(resource, decoded, validation)?;
    resource.name_kind(&mut decoded.object);
    Ok(decoded)
}

pub(crate) fn decode_as(
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

/// The type of a subresource's body, where it is not the resource itself.
pub(crate) struct PartType {
    /// Its type's name in the schema table.
    schema: &'static str,
    /// The first is the default of a body without apiVersion.
    api_versions: &'static [&'static str],
    kind: &'static str,
    /// Upstream's Go package of the type, for error messages.
    package: &'static str,
}

impl PartType {
    /// The type in the schema table.
    pub(crate) fn schema(&self) -> Result<&'static Type, Status> {
        schema::lookup(self.schema)
            .ok_or_else(|| Status::internal(format!("the schema table has no {}", self.kind)))
    }
}

pub(crate) const BINDING: PartType = PartType {
    schema: "core/v1.Binding",
    api_versions: &["v1"],
    kind: "Binding",
    package: "core",
};
pub(crate) const EVICTION: PartType = PartType {
    schema: "policy/v1.Eviction",
    api_versions: &["policy/v1", "policy/v1beta1"],
    kind: "Eviction",
    package: "policy",
};
pub(crate) const SCALE: PartType = PartType {
    schema: "autoscaling/v1.Scale",
    api_versions: &["autoscaling/v1"],
    kind: "Scale",
    package: "autoscaling",
};
pub(crate) const TOKEN_REQUEST: PartType = PartType {
    schema: "authentication/v1.TokenRequest",
    api_versions: &["authentication.k8s.io/v1"],
    kind: "TokenRequest",
    package: "authentication",
};

/// Decodes the body of a subresource.
pub(crate) fn decode_part(
    part: &PartType,
    media: media::Body,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    if let Some(refused) = unrecognized::explain_part(part, media, bytes) {
        return Err(refused);
    }
    let refuse = |why: &str| {
        let kind = part.kind;
        Status::bad_request(format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: {why}"
        ))
    };
    let decoded = decode_as(schema::lookup(part.schema), media, bytes);
    let decode::Decoded { object, findings } = decoded.map_err(|why| refuse(&why))?;
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Strict if !findings.is_empty() => {
            return Err(refuse(&findings.strict_error()));
        }
        _ => findings.sentences().to_vec(),
    };
    Ok(Decoded { object, warnings })
}

/// Turns decoding findings into warnings or an error.
fn check_decoded(
    resource: &Resource,
    decoded: decode::Decoded,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let decode::Decoded {
        mut object,
        mut findings,
    } = decoded;
    if let Some(definition) = &resource.definition {
        definition
            .prune_with_nulls(&mut object, &mut findings)
            .map_err(|why| unreadable(resource, &why))?;
    }
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => findings.sentences().to_vec(),
        FieldValidation::Strict if findings.is_empty() => Vec::new(),
        FieldValidation::Strict => return Err(unreadable(resource, &findings.strict_error())),
    };
    Ok(Decoded { object, warnings })
}

/// 400: the body has the right kind but cannot be decoded.
fn unreadable(resource: &Resource, why: &str) -> Status {
    let kind = &resource.kind.names().kind;
    unreadable_as(kind, &resource.version, kind, why)
}

/// 400: the body claims a kind and version but cannot be decoded as the expected kind.
fn unreadable_as(kind: &str, version: &str, own: &str, why: &str) -> Status {
    Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {own}: {why}"
    ))
}

/// Decodes DeleteOptions.
pub(crate) fn delete_options(media: media::Body, bytes: &[u8]) -> Result<DeleteOptions, Status> {
    unrecognized::version_and_kind(media, bytes)
        .map_err(Status::bad_request)
        .and_then(|given| match given.kind.as_str() {
            "" | "DeleteOptions" => Ok(()),
            other => Err(Status::bad_request(format!(
                "no kind {other:?} is registered for version {:?}",
                given.api_version
            ))),
        })?;
    let schema = schema::lookup("meta/v1.DeleteOptions");
    let decoded = decode_as(schema, media, bytes).map_err(Status::bad_request)?;
    machinery::json::from_value(Value::Object(decoded.object))
        .map_err(|error| Status::bad_request(error.to_string()))
}
