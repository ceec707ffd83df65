//! Frames of SPDY/3.1: a head of eight bytes, then a payload by kind (section 2.2).

use bytes::Bytes;

use super::headers::{Deflater, Headers, Inflater};

/// Maximum size of a control frame's payload in bytes.
pub(super) const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of settings in one frame.
const SETTINGS_MAX: usize = 64;
const VERSION: u16 = 3;
const CONTROL: u8 = 0x80;
/// The sender has finished the stream.
pub(super) const FLAG_FIN: u8 = 0x01;

/// Errors of decoding; the connection cannot be used afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Version other than 3.
    #[error("the frame is of SPDY version {0}, not 3")]
    Version(u16),
    /// Larger than accepted.
    #[error("a control frame of {0} bytes is larger than accepted")]
    TooLarge(usize),
    /// Shorter than its kind requires, or with a zero stream id.
    #[error("a control frame of kind {0} is malformed")]
    Malformed(u16),
    /// Compressed headers that are damaged or too large.
    #[error("the headers of a frame are damaged or too large")]
    Headers,
}

/// The first eight bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Bytes of a stream follow.
    Data {
        /// Stream.
        id: u32,
        /// Flags.
        flags: u8,
        /// Bytes that follow.
        length: usize,
    },
    /// A control frame.
    Control {
        /// Kind.
        kind: u16,
        /// Flags.
        flags: u8,
        /// Bytes that follow.
        length: usize,
    },
}

impl Head {
    /// Reads a head.
    ///
    /// # Errors
    /// Another version, or a control frame that is too large.
    pub fn parse(bytes: [u8; 8]) -> Result<Self, FrameError> {
        let [a, b, c, d, flags, l0, l1, l2] = bytes;
        let length = usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2);
        if a & CONTROL == 0 {
            return Ok(Self::Data { id: u32::from_be_bytes([a, b, c, d]), flags, length });
        }
        let version = u16::from_be_bytes([a & !CONTROL, b]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if length > CONTROL_BYTES_MAX {
            return Err(FrameError::TooLarge(length));
        }
        Ok(Self::Control { kind: u16::from_be_bytes([c, d]), flags, length })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of a stream.
    Data {
        /// Stream.
        id: u32,
        /// Whether these are the last of this direction.
        fin: bool,
        /// At most 2^24 - 1 bytes.
        bytes: Bytes,
    },
    /// Opens a stream.
    SynStream {
        /// Stream: odd from the client, even from the server, rising.
        id: u32,
        /// Whether the sender will send nothing.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply {
        /// Stream.
        id: u32,
        /// Whether the sender will send nothing.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Aborts a stream.
    Reset {
        /// Stream.
        id: u32,
        /// Reason; 5 is CANCEL.
        status: u32,
    },
    /// Parameters of the connection.
    Settings(Vec<(u32, u32)>),
    /// A ping, to be answered with the same id.
    Ping(u32),
    /// No more streams.
    GoAway {
        /// The last accepted stream.
        last: u32,
        /// Reason; 0 is none.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// Stream.
        id: u32,
        /// Whether these are the last of this direction.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// The receiver has consumed this many bytes.
    WindowUpdate {
        /// Stream, 0 for the connection.
        id: u32,
        /// Bytes.
        delta: u32,
    },
    /// A kind that SPDY/3.1 does not define; ignored.
    Unknown(u16),
}

/// Reads numbers from the front of a slice.
struct Cursor<'a>(&'a [u8], u16);

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(FrameError::Malformed(self.1))?;
        self.0 = rest;
        Ok(*head)
    }

