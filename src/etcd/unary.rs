//! The calls that a loaded server spends its time on, KV's with one answer, read and written here: tonic's codecs are made
//! for streams and cost as much as the store does. What goes over the wire is the same, texts of errors included.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use prost::Message;
use proto::etcdserverpb::kv_server::Kv;
use tonic::Status;
use tonic::body::Body;

use crate::listing::Pieces;
use crate::metrics::Call;
use crate::{Etcd, MESSAGE_BYTES};

/// What precedes each message: whether it is compressed, and its length.
pub(crate) const PREFIX: usize = 5;

/// A call that is answered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hot {
    Range,
    Put,
    DeleteRange,
    Txn,
}

impl Hot {
    /// The call that a request is, unless its messages are compressed.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        if *request.method() != Method::POST {
            return None;
        }
        let hot = match request.uri().path().strip_prefix("/etcdserverpb.KV/")? {
            "Range" => Self::Range,
            "Put" => Self::Put,
            "DeleteRange" => Self::DeleteRange,
            "Txn" => Self::Txn,
            _ => return None,
        };
        let encoding = request.headers().get("grpc-encoding");
        encoding.is_none_or(|encoding| encoding == "identity").then_some(hot)
    }
}

/// Answers a call, and counts it.
pub(crate) async fn answer<B>(etcd: Arc<Etcd>, hot: Hot, body: B, mut call: Call) -> Response<Said>
where
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    let said = match receive(body, &call).await {
        Ok(message) => run(&etcd, hot, message).await,
        Err(status) => Err(status),
    };
    match said {
        Ok(pieces) => {
            call.sent(pieces.len());
            let mut response = Response::new(Said::Whole(pieces, Some(call)));
            let kind = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Err(status) => {
            call.count(status.code());
            status.into_http()
        }
    }
}

pub(crate) async fn run(etcd: &Etcd, hot: Hot, message: Bytes) -> Result<Pieces, Status> {
    let whole = match hot {
        Hot::Range => return etcd.list(&decoded(message)?).await,
        Hot::Put => encoded(etcd.put(tonic::Request::new(decoded(message)?)).await?.get_ref()),
        Hot::DeleteRange => {
            encoded(etcd.delete_range(tonic::Request::new(decoded(message)?)).await?.get_ref())
        }
        Hot::Txn => encoded(etcd.txn(tonic::Request::new(decoded(message)?)).await?.get_ref()),
    };
    whole.map(Pieces::from)
}

/// The request's message.
///
/// # Errors
/// One that is too large, compressed, cut, or not there.
async fn receive<B>(mut body: B, call: &Call) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    // Nearly always one frame holds it all, and nothing is copied.
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // Who sends no further has gone: etcd counts such a call as cancelled, whatever ended the connection.
        let gone =
            |error: B::Error| Status::cancelled(format!("the request was given up: {error}"));
        let Ok(data) = frame.map_err(gone)?.into_data() else { continue };
        call.received(data.len());
        if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.put_slice(&first);
            }
            rest.put_slice(&data);
        }
        length(if rest.is_empty() { &first } else { &rest })?;
        if rest.len() > MESSAGE_BYTES + PREFIX {
            // More than one message, which nobody asked for.
            return Err(Status::internal("Unexpected data after the request message."));
        }
    }
    let mut whole = if rest.is_empty() { first } else { rest.freeze() };
    if whole.is_empty() {
        return Err(Status::internal("Missing request message."));
    }
    match length(&whole)? {
        Some(length) if whole.len() >= PREFIX + length => {
            whole.advance(PREFIX);
            whole.truncate(length);
            Ok(whole)
        }
        _ => Err(Status::internal("Unexpected EOF decoding stream.")),
    }
}

/// The length that the prefix tells, once it is there.
fn length(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some(&[compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    match compressed {
        0 => {}
        1 => {
            return Err(Status::internal(
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1), while sending request"
            )));
        }
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_BYTES {
        return Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {length} bytes, the limit is: {MESSAGE_BYTES} bytes"
        )));
    }
    Ok(Some(length))
}

