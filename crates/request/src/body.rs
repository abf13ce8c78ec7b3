//! Response bodies: complete bytes or a stream.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use prometheus_client::metrics::histogram::Histogram;

/// The error of a streamed body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What a poll of a body gives.
pub type NextFrame = Option<Result<Frame<Bytes>, BodyError>>;

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// A response body.
pub struct Body {
    inner: Inner,
    /// Dropped with the body, after the response has been sent.
    held: Option<Box<dyn std::any::Any + Send>>,
    measured: Option<Measured>,
    pace: Pace,
}

/// How long sending a body may take.
#[derive(Debug, Clone, Copy, Default)]
pub enum Pace {
    /// As long as the client keeps reading.
    #[default]
    Steady,
    /// The same, but at most until this time.
    Until(tokio::time::Instant),
    /// Without a limit: logs, proxies, streams into containers.
    Endless,
}

/// Counts the bytes of a body and observes their number when the body is dropped.
struct Measured {
    bytes: u64,
    sizes: Histogram,
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.sizes.observe(self.bytes as f64);
    }
}

enum Inner {
    Whole(Option<Bytes>),
    Stream(BoxStream<'static, Result<Bytes, BodyError>>),
}

impl Body {
    fn new(inner: Inner) -> Self {
        Self {
            inner,
            held: None,
            measured: None,
            pace: Pace::default(),
        }
    }

    /// Keeps a guard alive until the body is dropped, beside earlier guards.
    pub fn hold(&mut self, guard: impl Send + 'static) {
        self.held = Some(match self.held.take() {
            Some(held) => Box::new((held, guard)),
            None => Box::new(guard),
        });
    }

    pub fn pace(&self) -> Pace {
        self.pace
    }

    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Measures the number of bytes sent.
    pub fn measure(&mut self, sizes: Histogram) {
        self.measured = Some(Measured { bytes: 0, sizes });
    }

    /// An empty body.
    pub fn empty() -> Self {
        Self::new(Inner::Whole(None))
    }

    /// Complete bytes.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(Inner::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    /// The bytes, if complete.
    pub fn as_whole(&self) -> Option<&Bytes> {
        match &self.inner {
            Inner::Whole(bytes) => bytes.as_ref(),
            Inner::Stream(_) => None,
        }
    }

    /// Whether it is produced while it is sent.
    pub fn is_stream(&self) -> bool {
        matches!(self.inner, Inner::Stream(_))
    }

    /// A stream of pieces.
    pub fn stream(stream: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Self {
        Self::new(Inner::Stream(stream.boxed()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let next = match &mut self.inner {
            Inner::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Inner::Stream(stream) => stream.poll_next_unpin(context),
        };
        if let (Poll::Ready(Some(Ok(data))), Some(measured)) = (&next, &mut self.measured) {
            measured.bytes += data.len() as u64;
        }
        next.map(|next| next.map(|item| item.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.inner, Inner::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}
