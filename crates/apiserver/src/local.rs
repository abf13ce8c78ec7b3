//! The transport of clients in this process: a function call instead of a socket, through the same
//! pipeline.

use std::{
    convert::Infallible,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use machinery::{Object, Value};
use request::Client;
use tower::ServiceExt;

use crate::{
    Body, User,
    pipeline::{Caller, LocalCaller, Pipeline},
    write::Fence,
};

/// A connection that acts as one user.
#[derive(Clone)]
pub struct LocalService {
    pipeline: Arc<Pipeline>,
    known: LocalCaller,
    agent: Option<HeaderValue>,
}

impl LocalService {
    pub(crate) fn new(pipeline: Arc<Pipeline>, user: User) -> Self {
        Self {
            pipeline,
            known: LocalCaller {
                user: Arc::new(user),
                node_address: None,
                fence: None,
            },
            agent: None,
        }
    }

    /// Sets the `User-Agent`; its first word is the default field manager of the client's writes.
    pub fn agent(mut self, name: &str) -> Self {
        self.agent = HeaderValue::from_str(name).ok();
        self
    }

    /// Marks the client as the kubelet of a node that runs in this process, at this address.
    pub fn of_node(mut self, address: IpAddr) -> Self {
        self.known.node_address = Some(address);
        self
    }

    /// Marks the client as a leader: none of its writes is committed after it lost its lease.
    pub fn fenced_by(mut self, fence: Fence) -> Self {
        self.known.fence = Some(Arc::new(fence));
        self
    }
}

#[async_trait]
impl Client for LocalService {
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Object>,
    ) -> Result<(StatusCode, Object), String> {
        let media = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let body = body.map(|object| Value::Object(object).to_string());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .header("accept", "application/json")
            .header("user-agent", "kube-apiserver")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| error.to_string())?;
        let response = self.clone().oneshot(request).await;
        let response = response.map_err(|never| -> String { match never {} })?;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((
            status,
            machinery::json::from_slice(&body).unwrap_or_default(),
        ))
    }
}

impl<B> tower::Service<Request<B>> for LocalService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(agent) = &self.agent {
            let agent = || agent.clone();
            let headers = request.headers_mut();
            headers.entry(header::USER_AGENT).or_insert_with(agent);
        }
        let pipeline = self.pipeline.clone();
        let caller = Caller::Known(self.known.clone());
        let request = request
            .map(|body| (!body.is_end_stream()).then(|| body.map_err(Into::into).boxed_unsync()));
        let (method, begun) = (request.method().clone(), Instant::now());
        Box::pin(async move {
            let response = pipeline.clone().handle(request, caller).await;
            let code = response.status().as_u16();
            let took = begun.elapsed();
            pipeline
                .shared
                .metrics
                .record_client_request(&method, code, took);
            Ok(response)
        })
    }
}