fn decoded<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// A message after its prefix, in one piece.
pub(crate) fn encoded(message: &impl Message) -> Result<Bytes, Status> {
    let mut out = begin(message.encoded_len())?;
    message.encode_raw(&mut out);
    Ok(out.freeze())
}

/// The length of a message as its prefix says it.
pub(crate) fn told_length(length: usize) -> Result<u32, Status> {
    u32::try_from(length).map_err(|_| {
        Status::resource_exhausted(format!(
            "Cannot return body with more than 4GB of data but got {length} bytes"
        ))
    })
}

/// The prefix of a message of this length, and room for it.
fn begin(length: usize) -> Result<BytesMut, Status> {
    let told = told_length(length)?;
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(told);
    Ok(out)
}

/// The body of an answer.
pub(crate) enum Said {
    /// The data, then that it went well, which is counted.
    Whole(Pieces, Option<Call>),
    /// Whatever a service answers.
    Any(Body),
}

impl Default for Said {
    fn default() -> Self {
        Self::Any(Body::empty())
    }
}

impl http_body::Body for Said {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let (pieces, call) = match &mut *self {
            Self::Whole(pieces, call) => (pieces, call),
            Self::Any(body) => return Pin::new(body).poll_frame(cx),
        };
        if let Some(piece) = pieces.next() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(mut call) = call.take() else { return Poll::Ready(None) };
        call.count(tonic::Code::Ok);
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces, call) => pieces.is_empty() && call.is_none(),
            Self::Any(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // No length is told in the head, as by others who speak gRPC.
            Self::Whole(..) => SizeHint::default(),
            Self::Any(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use proto::etcdserverpb::PutRequest;
    use tonic::Code;

    use super::*;

    /// What comes of a request whose body comes in these frames.
    async fn received(frames: &[&[u8]]) -> Result<Bytes, Status> {
        let frames: Vec<_> = frames
            .iter()
            .map(|frame| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(frame))))
            .collect();
        let body = StreamBody::new(futures::stream::iter(frames));
        let body = body.map_err(|never: Infallible| -> Status { match never {} });
        let call = Call::begin(&Arc::default(), "/etcdserverpb.KV/Put");
        receive(Body::new(body), &call).await
    }

    #[tokio::test]
    async fn a_message_may_come_in_pieces() {
        let put = PutRequest { key: "k".into(), value: vec![7; 40].into(), ..Default::default() };
        let wire = encoded(&put).unwrap();
        assert_eq!(wire[..PREFIX], [0, 0, 0, 0, 45]);
        for cut in 0..=wire.len() {
            let (head, tail) = wire.split_at(cut);
            let whole = received(&[head, tail]).await.unwrap();
            assert_eq!(decoded::<PutRequest>(whole).unwrap(), put, "cut after {cut}");
        }
    }

    #[tokio::test]
    async fn broken_messages_are_refused_as_by_grpc() {
        let large = [[0_u8, 0x7f, 0xff, 0xff, 0xff].as_slice()];
        for (frames, code, text) in [
            (&[][..], Code::Internal, "Missing request message."),
            (&[&[0, 0, 0][..]], Code::Internal, "Unexpected EOF decoding stream."),
            (&[&[0, 0, 0, 0, 9, 1, 2][..]], Code::Internal, "Unexpected EOF decoding stream."),
            (
                &[&[1, 0, 0, 0, 1, 1][..]],
                Code::Internal,
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ),
            (
                &large[..],
                Code::OutOfRange,
                "Error, decoded message length too large: found 2147483647 bytes, the limit is: 2097152 bytes",
            ),
        ] {
            let status = received(frames).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (code, text), "{frames:?}");
        }
    }

    #[test]
    fn only_uncompressed_calls_of_kv_are_answered_here() {
        let of = |method: Method, path: &str, encoding: Option<&'static str>| {
            let mut request = Request::builder().method(method).uri(path);
            if let Some(encoding) = encoding {
                request = request.header("grpc-encoding", encoding);
            }
            Hot::of(&request.body(()).unwrap())
        };
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Txn", None), Some(Hot::Txn));
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Put", Some("identity")), Some(Hot::Put));
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Put", Some("gzip")), None);
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Compact", None), None);
        assert_eq!(of(Method::GET, "/etcdserverpb.KV/Put", None), None);
    }
}
