//! Faults between a controller and the API server: rejected requests, lost responses, closed and
//! expired watches, slow lists.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use client::{Connector, kube};
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tower::BoxError;

/// Makes clients whose requests fail at random.
pub(crate) struct Faults {
    inner: Arc<dyn Connector>,
    random: Mutex<StdRng>,
    /// How many of a thousand requests fail.
    rate: AtomicU32,
    /// Lists of paths with this suffix take this long.
    slow: Option<(&'static str, Duration)>,
}

enum Fault {
    None,
    Refuse,
    LoseAnswer,
    Expire,
    Cut(Duration),
}

impl Faults {
    pub(crate) fn new(inner: Arc<dyn Connector>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner,
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            rate: AtomicU32::new(0),
            slow: None,
        })
    }

    pub(crate) fn slow_list(
        inner: Arc<dyn Connector>,
        plural: &'static str,
        delay: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            random: Mutex::new(StdRng::seed_from_u64(0)),
            rate: AtomicU32::new(0),
            slow: Some((plural, delay)),
        })
    }

    pub(crate) fn set_rate(&self, per_thousand: u32) {
        self.rate.store(per_thousand, Ordering::Relaxed);
    }

    fn pick(&self, is_watch: bool) -> Fault {
        let rate = self.rate.load(Ordering::Relaxed);
        let mut random = self.random.lock();
        if is_watch && rate > 0 {
            return match random.random_range(0..4) {
                0 => Fault::Expire,
                1 | 2 => Fault::Cut(Duration::from_millis(random.random_range(5..400))),
                _ => Fault::None,
            };
        }
        if random.random_range(0..1000) >= rate {
            return Fault::None;
        }
        if random.random() {
            Fault::Refuse
        } else {
            Fault::LoseAnswer
        }
    }

    async fn send(
        &self,
        client: kube::Client,
        request: Request<Body>,
    ) -> Result<Response<Answer>, BoxError> {
        let is_watch = request
            .uri()
            .query()
            .unwrap_or_default()
            .contains("watch=true");
        if let Some((plural, delay)) = self.slow
            && request.method() == Method::GET
            && request.uri().path().ends_with(plural)
            && !is_watch
        {
            tokio::time::sleep(delay).await;
        }
        match self.pick(is_watch) {
            Fault::Refuse => Ok(refusal(500, "InternalError").map(boxed)),
            Fault::Expire => Ok(refusal(410, "Expired").map(boxed)),
            Fault::None => Ok(client.send(request).await?.map(boxed)),
            Fault::LoseAnswer => {
                client.send(request).await?;
                Err("the answer was lost".into())
            }
            Fault::Cut(after) => {
                let (parts, body) = client.send(request).await?.into_parts();
                let frames = body
                    .into_data_stream()
                    .take_until(tokio::time::sleep(after))
                    .map_ok(Frame::data);
                Ok(Response::from_parts(parts, boxed(StreamBody::new(frames))))
            }
        }
    }
}

type Answer = UnsyncBoxBody<Bytes, BoxError>;

fn boxed<B>(body: B) -> Answer
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn refusal(code: u16, reason: &str) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "injected", "reason": reason, "code": code,
    });
    let body = Body::from(status.to_string().into_bytes());
    let response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    response.body(body).unwrap()
}

/// The connector of controllers with these faults.
pub(crate) struct Faulty(pub Arc<Faults>);

impl Connector for Faulty {
    fn client(&self, user: &str) -> kube::Client {
        let (faults, client) = (self.0.clone(), self.0.inner.client(user));
        client::in_process(tower::service_fn(move |request: Request<Body>| {
            let (faults, client) = (faults.clone(), client.clone());
            async move { faults.send(client, request).await }
        }))
    }
}
