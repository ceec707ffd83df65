//! As much of HTTP/2 and gRPC as a load needs: requests in flight on one connection, frames in,
//! messages out.
//!
//! Written for this, because a client for everybody takes as long for a request as the server that
//! is measured.

use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What a connection runs over.
trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

/// Length of a frame's head.
const HEAD: usize = 9;
/// Room for what is received: the largest window there is, so that it limits no peer.
const WINDOW: u32 = i32::MAX as u32;
/// The window before any setting was received (RFC 9113, 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// Received bytes that are given back to the connection's window at once.
const GIVE_BACK: u32 = 1 << 29;
/// Read at a time.
const READ: usize = 256 * 1024;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Where requests go.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) tls: Option<(TlsConnector, rustls::pki_types::ServerName<'static>)>,
}

/// What came for one stream.
pub(crate) enum Part<'a> {
    /// Bytes of messages, each after its five bytes of gRPC.
    Data(&'a [u8]),
    /// The server's last word.
    End,
}

/// One connection.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    authority: String,
    secure: bool,
    out: Vec<u8>,
    input: BytesMut,
    /// Header fields that the server's table holds since they were sent, oldest first.
    table: Vec<Arc<str>>,
    next: u32,
    /// Bytes of data that may be sent.
    window: i64,
    /// Received since the last return to the window.
    received: u32,
}

impl Connection {
    /// Connects; the server's settings come with its first answer.
    pub(crate) async fn open(target: &Target) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(&target.address).await?;
        tcp.set_nodelay(true)?;
        let io: Box<dyn Io> = match &target.tls {
            Some((tls, name)) => Box::new(tls.connect(name.clone(), tcp).await?),
            None => Box::new(tcp),
        };
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // ENABLE_PUSH 0, INITIAL_WINDOW_SIZE
        head(&mut out, SETTINGS, 0, 0, 12);
        out.extend_from_slice(&[0, 2, 0, 0, 0, 0, 0, 4]);
        out.extend_from_slice(&WINDOW.to_be_bytes());
        head(&mut out, WINDOW_UPDATE, 0, 0, 4);
        out.extend_from_slice(&(WINDOW - FIRST_WINDOW).to_be_bytes());
        Ok(Self {
            io,
            authority: target.address.clone(),
            secure: target.tls.is_some(),
            out,
            input: BytesMut::new(),
            table: Vec::new(),
            next: 1,
            window: i64::from(FIRST_WINDOW),
            received: 0,
        })
    }

    /// Whether a message of this length may be sent now.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        i64::try_from(length).is_ok_and(|length| length + 5 <= self.window)
    }

    /// Queues a call of `path` with its message; who `goes_on` sends more on the same stream.
    pub(crate) fn call(
        &mut self,
        path: &'static str,
        message: &[u8],
        goes_on: bool,
    ) -> anyhow::Result<u32> {
        let stream = self.next;
        self.next = stream.checked_add(2).context("all streams of the connection are used up")?;
        let begin = self.out.len();
        head(&mut self.out, HEADERS, END_HEADERS, stream, 0);
        // From the static table: POST, and http or https.
        self.out.extend_from_slice(&[0x83, if self.secure { 0x87 } else { 0x86 }]);
        let authority = self.authority.clone();
        for (name, value) in [
            (&[0x44][..], path),
            (&[0x41], &authority),
            (&[0x5f], "application/grpc"),
            (&[0x40, 2, b't', b'e'], "trailers"),
        ] {
            self.field(name, value);
        }
        let length = self.out.len() - begin - HEAD;
        let length = u32::try_from(length)?.to_be_bytes();
        if let Some(place) = self.out.get_mut(begin..begin + 3) {
            place.copy_from_slice(&length[1..]);
        }
        self.message(stream, message, goes_on)?;
        Ok(stream)
    }

    /// A header field as a number of the table, where it is after it was sent once in full.
    fn field(&mut self, name: &[u8], value: &str) {
        let held = self.table.iter().rev().position(|held| **held == *value);
        if let Some(number) = held.and_then(|at| u8::try_from(62 + at).ok()).filter(|n| *n < 127) {
            self.out.push(0x80 | number);
            return;
        }
        self.out.extend_from_slice(name);
        // Values are short: one byte holds their length.
        self.out.push(u8::try_from(value.len()).unwrap_or(0).min(126));
        self.out.extend_from_slice(value.as_bytes());
        self.table.push(value.into());
    }

    /// Queues one more message of a stream.
    pub(crate) fn message(
        &mut self,
        stream: u32,
        message: &[u8],
        goes_on: bool,
    ) -> anyhow::Result<()> {
        if message.len() > 16_000 {
            bail!("a request of {} bytes: more than one frame", message.len());
        }
        let flags = if goes_on { 0 } else { END_STREAM };
        head(&mut self.out, DATA, flags, stream, message.len() + 5);
        self.out.push(0);
        self.out.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        self.out.extend_from_slice(message);
        self.window -= i64::try_from(message.len() + 5)?;
        Ok(())
    }

    /// Sends what is queued, waits for something from the server, and hands out all that is whole.
    pub(crate) async fn exchange(
        &mut self,
        mut on: impl FnMut(u32, Part<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.out.is_empty() {
            self.io.write_all(&self.out).await?;
            self.io.flush().await?;
            self.out.clear();
        }
        self.input.reserve(READ);
        if self.io.read_buf(&mut self.input).await? == 0 {
            bail!("the server closed the connection");
        }
        while let Some(&[a, b, c, kind, flags, d, e, f, g]) = self.input.first_chunk::<HEAD>() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes([d & 0x7f, e, f, g]);
            if self.input.len() < HEAD + length {
                break;
            }
            let mut frame = self.input.split_to(HEAD + length);
            frame.advance(HEAD);
            self.frame(kind, flags, stream, &frame, &mut on)?;
        }
        if self.received >= GIVE_BACK {
            head(&mut self.out, WINDOW_UPDATE, 0, 0, 4);
            self.out.extend_from_slice(&self.received.to_be_bytes());
            self.received = 0;
        }
        Ok(())
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        on: &mut impl FnMut(u32, Part<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match kind {
            DATA => {
                if flags & PADDED != 0 {
                    bail!("the server pads its data");
                }
                self.received += u32::try_from(payload.len())?;
                on(stream, Part::Data(payload))?;
                if flags & END_STREAM != 0 {
                    on(stream, Part::End)?;
                }
            }
            HEADERS if flags & END_STREAM != 0 => on(stream, Part::End)?,
            RST_STREAM => bail!("the server broke a stream off: {payload:?}"),
            SETTINGS if flags & ACK == 0 => head(&mut self.out, SETTINGS, ACK, 0, 0),
            PING if flags & ACK == 0 => {
                head(&mut self.out, PING, ACK, 0, payload.len());
                self.out.extend_from_slice(payload);
            }
            GOAWAY => bail!("the server goes away: {}", String::from_utf8_lossy(payload)),
            WINDOW_UPDATE if stream == 0 => {
                let more = payload.first_chunk().context("a window update without its number")?;
                self.window += i64::from(u32::from_be_bytes(*more));
            }
            _ => {}
        }
        Ok(())
    }
}

fn head(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, length: usize) {
    let length = u32::try_from(length).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}
