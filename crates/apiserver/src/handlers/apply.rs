//! Server-side apply: the body holds the fields that its manager wants; other fields are kept.

use std::sync::Arc;

use bytes::Bytes;
use machinery::{
    Object, Status, Value, apply,
    decode::{self, Findings, Format},
    normalise,
    schema::Type,
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
    write::{self, ObjectChange, WritePath},
};
use apiextensions::CustomKind;

pub(crate) async fn serve(
    writes: &Arc<WritePath>,
    request: Request,
    resource: Arc<Resource>,
    output: Output,
) -> Answer {
    let (config, options) = Configuration::from_request(&request).await?;
    let mut write = objects::requested_write(writes, &request, &resource, &options);
    write.tracked = true;
    let now = meta::time(writes.clock.now());
    let task = async move {
        let versions = write.versions();
        let change = Applied {
            target: Target {
                api_version: &resource.api_version,
                kind: &resource.kind.names().kind,
                schema: resource.schema,
                definition: resource.definition.as_deref(),
            },
            config,
            warnings: parking_lot::Mutex::default(),
            writer: write.writer(&versions, &now),
            versions: &versions,
        };
        write::update(&write, &change).await
    };
    objects::respond(&output, writes.supervise(task).await?).await
}

/// The object that a configuration is applied to.
pub(super) struct Target<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) schema: Option<&'static Type>,
    pub(super) definition: Option<&'a CustomKind>,
}

/// An apply configuration as received.
pub(super) struct Configuration {
    bytes: Bytes,
    validation: FieldValidation,
    force: bool,
}

impl Configuration {
    /// Reads the body and the options.
    pub(super) async fn from_request(request: &Request) -> Result<(Self, WriteOptions), Status> {
        let bytes = body::read(request).await?;
        let options = WriteOptions::parse(request, Verb::Apply)?;
        let config = Self {
            bytes,
            validation: options.validation,
            force: request.query.flag("force"),
        };
        Ok((config, options))
    }

    /// Parses the body without defaulting: fields that are absent are not applied. Also returns
    /// findings about duplicate keys.
    fn read(&self, target: &Target<'_>) -> Result<(Object, Findings), Status> {
        let unreadable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
        let (tree, twice) = decode::tree(Format::Yaml, &self.bytes)
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
        if text("apiVersion") != target.api_version || text("kind") != target.kind {
            let given = kind_text(text("apiVersion"), text("kind"));
            return Err(Status::bad_request(format!("invalid object type: {given}")));
        }
        Ok((config, twice))
    }

    /// Merges the configuration into the object; returns warnings too.
    pub(super) fn merged(
        &self,
        target: &Target<'_>,
        live: Option<&Object>,
        writer: &apply::Writer<'_>,
    ) -> Result<(Object, Vec<String>), Status> {
        let (config, twice) = self.read(target)?;
        apply::check(&config)?;
        if let Some(why) = apply::misfits(&config, writer) {
            return Err(Status::unknown(format!(
                "failed to create typed patch object {}: {why}",
                named(&config)
            )));
        }
        let merged = apply::apply(live, &config, writer, self.force)?;
        let mut findings = Findings::default();
        let tree = Value::Object(merged);
        let object = match target.schema {
            Some(schema) => normalise::converted(schema, tree, &mut findings),
            None => normalise::unstructured(tree, &mut findings),
        };
        let mut object = object.map_err(|why| {
            let kind = kind_text(target.api_version, target.kind);
            Status::unknown(format!(
                "failed to convert new object {} to proper version: unable to convert unstructured object to {kind}: {why}",
                named(&config)
            ))
        })?;
        if let Some(definition) = target.definition {
            definition
                .prune(&mut object, &mut findings)
                .map_err(Status::bad_request)?;
        }
        let warnings = self.judge(&twice)?;
        Ok((object, warnings))
    }

    /// Turns duplicate keys into warnings or an error.
    fn judge(&self, twice: &Findings) -> Result<Vec<String>, Status> {
        let Some(why) = twice.yaml_error() else {
            return Ok(Vec::new());
        };
        match self.validation {
            FieldValidation::Strict => Err(Status::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {why}"
            ))),
            FieldValidation::Warn => Ok(twice.sentences().to_vec()),
            FieldValidation::Ignore => Ok(Vec::new()),
        }
    }
}

/// A group, version and kind as Go prints them: `/v1, Kind=Pod`.
fn kind_text(api_version: &str, kind: &str) -> String {
    let core = if api_version.contains('/') { "" } else { "/" };
    format!("{core}{api_version}, Kind={kind}")
}

/// An object's name as error messages state it.
fn named(config: &Object) -> String {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (meta::text(config, "namespace"), meta::text(config, "name"));
    let kind = kind_text(text("apiVersion"), text("kind"));
    format!("({namespace}/{name}; {kind})")
}

struct Applied<'a> {
    target: Target<'a>,
    config: Configuration,
    warnings: parking_lot::Mutex<Vec<String>>,
    writer: apply::Writer<'a>,
    versions: &'a write::Versions,
}

impl Applied<'_> {
    fn merged(&self, live: Option<&Object>) -> Result<Object, Status> {
        let (object, warnings) = self.config.merged(&self.target, live, &self.writer)?;
        *self.warnings.lock() = warnings;
        Ok(object)
    }
}

impl ObjectChange for Applied<'_> {
    fn apply(&self, old: &Object) -> Result<Object, Status> {
        self.merged(Some(old))
    }

    fn create(&self) -> Option<Result<Object, Status>> {
        (self.writer.subresource.is_empty()).then(|| self.merged(None))
    }

    fn versions(&self) -> Option<&write::Versions> {
        Some(self.versions)
    }

    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }
}
