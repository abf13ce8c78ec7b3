//! A client that sends requests at a limited rate, as `clientConnection` of upstream's component configurations sets
//! it. Requests above the rate wait; none fails.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use tower::BoxError;

use crate::in_process;

/// How many requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests a second; positive.
    pub per_second: f64,
    /// How many can be sent at once after a pause; at least one.
    pub burst: u32,
}

/// A token bucket.
struct Bucket {
    rate: Rate,
    /// Negative: taken by requests that wait.
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            tokens: f64::from(rate.burst),
            filled: now,
        }
    }

    /// Takes a token; returns how long its request must wait.
    fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        let most = f64::from(self.rate.burst);
        self.tokens = (self.tokens + passed * self.rate.per_second).min(most) - 1.0;
        let missing = (-self.tokens).max(0.0) / self.rate.per_second;
        Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX)
    }
}

/// A client with this rate. Events have a rate of their own, as upstream's components write them with a client of their
/// own.
///
/// Must be called inside a Tokio runtime.
pub fn limited(client: &kube::Client, rate: Rate) -> kube::Client {
    let bucket = || Mutex::new(Bucket::new(rate, Instant::now()));
    // Each guards one bucket; never held across an await.
    let buckets = Arc::new([bucket(), bucket()]);
    let client = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let bucket = usize::from(is_event(request.uri().path()));
        let wait = buckets[bucket].lock().take(Instant::now());
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    in_process(service)
}

/// Whether a path is that of Events.
fn is_event(path: &str) -> bool {
    path.split('/').any(|part| part == "events")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_sent_at_once_and_then_the_rate_holds() {
        let begin = Instant::now();
        let rate = Rate {
            per_second: 10.0,
            burst: 3,
        };
        let mut bucket = Bucket::new(rate, begin);
        let mut wait = |millis: u64| {
            let wait = bucket.take(begin + Duration::from_millis(millis));
            wait.as_secs_f64() * 1000.0
        };
        let mut waits = |all: &[(u64, f64)]| {
            for (at, expected) in all {
                let seen = wait(*at);
                assert!((seen - expected).abs() < 0.01, "{at}: {seen}");
            }
        };
        waits(&[(0, 0.0), (0, 0.0), (0, 0.0)]);
        // Each waits for those before it.
        waits(&[(0, 100.0), (0, 200.0), (100, 200.0)]);
        // A long pause gives no more than the burst.
        waits(&[(60_000, 0.0), (60_000, 0.0), (60_000, 0.0), (60_000, 100.0)]);
    }

    #[test]
    fn events_are_known_by_their_path() {
        for (path, expected) in [
            ("/api/v1/namespaces/d/events", true),
            ("/apis/events.k8s.io/v1/namespaces/d/events/e", true),
            ("/apis/events.k8s.io/v1", false),
            ("/api/v1/namespaces/d/pods/p/binding", false),
        ] {
            assert_eq!(is_event(path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn requests_wait_for_their_turn_and_events_do_not_wait_for_them() {
        let server = tower::service_fn(|_: Request<Body>| async {
            let body = Body::from(b"{}".to_vec());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        let rate = Rate {
            per_second: 0.001,
            burst: 1,
        };
        let client = limited(&in_process(server), rate);
        let request = |path: &str| Request::get(path).body(Body::empty()).unwrap();
        let send = async |path: &str| client.send(request(path)).await.is_ok();
        assert!(send("/api/v1/pods").await);
        // The next one waits for a quarter of an hour.
        let sent = client.send(request("/api/v1/pods"));
        let waited = tokio::time::timeout(Duration::from_millis(1), sent).await;
        assert!(waited.is_err(), "it was sent at once");
        assert!(send("/api/v1/namespaces/d/events").await);
    }
}
