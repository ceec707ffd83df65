//! The head of a response over HTTP/1.1, and where its body ends (RFC 9112, 4 and 6.3).

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};

use crate::proxy::headers::has_option;

/// Bytes of the head of a response.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes whose copy costs less than the allocation of a buffer.
const COPY_BYTES_MAX: usize = 2 * 1024;
/// Header fields of a response.
const FIELDS_MAX: usize = 128;

/// Why the head of a response cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// It is no HTTP.
    #[error("the head of the response is not HTTP: {0}")]
    Syntax(#[from] httparse::Error),
    /// The end does not come.
    #[error("the head of the response is larger than {HEAD_BYTES_MAX} bytes")]
    TooLarge,
    /// Two lengths, or none that is a number.
    #[error("the length of the response is ambiguous")]
    Length,
    /// HTTP/1.0 has no transfer codings.
    #[error("the response has a transfer coding although it is HTTP/1.0")]
    Coding,
}

/// Where the body of a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// There is no body.
    Empty,
    /// After as many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    Close,
}

/// The head of a response.
#[derive(Debug)]
pub(super) struct Head {
    /// Status, version and headers.
    pub(super) response: Response<()>,
    /// Where the body ends.
    pub(super) end: End,
    /// The connection can be used for another request after the body.
    pub(super) keeps: bool,
}

/// The position after the empty line that ends a head, searched from `start`.
fn head_end(bytes: &[u8], start: usize) -> Option<usize> {
    // The line break before the empty line may have been seen already.
    let from = start.saturating_sub(3);
    let rest = bytes.get(from..)?;
    memchr::memchr_iter(b'\n', rest).map(|at| at + 1).find_map(|after| match rest.get(after..)? {
        [b'\n', ..] => Some(from + after + 1),
        [b'\r', b'\n', ..] => Some(from + after + 2),
        _ => None,
    })
}

/// Takes the head of a response to `method` from `buffer`; `None` if it is incomplete. `searched`
/// are the bytes in which no end was found before.
pub(super) fn take_head(
    buffer: &mut BytesMut,
    searched: &mut usize,
    method: &Method,
) -> Result<Option<Head>, HeadError> {
    let Some(end) = head_end(buffer, *searched) else {
        if buffer.len() > HEAD_BYTES_MAX {
            return Err(HeadError::TooLarge);
        }
        *searched = buffer.len();
        return Ok(None);
    };
    *searched = 0;
    if end > HEAD_BYTES_MAX {
        return Err(HeadError::TooLarge);
    }
    parse(&take_bytes(buffer, end), method).map(Some)
}

/// Takes `count` bytes from the buffer. Few bytes are copied, so that the buffer is not shared and
/// the next read needs no new one.
pub(super) fn take_bytes(buffer: &mut BytesMut, count: usize) -> Bytes {
    match buffer.get(..count) {
        Some(bytes) if count <= COPY_BYTES_MAX => {
            let copy = Bytes::copy_from_slice(bytes);
            buffer.advance(count);
            copy
        }
        _ => buffer.split_to(count.min(buffer.len())).freeze(),
    }
}

fn parse(head: &Bytes, method: &Method) -> Result<Head, HeadError> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let done = ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        head,
        &mut fields,
    )?;
    if done == Status::Partial {
        return Err(httparse::Error::NewLine.into());
    }
    let mut response = Response::new(());
    *response.status_mut() = parsed
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(HeadError::Syntax(httparse::Error::Status))?;
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.version_mut() = version;
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len());
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| HeadError::Syntax(httparse::Error::HeaderName))?;
        // The values share the bytes of the head.
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value))
            .map_err(|_| HeadError::Syntax(httparse::Error::HeaderValue))?;
        headers.append(name, value);
    }
    let end = body_end(method, response.status(), version, response.headers_mut())?;
    let keeps = end != End::Close && keeps(version, response.headers());
    Ok(Head { response, end, keeps })
}

