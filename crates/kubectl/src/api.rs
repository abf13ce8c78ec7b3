//! Requests to the API server: JSON in, JSON out, a `Status` becomes an error.

use std::{
    collections::HashSet,
    io::IsTerminal,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use client::kube::{self, client::Body};
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use machinery::Status;
use serde_json::{Value, json};

use crate::{
    body,
    discovery::encode,
    error::{Plain, ServerError},
    json::{list, str_of},
    kubeconfig::tokens::Tokens,
    request_log::{self, Logged},
    unstructured::Unstructured,
};

/// The Accept header of lists that the server renders as a Table.
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const JSON: &str = "application/json";
/// For logs and `--raw`.
const ANYTHING: &str = "*/*";

/// kubectl's User-Agent; its first word is the default field manager.
const AGENT: &str = if cfg!(target_arch = "x86_64") {
    concat!(
        "kubectl/v1.36.4 (linux/amd64) mainstay/",
        env!("CARGO_PKG_VERSION")
    )
} else {
    concat!(
        "kubectl/v1.36.4 (linux/arm64) mainstay/",
        env!("CARGO_PKG_VERSION")
    )
};

/// Longer lines are refused: memory is bounded.
const MAX_LINE: usize = 256 << 20;

/// Query parameters.
pub(crate) type Query = Vec<(&'static str, String)>;

/// Settings of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiOptions {
    /// The field manager of writes; empty is kubectl itself.
    pub field_manager: String,
    /// The command such as `kubectl get`, for the server's log.
    pub command: String,
    pub server: String,
    /// From 6 on requests are logged, from 8 on also their bodies.
    pub verbosity: u8,
    pub timeout: Option<Duration>,
    /// Whether the server may compress its answers.
    pub compression: bool,
    /// Tokens that expire.
    pub tokens: Option<Arc<Tokens>>,
}

/// A request before it is sent.
struct Outgoing<'a> {
    method: Method,
    path: &'a str,
    /// The media types of the response.
    accept: &'a str,
    /// The media type of the body; empty if there is none.
    content: &'a str,
    body: Vec<u8>,
    /// Whether the response is read while it arrives; then it is never compressed.
    is_streamed: bool,
}

/// A connection to one API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: kube::Client,
    options: Arc<ApiOptions>,
    /// Warnings of the server that were already printed.
    warnings: Arc<Mutex<HashSet<String>>>,
}

/// The type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// Its media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// A path with query parameters.
pub(crate) fn with_query(path: &str, query: &[(&str, String)]) -> String {
    let mut out = path.to_owned();
    for (name, value) in query {
        out.push(if out.contains('?') { '&' } else { '?' });
        out.push_str(&format!("{name}={}", encode(value)));
    }
    out
}

impl Api {
    /// On a given client.
    pub(crate) fn new(client: kube::Client, options: ApiOptions) -> Self {
        Self {
            client,
            options: Arc::new(options),
            warnings: Arc::default(),
        }
    }

    /// The same connection with another field manager.
    pub(crate) fn managed_by(&self, manager: &str) -> Self {
        let mut api = self.clone();
        api.options = Arc::new(ApiOptions {
            field_manager: manager.to_owned(),
            ..(*self.options).clone()
        });
        api
    }

    /// The number of different warnings from the server.
    pub(crate) fn warnings(&self) -> usize {
        self.seen().len()
    }

