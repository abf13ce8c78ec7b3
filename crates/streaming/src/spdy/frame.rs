//! Frames on the wire.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Error;

const VERSION: u16 = 3;
const CONTROL: u32 = 1 << 31;
pub(crate) const FIN: u8 = 1;
/// Control frames carry at most headers.
const MAX_CONTROL: usize = 64 * 1024;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Why a stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reset {
    Refused = 3,
    Cancel = 5,
}

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    SynStream {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    SynReply {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    Headers {
        id: u32,
        fin: bool,
        block: Bytes,
    },
    Reset {
        id: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// Settings, window updates and other frames without a reply.
    Ignored,
    /// The header of a data frame; `length` bytes follow.
    Data {
        id: u32,
        fin: bool,
        length: usize,
    },
}

/// Reads one frame, or only the header of a data frame; `None` at a clean end.
pub(crate) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> Result<Option<Frame>, Error> {
    let mut head = [0; 8];
    if reader.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut head[1..]).await?;
    let mut head = &head[..];
    let first = head.get_u32();
    let second = head.get_u32();
    let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
    if first & CONTROL == 0 {
        return Ok(Some(Frame::Data {
            id: first,
            fin: flags & FIN != 0,
            length,
        }));
    }
    let (version, kind) = (((first & !CONTROL) >> 16) as u16, first as u16);
    if version != VERSION || length > MAX_CONTROL {
        return Err(Error::Protocol(format!(
            "frame of version {version}, length {length}"
        )));
    }
    let mut payload = BytesMut::zeroed(length);
    reader.read_exact(&mut payload).await?;
    control(kind, flags, payload.freeze()).map(Some)
}

fn control(kind: u16, flags: u8, mut payload: Bytes) -> Result<Frame, Error> {
    let short = |_| Error::Protocol("frame is too short".to_owned());
    let fin = flags & FIN != 0;
    if !matches!(
        kind,
        SYN_STREAM | SYN_REPLY | RST_STREAM | PING | GOAWAY | HEADERS
    ) {
        return Ok(Frame::Ignored);
    }
    let number = payload.try_get_u32().map_err(short)?;
    let id = number & !CONTROL;
    Ok(match kind {
        SYN_STREAM => {
            // Kubernetes does not use associated stream, priority and slot.
            payload.try_get_u32().map_err(short)?;
            payload.try_get_u16().map_err(short)?;
            Frame::SynStream {
                id,
                fin,
                block: payload,
            }
        }
        SYN_REPLY => Frame::SynReply {
            id,
            fin,
            block: payload,
        },
        HEADERS => Frame::Headers {
            id,
            fin,
            block: payload,
        },
        RST_STREAM => Frame::Reset { id },
        PING => Frame::Ping { id: number },
        _ => Frame::GoAway,
    })
}

fn put_control(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u32(CONTROL | u32::from(VERSION) << 16 | u32::from(kind));
    out.put_u32(u32::from(flags) << 24 | length as u32);
}

pub(crate) fn put_syn_stream(out: &mut BytesMut, id: u32, block: &[u8]) {
    put_control(out, SYN_STREAM, 0, 10 + block.len());
    out.put_u32(id);
    out.put_u32(0);
    out.put_u16(0);
    out.put_slice(block);
}

pub(crate) fn put_syn_reply(out: &mut BytesMut, id: u32, block: &[u8]) {
    put_control(out, SYN_REPLY, 0, 4 + block.len());
    out.put_u32(id);
    out.put_slice(block);
}

pub(crate) fn put_reset(out: &mut BytesMut, id: u32, reason: Reset) {
    put_control(out, RST_STREAM, 0, 8);
    out.put_u32(id);
    out.put_u32(reason as u32);
}

pub(crate) fn put_ping(out: &mut BytesMut, id: u32) {
    put_control(out, PING, 0, 4);
    out.put_u32(id);
}

pub(crate) fn put_goaway(out: &mut BytesMut, last: u32) {
    put_control(out, GOAWAY, 0, 8);
    out.put_u32(last);
    out.put_u32(0);
}

/// The header of a data frame.
pub(crate) fn put_data(out: &mut BytesMut, id: u32, fin: bool, length: usize) {
    out.put_u32(id);
    out.put_u32(if fin { u32::from(FIN) << 24 } else { 0 } | length as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let mut out = BytesMut::new();
        put_syn_stream(&mut out, 1, b"block");
        put_syn_reply(&mut out, 1, b"");
        put_reset(&mut out, 1, Reset::Cancel);
        put_ping(&mut out, 7);
        put_goaway(&mut out, 1);
        put_control(&mut out, 9, 0, 3);
        out.put_slice(b"any");
        put_data(&mut out, 3, true, 0);
        let mut bytes = &out[..];
        let block = Bytes::from_static(b"block");
        for expected in [
            Frame::SynStream {
                id: 1,
                fin: false,
                block,
            },
            Frame::SynReply {
                id: 1,
                fin: false,
                block: Bytes::new(),
            },
            Frame::Reset { id: 1 },
            Frame::Ping { id: 7 },
            Frame::GoAway,
            Frame::Ignored,
            Frame::Data {
                id: 3,
                fin: true,
                length: 0,
            },
        ] {
            assert_eq!(read(&mut bytes).await.unwrap(), Some(expected));
        }
        assert_eq!(read(&mut bytes).await.unwrap(), None);
    }

    #[tokio::test]
    async fn other_versions_short_frames_and_oversized_frames_are_refused() {
        for bytes in [
            &[0x80, 2, 0, 1, 0, 0, 0, 0][..],
            &[0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1],
            &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
            &[0x80, 3],
        ] {
            let mut bytes = bytes;
            read(&mut bytes).await.unwrap_err();
        }
    }
}
