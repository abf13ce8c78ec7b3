//! What a custom object says that it is after a patch. It has to say something; what it says counts
//! only where the whole object is written, not its status.

use machinery::{
    Object, Status, Value,
    decode::TypeMeta,
    field::{Error, Errors, Path},
};

use crate::{Resource, meta};

/// Another kind or version than that of the resource.
pub(crate) struct Claim {
    api_version: String,
    kind: String,
}

/// Why an object cannot be taken for one of any kind.
pub(super) enum Unreadable {
    /// The patch leaves nothing that can be read.
    Invalid(String),
    /// It does not say of which version it is.
    NoVersion,
}

/// What an object says that it is, where that is something else than the resource's kind.
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

/// The object without what is inside of its fields: managed fields lie deeper than a body may.
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
    /// 422 for an object of the resource that says that it is none.
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