    fn seen(&self) -> MutexGuard<'_, HashSet<String>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a write, with the field manager unless the query sets one.
    fn write_path(&self, path: &str, query: &[(&'static str, String)]) -> String {
        let mut query = query.to_vec();
        let manager = &self.options.field_manager;
        if !manager.is_empty() && !query.iter().any(|(name, _)| *name == "fieldManager") {
            query.push(("fieldManager", manager.clone()));
        }
        with_query(path, &query)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.json(Method::GET, path, JSON, "", Vec::new()).await
    }

    /// GET with a custom `Accept` header.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Result<Value> {
        self.json(Method::GET, path, accept, "", Vec::new()).await
    }

    /// GET; `None` if the object does not exist.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>> {
        match self.get(path).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if crate::error::is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A whole list, requested in chunks; items and rows of all chunks are merged.
    pub(crate) async fn list(&self, path: &str, accept: &str, chunk: i64) -> Result<Value> {
        let mut answer: Option<Value> = None;
        let mut token = String::new();
        loop {
            let mut query: Query = Vec::new();
            if chunk > 0 {
                query.push(("limit", chunk.to_string()));
            }
            if !token.is_empty() {
                query.push(("continue", token));
            }
            let mut page = self.get_as(&with_query(path, &query), accept).await?;
            token = str_of(&page["metadata"]["continue"]).to_owned();
            match &mut answer {
                None => answer = Some(page),
                Some(all) => {
                    for field in ["items", "rows"] {
                        let more = page[field].take();
                        if let (Some(all), Value::Array(more)) =
                            (all.get_mut(field).and_then(Value::as_array_mut), more)
                        {
                            all.extend(more);
                        }
                    }
                }
            }
            if token.is_empty() {
                let mut answer = answer.unwrap_or_default();
                if let Some(metadata) = answer
                    .pointer_mut("/metadata")
                    .and_then(Value::as_object_mut)
                {
                    metadata.remove("continue");
                    metadata.remove("remainingItemCount");
                }
                return Ok(answer);
            }
        }
    }

    /// The items of a list.
    pub(crate) async fn items(&self, path: &str) -> Result<Vec<Value>> {
        Ok(list(&self.list(path, JSON, 500).await?["items"])
            .cloned()
            .collect())
    }

    pub(crate) async fn create(
        &self,
        path: &str,
        object: &Value,
        query: &[(&'static str, String)],
    ) -> Result<Value> {
        let body = serde_json::to_vec(object)?;
        self.json(
            Method::POST,
            &self.write_path(path, query),
            JSON,
            JSON,
            body,
        )
        .await
    }

    pub(crate) async fn replace(
        &self,
        path: &str,
        object: &Value,
        query: &[(&'static str, String)],
    ) -> Result<Value> {
        let body = serde_json::to_vec(object)?;
        self.json(Method::PUT, &self.write_path(path, query), JSON, JSON, body)
            .await
    }

    pub(crate) async fn patch(
        &self,
        path: &str,
        kind: PatchType,
        patch: &Value,
        query: &[(&'static str, String)],
    ) -> Result<Value> {
        let body = serde_json::to_vec(patch)?;
        self.patch_text(path, kind, body, query).await
    }

    /// The same with a patch that is not parsed here.
    pub(crate) async fn patch_text(
        &self,
        path: &str,
        kind: PatchType,
        body: Vec<u8>,
        query: &[(&'static str, String)],
    ) -> Result<Value> {
        let path = self.write_path(path, query);
        self.json(Method::PATCH, &path, JSON, kind.media_type(), body)
            .await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> Result<Value> {
        let mut options = options.clone();
        options["kind"] = json!("DeleteOptions");
        options["apiVersion"] = json!("v1");
        let body = serde_json::to_vec(&options)?;
        self.json(Method::DELETE, path, JSON, JSON, body).await
    }

    /// Any request with any body, and the response's bytes: for `--raw`.
    pub(crate) async fn raw(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes> {
        let request = Outgoing {
            method,
            path,
            accept: ANYTHING,
            content: JSON,
            body,
            is_streamed: false,
        };
        body::read(self.send(request).await?).await
    }

    /// Streams the response's body.
    pub(crate) async fn stream(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<impl Stream<Item = Result<Bytes>> + use<>> {
        let request = Outgoing {
            method: Method::GET,
            path,
            accept,
            content: "",
            body: Vec::new(),
            is_streamed: true,
        };
        let response = self.send(request).await?;
        Ok(response.into_body().into_data_stream().map_err(body::lost))
    }

    /// The request timeout, if set by a flag.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.options.timeout
    }

    /// Watch events as JSON values.
    pub(crate) async fn watch(
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
        let request = Outgoing {
            method,
            path,
            accept,
            content,
            body,
            is_streamed: false,
        };
        let bytes = body::read(self.send(request).await?).await?;
        request_log::print_body(self.options.verbosity, "Response Body", &bytes);
        serde_json::from_slice(&bytes).context("the server's answer is not JSON")
    }

    async fn send(&self, outgoing: Outgoing<'_>) -> Result<Response<Body>> {
        let Outgoing { method, body, .. } = outgoing;
        let mut path = outgoing.path.to_owned();
        if let Some(timeout) = self.options.timeout {
            path = with_query(&path, &[("timeout", format!("{}s", timeout.as_secs_f64()))]);
        }
        let mut request = Request::builder()
            .method(method.clone())
            .uri(&path)
            .header(header::USER_AGENT, AGENT)
            .header("Kubectl-Command", &self.options.command)
            .header(header::ACCEPT, outgoing.accept);
        if !outgoing.content.is_empty() {
            request = request.header(header::CONTENT_TYPE, outgoing.content);
        }
        if self.options.compression && !outgoing.is_streamed {
            request = request.header(header::ACCEPT_ENCODING, "gzip");
        }
        let verbosity = self.options.verbosity;
        request_log::print_body(verbosity, "Request Body", &body);
        let mut request = request.body(Body::from(body))?;
        let url = format!("{}{path}", self.options.server.trim_end_matches('/'));
        let logged = Logged {
            verbosity,
            method: &method,
            url: &url,
        };
        logged.print_request(request.headers());
        let tokens = self.options.tokens.as_deref();
        if let Some(tokens) = tokens {
            let authorization = tokens.authorization()?;
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, authorization);
        }
        let started = Instant::now();
        let sending = self.client.send(request);
        let response = match self.options.timeout {
            Some(timeout) => tokio::time::timeout(timeout, sending).await.map_err(|_| {
                anyhow!(Plain(format!(
                    "Unable to connect to the server: net/http: request canceled (Client.Timeout exceeded while awaiting headers) after {timeout:?}"
                )))
            })?,
            None => sending.await,
        };
        let answer = response.as_ref().ok();
        let answer = answer.map(|response| (response.status(), response.headers()));
        logged.print_response(answer, started.elapsed());
        let response = response
            .map_err(|error| crate::unreachable::unreachable(error, &self.options.server))?;
        for warning in response.headers().get_all(header::WARNING) {
            self.warn(warning);
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        if let Some(tokens) = tokens
            && code == StatusCode::UNAUTHORIZED
        {
            tokens.refuse();
        }
        let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
        let bytes = body::read(response).await?;
        request_log::print_body(self.options.verbosity, "Response Body", &bytes);
        let response = Unstructured {
            code,
            content_type: content_type.as_ref().and_then(|kind| kind.to_str().ok()),
            body: &bytes,
            request: (outgoing.accept != ANYTHING).then_some((method.as_str(), outgoing.path)),
        };
        Err(ServerError(status(&response)).into())
    }

    fn warn(&self, header: &http::HeaderValue) {
        let text = String::from_utf8_lossy(header.as_bytes()).into_owned();
        let message = text
            .splitn(3, ' ')
            .nth(2)
            .unwrap_or(&text)
            .trim()
            .to_owned();
        let message = quoted_text(&message);
        // Upstream drops these too: a terminal would execute them.
        if message.contains(char::is_control) {
            return;
        }
        if self.seen().insert(message.clone()) {
            print_warning(&message);
        }
    }
}

/// Prints a warning, in colour on a terminal that has any.
pub(crate) fn print_warning(message: &str) {
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let is_plain = is_dumb || std::env::var_os("NO_COLOR").is_some();
    match std::io::stderr().is_terminal() && !is_plain {
        true => eprintln!("\x1b[33;1mWarning:\x1b[0m {message}"),
        false => eprintln!("Warning: {message}"),
    }
}

/// The text of a quoted string, which may be followed by a date.
fn quoted_text(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"') else {
        return text.to_owned();
    };
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

/// The `Status` of an unsuccessful response, also if its body is not a Status.
pub(crate) fn status(response: &Unstructured<'_>) -> Status {
    let parsed: Option<Status> = serde_json::from_slice(response.body).ok();
    parsed
        .filter(|status| status.code > 0 || !status.reason.is_empty())
        .unwrap_or_else(|| response.status())
}

/// Splits a stream of bytes into lines.
pub(crate) fn lines(
    bytes: impl Stream<Item = Result<Bytes>>,
) -> impl Stream<Item = Result<Vec<u8>>> {
    let bytes = Box::pin(bytes);
    futures::stream::try_unfold((bytes, Vec::new()), |(mut bytes, mut buffer)| async move {
        // Everything before has no line break.
        let mut searched = 0;
        loop {
            let found = buffer[searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = found {
                let rest = buffer.split_off(searched + end + 1);
                return Ok(Some((buffer, (bytes, rest))));
            }
            searched = buffer.len();
            if searched > MAX_LINE {
                bail!("the server sent a line of more than {MAX_LINE} bytes");
            }
            match bytes.next().await {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None if buffer.is_empty() => return Ok(None),
                None => return Ok(Some((buffer, (bytes, Vec::new())))),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_added_behind_paths() {
        let query = [
            ("dryRun", "All".to_owned()),
            ("labelSelector", "a=b".to_owned()),
        ];
        assert_eq!(
            with_query("/x", &query),
            "/x?dryRun=All&labelSelector=a%3Db"
        );
        assert_eq!(with_query("/x?y=z", &query[..1]), "/x?y=z&dryRun=All");
    }

    #[tokio::test]
    async fn lines_that_arrive_in_parts_are_put_together() {
        let parts = ["a\nb", "b", "b\n", "\nc"].map(|part| Ok(Bytes::from(part)));
        let lines: Vec<Vec<u8>> = lines(futures::stream::iter(parts))
            .try_collect()
            .await
            .unwrap();
        assert_eq!(lines, [&b"a\n"[..], b"bbb\n", b"\n", b"c"]);
    }

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(quoted_text(r#""say \"no\"" "Mon, 01 Jan""#), r#"say "no""#);
    }
}
