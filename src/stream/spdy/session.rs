//! A SPDY connection with many streams: one task reads frames, one writes them, and each stream has
//! a short queue of received bytes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::frame::{FLAG_FIN, Frame, FrameError, Head};
use super::headers::{Deflater, Headers, Inflater};
use base::io::Io;

/// Maximum number of open streams of a connection.
const STREAMS_MAX: usize = 256;
/// Capacity of the queue of frames to write.
const WRITES_MAX: usize = 8;
/// Capacity of a stream's queue of received pieces.
const PIECES_MAX: usize = 4;
/// Maximum size in bytes of a piece, the part of a stream that is read or written at once.
const PIECE_BYTES: usize = 16 * 1024;
/// Capacity of the queue of streams to accept.
const ACCEPTS_MAX: usize = 16;
/// Maximum wait until the peer accepts a stream (upstream's `DefaultStreamCreationTimeout`).
const OPEN_MAX: Duration = Duration::from_secs(30);
/// Status of a reset: the receiver does not accept the stream.
const REFUSED_STREAM: u32 = 3;
/// Status of a reset: the sender needs the stream no longer.
const CANCEL: u32 = 5;

/// The role of this side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams with odd numbers.
    Client,
    /// Opens streams with even numbers.
    Server,
}

/// Why a session or stream ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection failed.
    #[error("the SPDY connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer violated SPDY/3.1.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The connection or stream is closed.
    #[error("the SPDY stream is closed")]
    Closed,
    /// The peer refused a stream, or the connection already has the maximum number of streams.
    #[error("the SPDY stream was refused")]
    Refused,
    /// The peer neither accepted nor refused a stream.
    #[error("the peer did not accept the SPDY stream in time")]
    TimedOut,
}

/// The reading task's state of a stream.
struct StreamState {
    /// Queue of received pieces; `None` once the peer has finished sending.
    pieces: Option<mpsc::Sender<Bytes>>,
    /// Whether the peer accepts the stream, for [`Connection::open`]; `None` once it has answered,
    /// and for streams that the peer opened.
    replied: Option<oneshot::Sender<bool>>,
}

/// The open streams of a connection by id.
#[derive(Default)]
struct Table {
    streams: Mutex<HashMap<u32, StreamState>>,
    /// Whether the reading task has ended, so that no stream may be added; accessed under the lock
    /// of `streams`.
    ended: AtomicBool,
}

/// A connection; dropping it closes all its streams.
pub struct Connection {
    table: Arc<Table>,
    /// Queue of the writing task.
    writes: mpsc::Sender<Frame>,
    /// Id of the next stream that this side opens.
    next: AtomicU32,
    /// Streams that the peer opened.
    accepted: Option<mpsc::Receiver<Stream>>,
    /// Ends both tasks.
    stop: Shutdown,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop.request();
    }
}

impl Connection {
    /// Starts SPDY on an upgraded connection.
    pub fn start(io: impl Io + 'static, role: Role, tasks: &Tasks) -> Self {
        let (read, write) = tokio::io::split(io);
        let (writes, queue) = mpsc::channel(WRITES_MAX);
        let (accept, accepted) = mpsc::channel(ACCEPTS_MAX);
        let table = Arc::new(Table::default());
        let stop = tasks.shutdown().child();
        let reader = Reader {
            io: BufReader::with_capacity(PIECE_BYTES, read),
            table: Arc::clone(&table),
            writes: writes.clone(),
            accept,
            inflater: Inflater::default(),
            role,
            last_id: 0,
        };
        let (reading, writing) = (stop.clone(), stop.clone());
        tasks.spawn(Kind::Request, "spdy-read", reader.run(reading));
        tasks.spawn(Kind::Request, "spdy-write", write_all(write, queue, writing));
        let next = AtomicU32::new(if role == Role::Client { 1 } else { 2 });
        Self { table, writes, next, accepted: Some(accepted), stop }
    }

    /// Opens a stream and waits until the peer accepts it.
    ///
    /// # Errors
    /// When the peer refuses or does not answer, or the connection is closed.
    pub async fn open(&self, headers: Headers) -> Result<Stream, SessionError> {
        let id = self.next.fetch_add(2, Ordering::Relaxed);
        let (replied, reply) = oneshot::channel();
        let stream = self.table.add(id, Some(replied), headers.clone(), &self.writes);
        let stream = stream.ok_or(SessionError::Refused)?;
        stream.send(Frame::SynStream { id, fin: false, headers }).await?;
        match tokio::time::timeout(OPEN_MAX, reply).await {
            Ok(Ok(true)) => Ok(stream),
            Ok(Ok(false)) => Err(SessionError::Refused),
            Ok(Err(_)) => Err(SessionError::Closed),
            Err(_) => Err(SessionError::TimedOut),
        }
    }

