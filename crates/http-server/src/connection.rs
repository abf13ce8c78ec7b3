//! One connection: its handshake, its requests one after the other, and its end. Per-request cost
//! is kept low: one idle timer per connection, and a notification of shutdown instead of polling.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::Method;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use request::Pace;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::{
    Handler, HttpServer, Stopped,
    receiving::{Intake, Sender, Unread},
    sending::{self, Budget, Line, StallTimeout},
    slices::Slices,
};

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The HTTP/2 receive window: bytes of a body that may be in flight before a handler reads it, as
/// upstream.
const STREAM_WINDOW: u32 = 256 << 10;
/// How long a new connection may go without a request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);

impl HttpServer {
    /// Serves one connection, from its handshake to its close.
    pub async fn serve<H: Handler>(
        self: Arc<Self>,
        handler: Arc<H>,
        stream: TcpStream,
        remote: SocketAddr,
    ) {
        if let Some(tls) = self.handshake(stream, remote).await {
            self.serve_requests(handler, tls, remote).await;
        }
    }

    /// Makes the TLS handshake within its time.
    async fn handshake(
        &self,
        stream: TcpStream,
        remote: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        // If the peer has already disconnected, the handshake fails.
        let _ = stream.set_nodelay(true);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tls.accept(stream)).await {
            Ok(Ok(tls)) => return Some(tls),
            Ok(Err(error)) => debug!(%remote, %error, "TLS handshake failed"),
            Err(_) => debug!(%remote, "TLS handshake took too long"),
        }
        self.handshake_errors.inc();
        None
    }

    async fn serve_requests<H: Handler>(
        &self,
        handler: Arc<H>,
        tls: TlsStream<TcpStream>,
        remote: SocketAddr,
    ) {
        let certificates = tls.get_ref().1.peer_certificates();
        let certificates = certificates
            .unwrap_or_default()
            .iter()
            .map(|der| der.clone().into_owned());
        let sender = Arc::new(Sender::default());
        let peer = Arc::new(handler.connected(remote, certificates.collect(), sender.clone()));
        let (tasks, stopped) = (self.streams.clone(), Stopped::new(self.stopping.clone()));
        let idle = self.idle;
        let activity = Arc::new(Activity::default());
        let unread = tasks.clone();
        let quiet = quiet(activity.clone(), idle);
        let (budget, line) = (self.budget.clone(), Arc::new(Line::default()));
        let intake = Intake::new(sender.clone(), self.read_ahead.clone());
        let io = StallTimeout::new(Slices(tls), intake, budget.clone(), line.clone());
        let executor = Owned(tasks, budget.clone());
        let service = service_fn(move |request: http::Request<Incoming>| {
            let (handler, peer) = (handler.clone(), peer.clone());
            // HTTP/1 has a timer of its own between requests.
            let streams = request.version() == http::Version::HTTP_2;
            let busy = activity.begin(streams);
            // A client that sent `Expect: 100-continue` learns from the response that its body is not
            // read; nothing is drained.
            let waits = request.headers().contains_key(http::header::EXPECT);
            let drains = (!waits).then(|| unread.clone());
            let sender = sender.clone();
            let request = request.map(|body| {
                let is_empty = body.is_end_stream();
                (!is_empty).then(|| Unread::new(body, drains, sender.clone()).boxed_unsync())
            });
            let (budget, line) = (budget.clone(), line.clone());
            async move {
                let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
                let mut response = handler.respond(request, peer).await;
                sender.note_answer();
                if let Some(busy) = busy {
                    response.body_mut().hold(busy);
                } else {
                    line.set_endless(matches!(response.body().pace(), Pace::Endless));
                }
                let flight = streams.then(sending::current_flight).flatten();
                let response = sending::pace(response, &budget, flight, is_read);
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let builder = builder(executor, idle);
        let served = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(served);
        let ended = tokio::select! {
            biased;
            ended = &mut served => ended,
            () = stopped => {
                served.as_mut().graceful_shutdown();
                served.await
            }
            silent = quiet => {
                if silent {
                    return debug!(%remote, "closing connection without requests");
                }
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = ended {
            debug!(%remote, %error, "connection ended");
        }
    }
}

/// The limits of a connection of either HTTP version.
fn builder(executor: Owned, idle: Duration) -> auto::Builder<Owned> {
    let mut builder = auto::Builder::new(executor);
    builder
        .http1()
        .timer(OneTimer::default())
        .header_read_timeout(idle)
        // A front proxy sends one header line for each group of a user.
        .max_headers(500)
        .max_buf_size(1 << 20);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_header_list_size(1 << 20);
    builder
}

/// The activity of one connection.
#[derive(Default)]
struct Activity {
    /// Requests begun so far.
    begun: AtomicUsize,
    /// HTTP/2 requests whose responses are not complete.
    open: AtomicUsize,
}

/// An active request; ends when dropped.
struct Busy(Arc<Activity>);

impl Activity {
    fn begin(self: &Arc<Self>, streams: bool) -> Option<Busy> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        streams.then(|| {
            self.open.fetch_add(1, Ordering::Relaxed);
            Busy(self.clone())
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Resolves when a connection is idle: `true` when no request ever came, `false` when none has come
/// for at least the idle time and no HTTP/2 stream is open. Open HTTP/1 requests are not counted:
/// the caller shuts the connection down gracefully, which lets them finish.
async fn quiet(activity: Arc<Activity>, idle: Duration) -> bool {
    tokio::time::sleep(FIRST_REQUEST_TIMEOUT.min(idle)).await;
    let mut seen = activity.begun.load(Ordering::Relaxed);
    if seen == 0 {
        return true;
    }
    loop {
        tokio::time::sleep(idle).await;
        let begun = activity.begun.load(Ordering::Relaxed);
        if begun == seen && activity.open.load(Ordering::Relaxed) == 0 {
            return false;
        }
        seen = begun;
    }
}

/// An executor that runs the tasks of a connection's streams in the server's task tracker.
#[derive(Clone)]
struct Owned(TaskTracker, Arc<Budget>);

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(sending::watched(future, self.1.clone()));
    }
}

/// Timers for one connection, which waits for one thing at a time. All share one entry in the
/// runtime's timer wheel: it is reset when it fires too early, not each time a request begins and
/// ends.
#[derive(Clone, Default)]
struct OneTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

/// Resolves at its deadline.
struct Until {
    timer: OneTimer,
    moment: Instant,
}

impl hyper::rt::Timer for OneTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn sleep_until(&self, moment: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Until {
            timer: self.clone(),
            moment,
        })
    }
}

impl hyper::rt::Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut entry = self.timer.0.lock();
        let moment = tokio::time::Instant::from_std(self.moment);
        let sleep = entry.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(moment)));
        if sleep.deadline() > moment {
            sleep.as_mut().reset(moment);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if sleep.deadline() >= moment {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(moment);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use hyper::rt::Timer;

    use super::*;

    #[tokio::test]
    async fn one_timer_serves_changing_deadlines() {
        let (timer, begun) = (OneTimer::default(), Instant::now());
        let step = Duration::from_millis(5);
        // Polled once and dropped, as after a request's head has arrived.
        let first = timer.sleep_until(begun + step);
        assert!(first.now_or_never().is_none());
        timer.sleep_until(begun + 3 * step).await;
        assert!(begun.elapsed() >= 3 * step);
        // A far deadline must not delay a near one.
        let far = timer.sleep_until(begun + Duration::from_secs(3600));
        assert!(far.now_or_never().is_none());
        timer.sleep_until(begun + 4 * step).await;
        assert!(begun.elapsed() >= 4 * step);
    }

    #[tokio::test]
    async fn a_connection_without_requests_ends() {
        let idle = Duration::from_millis(1);
        let activity = Arc::new(Activity::default());
        assert!(quiet(activity.clone(), idle).await, "nothing ever came");
        let busy = activity.begin(true);
        let ends = tokio::spawn(quiet(activity.clone(), idle));
        tokio::time::sleep(20 * idle).await;
        assert!(!ends.is_finished(), "a stream is open");
        drop(busy);
        assert!(!ends.await.unwrap(), "it was of use once");
    }
}
