//! WebSocket in Kubernetes: the handshake with its protocols, and messages whose first byte is a
//! channel.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use crate::upgrade::{self, Body};
use base::io::Io;

/// Exec and attach with exit codes and half-closed input.
pub const V5: &str = "v5.channel.k8s.io";
/// SPDY inside WebSocket, for port-forward.
pub const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// First byte of a `v5` message that closes the channel in its second byte.
pub const CLOSE_SIGNAL: u8 = 255;
/// Maximum size of a client's message in bytes; kubectl sends at most 32 KiB.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes read at a time from the other side of a tunnel.
const PIECE_BYTES: usize = 16 * 1024;

/// Channels of exec and attach (`k8s.io/apimachinery/pkg/util/remotecommand`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Channel 0.
    Stdin,
    /// Channel 1.
    Stdout,
    /// Channel 2.
    Stderr,
    /// Channel 3: one Status at the end.
    Error,
    /// Channel 4: terminal sizes as JSON.
    Resize,
}

impl Channel {
    /// The first byte of its messages.
    pub fn number(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::Error => 3,
            Self::Resize => 4,
        }
    }
}

/// A message of a client of exec or attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Bytes for standard input.
    Stdin(Bytes),
    /// A new size of the terminal.
    Resize(Bytes),
    /// Closes standard input.
    StdinEnd,
}

/// Parses a message of `v5`; `None` must be ignored.
///
/// # Errors
/// A close signal without a channel.
pub fn input(message: &Bytes) -> Result<Option<Input>, BadMessage> {
    Ok(match message.split_first() {
        Some((&CLOSE_SIGNAL, [0])) => Some(Input::StdinEnd),
        Some((&CLOSE_SIGNAL, [1..=4])) => None,
        Some((&CLOSE_SIGNAL, _)) => return Err(BadMessage),
        Some((0, rest)) if !rest.is_empty() => Some(Input::Stdin(message.slice(1..))),
        Some((4, rest)) if !rest.is_empty() => Some(Input::Resize(message.slice(1..))),
        _ => None,
    })
}

/// One stream of binary bytes.
pub const BINARY: &str = "binary.k8s.io";
/// One stream of bytes in base64, for clients that only support text.
pub const BASE64: &str = "base64.binary.k8s.io";

/// A message that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a close signal must be followed by the number of one channel")]
pub struct BadMessage;

/// The protocols that a client offers, in its order.
pub fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(str::trim)
}

/// Chooses the protocol for one stream of bytes: binary (the default) or base64; `None` if only
/// others are offered.
pub fn one_stream(headers: &HeaderMap) -> Option<&'static str> {
    if !headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return Some("");
    }
    offered(headers).find_map(|offer| [BINARY, BASE64].into_iter().find(|ours| *ours == offer))
}

/// The response that accepts a handshake; `protocol` may be empty. `None` if the key is missing or
/// the version is not supported (RFC 6455, 4.2).
pub fn accept(headers: &HeaderMap, protocol: &'static str) -> Option<Response<Body>> {
    let key = headers.get(SEC_WEBSOCKET_KEY)?;
    if headers.get(SEC_WEBSOCKET_VERSION)? != "13" {
        return None;
    }
    let mut response = Response::new(upgrade::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, answer);
    if !protocol.is_empty() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Some(response)
}

/// Messages in both directions on an upgraded connection.
pub async fn server<T: Io>(io: T) -> (Sender<T>, Receiver<T>) {
    let mut config = WebSocketConfig::default();
    config.read_buffer_size = PIECE_BYTES;
    config.write_buffer_size = 0;
    config.max_write_buffer_size = MESSAGE_BYTES_MAX * 2;
    config.max_message_size = Some(MESSAGE_BYTES_MAX);
    config.max_frame_size = Some(MESSAGE_BYTES_MAX);
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (sender, receiver) = socket.split();
    (Sender(sender), Receiver(receiver))
}

/// The connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("the WebSocket connection broke: {0}")]
pub struct Broken(String);

/// The sending half.
pub struct Sender<T: Io>(SplitSink<WebSocketStream<T>, Message>);

impl<T: Io> Sender<T> {
    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// When the connection failed.
    pub async fn raw(&mut self, bytes: Bytes) -> Result<(), Broken> {
        self.0.send(Message::Binary(bytes)).await.map_err(|e| Broken(e.to_string()))
    }

    /// Sends bytes of a channel.
    ///
    /// # Errors
    /// When the connection failed.
    pub async fn channel(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), Broken> {
        let mut message = BytesMut::with_capacity(bytes.len() + 1);
        message.put_u8(channel.number());
        message.extend_from_slice(bytes);
        self.raw(message.freeze()).await
    }