    fn number(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn id(&mut self) -> Result<u32, FrameError> {
        let id = self.number()? & 0x7fff_ffff;
        if id == 0 { Err(FrameError::Malformed(self.1)) } else { Ok(id) }
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }
}

impl Frame {
    /// Reads the payload of a control frame.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn control(
        kind: u16,
        flags: u8,
        payload: &[u8],
        inflater: &mut Inflater,
    ) -> Result<Self, FrameError> {
        let mut cursor = Cursor(payload, kind);
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            1 => {
                let id = cursor.id()?;
                // Associated stream, priority and slot are not used here.
                let _: [u8; 6] = cursor.take()?;
                Self::SynStream { id, fin, headers: inflater.block(cursor.rest())? }
            }
            2 => {
                let id = cursor.id()?;
                Self::SynReply { id, fin, headers: inflater.block(cursor.rest())? }
            }
            3 => Self::Reset { id: cursor.id()?, status: cursor.number()? },
            4 => {
                let count = usize::try_from(cursor.number()?).unwrap_or(usize::MAX);
                if count > SETTINGS_MAX {
                    return Err(FrameError::Malformed(kind));
                }
                let mut pairs = Vec::with_capacity(count);
                for _ in 0..count {
                    pairs.push((cursor.number()? & 0x00ff_ffff, cursor.number()?));
                }
                Self::Settings(pairs)
            }
            6 => Self::Ping(cursor.number()?),
            7 => Self::GoAway { last: cursor.number()? & 0x7fff_ffff, status: cursor.number()? },
            8 => {
                let id = cursor.id()?;
                Self::Headers { id, fin, headers: inflater.block(cursor.rest())? }
            }
            9 => Self::WindowUpdate {
                id: cursor.number()? & 0x7fff_ffff,
                delta: cursor.number()? & 0x7fff_ffff,
            },
            other => Self::Unknown(other),
        })
    }

    /// Encodes the frame, without the content of a data frame, which is not copied.
    ///
    /// # Errors
    /// When the headers cannot be compressed, or a part is too large.
    pub fn encode(&self, deflater: &mut Deflater) -> Result<Vec<u8>, FrameError> {
        let words =
            |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_be_bytes()).collect() };
        let (kind, fin, payload) = match self {
            Self::Data { id, fin, bytes } => {
                let length = length(bytes.len())?;
                let mut out = id.to_be_bytes().to_vec();
                out.push(if *fin { FLAG_FIN } else { 0 });
                out.extend_from_slice(&length);
                return Ok(out);
            }
            Self::SynStream { id, fin, headers } => {
                let mut payload = words(&[*id, 0]);
                payload.extend_from_slice(&[0, 0]);
                payload.extend(deflater.block(headers)?);
                (1, *fin, payload)
            }
            Self::SynReply { id, fin, headers } => {
                (2, *fin, [words(&[*id]), deflater.block(headers)?].concat())
            }
            Self::Reset { id, status } => (3, false, words(&[*id, *status])),
            Self::Settings(pairs) => {
                let count = u32::try_from(pairs.len()).map_err(|_| FrameError::Malformed(4))?;
                let mut payload = words(&[count]);
                payload.extend(pairs.iter().flat_map(|(id, value)| words(&[*id, *value])));
                (4, false, payload)
            }
            Self::Ping(id) => (6, false, words(&[*id])),
            Self::GoAway { last, status } => (7, false, words(&[*last, *status])),
            Self::Headers { id, fin, headers } => {
                (8, *fin, [words(&[*id]), deflater.block(headers)?].concat())
            }
            Self::WindowUpdate { id, delta } => (9, false, words(&[*id, *delta])),
            Self::Unknown(kind) => return Err(FrameError::Malformed(*kind)),
        };
        let [version_high, version_low] = VERSION.to_be_bytes();
        let mut out = vec![CONTROL | version_high, version_low];
        out.extend_from_slice(&u16::to_be_bytes(kind));
        out.push(if fin { FLAG_FIN } else { 0 });
        out.extend_from_slice(&length(payload.len())?);
        out.extend(payload);
        Ok(out)
    }
}

/// Encodes a length in three bytes.
fn length(bytes: usize) -> Result<[u8; 3], FrameError> {
    match u32::try_from(bytes).map(u32::to_be_bytes) {
        Ok([0, a, b, c]) => Ok([a, b, c]),
        _ => Err(FrameError::TooLarge(bytes)),
    }
}
