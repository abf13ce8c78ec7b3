//! The apiVersion and kind of a custom object after a patch. Both are required; a difference
//! matters only if the whole object is written, not for its status.

use machinery::{
    Object, Status, Value,
    decode::TypeMeta,
    field::{Error, Errors, Path},
};

use crate::{Resource, meta};

/// An apiVersion or kind that differs from the resource's.
pub(crate) struct Claim {
    api_version: String,
    kind: String,
}

/// Why a patched object has no readable apiVersion and kind.
pub(super) enum Unreadable {
    /// The patched object cannot be decoded.
    Invalid(String),
    /// It has no apiVersion.
    NoVersion,
}

/// The apiVersion and kind of an object if they differ from the resource's.
pub(super) fn read(resource: &Resource, object: &Object) -> Result<Option<Claim>, Unreadable> {
    let shown = super::sorted(&shallow(object));
    let meta = TypeMeta::from_json(shown.as_bytes()).map_err(Unreadable::Invalid)?;
    let TypeMeta { api_version, kind } = meta;
    if kind.is_empty() {
        let why = format!("Object 'Kind' is missing in '{}'", super::sorted(object));
        return Err(Unreadable::Invalid(why));
    }
    if api_version.is_empty() {
        return Err(Unreadable::NoVersion);
    }
    let own = api_version == resource.api_version && kind == resource.kind.names().kind;
    Ok((!own).then_some(Claim { api_version, kind }))
}

/// The object with its nested values emptied: managed fields are nested deeper than the decoder
/// allows for a body.
fn shallow(object: &Object) -> Object {
    let emptied = |value: &Value| match value {
        Value::Object(_) => Value::Object(Object::new()),
        Value::Array(_) => Value::Array(Vec::new()),
        plain => plain.clone(),
    };
    let fields = object.iter();
    fields
        .map(|(name, value)| (name.clone(), emptied(value)))
        .collect()
}

impl Claim {
    /// 422 for an object that states another apiVersion or kind than the resource's.
    pub(super) fn refuse(&self, resource: &Resource, object: &Object) -> Status {
        let mut errors = Errors::new();
        let kind = &resource.kind.names().kind;
        for (field, given, own) in [
            ("kind", &self.kind, kind),
            ("apiVersion", &self.api_version, &resource.api_version),
        ] {
            if given != own {
                let why = format!("must be {own}");
                errors.push(Error::invalid(&Path::new(field), given.as_str(), why));
            }
        }
        let group = self.api_version.split_once('/').map_or("", |(g, _)| g);
        Status::invalid(group, &self.kind, meta::text(object, "name"), &errors)
    }
}