    /// The next stream that the peer opens; `None` once the connection is closed.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.accepted.as_mut()?.recv().await
    }
}

impl Table {
    /// Adds a stream; `None` if the connection has ended or has too many streams, or the id is in
    /// use.
    fn add(
        self: &Arc<Self>,
        id: u32,
        replied: Option<oneshot::Sender<bool>>,
        headers: Headers,
        writes: &mpsc::Sender<Frame>,
    ) -> Option<Stream> {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let mut streams = self.streams.lock();
        let ended = self.ended.load(Ordering::Relaxed);
        if ended || streams.len() >= STREAMS_MAX || streams.contains_key(&id) {
            return None;
        }
        streams.insert(id, StreamState { pieces: Some(sender), replied });
        let (writes, table) = (writes.clone(), Arc::clone(self));
        Some(Stream { id, headers, pieces, writer: Writer { id, writes, table } })
    }

    /// The queue of a stream's received pieces.
    fn sender(&self, id: u32) -> Option<mpsc::Sender<Bytes>> {
        self.streams.lock().get(&id).and_then(|stream| stream.pieces.clone())
    }

    /// Records that the peer has finished sending.
    fn finish(&self, id: u32) {
        if let Some(stream) = self.streams.lock().get_mut(&id) {
            stream.pieces = None;
        }
    }

    /// Passes the peer's answer to [`Connection::open`].
    fn reply(&self, id: u32, is_accepted: bool) {
        let replied = self.streams.lock().get_mut(&id).and_then(|stream| stream.replied.take());
        if let Some(replied) = replied {
            // Nothing waits any more if `open` timed out.
            let _ = replied.send(is_accepted);
        }
    }
}

/// The sending half of a stream; dropping it removes the stream from the table.
struct Writer {
    id: u32,
    writes: mpsc::Sender<Frame>,
    table: Arc<Table>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.table.streams.lock().remove(&self.id);
    }
}

/// A stream. Dropping it does not notify the peer: call [`Stream::finish`] or [`Stream::reset`].
pub struct Stream {
    /// Stream id.
    pub id: u32,
    /// Headers that opened the stream.
    pub headers: Headers,
    /// Received pieces.
    pieces: mpsc::Receiver<Bytes>,
    writer: Writer,
}

impl Stream {
    /// The next bytes; `None` when the peer has finished or the connection is closed.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.pieces.recv().await
    }

    /// Sends bytes, waiting for queue capacity.
    ///
    /// # Errors
    /// When the connection ended.
    pub async fn write(&self, mut bytes: Bytes) -> Result<(), SessionError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            self.send(Frame::Data { id: self.id, fin: false, bytes: piece }).await?;
        }
        Ok(())
    }

    /// Finishes sending; reading continues.
    ///
    /// # Errors
    /// When the connection ended.
    pub async fn finish(&self) -> Result<(), SessionError> {
        self.send(Frame::Data { id: self.id, fin: true, bytes: Bytes::new() }).await
    }

    /// Closes the stream in both directions.
    ///
    /// # Errors
    /// When the connection ended.
    pub async fn reset(self) -> Result<(), SessionError> {
        self.send(Frame::Reset { id: self.id, status: CANCEL }).await
    }

    async fn send(&self, frame: Frame) -> Result<(), SessionError> {
        self.writer.writes.send(frame).await.map_err(|_| SessionError::Closed)
    }
}

/// The state of the reading task.
struct Reader<T: Io> {
    io: BufReader<ReadHalf<T>>,
    table: Arc<Table>,
    writes: mpsc::Sender<Frame>,
    accept: mpsc::Sender<Stream>,
    inflater: Inflater,
    role: Role,
    /// Id of the last stream that the peer opened; the next one must be higher.
    last_id: u32,
}