/// Whether a connection persists after a response (RFC 9112, 9.3).
fn keeps(version: Version, headers: &HeaderMap) -> bool {
    match version {
        Version::HTTP_10 => has_option(headers, &CONNECTION, "keep-alive"),
        _ => !has_option(headers, &CONNECTION, "close"),
    }
}

/// Where the body of a response ends, in the order of RFC 9112, 6.3. A length beside a transfer
/// coding is removed: the client must not see it.
fn body_end(
    method: &Method,
    status: StatusCode,
    version: Version,
    headers: &mut HeaderMap,
) -> Result<End, HeadError> {
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
    if *method == Method::HEAD || status.is_informational() || bodiless.contains(&status) {
        return Ok(End::Empty);
    }
    if let Some(last) = headers.get_all(TRANSFER_ENCODING).iter().next_back() {
        if version == Version::HTTP_10 {
            return Err(HeadError::Coding);
        }
        let last = last.to_str().ok().and_then(|value| value.rsplit(',').next());
        let is_chunked = last.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"));
        headers.remove(CONTENT_LENGTH);
        return Ok(if is_chunked { End::Chunked } else { End::Close });
    }
    match length(headers)? {
        None => Ok(End::Close),
        Some(0) => Ok(End::Empty),
        Some(length) => Ok(End::Length(length)),
    }
}

