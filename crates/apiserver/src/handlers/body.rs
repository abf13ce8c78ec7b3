//! Request bodies, and the query parameters of a write.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use machinery::{Status, field};
use request::{RequestBody, heavy};

use crate::{
    Resource,
    admission::RequestOptions,
    convert::{self, Decoded, FieldValidation},
    media,
    pipeline::Request,
};

/// Maximum bytes of a field manager's name.
const MANAGER_LENGTH: usize = 128;

/// The query parameters of a write.
#[derive(Default)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) field_manager: String,
    pub(crate) validation: FieldValidation,
    /// The options as the client sent them, for admission.
    pub(crate) given: RequestOptions,
}

/// The verb that the options belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Update,
    Patch,
    /// A server-side apply patch.
    Apply,
}

impl Verb {
    /// The kind of the options, for error messages.
    fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch | Self::Apply => "PatchOptions",
        }
    }
}

impl WriteOptions {
    pub(crate) fn parse(request: &Request, verb: Verb) -> Result<Self, Status> {
        let query = &request.query;
        let mut errors = field::Errors::new();
        let given = query.get("fieldManager").unwrap_or_default();
        let path = field::Path::new("fieldManager");
        match verb {
            Verb::Apply if given.is_empty() => {
                errors.push(field::Error::required(&path, "is required for apply patch"));
            }
            Verb::Patch if query.get("force").is_some() => errors.push(field::Error::forbidden(
                &field::Path::new("force"),
                "may not be specified for non-apply patch",
            )),
            _ => {}
        }
        kinds::metadata::check_manager(given, &path, &mut errors);
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        check_dry_run(&dry_run, &mut errors);
        let validation = FieldValidation::parse(query.get("fieldValidation"), &mut errors);
        if !errors.is_empty() {
            let kind = verb.options();
            return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
        }
        let text = |key: &str| query.filled(key).map(str::to_owned);
        Ok(Self {
            dry_run: !dry_run.is_empty(),
            field_manager: manager(request, given),
            validation,
            given: RequestOptions {
                dry_run: !dry_run.is_empty(),
                field_manager: text("fieldManager"),
                field_validation: text("fieldValidation"),
                delete: None,
            },
        })
    }
}

/// The given field manager, or the default from the user agent.
fn manager(request: &Request, given: &str) -> String {
    if !given.is_empty() {
        return given.to_owned();
    }
    let agent = request.parts.headers.get(http::header::USER_AGENT);
    manager_of(agent.map_or(&[], |agent| agent.as_bytes()))
}

/// The `User-Agent` up to its first slash, without control characters, truncated to the maximum
/// length of a field manager.
fn manager_of(agent: &[u8]) -> String {
    let agent = String::from_utf8_lossy(agent);
    let mut name = String::new();
    let begin = agent.split('/').next().unwrap_or_default();
    for letter in begin.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > MANAGER_LENGTH {
            break;
        }
        name.push(letter);
    }
    match name.as_str() {
        "" => "unknown".to_owned(),
        _ => name,
    }
}

/// `All` is the only dry-run directive.
pub(crate) fn check_dry_run(values: &[&str], errors: &mut field::Errors) {
    if values.iter().any(|value| *value != "All") {
        let path = field::Path::new("dryRun");
        errors.push(field::Error::not_supported(
            &path,
            values.to_vec(),
            &["All"],
        ));
    }
}

/// Reads a body up to the limit. Frame by frame: the combinators' error type is more general than
/// the compiler can follow through a spawned future.
pub(crate) async fn read_up_to_limit(mut body: RequestBody, limit: usize) -> Result<Bytes, Status> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| Status::bad_request(format!("unable to read the body: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len() + all.len() + data.len() > limit {
            return Err(Status::request_entity_too_large(&format!(
                "limit is {limit}"
            )));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// A body as received.
pub(crate) struct Received {
    media: media::Body,
    bytes: Bytes,
}

impl Received {
    /// Reads the body.
    pub(crate) async fn from_request(request: &Request) -> Result<Self, Status> {
        let media = media::Body::from_headers(&request.parts.headers)?;
        let bytes = read(request).await?;
        Ok(Self { media, bytes })
    }

    /// As [`Received::object`], and records it in the audit log.
    pub(crate) fn audited_object(
        &self,
        request: &Request,
        resource: &Resource,
        validation: FieldValidation,
    ) -> Result<Decoded, Status> {
        let decoded = self.object(resource, validation)?;
        if let Some(ticket) = &request.audit {
            ticket.request_object(&decoded.object);
        }
        Ok(decoded)
    }

    /// Decodes the body as an object of the resource's own kind.
    pub(crate) fn object(
        &self,
        resource: &Resource,
        validation: FieldValidation,
    ) -> Result<Decoded, Status> {
        convert::decode(resource, self.media, &self.bytes, validation)
    }
}

/// Reads the raw body.
pub(crate) async fn read(request: &Request) -> Result<Bytes, Status> {
    let bytes = read_up_to_limit(request.take_body(), request.body_limit).await?;
    if let Some(ticket) = &request.audit {
        ticket.request(&bytes);
    }
    match &request.resource {
        // Validation rules and patterns of custom resources may take long.
        Some(resource) if resource.custom => heavy::mark().await,
        _ => heavy::mark_large(bytes.len()).await,
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_name_is_its_field_manager() {
        let long = "x".repeat(200);
        for (agent, manager) in [
            (
                "kubelet/v1.36.4 (linux/amd64) kubernetes/0123456",
                "kubelet",
            ),
            ("kube-controller-manager", "kube-controller-manager"),
            ("curl\t8/1", "curl8"),
            ("", "unknown"),
            ("/x", "unknown"),
            (&long, &long[..MANAGER_LENGTH]),
        ] {
            assert_eq!(manager_of(agent.as_bytes()), manager);
        }
    }
}
