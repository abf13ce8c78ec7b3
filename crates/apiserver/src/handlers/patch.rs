//! Patch: the stored object is changed by the body and written like an update; a lost race starts
//! over from the newest object.

use std::sync::Arc;

use bytes::Bytes;
use machinery::{
    Object, Status, Value,
    decode::{self, Format},
    patch,
    schema::Type,
};

use super::{
    apply,
    body::{self, WriteOptions},
    objects, owners, read,
};
use crate::{
    Resource,
    convert::{self, FieldValidation},
    media,
    pipeline::Request,
    respond::Answer,
    write::{self, Change},
};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const TYPES: &[&str] = &[JSON, MERGE, STRATEGIC, APPLY];

/// What the body is.
pub(crate) enum Patch {
    Json(Value),
    Merge(Object),
    Strategic(&'static Type, Object),
}

impl Patch {
    /// Reads a patch; `schema` is the type it will be applied to.
    pub(crate) fn parse(
        schema: Option<&'static Type>,
        media: &str,
        bytes: &Bytes,
    ) -> Result<Self, Status> {
        let unreadable = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
        let tree = || {
            decode::tree(Format::Json, bytes)
                .map(|(tree, _)| tree)
                .map_err(unreadable)
        };
        let object = || match tree()? {
            Value::Object(object) => Ok(object),
            _ => Err(unreadable("the patch is no object".to_owned())),
        };
        match (media, schema) {
            (JSON, _) => tree().map(Self::Json),
            (MERGE, _) => object().map(Self::Merge),
            (STRATEGIC, Some(schema)) => Ok(Self::Strategic(schema, object()?)),
            _ => {
                let without = |media: &&&str| schema.is_some() || **media != STRATEGIC;
                let known: Vec<&str> = TYPES.iter().filter(without).copied().collect();
                Err(Status::unsupported_media_type(&known))
            }
        }
    }

    /// The object that comes of it.
    pub(crate) fn apply(&self, old: &Object) -> Result<Object, Status> {
        match self {
            Self::Json(operations) => {
                patch::json::apply(old, operations).map_err(|error| match error {
                    patch::json::Error::DoesNotApply(why) => rejected(&why),
                    other => Status::bad_request(other.to_string()),
                })
            }
            Self::Merge(patch) => {
                let mut object = old.clone();
                patch::merge::apply(&mut object, patch.clone());
                Ok(object)
            }
            Self::Strategic(schema, patch) => {
                patch::strategic::apply(schema, old, patch).map_err(Status::bad_request)
            }
        }
    }
}

/// 422: the patch does not fit the object.
fn rejected(why: &str) -> Status {
    let mut status = Status::bad_request(format!(
        "the server rejected our request due to an error in our request: {why}"
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
        let duplicates = owners::dedup(&mut decoded.object, owners::AFTER_PATCH);
        decoded.warnings.extend(duplicates);
        *self.warnings.lock() = decoded.warnings;
        Ok(decoded.object)
    }
}

pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    let output = read::output(&request, &resource)?;
    let media = media::content_type(&request.parts.headers);
    if media == APPLY {
        return apply::serve(request, resource).await;
    }
    if request.query.get("force").is_some() {
        return Err(apply::refuse(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    let bytes = body::take(&request).await?;
    let parsed = Patch::parse(resource.schema, &media, &bytes)?;
    let write = objects::write(&request, &resource, &options);
    let change = Patched {
        resource,
        patch: parsed,
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
