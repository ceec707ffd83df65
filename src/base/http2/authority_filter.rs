//! Accepts requests whose `:authority` is not a host and port, as grpc-go's server does.
//!
//! gRPC clients send the name that they dialed: grpc-go before 1.30, which etcdctl 3.4 is built
//! with, sends `http://127.0.0.1:2379` for the endpoint of that name, and device plugins that dial
//! a Unix socket send its path. h2 resets such a stream with PROTOCOL_ERROR, and one whose
//! `:authority` is empty. The value is not used, so the filter replaces it before h2 reads it.
//!
//! The filter decodes each header block with a dynamic table of its own, and passes the bytes
//! unchanged until the first block with such a value. That block and all later ones of the
//! connection are encoded again without a dynamic table, since h2's table no longer matches the
//! client's.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::hpack;
use super::hpack::{Decoder, Field, LIST_MAX};

/// The connection preface of HTTP/2 clients (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Octets before the payload of a frame.
const FRAME_HEADER: usize = 9;
/// Largest payload that h2 accepts without a setting of the server; larger frames are an error that
/// h2 answers.
const FRAME_MAX: usize = 16_384;
/// Frames of one header block: h2 ends a connection that sends more than five CONTINUATIONs for a
/// list of this size.
const BLOCK_FRAMES: usize = 6;
/// Payload octets of one header block: the list without compression, a pad length, a priority and
/// the padding.
const BLOCK_MAX: usize = LIST_MAX + 1 + 5 + 255;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A frame at the start of a buffer, possibly incomplete.
struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    length: usize,
    /// `None` if the frame is incomplete.
    payload: Option<&'a [u8]>,
}

impl<'a> Frame<'a> {
    /// `None` if the frame header is incomplete.
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<FRAME_HEADER>()?;
        let [high, middle, low, kind, flags, stream @ ..] = *header;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Some(Self { kind, flags, stream, length, payload: rest.get(..length) })
    }

    fn size(&self) -> usize {
        FRAME_HEADER.saturating_add(self.length)
    }
}

/// A HEADERS frame with its CONTINUATIONs.
struct Block<'a> {
    /// Octets of all frames.
    size: usize,
    /// END_STREAM and PRIORITY of the first frame.
    flags: u8,
    stream: [u8; 4],
    /// The priority, if it has one.
    priority: &'a [u8],
    /// The header block.
    fragments: Cow<'a, [u8]>,
}

/// Result of the search for a complete block.
enum Search<'a> {
    Whole(Block<'a>),
    Incomplete,
    /// Frames that h2 refuses, or that exceed the size of a header list.
    Invalid,
}

/// Reads the frames of a block at the start of `bytes`, which begin with a HEADERS frame.
fn search(bytes: &[u8]) -> Search<'_> {
    let mut block: Option<Block<'_>> = None;
    let mut payloads = 0usize;
    for _ in 0..BLOCK_FRAMES {
        let at = block.as_ref().map_or(0, |block| block.size);
        let Some(frame) = Frame::first(bytes.get(at..).unwrap_or_default()) else {
            return Search::Incomplete;
        };
        payloads = payloads.saturating_add(frame.length);
        let follows = block
            .as_ref()
            .is_none_or(|block| frame.kind == CONTINUATION && frame.stream == block.stream);
        if !follows || frame.length > FRAME_MAX || payloads > BLOCK_MAX {
            return Search::Invalid;
        }
        let Some(payload) = frame.payload else { return Search::Incomplete };
        let current = match &mut block {
            None => match first_of_block(&frame, payload) {
                Some(first) => block.insert(first),
                None => return Search::Invalid,
            },
            Some(current) => {
                current.fragments.to_mut().extend_from_slice(payload);
                current.size += frame.size();
                current
            }
        };
        if frame.flags & END_HEADERS != 0 {
            let (priority, stream, flags) = (current.priority, current.stream, current.flags);
            let fragments = std::mem::take(&mut current.fragments);
            return Search::Whole(Block { size: current.size, flags, stream, priority, fragments });
        }
    }
    Search::Invalid
}

