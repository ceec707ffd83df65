//! The calling side: one connection per peer and lane, made when it is needed.

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

use super::{KEEPALIVE, PATH, PEER_NAME, TOLD_LANE, TOLD_PATH, WINDOWS};

/// Time for a connection and its handshake; whoever waits less finds it made the next time.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer has not got the message and never will.
    #[error("{0}")]
    NotSent(String),
    /// The peer may have got it.
    #[error("{0}")]
    Unanswered(String),
}

type Sender = SendRequest<Full<Bytes>>;

/// How far a connection is.
#[derive(Debug, Clone)]
enum Line {
    Connecting,
    Up(Sender),
    Failed(Arc<str>),
}

type Lines = HashMap<(String, u8), watch::Receiver<Line>>;

/// Calls peers.
pub struct Calls {
    tls: TlsConnector,
    tasks: Tasks,
    lines: Mutex<Lines>,
    /// Bytes of an answer.
    answer_max: usize,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Calls {
    /// Shows and demands what `tls` says; its connections end with `tasks`.
    pub fn new(mut tls: ClientConfig, answer_max: usize, tasks: Tasks) -> Self {
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self { tls: Arc::new(tls).into(), tasks, lines: Mutex::default(), answer_max }
    }

    /// Sends `message` to `address`, `host:port`, on the connection of this lane; the answer. May
    /// be dropped at any time. In a box: a future without one is compiled where it is polled, in
    /// the program, which is made small instead of fast.
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

    /// Sends `message`, which is none of the store's, on a connection of its own; the answer.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::NotSent`] also where nobody knows such messages.
    pub async fn tell(&self, address: &str, message: Bytes) -> Result<Bytes, CallError> {
        self.post(address, TOLD_LANE, TOLD_PATH, message).await
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
            self.line(address, lane).await.map_err(|e| CallError::NotSent(e.to_string()))?;
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
            // Said before the message is looked at.
            status @ (StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE) => {
                return Err(CallError::NotSent(format!("it answers {status}")));
            }
            status => return Err(CallError::Unanswered(format!("it answers {status}"))),
        }
        let body = Limited::new(response.into_body(), self.answer_max).collect().await;
        Ok(body.map_err(|e| unanswered(&e))?.to_bytes())
    }

    /// The connection, made if there is none that works.
    async fn line(&self, address: &str, lane: u8) -> Result<Sender, Arc<str>> {
        let mut line = self.begin(address, lane);
        loop {
            match &*line.borrow_and_update() {
                Line::Up(sender) => return Ok(sender.clone()),
                Line::Failed(why) => return Err(Arc::clone(why)),
                Line::Connecting => {}
            }
            if line.changed().await.is_err() {
                return Err("stopping".into());
            }
        }
    }

    fn begin(&self, address: &str, lane: u8) -> watch::Receiver<Line> {
        let key = (address.to_owned(), lane);
        let mut lines = self.lines.lock();
        let works = |line: &watch::Receiver<Line>| match &*line.borrow() {
            Line::Up(sender) => !sender.is_closed(),
            Line::Connecting => true,
            Line::Failed(_) => false,
        };
        if let Some(line) = lines.get(&key).filter(|line| works(line)) {
            return line.clone();
        }
        // Addresses of members that are gone.
        lines.retain(|_, line| works(line));
        let (sender, receiver) = watch::channel(Line::Connecting);
        lines.insert(key, receiver.clone());
        drop(lines);
        let (tls, address, shutdown) =
            (self.tls.clone(), address.to_owned(), self.tasks.shutdown().clone());
        // A task of its own: a caller that waits for less than a handshake takes must not undo it
        // each time.
        self.tasks.spawn(Kind::Request, "peer connection", async move {
            tokio::select! {
                () = carry(&tls, &address, &sender) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), io::Error>(())
        });
        receiver
    }
}

/// Makes a connection, tells of it, and drives it to its end.
async fn carry(tls: &TlsConnector, address: &str, line: &watch::Sender<Line>) {
    let made = tokio::time::timeout(CONNECT_MAX, connect(tls, address)).await;
    let made = made.unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no connection within {CONNECT_MAX:?}"),
        ))
    });
    match made {
        Ok((sender, connection)) => {
            line.send_replace(Line::Up(sender));
            if let Err(error) = connection.await {
                tracing::debug!(address, %error, "the connection to a peer ended");
            }
        }
        Err(error) => {
            line.send_replace(Line::Failed(error.to_string().into()));
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
    // The head of a message and its body go together.
    let cork = Cork::new(Box::new(tls.connect(name, stream).await?));
    let nested = InlineExecutor::default();
    let (sender, connection) = http2::Builder::new(nested.clone())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .handshake(TokioIo::new(cork.clone()))
        .await
        .map_err(io::Error::other)?;
    Ok((sender, async move { nested.drive_corked(connection, &cork).await }))
}
