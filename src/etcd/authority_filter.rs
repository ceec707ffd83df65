//! Requests whose `:authority` is not a host and port, as grpc-go's server takes them.
//!
//! gRPC clients send the name that they dialed: grpc-go before 1.30, which etcdctl 3.4 is built
//! with, sends
//! `http://127.0.0.1:2379` for the endpoint of that name. h2 resets such a stream with
//! PROTOCOL_ERROR. The value is not
//! used, so the filter replaces it before h2 reads it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::hpack::replace_invalid_authority;

/// What a client of HTTP/2 begins a connection with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Octets before the payload of a frame.
const FRAME_HEADER: usize = 9;
/// Largest payload that h2 accepts without a setting of the server; larger frames are an error that
/// h2 answers.
const FRAME_MAX: usize = 16_384;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Finds the frames in what is read.
#[derive(Debug, Default)]
struct Frames {
    /// Octets of the preface that have passed.
    preface: usize,
    /// The connection does not speak HTTP/2.
    raw: bool,
    /// Octets of the frame under way that pass without a look.
    skip: usize,
}

/// What is at the front of some bytes.
enum Front {
    /// So many bytes that pass as they are; what follows is not complete yet.
    Unchanged(usize),
    /// So many bytes that pass, then a frame of so many that these take the place of.
    Changed(usize, usize, Vec<u8>),
}

/// The frame with its `:authority` replaced, if it has one that h2 refuses.
fn rewrite(frame: &[u8]) -> Option<Vec<u8>> {
    let (flags, payload) = (*frame.get(4)?, frame.get(FRAME_HEADER..)?);
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        start += 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let block = replace_invalid_authority(payload.get(start..end)?)?;
    let length = payload.len() - (end - start) + block.len();
    if length > FRAME_MAX {
        return None;
    }
    let [_, high, middle, low] = u32::try_from(length).ok()?.to_be_bytes();
    let (before, after) = (payload.get(..start)?, payload.get(end..)?);
    Some([&[high, middle, low], frame.get(3..FRAME_HEADER)?, before, &block, after].concat())
}

impl Frames {
    fn front(&mut self, bytes: &[u8]) -> Front {
        let mut at = 0;
        while let (false, Some(byte), Some(expected)) =
            (self.raw, bytes.get(at), PREFACE.get(self.preface))
        {
            self.raw = byte != expected;
            self.preface += 1;
            at += 1;
        }
        if self.raw {
            return Front::Unchanged(bytes.len());
        }
        loop {
            let passing = self.skip.min(bytes.len() - at);
            self.skip -= passing;
            at += passing;
            let Some([high, middle, low, kind]) = bytes.get(at..).and_then(|b| b.first_chunk())
            else {
                return Front::Unchanged(at);
            };
            let length = u32::from_be_bytes([0, *high, *middle, *low]);
            let size = FRAME_HEADER.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            if *kind == HEADERS && size <= FRAME_HEADER + FRAME_MAX {
                let Some(frame) = bytes.get(at..at + size) else { return Front::Unchanged(at) };
                if let Some(rewritten) = rewrite(frame) {
                    return Front::Changed(at, size, rewritten);
                }
            }
            self.skip = size;
        }
    }
}

/// A connection of a client; writes go through as they are.
#[derive(Debug)]
pub(crate) struct AuthorityFilter<T> {
    io: T,
    frames: Frames,
    /// The begin of a frame whose rest has not come: at most one frame of headers and what came
    /// with it.
    partial: Vec<u8>,
    /// Bytes to be read, the first of them at `read`.
    ready: Vec<u8>,
    read: usize,
}

impl<T> AuthorityFilter<T> {
    pub(crate) fn new(io: T) -> Self {
        let frames = Frames::default();
        Self { io, frames, partial: Vec::new(), ready: Vec::new(), read: 0 }
    }