/// The length that all fields and all members of their lists agree on.
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut found = None;
    let (mut members, mut fields) = (0, headers.get_all(CONTENT_LENGTH).iter());
    for value in &mut fields {
        for text in value.to_str().map_err(|_| HeadError::Length)?.split(',') {
            let text = text.trim();
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let length: u64 = text.parse().ok().filter(|_| digits).ok_or(HeadError::Length)?;
            if found.is_some_and(|known| known != length) {
                return Err(HeadError::Length);
            }
            found = Some(length);
            members += 1;
        }
    }
    if let Some(length) = found
        && members > 1
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::http1::chunked::{Decoder, Part};

    fn take(text: &str, method: &str) -> Result<Option<Head>, HeadError> {
        let mut buffer = BytesMut::from(text);
        take_head(&mut buffer, &mut 0, &method.parse().unwrap())
    }

    fn head(text: &str) -> Head {
        take(&format!("{text}\r\n"), "GET").unwrap().expect("a whole head")
    }

    /// Every rule of RFC 9112, 6.3 that concerns responses.
    #[test]
    fn the_end_of_a_body_follows_from_the_head() {
        for (text, end, keeps) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", End::Length(5), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", End::Empty, true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n", End::Length(5), true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n", End::Chunked, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n", End::Close, false),
            ("HTTP/1.1 200 OK\r\n", End::Close, false),
            ("HTTP/1.1 204 No Content\r\n", End::Empty, true),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n", End::Empty, true),
            ("HTTP/1.1 103 Early Hints\r\n", End::Empty, true),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: a, Close\r\n",
                End::Length(5),
                false,
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", End::Length(5), false),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n",
                End::Length(5),
                true,
            ),
            ("HTTP/1.1 200\r\nContent-Length: 5\r\n", End::Length(5), true),
        ] {
            let head = head(text);
            assert_eq!((head.end, head.keeps), (end, keeps), "{text}");
        }
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(take(text, "HEAD").unwrap().unwrap().end, End::Empty);
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for (text, error) in [
            ("Content-Length: 5\r\nContent-Length: 6\r\n", HeadError::Length),
            ("Content-Length: 5, 6\r\n", HeadError::Length),
            ("Content-Length: +5\r\n", HeadError::Length),
            ("Content-Length: 0x5\r\n", HeadError::Length),
            ("Content-Length:\r\n", HeadError::Length),
            ("Content-Length: 99999999999999999999\r\n", HeadError::Length),
            ("X : 1\r\n", HeadError::Syntax(httparse::Error::HeaderName)),
            ("X: 1\r\n folded\r\n", HeadError::Syntax(httparse::Error::HeaderName)),
        ] {
            let got = take(&format!("HTTP/1.1 200 OK\r\n{text}\r\n"), "GET").unwrap_err();
            assert_eq!(got, error, "{text}");
        }
        let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(take(old, "GET").unwrap_err(), HeadError::Coding);
        assert!(take("SSH-2.0-x\r\n\r\n", "GET").is_err());
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(take(&endless, "GET").unwrap_err(), HeadError::TooLarge);
        let many = "A: b\r\n".repeat(FIELDS_MAX + 1);
        let many = take(&format!("HTTP/1.1 200 OK\r\n{many}\r\n"), "GET").unwrap_err();
        assert_eq!(many, HeadError::Syntax(httparse::Error::TooManyHeaders));
    }

    #[test]
    fn a_length_beside_a_coding_does_not_reach_the_client() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n";
        assert!(!head(text).response.headers().contains_key(CONTENT_LENGTH));
        let lists = head("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n");
        let lengths: Vec<_> = lists.response.headers().get_all(CONTENT_LENGTH).iter().collect();
        assert_eq!(lengths, ["5"]);
    }

    #[test]
    fn heads_are_found_however_they_arrive() {
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody";
        let (mut buffer, mut searched, mut heads) = (BytesMut::new(), 0, 0);
        for byte in text {
            buffer.extend_from_slice(&[*byte]);
            if take_head(&mut buffer, &mut searched, &Method::GET).unwrap().is_some() {
                heads += 1;
            }
        }
        assert_eq!((heads, &buffer[..]), (1, &b"body"[..]));
        let bare = take("HTTP/1.1 200 OK\nA: b\n\n", "GET").unwrap().expect("a head");
        assert_eq!(bare.response.headers().get("a").unwrap(), "b");
    }

    /// What a response is read as must not depend on how it arrives, whatever its bytes are.
    #[test]
    fn damaged_responses_are_read_alike_in_pieces_and_as_a_whole() {
        fn read(text: &[u8], piece: usize) -> String {
            let (mut buffer, mut searched, mut pieces) = (BytesMut::new(), 0, text.chunks(piece));
            let mut decoder = Decoder::default();
            let (mut head, mut data) = (None, Vec::new());
            loop {
                let part = match &head {
                    None => match take_head(&mut buffer, &mut searched, &Method::GET) {
                        Ok(taken) => {
                            head = taken.map(|h| (h.end, h.keeps, h.response.headers().clone()));
                            head.is_some().then_some(())
                        }
                        Err(error) => return format!("{error:?}"),
                    },
                    Some(_) => match decoder.take(&mut buffer) {
                        Ok(None) => None,
                        Ok(Some(Part::Data(bytes))) => {
                            data.extend_from_slice(&bytes);
                            Some(())
                        }
                        Ok(end) => return format!("{head:?} {data:?} {end:?}"),
                        Err(error) => return format!("{head:?} {data:?} {error:?}"),
                    },
                };
                if part.is_none() {
                    let Some(more) = pieces.next() else { return format!("{head:?} {data:?}") };
                    buffer.extend_from_slice(more);
                }
            }
        }

        let whole: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n\
            5;x=y\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\nX-Sum: 1\r\n\r\n";
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap()
        };
        for _ in 0..3_000 {
            let mut text = whole.to_vec();
            for _ in 0..next(4) {
                let at = next(text.len());
                match next(3) {
                    0 => text[at] = b"\r\n\0:;,0fF \xff"[next(11)],
                    1 => drop(text.remove(at)),
                    _ => text.insert(at, b"\r\n 1"[next(4)]),
                }
            }
            let expected = read(&text, text.len());
            for piece in [1, 2, 7, 30] {
                let shown = String::from_utf8_lossy(&text);
                assert_eq!(read(&text, piece), expected, "{shown:?} in pieces of {piece}");
            }
        }
    }
}
