//! Exec and attach: translates channels of a WebSocket client to streams of a SPDY server,
//! including half-closed input and the final Status.

use bytes::Bytes;

use super::Streams;
use crate::spdy::{Connection, Headers, SessionError, Stream};
use crate::websocket::{self, Channel, Input, Receiver, Sender};
use base::io::Io;

/// Maximum size of the final Status in bytes.
const STATUS_BYTES_MAX: usize = 64 * 1024;

/// The streams of one command, opened in the order of upstream's clients.
struct Opened {
    error: Stream,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Opened {
    async fn open(connection: &Connection, streams: Streams) -> Result<Self, SessionError> {
        let open = async |kind: &str, wanted: bool| -> Result<Option<Stream>, SessionError> {
            if !wanted {
                return Ok(None);
            }
            connection.open(Headers::of(&[("streamType", kind)])).await.map(Some)
        };
        let error = open("error", true).await?.ok_or(SessionError::Closed)?;
        let (stdin, stdout) =
            (open("stdin", streams.stdin).await?, open("stdout", streams.stdout).await?);
        let stderr = open("stderr", streams.stderr && !streams.tty).await?;
        let resize = open("resize", streams.tty).await?;
        Ok(Self { error, stdin, stdout, stderr, resize })
    }
}

/// Runs the session until it ends.
pub(super) async fn run(client: impl Io, connection: &Connection, streams: Streams) {
    let (mut sender, receiver) = websocket::server(client).await;
    let first = if streams.stdout {
        Channel::Stdout
    } else if streams.stderr {
        Channel::Stderr
    } else {
        Channel::Error
    };
    // An empty message tells the client that the connection is established.
    if sender.channel(first, &[]).await.is_err() {
        return;
    }
    match Opened::open(connection, streams).await {
        Ok(Opened { error, stdin, stdout, stderr, resize }) => {
            tokio::select! {
                () = down(&mut sender, error, stdout, stderr) => {}
                () = up(receiver, stdin, resize) => {}
            }
        }
        Err(error) => {
            let _ = sender.channel(Channel::Error, internal(&error.to_string()).as_bytes()).await;
        }
    }
    sender.close().await;
}

/// Copies output until it ends, then sends the Status.
async fn down<T: Io>(
    sender: &mut Sender<T>,
    mut error: Stream,
    mut stdout: Option<Stream>,
    mut stderr: Option<Stream>,
) {
    // An unread stream would block the others.
    let mut status = Vec::new();
    let mut status_open = true;
    while stdout.is_some() || stderr.is_some() || status_open {
        let (channel, piece) = tokio::select! {
            piece = next(&mut stdout), if stdout.is_some() => (Channel::Stdout, piece),
            piece = next(&mut stderr), if stderr.is_some() => (Channel::Stderr, piece),
            piece = error.read(), if status_open => (Channel::Error, piece),
        };
        match (channel, piece) {
            (Channel::Stdout, None) => stdout = None,
            (Channel::Stderr, None) => stderr = None,
            (Channel::Error, None) => status_open = false,
            (Channel::Error, Some(bytes)) => {
                let room = STATUS_BYTES_MAX.saturating_sub(status.len()).min(bytes.len());
                status.extend_from_slice(bytes.get(..room).unwrap_or_default());
            }
            (_, Some(bytes)) => {
                if sender.channel(channel, &bytes).await.is_err() {
                    return;
                }
            }
            (_, None) => {}
        }
    }
    if status.is_empty() {
        status =
            internal("the container runtime ended the connection without a result").into_bytes();
    }
    let _ = sender.channel(Channel::Error, &status).await;
}

async fn next(stream: &mut Option<Stream>) -> Option<Bytes> {
    match stream {
        Some(stream) => stream.read().await,
        None => None,
    }
}

/// Copies input until the client closes. If the command stops reading, the rest is dropped; its
/// output is still being sent.
async fn up<T: Io>(
    mut receiver: Receiver<T>,
    mut stdin: Option<Stream>,
    mut resize: Option<Stream>,
) {
    while let Some(message) = receiver.next().await {
        match websocket::input(&message) {
            Ok(Some(Input::Stdin(bytes))) => write(&mut stdin, bytes).await,
            Ok(Some(Input::Resize(bytes))) => write(&mut resize, bytes).await,
            Ok(Some(Input::StdinEnd)) => {
                if let Some(stdin) = stdin.take() {
                    let _ = stdin.finish().await;
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a client of exec or attach is cut off");
                return;
            }
        }
    }
}

async fn write(stream: &mut Option<Stream>, bytes: Bytes) {
    let failed = match stream {
        Some(stream) => stream.write(bytes).await.is_err(),
        None => false,
    };
    if failed {
        *stream = None;
    }
}

/// A Status of upstream's `NewInternalError`.
fn internal(message: &str) -> String {
    let escaped: String = message
        .chars()
        .flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            c if c.is_control() => vec![' '],
            c => vec![c],
        })
        .collect();
    format!(
        "{{\"metadata\":{{}},\"status\":\"Failure\",\"message\":\"Internal error occurred: {escaped}\",\
         \"reason\":\"InternalError\",\"details\":{{\"causes\":[{{\"message\":\"{escaped}\"}}]}},\"code\":500}}"
    )
}