    /// Moves what is complete from `partial` to `ready`.
    fn advance(&mut self) {
        let mut at = 0;
        while let Some(rest) = self.partial.get(at..).filter(|rest| !rest.is_empty()) {
            match self.frames.front(rest) {
                Front::Unchanged(passing) => {
                    self.ready.extend_from_slice(rest.get(..passing).unwrap_or_default());
                    at += passing;
                    break;
                }
                Front::Changed(passing, size, rewritten) => {
                    self.ready.extend_from_slice(rest.get(..passing).unwrap_or_default());
                    self.ready.extend_from_slice(&rewritten);
                    at += passing + size;
                }
            }
        }
        self.partial.drain(..at);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityFilter<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(rest) = this.ready.get(this.read..).filter(|rest| !rest.is_empty()) {
                let size = rest.len().min(into.remaining());
                into.put_slice(rest.get(..size).unwrap_or_default());
                this.read += size;
                return Poll::Ready(Ok(()));
            }
            (this.ready, this.read) = (Vec::new(), 0);
            let before = into.filled().len();
            if into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            ready!(Pin::new(&mut this.io).poll_read(cx, into))?;
            let bytes = into.filled().get(before..).unwrap_or_default();
            if bytes.is_empty() {
                // The end of the connection, in the middle of a frame if something is left.
                this.ready = std::mem::take(&mut this.partial);
                if this.ready.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // What came at once and whole passes without a copy.
            let passing = match this.partial.is_empty().then(|| this.frames.front(bytes)) {
                None => {
                    this.partial.extend_from_slice(bytes);
                    this.advance();
                    0
                }
                Some(Front::Unchanged(passing)) => {
                    this.partial.extend_from_slice(bytes.get(passing..).unwrap_or_default());
                    passing
                }
                Some(Front::Changed(passing, size, rewritten)) => {
                    this.ready = rewritten;
                    let rest = bytes.get(passing + size..).unwrap_or_default();
                    this.partial.extend_from_slice(rest);
                    this.advance();
                    passing
                }
            };
            into.set_filled(before + passing);
            if passing > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityFilter<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn block(authority: &str) -> Vec<u8> {
        let length = u8::try_from(authority.len()).unwrap();
        [&[0x83, 0x41, length], authority.as_bytes(), &[0x84]].concat()
    }

    /// What is read of `sent` when it comes in pieces of this size.
    async fn filtered(sent: Vec<u8>, piece: usize) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(piece);
        let writing = async move { client.write_all(&sent).await };
        let mut out = Vec::new();
        let mut filter = AuthorityFilter::new(server);
        let (written, read) = tokio::join!(writing, filter.read_to_end(&mut out));
        written.unwrap();
        read.unwrap();
        out
    }

    #[tokio::test]
    async fn invalid_authorities_are_replaced_however_the_frames_are_split() {
        let other = [PREFACE.to_vec(), frame(4, 0, &[]), frame(0, 0, &[7; 70])].concat();
        let (invalid, valid) = (block("http://127.0.0.1:2379"), block(&"a".repeat(21)));
        // Pad length 2, then the priority's five octets.
        let padded = |block: &[u8]| [&[2, 0, 0, 0, 0, 9], block, &[0, 0]].concat();
        let make = |block: &[u8]| {
            let mut out = other.clone();
            out.extend(frame(HEADERS, 4, block));
            out.extend(frame(0, 1, b"body"));
            out.extend(frame(HEADERS, 4, self::block("a:1").as_slice()));
            out.extend(frame(HEADERS, 4 | PADDED | PRIORITY, &padded(block)));
            out.extend(frame(HEADERS, 4, block));
            out.extend(&frame(HEADERS, 4, b"cut")[..11]);
            out
        };
        for piece in [1, 2, 9, 64, 4096] {
            assert_eq!(filtered(make(&invalid), piece).await, make(&valid), "{piece}");
            assert_eq!(filtered(make(&valid), piece).await, make(&valid), "{piece}");
        }
    }

    #[tokio::test]
    async fn http1_passes_as_it_is() {
        let sent = b"PUT /health HTTP/1.1\r\n\r\n\0\0\x05\x01\x04\0\0\0\0\x41\x03///".to_vec();
        assert_eq!(filtered(sent.clone(), 5).await, sent);
    }
}
