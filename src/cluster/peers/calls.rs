//! The client side: one connection per peer and lane, opened on demand.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::io::{Dial, Tcp};
use base::tasks::{Kind, Tasks};
use base::{Cork, InlineExecutor};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::{CONTROL_LANE, CONTROL_PATH, KEEPALIVE, PATH, PEER_NAME, WINDOWS};

/// Time for a connection and its handshake. A caller with a shorter timeout finds the connection
/// open at its next call.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Why a call has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer did not receive the message and never will.
    #[error("{0}")]
    NotSent(String),
    /// The peer may have received the message.
    #[error("{0}")]
    Unanswered(String),
}

type Sender = SendRequest<Full<Bytes>>;

/// State of a connection.
#[derive(Debug, Clone)]
enum ConnectionState {
    Connecting,
    Up(Sender),
    Failed(Arc<str>),
}

type Connections = HashMap<(String, u8), watch::Receiver<ConnectionState>>;

/// Calls other servers of the cluster.
pub struct PeerClient {
    tls: TlsConnector,
    tasks: Tasks,
    connections: Mutex<Connections>,
    /// Maximum size of a response in bytes.
    answer_max: usize,
}

impl std::fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerClient").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl PeerClient {
    /// Creates a client with the certificate and CA in `tls`; connections end with `tasks`.
    pub fn new(mut tls: ClientConfig, answer_max: usize, tasks: Tasks) -> Self {
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self { tls: Arc::new(tls).into(), tasks, connections: Mutex::default(), answer_max }
    }

    /// Sends `message` to `address` (`host:port`) on the connection of this lane and returns the
    /// response. The future may be dropped at any time. It is boxed so that it is compiled in this
    /// crate, which is optimized for speed, and not in the binary crate, which is optimized for
    /// size.
    ///
    /// # Errors
    /// [`CallError`].
    #[inline(never)]
    pub fn call<'a>(
        &'a self,
        address: &'a str,
        lane: u8,
        message: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, CallError>> {
        Box::pin(self.post(address, lane, PATH, message))
    }

    /// Sends a control message on a separate connection and returns the response.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::NotSent`] also when the peer does not support such messages.
    pub async fn call_control(&self, address: &str, message: Bytes) -> Result<Bytes, CallError> {
        self.post(address, CONTROL_LANE, CONTROL_PATH, message).await
    }

    async fn post(
        &self,
        address: &str,
        lane: u8,
        path: &str,
        message: Bytes,
    ) -> Result<Bytes, CallError> {
        let not_sent = |error: &dyn std::fmt::Display| CallError::NotSent(error.to_string());
        let mut sender =
            self.connection(address, lane).await.map_err(|e| CallError::NotSent(e.to_string()))?;
        sender.ready().await.map_err(|e| not_sent(&e))?;
        let request = Request::post(format!("https://{PEER_NAME}{path}"))
            .body(Full::new(message))
            .map_err(|e| not_sent(&e))?;
        let response = sender.try_send_request(request).await.map_err(|mut error| {
            // With the message back it was never sent.
            match error.take_message() {
                Some(_) => not_sent(error.error()),
                None => CallError::Unanswered(error.error().to_string()),
            }
        })?;
        let unanswered = |error: &dyn std::fmt::Display| CallError::Unanswered(error.to_string());
        match response.status() {
            StatusCode::OK => {}
            // The peer answers these before it reads the message.
            status @ (StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE) => {
                return Err(CallError::NotSent(format!("it answers {status}")));
            }
            status => return Err(CallError::Unanswered(format!("it answers {status}"))),
        }
        let body = Limited::new(response.into_body(), self.answer_max).collect().await;
        Ok(body.map_err(|e| unanswered(&e))?.to_bytes())
    }

    /// Returns an open connection; connects if there is none.
    async fn connection(&self, address: &str, lane: u8) -> Result<Sender, Arc<str>> {
        let mut connection = self.get_or_connect(address, lane);
        loop {
            match &*connection.borrow_and_update() {
                ConnectionState::Up(sender) => return Ok(sender.clone()),
                ConnectionState::Failed(why) => return Err(Arc::clone(why)),
                ConnectionState::Connecting => {}
            }
            if connection.changed().await.is_err() {
                return Err("stopping".into());
            }
        }
    }

    fn get_or_connect(&self, address: &str, lane: u8) -> watch::Receiver<ConnectionState> {
        let key = (address.to_owned(), lane);
        let mut connections = self.connections.lock();
        let works = |connection: &watch::Receiver<ConnectionState>| match &*connection.borrow() {
            ConnectionState::Up(sender) => !sender.is_closed(),
            ConnectionState::Connecting => true,
            ConnectionState::Failed(_) => false,
        };
        if let Some(connection) = connections.get(&key).filter(|connection| works(connection)) {
            return connection.clone();
        }
        // Drop connections to removed members.
        connections.retain(|_, connection| works(connection));
        let (sender, receiver) = watch::channel(ConnectionState::Connecting);
        connections.insert(key, receiver.clone());
        drop(connections);
        let (tls, address, shutdown) =
            (self.tls.clone(), address.to_owned(), self.tasks.shutdown().clone());
        // In a separate task: a caller whose timeout is shorter than a handshake must not abort it
        // each time.
        self.tasks.spawn(Kind::Request, "peer connection", async move {
            tokio::select! {
                () = drive(&tls, &address, &sender) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), io::Error>(())
        });
        receiver
    }
}

/// Opens a connection, publishes its state and drives it to its end.
async fn drive(tls: &TlsConnector, address: &str, state: &watch::Sender<ConnectionState>) {
    let made = tokio::time::timeout(CONNECT_MAX, connect(tls, address)).await;
    let made = made.unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no connection within {CONNECT_MAX:?}"),
        ))
    });
    match made {
        Ok((sender, connection)) => {
            state.send_replace(ConnectionState::Up(sender));
            if let Err(error) = connection.await {
                tracing::debug!(address, %error, "the connection to a peer ended");
            }
        }
        Err(error) => {
            state.send_replace(ConnectionState::Failed(error.to_string().into()));
        }
    }
}

async fn connect(
    tls: &TlsConnector,
    address: &str,
) -> io::Result<(Sender, impl Future<Output = Result<(), hyper::Error>> + use<>)> {
    let invalid = || {
        let text = format!("{address:?} is no address of a server such as 192.0.2.10:2380");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let port = port.parse().map_err(|_| invalid())?;
    let stream = Tcp.dial(host.trim_matches(['[', ']']), port).await?;
    let name = ServerName::try_from(PEER_NAME).map_err(io::Error::other)?;
    // Headers and body of a message share a packet.
    let cork = Cork::new(Box::new(tls.connect(name, stream).await?));
    let executor = InlineExecutor::default();
    let (sender, connection) = http2::Builder::new(executor.clone())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .handshake(TokioIo::new(cork.clone()))
        .await
        .map_err(io::Error::other)?;
    Ok((sender, async move { executor.drive_corked(connection, &cork).await }))
}
