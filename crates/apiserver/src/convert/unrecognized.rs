//! Error messages for bodies of another kind than expected, in upstream's words. Used only for
//! rejected bodies, which are decoded a second time for this.

use machinery::{
    Object, Status, Value,
    decode::{self, Format, TypeMeta},
    field::{Error, Path},
    text::quote,
};

use super::{PartType, decode_as, unreadable, unreadable_as};
use crate::{Resource, media};

/// How many bytes of a body an error message shows.
const SHOWN: usize = 30;

/// The apiVersion and kind that a body states.
#[derive(Default)]
pub(super) struct Given {
    pub(super) api_version: String,
    pub(super) kind: String,
}

impl Given {
    pub(super) fn version(&self) -> &str {
        self.group_and_version().1
    }

    fn group_and_version(&self) -> (&str, &str) {
        self.api_version
            .split_once('/')
            .unwrap_or(("", &self.api_version))
    }
}

/// Whether a decoded body states the resource's apiVersion and kind, or none.
pub(super) fn is_own(resource: &Resource, object: &Object) -> bool {
    let own = (resource.api_version.as_str(), &*resource.kind.names().kind);
    has_type(object, own)
}

/// Whether an object states this apiVersion and kind, or none.
pub(super) fn has_type(object: &Object, (api_version, kind): (&str, &str)) -> bool {
    let says = |key: &str, own: &str| match object.get(key) {
        None | Some(Value::Null) => true,
        Some(value) => value
            .as_str()
            .is_some_and(|text| text.is_empty() || text == own),
    };
    says("apiVersion", api_version) && says("kind", kind)
}

/// Whether a decoded body states both apiVersion and kind.
pub(super) fn says_all(object: &Object) -> bool {
    let says = |key: &str| {
        object
            .get(key)
            .and_then(Value::as_str)
            .is_some_and(|s| !s.is_empty())
    };
    says("apiVersion") && says("kind")
}

/// The apiVersion and kind that a body states, or why they cannot be read.
pub(super) fn version_and_kind(media: media::Body, bytes: &[u8]) -> Result<Given, String> {
    let meta = match media {
        media::Body::Protobuf => {
            machinery::protobuf::decode(bytes).map_err(|error| error.to_string())?;
            return Ok(Given::default());
        }
        media::Body::Json => TypeMeta::from_json(bytes)?,
        media::Body::Yaml => TypeMeta::from_value(decode::tree(Format::Yaml, bytes)?.0)?,
    };
    Ok(Given {
        api_version: meta.api_version,
        kind: meta.kind,
    })
}

/// 400 for a rejected body.
pub(super) fn explain(resource: &Resource, media: media::Body, bytes: &[u8]) -> Status {
    let own = &resource.kind.names().kind;
    let mut given = match version_and_kind(media, bytes) {
        Ok(given) => given,
        Err(why) => return unrecognized(own, &why, bytes),
    };
    if resource.custom {
        return explain_custom(resource, &given, media, bytes);
    }
    if given.kind.is_empty() {
        given.kind.clone_from(own);
    }
    if given.api_version.is_empty() {
        given.api_version.clone_from(&resource.api_version);
    }
    if given.kind == *own && given.api_version == resource.api_version {
        let why = decode_as(resource.schema, media, bytes).err();
        return unreadable(resource, &why.unwrap_or_default());
    }
    of_another_kind(resource, &given, media, bytes)
}

/// Why a body is not a custom object of the resource: custom objects must state apiVersion and
/// kind.
fn explain_custom(resource: &Resource, given: &Given, media: media::Body, bytes: &[u8]) -> Status {
    let own = &resource.kind.names().kind;
    if given.kind.is_empty() {
        let why = format!(
            "Object 'Kind' is missing in '{}'",
            String::from_utf8_lossy(bytes)
        );
        return unrecognized(own, &why, bytes);
    }
    let decoded = match decode_as(None, media, bytes) {
        Ok(decoded) => decoded.object,
        Err(why) => return unreadable_as(&given.kind, given.version(), own, &why),
    };
    if given.api_version != resource.api_version {
        return Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            given.api_version, resource.api_version
        ));
    }
    let why = format!("must be {own}");
    let error = Error::invalid(&Path::new("kind"), given.kind.as_str(), why);
    let name = crate::meta::text(&decoded, "name");
    Status::invalid(&resource.group, &given.kind, name, &[error])
}

