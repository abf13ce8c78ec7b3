//! Patch: the stored object is changed by the body and written like an update; a conflict starts
//! over from the newest object.

mod claim;

use std::sync::Arc;

use bytes::Bytes;
use machinery::{
    Object, Status, Value,
    decode::{self, Findings, Format},
    field, normalise, patch,
    schema::Type,
    text,
};

use claim::{Claim, Unreadable};

use super::{
    apply,
    body::{self, Verb, WriteOptions},
    objects, read,
};
use crate::{
    Resource,
    convert::{self, FieldValidation, patched},
    media, meta,
    pipeline::Request,
    respond::Answer,
    write::{self, WritePath},
};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// The message for a body that is not a merge patch.
const NO_MERGE: &str = "Invalid JSON Patch";

/// A patch as received, with its type.
pub(crate) struct Received {
    media: String,
    bytes: Bytes,
    validation: FieldValidation,
}

/// A parsed patch.
enum Patch {
    Json(Value),
    Merge(Object),
    Strategic(Object),
}

/// An object after a patch.
pub(crate) struct Patched {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
    /// The apiVersion and kind it states, if they differ from the resource's.
    claim: Option<Claim>,
}

/// The target of a patch: objects of a type in the schema table, or of a definition.
pub(crate) enum Target<'a> {
    Resource(&'a Resource),
    /// The body of a subresource, and its type.
    Part(&'static convert::PartType, &'static Type),
}

impl Target<'_> {
    fn schema(&self) -> Option<&'static Type> {
        match self {
            Self::Resource(resource) => resource.schema,
            Self::Part(_, schema) => Some(schema),
        }
    }
}

impl Received {
    /// Reads a patch that is not server-side apply.
    pub(crate) async fn from_request(
        request: &Request,
        has_schema: bool,
        validation: FieldValidation,
    ) -> Result<Self, Status> {
        let media = media::content_type(&request.parts.headers);
        check_type(&media, has_schema)?;
        Ok(Self {
            media,
            bytes: body::read(request).await?,
            validation,
        })
    }

    /// The patch, and findings of strict validation.
    fn parse(&self) -> Result<(Patch, Vec<String>), Status> {
        let strict = self.validation != FieldValidation::Ignore;
        let prefix = match self.media.as_str() {
            STRATEGIC => "",
            _ if strict => "error decoding patch: ",
            _ => "",
        };
        let unreadable = |why: String| Status::bad_request(format!("{prefix}{why}"));
        let (tree, findings) = decode::tree(Format::Json, &self.bytes).map_err(|why| {
            let merges = self.media == MERGE && !strict;
            unreadable(if merges { NO_MERGE.to_owned() } else { why })
        })?;
        let mut field_errors = findings.sentences().to_vec();
        let object = |tree: Value| match tree {
            Value::Object(object) => Ok(object),
            Value::Null => Ok(Object::new()),
            other => Err(unreadable(format!(
                "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                patch::json::go_kind(&other)
            ))),
        };
        // Null, and without strict validation any scalar, is not a merge patch.
        let is_scalar = !matches!(tree, Value::Object(_) | Value::Array(_));
        if self.media == MERGE && (tree.is_null() || !strict && is_scalar) {
            return Err(Status::bad_request("Invalid JSON Patch"));
        }
        let patch = match self.media.as_str() {
            MERGE => Patch::Merge(match tree {
                Value::Null => return Err(Status::bad_request(NO_MERGE)),
                // Without strict validation, upstream takes a list as the patched result, and then
                // fails to decode it.
                Value::Array(items) if !strict => return Err(no_object(items)),
                Value::String(_) | Value::Number(_) | Value::Bool(_) if !strict => {
                    return Err(Status::bad_request(NO_MERGE));
                }
                tree => object(tree)?,
            }),
            STRATEGIC => Patch::Strategic(object(tree)?),
            _ => {
                let unknown = patch::json::check(&tree, strict).map_err(unreadable)?;
                field_errors = field_errors.into_iter().chain(unknown).collect();
                field_errors
                    .iter_mut()
                    .for_each(|sentence| sentence.insert_str(0, "json patch "));
                Patch::Json(tree)
            }
        };
        Ok((patch, if strict { field_errors } else { Vec::new() }))
    }

