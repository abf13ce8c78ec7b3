//! A deadline for every call, and when the runtime last answered one: a hanging runtime causes an
//! error that the caller can handle, never an endless call.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tonic::{Status, body::Body, transport::Channel};
use tower::Service;

/// The default timeout of a call.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

/// When a runtime last answered. Clones share it.
#[derive(Debug, Clone)]
pub struct Answers(Arc<tokio::sync::watch::Sender<Instant>>);

impl Default for Answers {
    fn default() -> Self {
        Self(Arc::new(tokio::sync::watch::Sender::new(Instant::now())))
    }
}

impl Answers {
    /// The time of the last answer, or of the client's creation.
    pub fn last(&self) -> Instant {
        *self.0.borrow()
    }

    /// Returns once the runtime has answered nothing for this long.
    pub async fn silent_for(&self, limit: Duration) {
        loop {
            let until = self.last() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn record(&self) {
        self.0.send_replace(Instant::now());
    }
}

/// Called after each call: its method, duration, and whether it failed.
pub type Observer = Box<dyn Fn(&str, Duration, bool) + Send + Sync>;

/// The observer of the calls of a client and its clones.
#[derive(Clone, Default)]
pub struct Calls(Arc<OnceLock<Observer>>);

impl Calls {
    /// Sets the observer; only the first one is used.
    pub fn observe(&self, observer: Observer) {
        let _ = self.0.set(observer);
    }

    fn ended(&self, method: &str, begun: Instant, failed: bool) {
        if let Some(observer) = self.0.get() {
            observer(method, begun.elapsed(), failed);
        }
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// A channel with deadlines.
#[derive(Debug, Clone)]
pub struct Deadline {
    channel: Channel,
    answers: Answers,
    calls: Calls,
    /// The default timeout.
    usual: Duration,
}

impl Deadline {
    pub(crate) fn new(channel: Channel, answers: Answers, calls: Calls, usual: Duration) -> Self {
        Self {
            channel,
            answers,
            calls,
            usual,
        }
    }
}

impl Service<Request<Body>> for Deadline {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = limit(request.uri().path(), request.headers(), self.usual);
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let method = method.to_owned();
        let answer = self.channel.call(request);
        let (answers, calls, begun) = (self.answers.clone(), self.calls.clone(), Instant::now());
        Box::pin(async move {
            let late = || {
                let within = limit.unwrap_or_default();
                let message = format!("the runtime did not answer {method} within {within:?}");
                BoxError::from(Status::deadline_exceeded(message))
            };
            let outcome = match limit {
                None => answer.await,
                Some(limit) => match tokio::time::timeout(limit, answer).await {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        calls.ended(&method, begun, true);
                        return Err(late());
                    }
                },
            };
            calls.ended(&method, begun, has_failed(outcome.as_ref().ok()));
            match outcome {
                Ok(response) => {
                    answers.record();
                    Ok(response)
                }
                Err(error) if is_timeout(&error) => Err(late()),
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// Whether a call failed: without a response, or with a trailers-only response.
fn has_failed(answer: Option<&Response<Body>>) -> bool {
    answer.is_none_or(|answer| {
        let status = answer.headers().get("grpc-status");
        status.is_some_and(|status| status != "0")
    })
}

/// Whether the channel itself timed out.
fn is_timeout(error: &tonic::transport::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<tonic::TimeoutExpired>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The timeout of a call. Streams and pulls have none.
fn limit(path: &str, headers: &http::HeaderMap, usual: Duration) -> Option<Duration> {
    if let Some(own) = headers.get("grpc-timeout") {
        return own.to_str().ok().and_then(parse);
    }
    match path.rsplit('/').next() {
        Some("GetContainerEvents" | "PullImage" | "ExecSync") => None,
        // CNI plugins may be slow.
        Some("RunPodSandbox") => Some(usual * 2),
        _ => Some(usual),
    }
}

/// Parses a gRPC timeout: a number and its unit.
fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.checked_mul(3600)?),
        "M" => Duration::from_secs(number.checked_mul(60)?),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_limit_and_streams_have_none() {
        let limit = |method: &str, own: Option<&str>| {
            let mut headers = http::HeaderMap::new();
            if let Some(own) = own {
                headers.insert("grpc-timeout", own.parse().unwrap());
            }
            super::limit(
                &format!("/runtime.v1.RuntimeService/{method}"),
                &headers,
                REQUEST_TIMEOUT,
            )
            .map(|limit| limit.as_secs())
        };
        assert_eq!(limit("Version", None), Some(120));
        assert_eq!(limit("RunPodSandbox", None), Some(240));
        assert_eq!(limit("StopContainer", Some("150000000u")), Some(150));
        assert_eq!(limit("ExecSync", Some("121S")), Some(121));
        assert_eq!(limit("ExecSync", None), None);
        assert_eq!(limit("GetContainerEvents", None), None);
        assert_eq!(limit("PullImage", None), None);
    }

    #[tokio::test]
    async fn a_runtime_that_hangs_is_an_error_when_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        // Accepts nothing: the connection waits in the listener's queue for ever.
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let client = crate::connect(&socket);
        let before = client.answers.last();
        let (sender, receiver) = std::sync::mpsc::channel();
        client.calls.observe(Box::new(move |method, _, failed| {
            sender.send((method.to_owned(), failed)).unwrap();
        }));
        let mut request = tonic::Request::new(crate::v1::VersionRequest::default());
        request.set_timeout(Duration::from_millis(20));
        let answer = client.runtime.clone().version(request).await;
        let status = answer.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
        assert_eq!(client.answers.last(), before);
        assert_eq!(receiver.recv().unwrap(), ("Version".to_owned(), true));
        client.answers.silent_for(Duration::from_millis(1)).await;
    }
}