    /// Sends a close message; errors are ignored.
    pub async fn close(&mut self) {
        // Clients treat only a normal closure as the end; a closure without a code is an error to
        // them.
        let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = self.0.send(Message::Close(Some(goodbye))).await;
        let _ = self.0.close().await;
    }
}

/// The receiving half; it answers pings automatically.
pub struct Receiver<T: Io>(SplitStream<WebSocketStream<T>>);

impl<T: Io> Receiver<T> {
    /// The next message with content; `None` when the client has closed.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.0.next().await? {
                Ok(Message::Binary(bytes)) => return Some(bytes),
                Ok(Message::Text(text)) => return Some(Bytes::from(text)),
                Ok(Message::Close(_)) => return None,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a WebSocket client is gone");
                    return None;
                }
            }
        }
    }
}

/// Sends a body as messages, an empty one first as upstream does, until it ends or the client
/// closes.
pub async fn pour<B>(client: impl Io, protocol: &str, mut body: B)
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    use base64::Engine;
    use http_body_util::BodyExt;
    let (mut to_client, mut from_client) = server(client).await;
    let message = |bytes: Bytes| match protocol {
        BASE64 => Message::Text(base64::engine::general_purpose::STANDARD.encode(&bytes).into()),
        _ => Message::Binary(bytes),
    };
    let down = async {
        let mut sent = to_client.0.send(message(Bytes::new())).await;
        while sent.is_ok() {
            let Some(Ok(frame)) = body.frame().await else { break };
            let Ok(data) = frame.into_data() else { continue };
            sent = to_client.0.send(message(data)).await;
        }
    };
    // The client is only expected to close.
    let up = async { while from_client.next().await.is_some() {} };
    tokio::select! {
        () = down => {}
        () = up => {}
    }
    to_client.close().await;
}

/// Copies the bytes of `io` inside WebSocket messages until either side ends.
pub async fn tunnel(client: impl Io, io: impl Io) {
    let (mut to_client, mut from_client) = server(client).await;
    let (mut read, mut write) = tokio::io::split(io);
    let down = async {
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
        while read.read_buf(&mut buffer).await.is_ok_and(|n| n > 0) {
            if to_client.raw(buffer.split().freeze()).await.is_err() {
                break;
            }
            buffer.reserve(PIECE_BYTES);
        }
    };
    let up = async {
        while let Some(bytes) = from_client.next().await {
            if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = down => {}
        () = up => {}
    }
    let _ = write.shutdown().await;
    to_client.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_of_a_message_is_its_channel() {
        let read = |bytes: &'static [u8]| input(&Bytes::from_static(bytes));
        assert_eq!(read(b"\x00ls\n"), Ok(Some(Input::Stdin(Bytes::from_static(b"ls\n")))));
        assert_eq!(read(b"\xff\x00"), Ok(Some(Input::StdinEnd)));
        assert_eq!(read(b"\xff"), Err(BadMessage));
        assert_eq!(read(b"\xff\x09"), Err(BadMessage));
        for ignored in [b"".as_slice(), b"\x00", b"\x01x", b"\x07x"] {
            assert_eq!(read(ignored), Ok(None));
        }
    }

    #[test]
    fn the_handshake_matches_the_example_of_rfc_6455() {
        let mut headers = HeaderMap::new();
        assert!(accept(&headers, V5).is_none());
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let response = accept(&headers, V5).unwrap();
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn one_stream_is_binary_or_base64_or_refused() {
        let chosen = |offers: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offers));
            one_stream(&headers)
        };
        assert_eq!(one_stream(&HeaderMap::new()), Some(""));
        assert_eq!(chosen("x, binary.k8s.io"), Some(BINARY));
        assert_eq!(chosen("base64.binary.k8s.io, binary.k8s.io"), Some(BASE64));
        assert_eq!(chosen("v5.channel.k8s.io"), None);
    }

    #[tokio::test]
    async fn a_body_is_sent_in_messages_and_ends_with_a_normal_closure() {
        for (protocol, want) in [
            (BINARY, [Message::Binary(Bytes::new()), Message::Binary("hello".into())]),
            (BASE64, [Message::Text("".into()), Message::Text("aGVsbG8=".into())]),
        ] {
            let (ours, theirs) = tokio::io::duplex(1024);
            let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
            let body = http_body_util::Full::new(Bytes::from("hello"));
            let read = async {
                let mut messages = Vec::new();
                while let Some(Ok(message)) = client.next().await {
                    messages.push(message);
                }
                messages
            };
            let ((), messages) = tokio::join!(pour(ours, protocol, body), read);
            assert_eq!(messages[..2], want);
            let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
            assert_eq!(messages[2..], [Message::Close(Some(goodbye))]);
        }
    }
}
