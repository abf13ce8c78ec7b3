//! Tracks when bytes were last transferred on a connection, so that idle ones can be closed.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::Instant,
};

/// A connection and the time of its last bytes.
pub(super) struct Watched<T> {
    inner: T,
    last: Arc<watch::Sender<Instant>>,
}

/// The time of the last bytes.
#[derive(Clone)]
pub(super) struct Activity(Arc<watch::Sender<Instant>>);

impl Activity {
    /// Returns once nothing was transferred for `limit`.
    pub(super) async fn ended(&self, limit: Duration) {
        loop {
            let until = *self.0.borrow() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

impl<T> Watched<T> {
    pub(super) fn new(inner: T) -> (Self, Activity) {
        let last = Arc::new(watch::Sender::new(Instant::now()));
        let activity = Activity(last.clone());
        (Self { inner, last }, activity)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if polled.is_ready() {
            self.last.send_replace(Instant::now());
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if polled.is_ready() {
            self.last.send_replace(Instant::now());
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_in_either_direction_keep_a_connection() {
        let (near, mut far) = tokio::io::duplex(64);
        let (mut near, activity) = Watched::new(near);
        let last = || *activity.0.borrow();
        let begun = last();
        far.write_all(b"x").await.unwrap();
        assert_eq!(last(), begun, "nothing was read yet");
        near.read_u8().await.unwrap();
        let read = last();
        assert!(read > begun);
        near.write_all(b"y").await.unwrap();
        assert!(last() > read);
    }

    #[tokio::test]
    async fn a_connection_without_bytes_ends() {
        let (_near, activity) = Watched::new(tokio::io::duplex(64).0);
        activity.ended(Duration::from_millis(1)).await;
        assert!(activity.0.borrow().elapsed() >= Duration::from_millis(1));
    }
}
