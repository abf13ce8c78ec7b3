//! Patch: the stored object is changed by the body and written like an update; a lost race starts
//! over from the newest object.

use std::sync::Arc;

use bytes::Bytes;
use machinery::{Object, Status, Value, schema::Type};

use super::{
    body::{self, WriteOptions},
    objects, read,
};
use crate::{
    Resource,
    convert::{self, FieldValidation},
    media,
    pipeline::Request,
    respond::Answer,
    write::{self, Change},
};

const TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// What the body is.
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
}

impl Patch {
    pub(crate) fn parse(
        _schema: Option<&'static Type>,
        media: &str,
        bytes: &Bytes,
    ) -> Result<Self, Status> {
        let unreadable = |error: serde_json::Error| {
            Status::bad_request(format!("error decoding patch: {error}"))
        };
        match media {
            "application/json-patch+json" => Ok(Self::Json(
                serde_json::from_slice(bytes).map_err(unreadable)?,
            )),
            "application/merge-patch+json" => Ok(Self::Merge(
                serde_json::from_slice(bytes).map_err(unreadable)?,
            )),
            _ => Err(Status::unsupported_media_type(TYPES)),
        }
    }

    /// The object that comes of it.
    pub(crate) fn apply(&self, old: &Object) -> Result<Object, Status> {
        let mut value = Value::Object(old.clone());
        match self {
            Self::Json(patch) => {
                json_patch::patch(&mut value, patch).map_err(|error| rejected(&error))?
            }
            Self::Merge(patch) => json_patch::merge(&mut value, patch),
        }
        match value {
            Value::Object(object) => Ok(object),
            _ => Err(Status::bad_request("the patch does not leave an object")),
        }
    }
}

/// 422: the patch does not fit the object.
fn rejected(error: &dyn std::fmt::Display) -> Status {
    let mut status = Status::bad_request(format!(
        "the server rejected our request due to an error in our request: {error}"
    ));
    status.code = 422;
    status.reason = "Invalid".to_owned();
    status
}

struct Patched {
    resource: Arc<Resource>,
    patch: Patch,
    validation: FieldValidation,
    warnings: parking_lot::Mutex<Vec<String>>,
}

impl Change for Patched {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        let object = self.patch.apply(old)?;
        let mut decoded = convert::normalise(&self.resource, object, self.validation)?;
        convert::settle_kind(&self.resource, &mut decoded.object)?;
        *self.warnings.lock() = decoded.warnings;
        Ok(decoded.object)
    }
}

pub(crate) async fn patch(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let output = read::output(&request, &resource)?;
    let media = media::content_type(&request.parts.headers);
    let bytes = body::take(&request).await?;
    let patch = Patch::parse(resource.schema, &media, &bytes)?;
    let write = objects::write(&request, &resource, &options);
    let change = Patched {
        resource,
        patch,
        validation: options.validation,
        warnings: parking_lot::Mutex::default(),
    };
    let core = request.core.clone();
    let task = async move {
        let mut written = write::update(&write, &change).await?;
        written.warnings.splice(0..0, change.warnings.into_inner());
        Ok(written)
    };
    Ok(objects::respond(&output, core.supervise(task).await?))
}
