//! Metrics of this process's clients, under the names of client-go.

use std::{
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Instant,
};

use http::{Method, Request, Response};
use stdx::exposition::{Counter, Exposition, Family, Histogram};
use tower::Service;

const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

/// All clients of the process together, as in client-go.
static ALL: LazyLock<Metrics> = LazyLock::new(|| Metrics {
    requests: Family::new(&["code", "host", "method"], Counter::default),
    seconds: Family::new(&["host", "verb"], || Histogram::new(BUCKETS)),
});

struct Metrics {
    requests: Family<Counter>,
    seconds: Family<Histogram>,
}

/// Adds the metrics to a page.
pub fn show(page: &mut Exposition) {
    let help = "Number of HTTP requests, partitioned by status code, method, and host.";
    page.counters("rest_client_requests_total", help, &ALL.requests);
    let help = "Request latency in seconds. Broken down by verb, and host.";
    page.histograms("rest_client_request_duration_seconds", help, &ALL.seconds);
    show_informers(page);
}

/// Adds only the metrics of informers, for a page that already has the metrics of requests.
pub fn show_informers(page: &mut Exposition) {
    crate::informer::show_metrics(page);
}

/// A service that counts its requests.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    host: Arc<str>,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S, host: &str) -> Self {
        let host = host.into();
        Self { inner, host }
    }
}

/// The label of a method: unknown methods share one.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, host, begun) = (label(request.method()), self.host.clone(), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(Response::status);
            let code = code.as_ref().map_or("<error>", |code| code.as_str());
            ALL.requests.with(&[code, &host, method]).increment();
            ALL.seconds.with(&[&host, method]).took(begun.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_result() {
        let inner = tower::service_fn(|request: Request<()>| async move {
            match request.uri().path() {
                "/gone" => Err("no connection"),
                _ => Ok(Response::builder().status(201).body(()).unwrap()),
            }
        });
        let counted = Counted::new(inner, "counted.example:6443");
        for (path, method) in [
            ("/a", "POST"),
            ("/a", "POST"),
            ("/gone", "GET"),
            ("/a", "ODD"),
        ] {
            let request = Request::builder().uri(path).method(method);
            let _ = counted.clone().oneshot(request.body(()).unwrap()).await;
        }
        let mut page = Exposition::default();
        show(&mut page);
        let page = page.finish();
        for line in [
            r#"rest_client_requests_total{code="201",host="counted.example:6443",method="POST"} 2"#,
            r#"rest_client_requests_total{code="<error>",host="counted.example:6443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="201",host="counted.example:6443",method="other"} 1"#,
            r#"rest_client_request_duration_seconds_count{host="counted.example:6443",verb="POST"} 2"#,
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
