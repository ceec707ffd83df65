//! Exec and attach: translates the channels of a WebSocket client (`v5.channel.k8s.io`) to the SPDY
//! streams of a container runtime (`v4.channel.k8s.io`), including the end of stdin and the final
//! Status.

use bytes::Bytes;

use super::Streams;
use crate::spdy::{Connection, Headers, SessionError, Stream};
use crate::websocket::{self, Channel, Input, Receiver, Sender};
use base::io::Io;

/// Maximum size of the final Status in bytes.
const STATUS_BYTES_MAX: usize = 64 * 1024;

/// The SPDY streams of one exec or attach; a stream that was not requested is `None`.
struct CommandStreams {
    /// Carries the final Status from the runtime.
    error: Stream,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    /// Carries terminal sizes to the runtime.
    resize: Option<Stream>,
}

impl CommandStreams {
    /// Opens the streams in the order of upstream's clients.
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
        // A terminal has one output: with a TTY, stderr is part of stdout.
        let stderr = open("stderr", streams.stderr && !streams.tty).await?;
        let resize = open("resize", streams.tty).await?;
        Ok(Self { error, stdin, stdout, stderr, resize })
    }
}

/// Translates until the runtime ends the session or the client closes the connection.
pub(super) async fn run(client: impl Io, connection: &Connection, streams: Streams) {
    let (mut sender, receiver) = websocket::server(client).await;
    let first = if streams.stdout {
        Channel::Stdout
    } else if streams.stderr {
        Channel::Stderr
    } else {
        Channel::Error
    };
    // As upstream, sends an empty message first: the client then has an established connection.
    if sender.channel(first, &[]).await.is_err() {
        return;
    }
    match CommandStreams::open(connection, streams).await {
        Ok(CommandStreams { error, stdin, stdout, stderr, resize }) => {
            tokio::select! {
                () = copy_output(&mut sender, error, stdout, stderr) => {}
                () = copy_input(receiver, stdin, resize) => {}
            }
        }
        Err(error) => {
            let status = internal_error_status(&error.to_string());
            let _ = sender.channel(Channel::Error, status.as_bytes()).await;
        }
    }
    sender.close().await;
}

/// Copies stdout and stderr to the client until they and the error stream end, then sends the
/// Status from the error stream.
async fn copy_output<T: Io>(
    sender: &mut Sender<T>,
    mut error: Stream,
    mut stdout: Option<Stream>,
    mut stderr: Option<Stream>,
) {
    // All streams are read together: the queue of a stream that nothing reads fills up, which stops
    // reading from the connection.
    let mut status = Vec::new();
    let mut status_open = true;
    while stdout.is_some() || stderr.is_some() || status_open {
        let (channel, piece) = tokio::select! {
            piece = read_from(&mut stdout), if stdout.is_some() => (Channel::Stdout, piece),
            piece = read_from(&mut stderr), if stderr.is_some() => (Channel::Stderr, piece),
            piece = error.read(), if status_open => (Channel::Error, piece),
        };
        match (channel, piece) {
            (Channel::Stdout, None) => stdout = None,
            (Channel::Stderr, None) => stderr = None,
            (Channel::Error, None) => status_open = false,
            (Channel::Error, Some(bytes)) => {
                let kept = STATUS_BYTES_MAX.saturating_sub(status.len()).min(bytes.len());
                status.extend_from_slice(bytes.get(..kept).unwrap_or_default());
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
        let message = "the container runtime ended the connection without a result";
        status = internal_error_status(message).into_bytes();
    }
    let _ = sender.channel(Channel::Error, &status).await;
}

/// Reads from a stream; `None` if it has ended or does not exist.
async fn read_from(stream: &mut Option<Stream>) -> Option<Bytes> {
    match stream {
        Some(stream) => stream.read().await,
        None => None,
    }
}

/// Copies stdin and terminal sizes to the runtime until the client closes the connection. Input
/// that the runtime no longer accepts is dropped, because output may still follow.
async fn copy_input<T: Io>(
    mut receiver: Receiver<T>,
    mut stdin: Option<Stream>,
    mut resize: Option<Stream>,
) {
    while let Some(message) = receiver.next().await {
        match websocket::input(&message) {
            Ok(Some(Input::Stdin(bytes))) => write_to(&mut stdin, bytes).await,
            Ok(Some(Input::Resize(bytes))) => write_to(&mut resize, bytes).await,
            Ok(Some(Input::StdinEnd)) => {
                if let Some(stdin) = stdin.take() {
                    let _ = stdin.finish().await;
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "bridge: closing exec or attach, invalid client message");
                return;
            }
        }
    }
}

/// Writes to a stream, and drops the stream if that fails.
async fn write_to(stream: &mut Option<Stream>, bytes: Bytes) {
    let failed = match stream {
        Some(stream) => stream.write(bytes).await.is_err(),
        None => false,
    };
    if failed {
        *stream = None;
    }
}

/// The Status of upstream's `NewInternalError` as JSON. It is formatted here, since this crate has
/// no other use for a JSON library.
fn internal_error_status(message: &str) -> String {
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
