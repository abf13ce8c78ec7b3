//! Request bodies, and what the query says about a write.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use machinery::{Status, field};

use super::owners;
use crate::{
    Resource,
    convert::{self, Decoded, FieldValidation},
    media,
    pipeline::{Request, RequestBody},
    query::Query,
};

/// What the query says about a write.
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) field_manager: String,
    pub(crate) validation: FieldValidation,
}

impl WriteOptions {
    pub(crate) fn parse(request: &Request) -> Result<Self, Status> {
        let query = &request.query;
        let agent = request.parts.headers.get(http::header::USER_AGENT);
        let agent = agent
            .and_then(|agent| agent.to_str().ok())
            .unwrap_or_default();
        let manager = query.filled("fieldManager");
        let manager = manager.unwrap_or_else(|| agent.split('/').next().unwrap_or_default());
        Ok(Self {
            dry_run: dry_run(query)?,
            field_manager: if manager.is_empty() {
                "unknown"
            } else {
                manager
            }
            .to_owned(),
            validation: FieldValidation::parse(query.get("fieldValidation"))?,
        })
    }
}

/// `dryRun=All` or nothing.
pub(crate) fn dry_run(query: &Query) -> Result<bool, Status> {
    check_dry_run(query.all("dryRun"))
}

/// The values of a dryRun option.
pub(crate) fn check_dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let mut dry = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            let path = field::Path::new("dryRun");
            let error = field::Error::not_supported(&path, vec![value], &["All"]);
            return Err(Status::invalid(
                "meta.k8s.io",
                "CreateOptions",
                "",
                &[error],
            ));
        }
        dry = true;
    }
    Ok(dry)
}

/// Reads a body up to the limit. Frame by frame: the combinators' error type is more general than
/// the compiler can follow through a spawned future.
pub(crate) async fn read(mut body: RequestBody, limit: usize) -> Result<Bytes, Status> {
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

/// Reads and decodes a body of the resource's own kind.
pub(crate) async fn object(
    request: &Request,
    resource: &Resource,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let decoded = Received::take(request)
        .await?
        .object(resource, validation)?;
    if let Some(ticket) = &request.audit {
        ticket.request_object(&decoded.object);
    }
    Ok(decoded)
}

/// A body as it came.
pub(crate) struct Received {
    media: media::Body,
    bytes: Bytes,
}

impl Received {
    /// Reads it.
    pub(crate) async fn take(request: &Request) -> Result<Self, Status> {
        let media = media::Body::of(&request.parts.headers)?;
        let bytes = take(request).await?;
        Ok(Self { media, bytes })
    }

    /// Decodes it as an object of the resource's own kind.
    pub(crate) fn object(
        &self,
        resource: &Resource,
        validation: FieldValidation,
    ) -> Result<Decoded, Status> {
        let mut decoded = convert::decode(resource, self.media, &self.bytes, validation)?;
        convert::settle_kind(resource, &mut decoded.object)?;
        let duplicates = owners::dedup(&mut decoded.object, "");
        decoded.warnings.extend(duplicates);
        Ok(decoded)
    }
}

/// Reads the raw body.
pub(crate) async fn take(request: &Request) -> Result<Bytes, Status> {
    let bytes = read(request.take_body(), request.core.config.limits.body).await?;
    if let Some(ticket) = &request.audit {
        ticket.request(&bytes);
    }
    Ok(bytes)
}
