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
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_server::Kv;
use store::{KeyValue, RangeResponse};
use tonic::Status;
use tonic::body::Body;

use crate::metrics::Call;
use crate::{Etcd, MESSAGE_BYTES};

/// What precedes each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

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
        Ok(data) => {
            call.sent(data.len());
            let mut response = Response::new(Said::Whole(Some(data), Some(call)));
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

pub(crate) async fn run(etcd: &Etcd, hot: Hot, message: Bytes) -> Result<Bytes, Status> {
    match hot {
        Hot::Range => {
            let (plan, found) = etcd.find(&decoded(message)?).await?;
            let header = etcd.header(found.revision);
            if plan.is_plain() {
                plain(found, header)
            } else {
                encoded(&plan.answer(found, header))
            }
        }
        Hot::Put => encoded(etcd.put(tonic::Request::new(decoded(message)?)).await?.get_ref()),
        Hot::DeleteRange => {
            encoded(etcd.delete_range(tonic::Request::new(decoded(message)?)).await?.get_ref())
        }
        Hot::Txn => encoded(etcd.txn(tonic::Request::new(decoded(message)?)).await?.get_ref()),
    }
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

/// The prefix of a message of this length, and room for it.
fn begin(length: usize) -> Result<BytesMut, Status> {
    let told = u32::try_from(length).map_err(|_| {
        Status::resource_exhausted(format!(
            "Cannot return body with more than 4GB of data but got {length} bytes"
        ))
    })?;
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(told);
    Ok(out)
}

/// A `RangeResponse` of pairs as the store has them. Lists are long: no pair is copied but into the answer, and each is
/// measured once.
fn plain(found: RangeResponse, header: Option<pb::ResponseHeader>) -> Result<Bytes, Status> {
    let head = pb::RangeResponse { header, ..Default::default() };
    let tail = pb::RangeResponse {
        more: found.more,
        count: i64::try_from(found.count).unwrap_or(i64::MAX),
        ..Default::default()
    };
    let lengths: Vec<usize> = found.kvs.iter().map(pair_length).collect();
    let pairs: usize =
        lengths.iter().map(|length| 1 + encoded_len_varint(*length as u64) + length).sum();
    let mut out = begin(head.encoded_len() + pairs + tail.encoded_len())?;
    head.encode_raw(&mut out);
    for (kv, length) in found.kvs.iter().zip(lengths) {
        encode_key(2, WireType::LengthDelimited, &mut out);
        encode_varint(length as u64, &mut out);
        put_bytes(1, &kv.key, &mut out);
        for (field, number) in pair_numbers(kv) {
            put_number(field, number, &mut out);
        }
        put_bytes(5, &kv.value, &mut out);
        put_number(6, kv.lease, &mut out);
    }
    tail.encode_raw(&mut out);
    Ok(out.freeze())
}

fn pair_numbers(kv: &KeyValue) -> [(u32, i64); 3] {
    [(2, kv.create_revision.0), (3, kv.mod_revision.0), (4, kv.version)]
}

/// Bytes of an `mvccpb.KeyValue`: what is zero or empty is left out, as by every encoder.
fn pair_length(kv: &KeyValue) -> usize {
    let bytes = |value: &Bytes| match value.len() {
        0 => 0,
        length => 1 + encoded_len_varint(length as u64) + length,
    };
    let number = |value: i64| match value {
        0 => 0,
        value => 1 + encoded_len_varint(value.cast_unsigned()),
    };
    let numbers: usize = pair_numbers(kv).iter().map(|(_, value)| number(*value)).sum();
    bytes(&kv.key) + numbers + bytes(&kv.value) + number(kv.lease)
}

fn put_bytes(field: u32, value: &Bytes, out: &mut BytesMut) {
    if !value.is_empty() {
        encode_key(field, WireType::LengthDelimited, out);
        encode_varint(value.len() as u64, out);
        out.put_slice(value);
    }
}

fn put_number(field: u32, value: i64, out: &mut BytesMut) {
    if value != 0 {
        encode_key(field, WireType::Varint, out);
        encode_varint(value.cast_unsigned(), out);
    }
}

/// The body of an answer.
pub(crate) enum Said {
    /// The data, then that it went well, which is counted.
    Whole(Option<Bytes>, Option<Call>),
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
        let (data, call) = match &mut *self {
            Self::Whole(data, call) => (data, call),
            Self::Any(body) => return Pin::new(body).poll_frame(cx),
        };
        if let Some(data) = data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(mut call) = call.take() else { return Poll::Ready(None) };
        call.count(tonic::Code::Ok);
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(data, call) => data.is_none() && call.is_none(),
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
    fn a_list_is_what_the_generated_encoder_writes() {
        let kv = |key: &'static str, value: usize, revision: i64, lease: i64| KeyValue {
            key: key.into(),
            value: vec![b'v'; value].into(),
            create_revision: store::Revision(revision),
            mod_revision: store::Revision(revision * 1000),
            version: revision % 3,
            lease,
        };
        let pairs = [
            kv("a", 0, 1, 0),
            kv("bb", 127, 128, -5),
            kv("c", 128, 1 << 40, 7),
            kv("d", 70_000, 3, 1),
        ];
        for (count, more) in [(0, false), (4, true)] {
            let kvs = pairs.iter().take(count).cloned().collect::<Vec<_>>();
            let header =
                Some(pb::ResponseHeader { cluster_id: 9, revision: 300, ..Default::default() });
            let found = RangeResponse { kvs: kvs.clone(), count, more, ..RangeResponse::default() };
            let kvs = kvs.into_iter().map(crate::range::key_value).collect();
            let want = pb::RangeResponse { header, more, kvs, count: count as i64 };
            assert_eq!(plain(found, header).unwrap(), encoded(&want).unwrap(), "{count} pairs");
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
