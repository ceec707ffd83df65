//! A connection with many streams: one task reads, one writes, streams have short queues.

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
/// Maximum size of a piece in bytes, read or written.
const PIECE_BYTES: usize = 16 * 1024;
/// Capacity of the queue of streams to accept.
const ACCEPTS_MAX: usize = 16;
/// Timeout of the peer's accept of a stream (upstream's `DefaultStreamCreationTimeout`).
const OPEN_MAX: Duration = Duration::from_secs(30);

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
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// The peer violated SPDY/3.1.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The connection or stream is closed.
    #[error("the stream is closed")]
    Closed,
    /// The peer refused a stream.
    #[error("the stream was refused")]
    Refused,
    /// The peer did not answer.
    #[error("the stream was not accepted in time")]
    TimedOut,
}

/// The reading task's state of a stream.
struct StreamState {
    pieces: Option<mpsc::Sender<Bytes>>,
    replied: Option<oneshot::Sender<bool>>,
}

#[derive(Default)]
struct Table {
    streams: Mutex<HashMap<u32, StreamState>>,
    /// Whether the stream's reader is gone; accessed under the lock.
    ended: AtomicBool,
}

/// A connection; dropping it closes all its streams.
pub struct Connection {
    table: Arc<Table>,
    writes: mpsc::Sender<Frame>,
    next: AtomicU32,
    accepted: Option<mpsc::Receiver<Stream>>,
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
            last: 0,
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

    fn sender(&self, id: u32) -> Option<mpsc::Sender<Bytes>> {
        self.streams.lock().get(&id).and_then(|e| e.pieces.clone())
    }

    /// Records that the peer has finished sending.
    fn finish(&self, id: u32) {
        if let Some(entry) = self.streams.lock().get_mut(&id) {
            entry.pieces = None;
        }
    }

    fn reply(&self, id: u32, good: bool) {
        let replied = self.streams.lock().get_mut(&id).and_then(|e| e.replied.take());
        if let Some(replied) = replied {
            let _ = replied.send(good);
        }
    }
}

/// The sending half of a stream.
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
        self.send(Frame::Reset { id: self.id, status: 5 }).await
    }

    async fn send(&self, frame: Frame) -> Result<(), SessionError> {
        self.writer.writes.send(frame).await.map_err(|_| SessionError::Closed)
    }
}

struct Reader<T: Io> {
    io: BufReader<ReadHalf<T>>,
    table: Arc<Table>,
    writes: mpsc::Sender<Frame>,
    accept: mpsc::Sender<Stream>,
    inflater: Inflater,
    role: Role,
    /// The last stream that the peer opened.
    last: u32,
}

impl<T: Io> Reader<T> {
    async fn run(mut self, stop: Shutdown) -> Result<(), std::convert::Infallible> {
        tokio::select! {
            ended = self.read() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a SPDY connection ended");
                }
            }
            () = stop.requested() => {}
        }
        // Wakes readers and waiters: nothing more arrives.
        {
            let mut streams = self.table.streams.lock();
            self.table.ended.store(true, Ordering::Relaxed);
            for entry in streams.values_mut() {
                entry.pieces = None;
                entry.replied = None;
            }
        }
        stop.request();
        Ok(())
    }

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

    /// Delivers the bytes in pieces; a stream without a reader drops them.
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

    /// Returns `false` to close the connection.
    async fn control(&mut self, frame: Frame) -> Result<bool, SessionError> {
        match frame {
            Frame::SynStream { id, fin, headers } => {
                let theirs = (id % 2 == 1) == (self.role == Role::Server);
                let fresh = theirs && id > self.last;
                let stream = if fresh {
                    self.last = id;
                    self.table.add(id, None, headers, &self.writes)
                } else {
                    None
                };
                let Some(stream) = stream else {
                    // 3 is REFUSED_STREAM.
                    self.write(Frame::Reset { id, status: 3 }).await?;
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
            // A ping is not answered if the queue is full, which shows by itself that the
            // connection works.
            Frame::Ping(id) if (id % 2 == 1) == (self.role == Role::Server) => {
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

    async fn write(&mut self, frame: Frame) -> Result<(), SessionError> {
        self.writes.send(frame).await.map_err(|_| SessionError::Closed)
    }
}

async fn write_all<T: Io>(
    mut io: WriteHalf<T>,
    mut queue: mpsc::Receiver<Frame>,
    stop: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut deflater = Deflater::default();
    let written: Result<(), SessionError> = async {
        loop {
            let frame = tokio::select! {
                biased;
                frame = queue.recv() => frame,
                () = stop.requested() => None,
            };
            let Some(frame) = frame else { return Ok(()) };
            let head = frame.encode(&mut deflater)?;
            if let Frame::Data { bytes, .. } = &frame {
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
        tracing::debug!(%error, "a SPDY connection cannot be written");
    }
    stop.request();
    let _ = io.shutdown().await;
    Ok(())
}