/// 400 for a body of another kind: it decodes as that kind, and then does not convert.
fn of_another_kind(resource: &Resource, given: &Given, media: media::Body, bytes: &[u8]) -> Status {
    let own = &resource.kind.names().kind;
    if given.kind == *own && given.group_and_version().0 == resource.group {
        return Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            given.api_version, resource.api_version
        ));
    }
    let schema = built_in_kind(given).and_then(|kind| machinery::schema::lookup(kind.schema()?));
    let unread = schema.and_then(|schema| decode_as(Some(schema), media, bytes).err());
    let why = unread.unwrap_or_else(|| no_conversion(media::go_package(resource), own, given));
    of_another(own, given, &why)
}

fn of_another(own: &str, given: &Given, why: &str) -> Status {
    let (kind, version) = (&given.kind, quote(given.version()));
    Status::bad_request(format!(
        "{kind} in version {version} cannot be handled as a {own}: {why}"
    ))
}

/// 400 for the body of a subresource that states another kind; `None` if it states the right one.
pub(super) fn explain_part(part: &PartType, media: media::Body, bytes: &[u8]) -> Option<Status> {
    let mut given = match version_and_kind(media, bytes) {
        Ok(given) => given,
        Err(why) => return Some(unrecognized(part.kind, &why, bytes)),
    };
    if given.kind.is_empty() {
        part.kind.clone_into(&mut given.kind);
    }
    if given.api_version.is_empty() {
        part.api_versions[0].clone_into(&mut given.api_version);
    }
    if given.kind == part.kind && part.api_versions.contains(&given.api_version.as_str()) {
        return None;
    }
    let schema = built_in_kind(&given).and_then(|kind| machinery::schema::lookup(kind.schema()?));
    let unread = schema.and_then(|schema| decode_as(Some(schema), media, bytes).err());
    let why = unread.unwrap_or_else(|| no_conversion(part.package, part.kind, &given));
    Some(of_another(part.kind, &given, &why))
}

/// The built-in kind that a body states.
fn built_in_kind(given: &Given) -> Option<&'static dyn kinds::Kind> {
    let (group, version) = given.group_and_version();
    kinds::all().iter().copied().find(|kind| {
        let names = kind.names();
        (names.group == group && names.version == version) && names.kind == given.kind
    })
}

/// The message for an object of another known kind that does not convert to the resource's kind.
fn no_conversion(package: &str, own: &str, given: &Given) -> String {
    let (group, version) = given.group_and_version();
    let list = given.kind == "List" && given.api_version == "v1"
        || kinds::all().iter().any(|kind| {
            let names = kind.names();
            (names.group == group && names.version == version) && names.list_kind == given.kind
        });
    if !list && built_in_kind(given).is_none() {
        return format!(
            "no kind {} is registered for version {}",
            quote(&given.kind),
            quote(&given.api_version),
        );
    }
    format!(
        "converting ({version}.{}) to ({package}.{own}): unknown conversion",
        given.kind
    )
}

/// The message for an object whose kind a patch changed.
pub(super) fn does_not_convert(
    package: &str,
    api_version: &str,
    own: &str,
    object: &Object,
) -> String {
    let text = |key: &str, own: &str| match object.get(key).and_then(Value::as_str) {
        None | Some("") => own.to_owned(),
        Some(text) => text.to_owned(),
    };
    let given = Given {
        api_version: text("apiVersion", api_version),
        kind: text("kind", own),
    };
    no_conversion(package, own, &given)
}

/// 400: the body has no known kind.
pub(super) fn unrecognized(own: &str, why: &str, bytes: &[u8]) -> Status {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    let summary = match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {own}): {why} ({summary}{more})"
    ))
}
