//! One connection: its handshake, its requests one after the other, and its end. What a request does
//! not need is not paid for by each: the idle time is one timer per connection, and the end of the
//! server is heard of, not asked for.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::TaskTracker,
};
use tracing::debug;

use crate::pipeline::{Caller, Connection, Core};

/// Longest time for a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one connection, from its handshake to its end.
pub(crate) async fn serve(
    core: Arc<Core>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    remote: SocketAddr,
) {
    // A peer that is gone already shows in the handshake.
    let _ = stream.set_nodelay(true);
    let tls = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return debug!(%remote, %error, "TLS handshake failed"),
        Err(_) => return debug!(%remote, "TLS handshake took too long"),
    };
    let certificates = tls.get_ref().1.peer_certificates();
    let certificates = certificates
        .unwrap_or_default()
        .iter()
        .map(|der| der.clone().into_owned());
    let peer = Arc::new(Connection::new(remote, certificates.collect()));
    let (tasks, stopped) = (core.streams.clone(), Stopped::new(core.stopping.clone()));
    let idle = core.config.limits.idle;
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (core, caller) = (core.clone(), Caller::Connection(peer.clone()));
        let request = request
            .map(|body| (!body.is_end_stream()).then(|| body.map_err(Into::into).boxed_unsync()));
        async move { Ok::<_, std::convert::Infallible>(core.handle(request, caller).await) }
    });
    let mut builder = auto::Builder::new(Owned(tasks));
    builder
        .http1()
        .timer(OneTimer::default())
        .header_read_timeout(idle)
        .max_buf_size(1 << 20);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .max_header_list_size(1 << 20);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        biased;
        ended = &mut served => ended,
        () = stopped => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%remote, %error, "connection ended");
    }
}

/// Runs the tasks that a connection's streams need under the server's own eye.
#[derive(Clone)]
struct Owned(TaskTracker);

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// Ends when a token is cancelled. Asking the token takes a lock that everybody shares, so it is
/// asked once, and then again only when it has called.
pub(crate) struct Stopped {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    call: Arc<Call>,
}

#[derive(Default)]
struct Call {
    answered: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.answered.store(false, Ordering::Release);
        self.task.wake();
    }
}

impl Stopped {
    pub(crate) fn new(token: CancellationToken) -> Self {
        Self {
            cancelled: Box::pin(token.cancelled_owned()),
            call: Arc::default(),
        }
    }
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.call.task.register(context.waker());
        if self.call.answered.swap(true, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.call.clone());
        self.cancelled
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
    }
}

/// Timers for one connection, which waits for one thing at a time. All share one entry in the
/// runtime's wheel: it is moved when it fires too early, not each time a request begins and ends.
#[derive(Clone, Default)]
struct OneTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

/// Waits until its moment.
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
    async fn one_entry_serves_moments_that_come_and_go() {
        let (timer, begun) = (OneTimer::default(), Instant::now());
        let step = Duration::from_millis(5);
        // Polled once and dropped, as when a request's head has come.
        let first = timer.sleep_until(begun + step);
        assert!(first.now_or_never().is_none());
        timer.sleep_until(begun + 3 * step).await;
        assert!(begun.elapsed() >= 3 * step);
        // An entry that is far away is no reason to miss one that is near.
        let far = timer.sleep_until(begun + Duration::from_secs(3600));
        assert!(far.now_or_never().is_none());
        timer.sleep_until(begun + 4 * step).await;
        assert!(begun.elapsed() >= 4 * step);
    }

    #[tokio::test]
    async fn the_end_is_heard_by_who_waits_and_by_who_comes_late() {
        let token = CancellationToken::new();
        let mut early = Stopped::new(token.clone());
        assert!((&mut early).now_or_never().is_none());
        assert!((&mut early).now_or_never().is_none());
        let waits = tokio::spawn(early);
        tokio::task::yield_now().await;
        token.cancel();
        waits.await.unwrap();
        Stopped::new(token).await;
    }
}
