//! Server-side apply: the body says what its manager wants; the rest of the object is others'.

use std::sync::Arc;

use machinery::{
    Object, Status, Value, apply,
    decode::{self, Format},
    field::{Error, Path},
};

use super::{
    body::{self, WriteOptions},
    objects, read,
};
use crate::{
    Resource,
    convert::{self, FieldValidation},
    meta,
    pipeline::Request,
    respond::Answer,
    write::{self, Change, Write},
};

/// 422 about an option of the patch.
pub(crate) fn refuse(option: &str, why: &str) -> Status {
    let error = Error::forbidden(&Path::new(option), why);
    Status::invalid("meta.k8s.io", "PatchOptions", "", &[error])
}

pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let options = WriteOptions::parse(&request)?;
    if request.query.filled("fieldManager").is_none() {
        let error = Error::required(&Path::new("fieldManager"), "is required for apply patch");
        return Err(Status::invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    let output = read::output(&request, &resource)?;
    let bytes = body::take(&request).await?;
    let mut write = objects::write(&request, &resource, &options);
    write.tracked = true;
    let (config, warnings) = configuration(&resource, &bytes, &write, options.validation)?;
    let now = meta::time(request.core.config.clock.now());
    let force = request.query.flag("force");
    let core = request.core.clone();
    let task = async move {
        let writer = write.writer(&now);
        let change = Applied {
            resource: &resource,
            config,
            writer,
            force,
        };
        let mut written = write::update(&write, &change).await?;
        written.warnings.splice(0..0, warnings);
        Ok(written)
    };
    Ok(objects::respond(&output, core.supervise(task).await?))
}

/// The body as it was written: what is not in it is not applied, so it is checked but not filled.
fn configuration(
    resource: &Resource,
    bytes: &[u8],
    write: &Write,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), Status> {
    let unreadable = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
    let (mut tree, twice) = decode::tree(Format::Yaml, bytes).map_err(unreadable)?;
    let name = write.name.as_str();
    let Value::Object(config) = &mut tree else {
        return Err(unreadable("the configuration is no object".to_owned()));
    };
    convert::settle_kind(resource, config)?;
    if let Some(why) = apply::undeclared(resource.root(), &tree) {
        let (namespace, kind) = (&write.namespace, &resource.kind.names().kind);
        let version = &resource.api_version;
        return Err(Status::unknown(format!(
            "failed to create typed patch object ({namespace}/{name}; {version}, Kind={kind}): {why}"
        )));
    }
    let mut config = match tree {
        Value::Object(config) => config,
        _ => Object::new(),
    };
    let mut checked = convert::normalise(resource, config.clone(), validation)?;
    if let Some(why) = twice.yaml_error() {
        let why = format!("error converting YAML to JSON: {why}");
        match validation {
            FieldValidation::Strict => {
                let why = format!("error strict decoding YAML: {why}");
                return Err(Status::bad_request(why));
            }
            FieldValidation::Warn => checked.warnings.push(why),
            FieldValidation::Ignore => {}
        }
    }
    match meta::text(&config, "name") {
        "" => meta::set(&mut config, "name", name),
        given if given == name => {}
        given => {
            return Err(Status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
    }
    Ok((config, checked.warnings))
}

struct Applied<'a> {
    resource: &'a Resource,
    config: Object,
    writer: apply::Writer<'a>,
    force: bool,
}

impl Applied<'_> {
    fn merged(&self, live: Option<&Object>) -> Result<Object, Status> {
        let root = self.resource.root();
        let merged = apply::apply(root, live, &self.config, &self.writer, self.force)?;
        let decoded = convert::normalise(self.resource, merged, FieldValidation::Ignore)?;
        Ok(decoded.object)
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
