//! Reads bodies in chunks (RFC 9112, 7.1).

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use httparse::Status;

/// Bytes of the line before a chunk, with its extensions.
const LINE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the fields after the last chunk.
const TRAILER_BYTES_MAX: usize = 16 * 1024;
/// Fields after the last chunk.
const TRAILERS_MAX: usize = 64;

/// Why a body in chunks cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ChunkError {
    /// The line before a chunk is no size.
    #[error("the size of a chunk is invalid")]
    Size,
    /// The data of a chunk is longer than its size.
    #[error("a chunk does not end after its size")]
    Data,
    /// A line or the fields after the last chunk are too large.
    #[error("a chunk has a line or trailers above the limit")]
    TooLarge,
    /// The fields after the last chunk are no fields.
    #[error("the trailers are invalid")]
    Trailers,
}

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Data.
    Data(Bytes),
    /// The fields after the last chunk; the body has ended.
    Trailers(HeaderMap),
    /// The body has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Before the line of a chunk.
    #[default]
    Line,
    /// Within a chunk of which as many bytes are left.
    Data(u64),
    /// Before the line break after a chunk.
    Break,
    /// After the last chunk.
    Trailers,
}

/// The position in a body in chunks.
#[derive(Debug, Default)]
pub(super) struct Decoder(State);

/// The length of the line that begins the buffer, with its line break.
fn line_length(buffer: &BytesMut, max: usize) -> Result<Option<usize>, ChunkError> {
    match memchr::memchr(b'\n', buffer.get(..max).unwrap_or(buffer)) {
        Some(at) => Ok(Some(at + 1)),
        None if buffer.len() >= max => Err(ChunkError::TooLarge),
        None => Ok(None),
    }
}

/// The size in a line, which may have extensions.
fn size(line: &[u8]) -> Result<u64, ChunkError> {
    let line = line.strip_suffix(b"\r\n").ok_or(ChunkError::Size)?;
    let text = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(text).ok().filter(|_| digits).ok_or(ChunkError::Size)?;
    // A line break within an extension could end the line for another reader.
    match line.contains(&b'\r') {
        true => Err(ChunkError::Size),
        false => u64::from_str_radix(text, 16).map_err(|_| ChunkError::Size),
    }
}

fn trailers(block: &[u8]) -> Result<HeaderMap, ChunkError> {
    let mut fields = [httparse::EMPTY_HEADER; TRAILERS_MAX];
    let parsed = httparse::parse_headers(block, &mut fields);
    let Ok(Status::Complete((_, fields))) = parsed else { return Err(ChunkError::Trailers) };
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        let (Ok(name), Ok(value)) = (name, value) else { return Err(ChunkError::Trailers) };
        map.append(name, value);
    }
    Ok(map)
}

/// The length of the fields after the last chunk, with the empty line.
fn trailers_length(buffer: &BytesMut) -> Result<Option<usize>, ChunkError> {
    let end = buffer.windows(4).take(TRAILER_BYTES_MAX).position(|bytes| bytes == b"\r\n\r\n");
    match end {
        Some(at) => Ok(Some(at + 4)),
        None if buffer.len() >= TRAILER_BYTES_MAX => Err(ChunkError::TooLarge),
        None => Ok(None),
    }
}

impl Decoder {
    /// Takes the next part from the buffer; `None` if it needs more bytes.
    pub(super) fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Part>, ChunkError> {
        loop {
            match self.0 {
                State::Line => {
                    let Some(length) = line_length(buffer, LINE_BYTES_MAX)? else {
                        return Ok(None);
                    };
                    self.0 = match size(&buffer.split_to(length))? {
                        0 => State::Trailers,
                        size => State::Data(size),
                    };
                }
                State::Data(left) => {
                    if buffer.is_empty() {
                        return Ok(None);
                    }
                    let now = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    let left = left - now as u64;
                    self.0 = if left == 0 { State::Break } else { State::Data(left) };
                    return Ok(Some(Part::Data(buffer.split_to(now).freeze())));
                }
                State::Break => {
                    match buffer.get(..2) {
                        Some(b"\r\n") => buffer.advance(2),
                        Some(_) => return Err(ChunkError::Data),
                        None => return Ok(None),
                    }
                    self.0 = State::Line;
                }
                State::Trailers => {
                    if buffer.starts_with(b"\r\n") {
                        buffer.advance(2);
                        return Ok(Some(Part::End));
                    }
                    let Some(length) = trailers_length(buffer)? else { return Ok(None) };
                    return trailers(&buffer.split_to(length)).map(|map| Some(Part::Trailers(map)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data and the trailers of a body that arrives in pieces of `piece` bytes, and what is
    /// left of the buffer.
    fn read(text: &str, piece: usize) -> Result<(String, Option<HeaderMap>, String), ChunkError> {
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let mut data = Vec::new();
        let mut pieces = text.as_bytes().chunks(piece);
        loop {
            let end = match decoder.take(&mut buffer)? {
                Some(Part::Data(part)) => {
                    data.extend_from_slice(&part);
                    continue;
                }
                Some(Part::Trailers(map)) => Some(map),
                Some(Part::End) => None,
                None => {
                    buffer.extend_from_slice(pieces.next().expect("the body ends"));
                    continue;
                }
            };
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            return Ok((text(&data), end, text(&buffer)));
        }
    }

    #[test]
    fn bodies_are_read_however_they_arrive() {
        let text = "5\r\nhello\r\n00001;name=\"v\"\r\n \r\nA;x\r\n0123456789\r\n0\r\n\r\nHTTP";
        for piece in 1..text.len() {
            let (data, trailers, rest) = read(text, piece).unwrap();
            assert_eq!((data.as_str(), trailers), ("hello 0123456789", None), "{piece}");
            assert!("HTTP".starts_with(&rest), "{piece}: {rest}");
        }
        let (data, trailers, _) = read("1\r\na\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n", 3).unwrap();
        assert_eq!((data.as_str(), trailers.unwrap().get_all("x-sum").iter().count()), ("a", 2));
    }

    /// RFC 9112, 7.1 and 11.2: what one reader takes for a size another one may not.
    #[test]
    fn invalid_chunks_are_refused() {
        for (text, error) in [
            ("x\r\n", ChunkError::Size),
            ("\r\n", ChunkError::Size),
            ("-1\r\na\r\n", ChunkError::Size),
            ("0x1\r\na\r\n", ChunkError::Size),
            ("1 1\r\na\r\n", ChunkError::Size),
            ("1\na\r\n", ChunkError::Size),
            ("1;a\rb\r\na\r\n", ChunkError::Size),
            ("10000000000000000\r\na\r\n", ChunkError::Size),
            ("1\r\nab\r\n", ChunkError::Data),
            ("1\r\na\n0\r\n\r\n", ChunkError::Data),
            ("0\r\nX : 1\r\n\r\n", ChunkError::Trailers),
        ] {
            assert_eq!(read(text, 64).unwrap_err(), error, "{text:?}");
        }
        let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(read(&long, 512).unwrap_err(), ChunkError::TooLarge);
        let many = format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX));
        assert_eq!(read(&many, 512).unwrap_err(), ChunkError::TooLarge);
    }
}
