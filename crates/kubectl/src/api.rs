//! Requests to the API server: JSON in, JSON out, a `Status` becomes an error.

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use client::kube::{self, client::Body};
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use machinery::Status;
use serde_json::Value;

use crate::error::ServerError;

/// What a list is asked for as, so that the server makes the table.
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// What kubectl calls itself: writes for which a command names no field manager are known by its first word.
const AGENT: &str = concat!("kubectl/v1.36.4 mainstay/", env!("CARGO_PKG_VERSION"));

/// A connection to one API server.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    /// Who is noted in `managedFields` for what is written.
    field_manager: &'static str,
}

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

impl Api {
    /// Over any client.
    pub fn new(client: kube::Client, field_manager: &'static str) -> Self {
        Self {
            client,
            field_manager,
        }
    }

    /// The path of a write, with the field manager unless it names one.
    fn managed(&self, path: &str) -> String {
        let manager = self.field_manager;
        match path.split_once('?') {
            _ if manager.is_empty() => path.to_owned(),
            Some((_, query)) if query.contains("fieldManager=") => path.to_owned(),
            Some(_) => format!("{path}&fieldManager={manager}"),
            None => format!("{path}?fieldManager={manager}"),
        }
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.json(Method::GET, path, "application/json", "", Vec::new())
            .await
    }

    /// GET with an `Accept` header of one's own.
    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Value> {
        self.json(Method::GET, path, accept, "", Vec::new()).await
    }

    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let body = serde_json::to_vec(object)?;
        self.json(
            Method::POST,
            &self.managed(path),
            "application/json",
            "application/json",
            body,
        )
        .await
    }

    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        let (body, media) = (serde_json::to_vec(object)?, "application/json");
        let path = self.managed(path);
        self.json(Method::PUT, &path, media, media, body).await
    }

    pub async fn patch(&self, path: &str, kind: PatchType, patch: &Value) -> Result<Value> {
        let body = serde_json::to_vec(patch)?;
        self.json(
            Method::PATCH,
            &self.managed(path),
            "application/json",
            kind.media_type(),
            body,
        )
        .await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Result<Value> {
        let body = serde_json::to_vec(options)?;
        self.json(
            Method::DELETE,
            path,
            "application/json",
            "application/json",
            body,
        )
        .await
    }

    /// The body as text, for logs and raw paths.
    pub async fn text(&self, path: &str) -> Result<String> {
        let bytes = self.send(Method::GET, path, "*/*", "", Vec::new()).await?;
        let bytes = bytes.into_body().collect().await.map_err(lost)?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The body as it comes.
    pub async fn stream(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<impl Stream<Item = Result<Bytes>> + use<>> {
        let response = self.send(Method::GET, path, accept, "", Vec::new()).await?;
        Ok(response.into_body().into_data_stream().map_err(lost))
    }

    /// Watch events, one JSON value each.
    pub async fn watch(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<impl Stream<Item = Result<Value>> + use<>> {
        let bytes = self.stream(path, accept).await?;
        Ok(lines(bytes).map(|line| Ok(serde_json::from_slice(&line?)?)))
    }

    async fn json(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        content: &str,
        body: Vec<u8>,
    ) -> Result<Value> {
        let response = self.send(method, path, accept, content, body).await?;
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(lost)?
            .to_bytes();
        serde_json::from_slice(&bytes).context("the server's answer is not JSON")
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        content: &str,
        body: Vec<u8>,
    ) -> Result<Response<Body>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::USER_AGENT, AGENT)
            .header(header::ACCEPT, accept);
        if !content.is_empty() {
            request = request.header(header::CONTENT_TYPE, content);
        }
        let response = self
            .client
            .send(request.body(Body::from(body))?)
            .await
            .map_err(unreachable)?;
        for warning in response.headers().get_all(header::WARNING) {
            warn(warning);
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(lost)?
            .to_bytes();
        Err(ServerError(status(code, &bytes)).into())
    }
}

/// A `Status` of an answer that is not a success, also when its body is none.
pub fn status(code: StatusCode, bytes: &[u8]) -> Status {
    serde_json::from_slice(bytes).unwrap_or_else(|_| {
        let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
        Status::failure(
            code.as_u16(),
            &reason,
            String::from_utf8_lossy(bytes).trim(),
        )
    })
}

fn warn(header: &http::HeaderValue) {
    let text = header.to_str().unwrap_or_default();
    let message = text.splitn(3, ' ').nth(2).unwrap_or(text).trim_matches('"');
    eprintln!("Warning: {}", message.replace("\\\"", "\""));
}

pub fn unreachable(error: kube::Error) -> anyhow::Error {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    anyhow!(
        "cannot reach the API server: {text}\nIs the cluster running? `mainstay up` starts one."
    )
}

fn lost(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("connection to the API server was lost: {error}")
}

/// Cuts a stream of bytes into lines.
fn lines(bytes: impl Stream<Item = Result<Bytes>>) -> impl Stream<Item = Result<Vec<u8>>> {
    let bytes = Box::pin(bytes);
    futures::stream::try_unfold((bytes, Vec::new()), |(mut bytes, mut buffer)| async move {
        loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let rest = buffer.split_off(end + 1);
                return Ok(Some((buffer, (bytes, rest))));
            }
            match bytes.next().await {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None => return Ok(None),
            }
        }
    })
}
