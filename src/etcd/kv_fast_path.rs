//! A fast path for the unary methods of KV, which dominate the load of a server: tonic's codecs are
//! built for streams and cost as much as the store itself. The bytes on the wire are the same,
//! including the texts of errors.

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

use crate::counters::Call;
use crate::grpc_frame::{PREFIX, encoded, length};
use crate::range_response::Pieces;
use crate::service::{Etcd, MESSAGE_BYTES};

/// A method with a fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FastMethod {
    Range,
    Put,
    DeleteRange,
    Txn,
}

impl FastMethod {
    /// The method of a request, unless its messages are compressed.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        if *request.method() != Method::POST {
            return None;
        }
        let method = match request.uri().path().strip_prefix("/etcdserverpb.KV/")? {
            "Range" => Self::Range,
            "Put" => Self::Put,
            "DeleteRange" => Self::DeleteRange,
            "Txn" => Self::Txn,
            _ => return None,
        };
        let encoding = request.headers().get("grpc-encoding");
        encoding.is_none_or(|encoding| encoding == "identity").then_some(method)
    }
}

/// Handles a call, and counts it.
pub(crate) async fn answer<B>(
    etcd: Arc<Etcd>,
    method: FastMethod,
    body: B,
    mut call: Call,
) -> Response<UnaryBody>
where
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    let result = match receive(body, &call).await {
        Ok(message) => run(&etcd, method, message).await,
        Err(status) => Err(status),
    };
    match result {
        Ok(pieces) => {
            call.sent(pieces.len());
            let mut response = Response::new(UnaryBody::Whole(pieces, Some(call)));
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

pub(crate) async fn run(etcd: &Etcd, method: FastMethod, message: Bytes) -> Result<Pieces, Status> {
    let whole = match method {
        FastMethod::Range => return etcd.list(&decoded(message)?).await,
        FastMethod::Put => {
            encoded(etcd.put(tonic::Request::new(decoded(message)?)).await?.get_ref())
        }
        FastMethod::DeleteRange => {
            encoded(etcd.delete_range(tonic::Request::new(decoded(message)?)).await?.get_ref())
        }
        FastMethod::Txn => {
            encoded(etcd.txn(tonic::Request::new(decoded(message)?)).await?.get_ref())
        }
    };
    whole.map(Pieces::from)
}

/// Reads the request message.
///
/// # Errors
/// The message is too large, compressed, truncated or missing.
async fn receive<B>(mut body: B, call: &Call) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
{
    // Nearly always a single frame contains the whole message, and nothing is copied.
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // etcd counts such a call as cancelled, whatever ended the connection.
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
            // Unary calls have a single message.
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

fn decoded<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// The body of a response.
pub(crate) enum UnaryBody {
    /// A message, then the trailers of success, when the call is counted.
    Whole(Pieces, Option<Call>),
    /// The body of another service.
    Any(Body),
}

impl Default for UnaryBody {
    fn default() -> Self {
        Self::Any(Body::empty())
    }
}

impl http_body::Body for UnaryBody {
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
            // gRPC servers send no content length.
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

    /// Receives a request whose body consists of these frames.
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
                "protocol error: received message with compressed-flag but no grpc-encoding was \
                 specified",
            ),
            (
                &large[..],
                Code::OutOfRange,
                "Error, decoded message length too large: found 2147483647 bytes, the limit is: \
                 2097152 bytes",
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
            FastMethod::of(&request.body(()).unwrap())
        };
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Txn", None), Some(FastMethod::Txn));
        assert_eq!(
            of(Method::POST, "/etcdserverpb.KV/Put", Some("identity")),
            Some(FastMethod::Put)
        );
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Put", Some("gzip")), None);
        assert_eq!(of(Method::POST, "/etcdserverpb.KV/Compact", None), None);
        assert_eq!(of(Method::GET, "/etcdserverpb.KV/Put", None), None);
    }
}