    /// Applies the patch to an object.
    pub(crate) fn apply(&self, target: &Target<'_>, old: &Object) -> Result<Patched, Status> {
        let (mut patch, mut field_errors) = self.parse()?;
        let patched = patch.apply(target.schema(), old)?;
        let custom = matches!(target, Target::Resource(resource) if resource.custom);
        let invalid = |why: String| invalid(&patch, &patched, custom, why);
        let claim = match target {
            Target::Resource(resource) if resource.custom => claim::read(resource, &patched)
                .map_err(|refused| match refused {
                    Unreadable::Invalid(why) => invalid(why),
                    Unreadable::NoVersion => Status::internal(
                        "Object 'apiVersion' is missing in 'object has no apiVersion field'",
                    ),
                })?,
            _ => None,
        };
        let decoded = match (&patch, target) {
            (Patch::Strategic(_), _) => match target.schema() {
                Some(schema) => {
                    let mut findings = Findings::default();
                    let tree = Value::Object(patched.clone());
                    normalise::converted(schema, tree, &mut findings)
                        .map(|object| decode::Decoded { object, findings })
                }
                None => Err("this kind has no strategic merge patch".to_owned()),
            },
            (_, Target::Resource(resource)) if resource.custom => {
                resource.normalise(patched.clone())
            }
            (_, Target::Resource(resource)) => patched::of_resource(resource, patched.clone()),
            (_, Target::Part(part, schema)) => patched::of_part(part, schema, patched.clone()),
        };
        let decode::Decoded {
            mut object,
            findings,
        } = decoded.map_err(invalid)?;
        if let Target::Resource(resource) = target {
            resource.name_kind(&mut object);
        }
        field_errors.extend_from_slice(findings.sentences());
        let warnings = match self.validation {
            FieldValidation::Ignore => Vec::new(),
            FieldValidation::Warn => field_errors,
            FieldValidation::Strict if field_errors.is_empty() => field_errors,
            FieldValidation::Strict => {
                return Err(invalid(format!(
                    "strict decoding error: {}",
                    field_errors.join(", ")
                )));
            }
        };
        Ok(Patched {
            object,
            warnings,
            claim,
        })
    }
}

impl Patch {
    fn apply(&mut self, schema: Option<&'static Type>, old: &Object) -> Result<Object, Status> {
        match self {
            Self::Json(operations) => {
                patch::json::apply(old, operations).map_err(|error| match error {
                    patch::json::Error::DoesNotApply(_) | patch::json::Error::TestFailed(_) => {
                        rejected()
                    }
                    patch::json::Error::TooMany(why) => Status::request_entity_too_large(&why),
                    other => Status::bad_request(other.to_string()),
                })
            }
            Self::Merge(patch) => {
                let mut object = old.clone();
                patch::merge::apply(&mut object, patch.clone());
                Ok(object)
            }
            Self::Strategic(patch) => match schema {
                Some(schema) => {
                    patch::strategic::apply(schema, old, patch).map_err(|error| match error {
                        patch::strategic::Error::Malformed(why) => Status::bad_request(why),
                        patch::strategic::Error::ListOfLists => rejected(),
                        patch::strategic::Error::Unfit(why) => Status::unknown(why),
                    })
                }
                None => Err(Status::unsupported_media_type(&[JSON, MERGE, APPLY])),
            },
        }
    }
}