impl<T: Io> Reader<T> {
    /// Reads until the connection ends or `stop` is requested, then ends all streams.
    async fn run(mut self, stop: Shutdown) -> Result<(), std::convert::Infallible> {
        tokio::select! {
            ended = self.read() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "spdy: cannot read from the connection, closing it");
                }
            }
            () = stop.requested() => {}
        }
        // Nothing more arrives: end `Stream::read` and `Connection::open` of all streams.
        {
            let mut streams = self.table.streams.lock();
            self.table.ended.store(true, Ordering::Relaxed);
            for stream in streams.values_mut() {
                stream.pieces = None;
                stream.replied = None;
            }
        }
        stop.request();
        Ok(())
    }

    /// Reads and handles frames until the peer closes the connection.
    async fn read(&mut self) -> Result<(), SessionError> {
        let mut payload = Vec::new();
        loop {
            let mut head = [0; 8];
            match self.io.read_exact(&mut head).await {
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            match Head::parse(head)? {
                Head::Data { id, flags, length } => self.data(id, flags, length).await?,
                Head::Control { kind, flags, length } => {
                    payload.clear();
                    payload.resize(length, 0);
                    self.io.read_exact(&mut payload).await?;
                    let frame = Frame::control(kind, flags, &payload, &mut self.inflater)?;
                    if !self.control(frame).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads the bytes of a data frame and delivers them in pieces. Bytes for a stream that is
    /// closed or unknown are read and dropped, because the next frame follows them.
    async fn data(&mut self, id: u32, flags: u8, length: usize) -> Result<(), SessionError> {
        let mut pieces = self.table.sender(id);
        let mut left = length;
        while left > 0 {
            let mut piece = BytesMut::zeroed(left.min(PIECE_BYTES));
            self.io.read_exact(&mut piece).await?;
            left -= piece.len();
            if let Some(sender) = &pieces {
                if sender.send(piece.freeze()).await.is_err() {
                    pieces = None;
                }
            }
        }
        drop(pieces);
        if flags & FLAG_FIN != 0 {
            self.table.finish(id);
        }
        Ok(())
    }

    /// Handles a control frame; returns `false` to close the connection.
    async fn control(&mut self, frame: Frame) -> Result<bool, SessionError> {
        match frame {
            Frame::SynStream { id, fin, headers } => {
                let stream = if self.is_of_peer(id) && id > self.last_id {
                    self.last_id = id;
                    self.table.add(id, None, headers, &self.writes)
                } else {
                    None
                };
                let Some(stream) = stream else {
                    self.write(Frame::Reset { id, status: REFUSED_STREAM }).await?;
                    return Ok(true);
                };
                if fin {
                    self.table.finish(id);
                }
                self.write(Frame::SynReply { id, fin: false, headers: Headers::default() }).await?;
                return Ok(self.accept.send(stream).await.is_ok());
            }
            Frame::SynReply { id, fin, .. } => {
                self.table.reply(id, true);
                if fin {
                    self.table.finish(id);
                }
            }
            Frame::Reset { id, .. } => {
                self.table.reply(id, false);
                self.table.finish(id);
            }
            Frame::Headers { id, fin: true, .. } => self.table.finish(id),
            // If the queue is full, the ping is dropped, so that reading does not wait: the frames
            // in the queue show the peer that the connection works.
            Frame::Ping(id) if self.is_of_peer(id) => {
                let _ = self.writes.try_send(Frame::Ping(id));
            }
            // Open streams continue; the connection ends when the peer closes it.
            Frame::GoAway { .. }
            | Frame::Ping(_)
            | Frame::Settings(_)
            | Frame::WindowUpdate { .. }
            | Frame::Headers { .. }
            | Frame::Data { .. }
            | Frame::Unknown(_) => {}
        }
        Ok(true)
    }

    /// Whether the peer chose this id of a stream or ping: ids of clients are odd.
    fn is_of_peer(&self, id: u32) -> bool {
        (id % 2 == 1) == (self.role == Role::Server)
    }

    async fn write(&mut self, frame: Frame) -> Result<(), SessionError> {
        self.writes.send(frame).await.map_err(|_| SessionError::Closed)
    }
}

/// Writes the frames of `queue` until the connection ends or `stop` is requested.
async fn write_all<T: Io>(
    mut io: WriteHalf<T>,
    mut queue: mpsc::Receiver<Frame>,
    stop: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut deflater = Deflater::default();
    let written: Result<(), SessionError> = async {
        loop {
            let frame = tokio::select! {
                // Queued frames are written before a requested stop takes effect.
                biased;
                frame = queue.recv() => frame,
                () = stop.requested() => None,
            };
            let Some(frame) = frame else { return Ok(()) };
            let head = frame.encode(&mut deflater)?;
            if let Frame::Data { bytes, .. } = &frame {
                // One write, so that head and content do not become two packets.
                io.write_all(&[&head, bytes.as_ref()].concat()).await?;
            } else {
                io.write_all(&head).await?;
            }
            if queue.is_empty() {
                io.flush().await?;
            }
        }
    }
    .await;
    if let Err(error) = written {
        tracing::debug!(%error, "spdy: cannot write to the connection, closing it");
    }
    stop.request();
    // The connection may already be closed.
    let _ = io.shutdown().await;
    Ok(())
}
