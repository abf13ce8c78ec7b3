//! Decodes the result of a merge or JSON patch as the built-in kind. The patch may have changed
//! apiVersion or kind.

use machinery::{
    Object, Value,
    decode::{Decoded, Findings},
    json::Key,
    normalise,
    schema::Type,
};

use super::{PartType, unrecognized};
use crate::{Resource, media};

/// Decodes an object of a resource, or says why it is not one.
pub(crate) fn of_resource(resource: &Resource, object: Object) -> Result<Decoded, String> {
    if let Some(unread) = without_version(&object) {
        return Ok(unread);
    }
    if !unrecognized::is_own(resource, &object) {
        let kind = &resource.kind.names().kind;
        let package = media::go_package(resource);
        let version = &resource.api_version;
        return Err(unrecognized::does_not_convert(
            package, version, kind, &object,
        ));
    }
    resource.normalise(object)
}

/// Decodes the body of a subresource, or says why it is not one.
pub(crate) fn of_part(
    part: &PartType,
    schema: &'static Type,
    object: Object,
) -> Result<Decoded, String> {
    if let Some(unread) = without_version(&object) {
        return Ok(unread);
    }
    let own = (part.api_versions[0], part.kind);
    if !unrecognized::has_type(&object, own) {
        let (version, kind) = own;
        return Err(unrecognized::does_not_convert(
            part.package,
            version,
            kind,
            &object,
        ));
    }
    let mut findings = Findings::default();
    let object = normalise::object(schema, Value::Object(object), &mut findings)?;
    Ok(Decoded { object, findings })
}

/// A built-in kind without apiVersion decodes to an object without fields, as upstream.
fn without_version(object: &Object) -> Option<Decoded> {
    if matches!(object.get("apiVersion"), Some(Value::String(version)) if !version.is_empty()) {
        return None;
    }
    let mut findings = Findings::default();
    let fields = object.keys().map(Key::as_str);
    for field in fields.filter(|field| !matches!(*field, "apiVersion" | "kind")) {
        findings.unknown(field);
    }
    let object = Object::new();
    Some(Decoded { object, findings })
}