fn first_of_block<'a>(frame: &Frame<'_>, payload: &'a [u8]) -> Option<Block<'a>> {
    let (mut start, mut end) = (0, payload.len());
    if frame.flags & PADDED != 0 {
        start = 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    let priority = if frame.flags & PRIORITY == 0 { 0 } else { 5 };
    Some(Block {
        size: frame.size(),
        flags: frame.flags & (END_STREAM | PRIORITY),
        stream: frame.stream,
        priority: payload.get(start..start + priority)?,
        fragments: Cow::Borrowed(payload.get(start + priority..end)?),
    })
}

/// Whether grpc-go's server accepts this `:authority` and h2 does not. Go's HTTP/2 accepts any
/// value without control characters.
fn only_grpc_go_accepts(value: &[u8]) -> bool {
    let control = |octet: &u8| octet.is_ascii_control() && *octet != b'\t';
    http::uri::Authority::try_from(value).is_err() && !value.iter().any(control)
}

/// Replaces the only `:authority` of a list by a value that h2 accepts; returns whether it did.
/// Several ones stay unchanged: both servers refuse them.
fn replace_authority(fields: &mut [Field]) -> bool {
    let mut authorities = fields.iter_mut().filter(|field| field.name == ":authority");
    let (Some(authority), None) = (authorities.next(), authorities.next()) else { return false };
    let replaced = only_grpc_go_accepts(&authority.value);
    if replaced {
        authority.value = Bytes::from_static(b"localhost");
    }
    replaced
}

/// Finds the header blocks of a connection.
#[derive(Debug)]
struct Frames {
    /// Octets of the preface that have passed.
    preface: usize,
    /// Everything else passes unexamined: the connection does not use HTTP/2, or h2 will refuse it.
    raw: bool,
    /// Octets of the current frame that pass unexamined.
    skip: usize,
    decoder: Decoder,
    /// Blocks are encoded again, because h2's dynamic table differs from the client's.
    encoding: bool,
}

/// The start of a buffer.
enum Front {
    /// This many bytes pass unchanged; the rest is incomplete.
    Unchanged(usize),
    /// This many bytes pass unchanged; then frames of this size are replaced by a frame.
    Changed(usize, usize, Vec<u8>),
}

impl Frames {
    fn new() -> Self {
        Self { preface: 0, raw: false, skip: 0, decoder: Decoder::new(), encoding: false }
    }

    fn front(&mut self, bytes: &[u8]) -> Front {
        let mut at = 0;
        while let (false, Some(byte), Some(expected)) =
            (self.raw, bytes.get(at), PREFACE.get(self.preface))
        {
            self.raw = byte != expected;
            self.preface += 1;
            at += 1;
        }
        while !self.raw {
            let passing = self.skip.min(bytes.len() - at);
            self.skip -= passing;
            at += passing;
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(frame) = Frame::first(rest) else { return Front::Unchanged(at) };
            if frame.kind != HEADERS {
                self.skip = frame.size();
                continue;
            }
            let block = match search(rest) {
                Search::Whole(block) => block,
                Search::Incomplete => return Front::Unchanged(at),
                Search::Invalid => {
                    self.raw = true;
                    break;
                }
            };
            let Some(mut fields) = self.decoder.decode(&block.fragments) else {
                self.raw = true;
                break;
            };
            if replace_authority(&mut fields) || self.encoding {
                return Front::Changed(at, block.size, self.encode(&block, &fields));
            }
            self.skip = block.size;
        }
        Front::Unchanged(bytes.len())
    }

    /// Encodes a block as a frame that uses no dynamic table. The frame is smaller than
    /// [`FRAME_MAX`]: a field has at most seven octets in addition to its name and value, and
    /// counts 32 in [`LIST_MAX`].
    fn encode(&mut self, block: &Block<'_>, fields: &[Field]) -> Vec<u8> {
        let mut payload = block.priority.to_vec();
        if !std::mem::replace(&mut self.encoding, true) {
            // Otherwise a client could refer to an entry that only h2 still has, after the filter
            // refused a block and passed the rest.
            hpack::encode_empty_table(&mut payload);
        }
        fields.iter().for_each(|field| hpack::encode(&mut payload, field));
        let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
        let kind = [HEADERS, block.flags | END_HEADERS];
        [&length[..], &kind, &block.stream, &payload].concat()
    }
}

/// A connection of a client; writes pass unchanged.
#[derive(Debug)]
pub struct AuthorityFilter<T> {
    io: T,
    frames: Frames,
    /// The start of an incomplete header block, at most [`BLOCK_MAX`] plus frame headers, and the
    /// bytes received with it.
    partial: Vec<u8>,
    /// Bytes ready to be read, starting at `read`.
    ready: Vec<u8>,
    read: usize,
}

impl<T> AuthorityFilter<T> {
    /// Filters what is read from `io`.
    pub fn new(io: T) -> Self {
        let frames = Frames::new();
        Self { io, frames, partial: Vec::new(), ready: Vec::new(), read: 0 }
    }

    /// Moves complete frames from `partial` to `ready`.
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
                // The connection has ended, in the middle of a frame if bytes are left.
                this.ready = std::mem::take(&mut this.partial);
                if this.ready.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // Bytes that are complete at once pass without a copy.
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
mod tests;