/// 422: the patched object does not decode as its kind. The message shows the result, or the patch
/// itself for a strategic merge.
fn invalid(patch: &Patch, patched: &Object, custom: bool, why: String) -> Status {
    let mut shown = patched.clone();
    let shown = match patch {
        _ if custom => sorted(patched),
        Patch::Strategic(patch) => text::plain(&Value::Object(patch.clone())),
        Patch::Merge(patch) => {
            sort_where_merged(&mut shown, patch);
            text::json(&Value::Object(shown))
        }
        Patch::Json(_) => {
            shown.sort_keys();
            text::json(&Value::Object(shown))
        }
    };
    let error = field::Error::invalid(&field::Path::new("patch"), shown, why);
    Status::invalid("", "", "", &[error])
}

/// A custom object as error messages show it, with sorted keys.
fn sorted(object: &Object) -> String {
    let mut shown = Value::Object(object.clone());
    normalise::sort(&mut shown);
    text::json(&shown)
}

/// 422: the result of a merge patch is a list.
fn no_object(mut items: Vec<Value>) -> Status {
    items.retain(|item| !item.is_null());
    let why = "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";
    let shown = text::json(&Value::Array(items));
    let error = field::Error::invalid(&field::Path::new("patch"), shown, why);
    Status::invalid("", "", "", &[error])
}

/// Sorts the keys of the objects that a merge patch touched, as upstream does.
fn sort_where_merged(object: &mut Object, patch: &Object) {
    for (key, below) in patch {
        match (object.get_mut(key), below) {
            (Some(Value::Object(object)), Value::Object(patch)) => sort_where_merged(object, patch),
            (Some(Value::Array(list)), Value::Array(_)) => list.iter_mut().for_each(sort_all),
            _ => {}
        }
    }
    object.sort_keys();
}

fn sort_all(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(sort_all);
            map.sort_keys();
        }
        Value::Array(list) => list.iter_mut().for_each(sort_all),
        _ => {}
    }
}

/// 422: the patch does not apply to the object. Upstream gives no reason.
fn rejected() -> Status {
    let why = "the server rejected our request due to an error in our request";
    let mut status = Status::failure(422, "Invalid", why);
    status.details = Some(machinery::status::Details::default());
    status
}

/// 415 for a media type that is not a patch.
fn check_type(media: &str, has_schema: bool) -> Result<(), Status> {
    match media {
        JSON | MERGE | APPLY => Ok(()),
        STRATEGIC if has_schema => Ok(()),
        _ if has_schema => Err(Status::refused_by_router(415, "")),
        _ => Err(Status::unsupported_media_type(&[JSON, MERGE, APPLY])),
    }
}

struct PatchChange {
    resource: Arc<Resource>,
    /// The object's name if the object itself is written, `None` for a subresource.
    whole: Option<String>,
    patch: Received,
    warnings: parking_lot::Mutex<Vec<String>>,
}

impl write::ObjectChange for PatchChange {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        let patched = self.patch.apply(&Target::Resource(&self.resource), old)?;
        *self.warnings.lock() = patched.warnings;
        let named = |name: &String| meta::text(&patched.object, "name") == name;
        match patched.claim {
            Some(claim) if self.whole.as_ref().is_some_and(named) => {
                Err(claim.refuse(&self.resource, &patched.object))
            }
            _ => Ok(patched.object),
        }
    }

    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }
}

pub(crate) async fn serve(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let media = media::content_type(&request.parts.headers);
    check_type(&media, resource.schema.is_some())?;
    let output = read::output(&writes.clock, &request, &resource)?;
    if media == APPLY {
        return apply::serve(writes, request, resource, output).await;
    }
    let has_schema = resource.schema.is_some();
    let mut patch =
        Received::from_request(&request, has_schema, FieldValidation::default()).await?;
    let options = WriteOptions::parse(&request, Verb::Patch)?;
    patch.validation = options.validation;
    let write = objects::requested_write(writes, &request, &resource, &options);
    let whole = write.subresource.is_empty().then(|| write.name.clone());
    let change = PatchChange {
        resource,
        whole,
        patch,
        warnings: parking_lot::Mutex::default(),
    };
    let task = async move { write::update(&write, &change).await };
    objects::respond(&output, writes.supervise(task).await?).await
}
