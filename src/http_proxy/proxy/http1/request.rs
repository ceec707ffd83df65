//! The head of a request as HTTP/1.1 has it, and how its body is framed (RFC 9112, 3 and 6).

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body::Body as _;

use crate::proxy::body::RequestBody;

/// Bytes of a head without its fields.
const LINE_BYTES: usize = 128;
/// Bytes of a common field.
const FIELD_BYTES: usize = 48;

/// How the body of a request is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// No body.
    Empty,
    /// As many bytes as are left.
    Length(u64),
    /// Chunks.
    Chunked,
}

impl Framing {
    /// The framing of a body, which the headers then state. A body of unknown length has chunks; a
    /// request whose method expects a body states that it has none (RFC 9110, 8.6).
    pub(super) fn set(request: &mut Request<RequestBody>) -> Self {
        let stated = stated_length(request.headers());
        let exact = request.body().size_hint().exact();
        let framing = match exact.or(stated) {
            _ if request.body().is_end_stream() => Self::Empty,
            Some(length) => Self::Length(length),
            None => Self::Chunked,
        };
        let expects_body = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
        let headers = request.headers_mut();
        match framing {
            Self::Empty if stated == Some(0) => {}
            Self::Empty if expects_body => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
            Self::Empty => drop(headers.remove(CONTENT_LENGTH)),
            Self::Length(length) if stated == Some(length) => {}
            Self::Length(length) => drop(headers.insert(CONTENT_LENGTH, length.into())),
            Self::Chunked => {
                headers.remove(CONTENT_LENGTH);
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        framing
    }
}

/// The length that the headers state, if they state one.
fn stated_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The head of a request up to the empty line.
pub(super) fn head<B>(request: &Request<B>) -> Vec<u8> {
    let headers = request.headers();
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let bytes = LINE_BYTES + target.len() + headers.len() * FIELD_BYTES;
    let mut head = Vec::with_capacity(bytes);
    head.extend_from_slice(request.method().as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(target.as_bytes());
    head.extend_from_slice(b" HTTP/1.1\r\n");
    put_fields(&mut head, headers);
    head
}

/// Appends fields and the empty line.
fn put_fields(bytes: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
}

/// The line before the data of a chunk.
pub(super) fn chunk_line(length: usize) -> Vec<u8> {
    format!("{length:x}\r\n").into_bytes()
}

/// The last chunk, with the fields after it.
pub(super) fn last_chunk(trailers: Option<&HeaderMap>) -> Vec<u8> {
    let mut bytes = b"0\r\n".to_vec();
    match trailers {
        Some(fields) => put_fields(&mut bytes, fields),
        None => bytes.extend_from_slice(b"\r\n"),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(method: &str, lengths: &[&'static str]) -> (Framing, String) {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = "/a%20b?c=d".parse().unwrap();
        for length in lengths {
            request.headers_mut().append(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        let framing = Framing::set(&mut request);
        (framing, String::from_utf8(head(&request)).unwrap())
    }

    #[test]
    fn requests_without_a_body_state_a_length_where_one_is_expected() {
        let get = "GET /a%20b?c=d HTTP/1.1\r\n\r\n";
        assert_eq!(framed("GET", &[]), (Framing::Empty, get.to_owned()));
        // A length without a body would let the endpoint take the next request for the body.
        assert_eq!(framed("GET", &["7"]).1, get);
        assert!(framed("GET", &["0"]).1.ends_with("\r\ncontent-length: 0\r\n\r\n"));
        for method in ["POST", "PUT", "PATCH"] {
            let expected = format!("{method} /a%20b?c=d HTTP/1.1\r\ncontent-length: 0\r\n\r\n");
            assert_eq!(framed(method, &[]).1, expected);
        }
        assert!(!framed("DELETE", &[]).1.contains("content-length"));
    }

    #[test]
    fn chunks_have_their_length_in_hexadecimal() {
        assert_eq!(chunk_line(0x1_a2b3), b"1a2b3\r\n");
        assert_eq!(last_chunk(None), b"0\r\n\r\n");
        let mut fields = HeaderMap::new();
        fields.insert("x-sum", HeaderValue::from_static("1"));
        assert_eq!(last_chunk(Some(&fields)), b"0\r\nx-sum: 1\r\n\r\n");
    }
}
