//! A connection that passes long buffers on in short slices.
//!
//! TLS copies what it encrypts into its records. libc copies more than two kilobytes with `rep
//! movsb`, which some processors slow down tenfold when source and destination have similar page
//! offsets. Short copies use registers, which are never that slow.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The length of a slice.
const SLICE: usize = 2048;
/// Slices passed on at a time: as much as TLS takes, plus some shorter ones.
const AT_ONCE: usize = 48;

pub(crate) struct Slices<T>(pub(crate) T);

impl<T: AsyncRead + Unpin> AsyncRead for Slices<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Slices<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.len() <= SLICE {
            return Pin::new(&mut self.0).poll_write(context, bytes);
        }
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); AT_ONCE];
        let mut count = 0;
        let short = buffers.iter().flat_map(|buffer| buffer.chunks(SLICE));
        for (slice, short) in slices.iter_mut().zip(short) {
            *slice = IoSlice::new(short);
            count += 1;
        }
        Pin::new(&mut self.0).poll_write_vectored(context, &slices[..count])
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let (ours, mut theirs) = tokio::io::duplex(300_000);
        let sent = bytes.clone();
        let sending = tokio::spawn(async move {
            let mut ours = Slices(ours);
            ours.write_all(&sent[..400_000]).await.unwrap();
            let mut rest = &sent[400_000..];
            while !rest.is_empty() {
                let (one, other) = rest.split_at(rest.len() / 3);
                let written = ours
                    .write_vectored(&[IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)])
                    .await
                    .unwrap();
                rest = &rest[written..];
            }
            ours.shutdown().await.unwrap();
        });
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).await.unwrap();
        sending.await.unwrap();
        assert!(arrived == bytes);
    }
}
