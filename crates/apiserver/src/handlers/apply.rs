//! Server-side apply: the body says what its manager wants; the rest of the object is others'.

use std::sync::Arc;

use bytes::Bytes;
use machinery::{
    Object, Status, Value, apply,
    decode::{self, Findings, Format},
    normalise,
};

use super::{
    body::{self, Verb, WriteOptions},
    objects,
};
use crate::{
    Resource,
    convert::FieldValidation,
    meta,
    output::Output,
    pipeline::Request,
    respond::Answer,
    write::{self, Change},
};

pub(crate) async fn serve(request: Request, resource: Arc<Resource>, output: Output) -> Answer {
    let bytes = body::take(&request).await?;
    let options = WriteOptions::parse(&request, Verb::Apply)?;
    let mut write = objects::write(&request, &resource, &options);
    write.tracked = true;
    let now = meta::time(request.core.config.clock.now());
    let force = request.query.flag("force");
    let core = request.core.clone();
    let task = async move {
        let change = Applied {
            resource: &resource,
            bytes,
            validation: options.validation,
            warnings: parking_lot::Mutex::default(),
            writer: write.writer(&now),
            force,
        };
        let updated = write::update(&write, &change).await;
        let warnings = change.warnings.into_inner();
        match updated {
            Ok(mut written) => {
                written.warnings.splice(0..0, warnings);
                Ok(written)
            }
            Err(status) => Err(status
                .warned(write.effects.take_warnings())
                .warned(warnings)),
        }
    };
    Ok(objects::respond(&output, core.supervise(task).await?))
}

/// The body as it was written: what is not in it is not applied, so it is checked but not filled.
/// Beside it, what the parser finds about keys that come twice.
fn configuration(resource: &Resource, bytes: &[u8]) -> Result<(Object, Findings), Status> {
    let unreadable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
    let (tree, twice) = decode::tree(Format::Yaml, bytes)
        .map_err(|why| unreadable(format!("error converting YAML to JSON: {why}")))?;
    let config = match tree {
        Value::Object(config) => config,
        Value::Null => Object::new(),
        other => {
            return Err(unreadable(format!(
                "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                machinery::patch::json::go_kind(&other)
            )));
        }
    };
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = &resource.kind.names().kind;
    if text("apiVersion") != resource.api_version || text("kind") != kind {
        let given = kind_text(text("apiVersion"), text("kind"));
        return Err(Status::bad_request(format!("invalid object type: {given}")));
    }
    Ok((config, twice))
}

/// A group, version and kind as Go prints them: `/v1, Kind=Pod`.
fn kind_text(api_version: &str, kind: &str) -> String {
    let core = if api_version.contains('/') { "" } else { "/" };
    format!("{core}{api_version}, Kind={kind}")
}

/// An object as complaints name it.
fn named(config: &Object) -> String {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (meta::text(config, "namespace"), meta::text(config, "name"));
    let kind = kind_text(text("apiVersion"), text("kind"));
    format!("({namespace}/{name}; {kind})")
}

struct Applied<'a> {
    resource: &'a Resource,
    bytes: Bytes,
    validation: FieldValidation,
    warnings: parking_lot::Mutex<Vec<String>>,
    writer: apply::Writer<'a>,
    force: bool,
}

impl Applied<'_> {
    fn merged(&self, live: Option<&Object>) -> Result<Object, Status> {
        let root = self.resource.root();
        let (config, twice) = configuration(self.resource, &self.bytes)?;
        apply::check(&config)?;
        let tree = Value::Object(config);
        let misfits = apply::misfits(root, &tree);
        let config = match tree {
            Value::Object(config) => config,
            _ => Object::new(),
        };
        if let Some(why) = misfits {
            return Err(Status::unknown(format!(
                "failed to create typed patch object {}: {why}",
                named(&config)
            )));
        }
        let merged = apply::apply(root, live, &config, &self.writer, self.force)?;
        let mut findings = Findings::default();
        let tree = Value::Object(merged);
        let object = match self.resource.schema {
            Some(schema) => normalise::converted(schema, tree, &mut findings),
            None => normalise::unstructured(tree, &mut findings),
        };
        let mut object = object.map_err(|why| {
            let kind = kind_text(&self.resource.api_version, &self.resource.kind.names().kind);
            Status::unknown(format!(
                "failed to convert new object {} to proper version: unable to convert unstructured object to {kind}: {why}",
                named(&config)
            ))
        })?;
        if let Some(definition) = &self.resource.definition {
            definition.prune(&mut object, &mut findings);
        }
        self.judge(&twice)?;
        Ok(object)
    }

    /// Keys that come twice are warnings or a refusal.
    fn judge(&self, twice: &Findings) -> Result<(), Status> {
        let Some(why) = twice.yaml_error() else {
            return Ok(());
        };
        match self.validation {
            FieldValidation::Strict => {
                return Err(Status::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: {why}"
                )));
            }
            FieldValidation::Warn => *self.warnings.lock() = twice.sentences().to_vec(),
            FieldValidation::Ignore => {}
        }
        Ok(())
    }
}

impl Change for Applied<'_> {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        self.merged(Some(old))
    }

    fn create(&self) -> Option<Result<Object, Status>> {
        (self.writer.subresource.is_empty()).then(|| self.merged(None))
    }
}
