//! The body of a response, produced as fast as the client reads.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, SizeHint};
use machinery::Status;
use tokio::time::{Instant, Sleep};

use super::{Budget, Flight};
use request::{Body, BodyError, NextFrame, Pace, respond};

/// Unsent bytes of a response above which no further piece is produced.
const WINDOW: usize = 64 * 1024;
/// Complete responses up to this size are not counted: first for HTTP/1.1, with one at a time on a
/// connection, then for each HTTP/2 stream.
const SMALL: (usize, usize) = (64 * 1024, 1024);

/// A response body whose pieces are counted.
pub(crate) struct Paced {
    body: Body,
    flight: Option<Arc<Flight>>,
    /// Whether other responses share the connection (HTTP/2): then this body ends only when all of
    /// it was sent, so that a client that stops reading before can be cut off.
    is_stream: bool,
    /// Whether there are no more pieces.
    is_over: bool,
    /// The timer while the budget is used up.
    wait: Option<Pin<Box<Sleep>>>,
}

/// Counts a response from here on. A response that the client can request again is rejected when
/// the budget has no room.
pub(crate) fn pace(
    response: Response<Body>,
    budget: &Arc<Budget>,
    flight: Option<Arc<Flight>>,
    is_read: bool,
) -> Response<Paced> {
    let (is_stream, small) = match flight {
        Some(_) => (true, SMALL.1),
        None => (false, SMALL.0),
    };
    let size = response.body().size_hint().exact();
    let is_small = size.is_some_and(|size| size <= small as u64);
    if size.is_some() && !is_small && is_read && budget.is_used_up() {
        let status = Status::too_many_requests("too many responses are waiting to be read", 1);
        return respond::status(&status).map(|body| Paced::new(body, None, is_stream));
    }
    let flight = match is_small {
        true => None,
        false => Some(flight.unwrap_or_else(|| Flight::new(budget.clone()))),
    };
    response.map(|body| Paced::new(body, flight, is_stream))
}

impl Paced {
    fn new(body: Body, flight: Option<Arc<Flight>>, is_stream: bool) -> Self {
        if let Some(flight) = &flight {
            let endless = matches!(body.pace(), Pace::Endless);
            flight.endless.store(endless, Ordering::Relaxed);
        }
        Self {
            body,
            flight,
            is_stream,
            is_over: false,
            wait: None,
        }
    }

    /// Waits while more than `most` bytes are unsent.
    fn poll_taken(flight: &Flight, most: usize, context: &mut Context<'_>) -> Poll<()> {
        if flight.unsent() <= most {
            return Poll::Ready(());
        }
        flight.task.register(context.waker());
        match flight.unsent() <= most {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits while the budget is used up.
    fn poll_budget(&mut self, budget: &Budget, context: &mut Context<'_>) -> Poll<()> {
        while budget.is_used_up() {
            let tick = budget.tick() / 4;
            let wait = self
                .wait
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(tick)));
            ready!(wait.as_mut().poll(context));
            self.wait = None;
        }
        self.wait = None;
        Poll::Ready(())
    }
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let this = &mut *self;
        let Some(flight) = this.flight.clone() else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        if !this.is_over {
            ready!(Self::poll_taken(&flight, WINDOW - 1, context));
            if this.body.is_stream() {
                ready!(this.poll_budget(&flight.budget, context));
            }
            if let Pace::Until(end) = this.body.pace()
                && Instant::now() >= end
            {
                flight.budget.cut.inc();
                return Poll::Ready(Some(Err("the response was not read in time".into())));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let frame = frame.map_data(|data| flight.piece(data));
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => this.is_over = true,
            }
        }
        if this.is_stream {
            ready!(Self::poll_taken(&flight, 0, context));
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        // For counted bodies `poll_frame` reports the end, once all is sent.
        match (&self.flight, self.is_stream) {
            (Some(_), true) => false,
            _ => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, StreamExt};
    use http_body_util::BodyExt;

    use super::*;

    fn budget(limit: usize) -> Arc<Budget> {
        Budget::new(limit, Duration::from_secs(30))
    }

    /// A list of ten pieces, and how many of them have been produced.
    fn long() -> (Body, Arc<std::sync::atomic::AtomicUsize>) {
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = made.clone();
        let pieces = futures::stream::iter(0..10).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from(vec![b'x'; WINDOW]))
        });
        (Body::stream(pieces), made)
    }

    #[tokio::test]
    async fn a_piece_is_made_when_the_last_is_taken() {
        let budget = budget(1 << 20);
        let (body, made) = long();
        let mut body = pace(Response::new(body), &budget, None, true).into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert!(body.frame().now_or_never().is_none());
        assert_eq!(made.load(Ordering::Relaxed), 1);
        drop(first);
        assert_eq!(budget.used(), 0);
        let mut total = WINDOW;
        while let Some(frame) = body.frame().await {
            total += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(total, 10 * WINDOW);
    }

    #[tokio::test]
    async fn no_piece_is_made_while_the_budget_is_used_up() {
        let budget = budget(WINDOW);
        let other = budget.charge(WINDOW);
        let (body, made) = long();
        let mut body = pace(Response::new(body), &budget, None, true).into_body();
        assert!(body.frame().now_or_never().is_none());
        assert_eq!(made.load(Ordering::Relaxed), 0);
        drop(other);
        assert!(body.frame().await.is_some());
    }

    #[tokio::test]
    async fn a_whole_answer_is_refused_only_when_it_can_be_asked_for_again() {
        let budget = budget(WINDOW);
        let _other = budget.charge(WINDOW);
        let answer = |is_read| {
            let whole = Response::new(Body::whole(vec![b'x'; 2 * WINDOW]));
            pace(whole, &budget, None, is_read).status().as_u16()
        };
        assert_eq!((answer(true), answer(false)), (429, 200));
    }

    #[tokio::test]
    async fn an_answer_ends_with_the_time_of_its_request() {
        let (mut body, _) = long();
        body.set_pace(Pace::Until(Instant::now()));
        let mut body = pace(Response::new(body), &budget(1 << 20), None, true).into_body();
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn on_a_shared_connection_an_answer_ends_when_it_is_taken() {
        let budget = budget(1 << 20);
        let flight = Some(Flight::new(budget.clone()));
        let whole = Response::new(Body::whole(vec![b'x'; 2 * WINDOW]));
        let mut body = pace(whole, &budget, flight, true).into_body();
        let frame = body.frame().await.unwrap().unwrap();
        assert!(!body.is_end_stream());
        assert!(body.frame().now_or_never().is_none());
        drop(frame);
        assert!(body.frame().await.is_none());
    }
}
