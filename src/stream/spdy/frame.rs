//! Frames of SPDY/3.1: a head of eight bytes, then a payload that depends on the kind of the frame
//! (section 2 of the SPDY/3.1 draft).

use bytes::Bytes;

use super::headers::{Deflater, Headers, Inflater};

/// Maximum size of a control frame's payload in bytes.
pub(super) const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of settings in one frame.
const SETTINGS_MAX: usize = 64;
/// Version number in control frames; that of SPDY/3.1 is 3, too.
const VERSION: u16 = 3;
/// Bit of the first byte that distinguishes control frames from data frames.
const CONTROL: u8 = 0x80;
/// Mask of a stream id, which has 31 bits.
const ID_MASK: u32 = 0x7fff_ffff;

// Kinds of control frames.
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Flag: the sender has finished its direction of the stream.
pub(super) const FLAG_FIN: u8 = 0x01;

/// Errors of decoding; the connection cannot be used afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Version other than 3.
    #[error("a SPDY frame has version {0}, not 3")]
    Version(u16),
    /// A control frame above the maximum size, or a frame whose length does not fit into 24 bits.
    #[error("a SPDY frame of {0} bytes is larger than accepted")]
    TooLarge(usize),
    /// A control frame that is shorter than its kind requires, or has the stream id 0, too many
    /// settings, or a kind that cannot be encoded.
    #[error("a SPDY control frame of kind {0} is malformed")]
    Malformed(u16),
    /// Compressed headers that are damaged or too large.
    #[error("the headers of a SPDY frame are damaged or too large")]
    Headers,
}

/// The first eight bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Bytes of a stream follow.
    Data {
        /// Stream id.
        id: u32,
        /// Flags.
        flags: u8,
        /// Number of bytes that follow.
        length: usize,
    },
    /// A control frame.
    Control {
        /// Kind of the frame, by which [`Frame::control`] decodes the payload.
        kind: u16,
        /// Flags.
        flags: u8,
        /// Number of bytes that follow.
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
        /// Stream id.
        id: u32,
        /// Whether the sender has finished its direction of the stream.
        fin: bool,
        /// At most 2^24 - 1 bytes.
        bytes: Bytes,
    },
    /// Opens a stream.
    SynStream {
        /// Stream id: odd from the client, even from the server; each higher than the one before.
        id: u32,
        /// Whether the sender sends no data on the stream.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply {
        /// Stream id.
        id: u32,
        /// Whether the sender sends no data on the stream.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Aborts a stream.
    Reset {
        /// Stream id.
        id: u32,
        /// Reason, such as 3 (`REFUSED_STREAM`) or 5 (`CANCEL`).
        status: u32,
    },
    /// Parameters of the connection, as pairs of id and value.
    Settings(Vec<(u32, u32)>),
    /// A ping, to be answered with the same id.
    Ping(u32),
    /// The sender accepts no more streams.
    GoAway {
        /// Id of the last accepted stream.
        last: u32,
        /// Reason; 0 for none.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// Stream id.
        id: u32,
        /// Whether the sender has finished its direction of the stream.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// The sender of this frame has consumed this many bytes.
    WindowUpdate {
        /// Stream id; 0 for the whole connection.
        id: u32,
        /// Number of bytes.
        delta: u32,
    },
    /// A kind that SPDY/3.1 does not define; ignored.
    Unknown(u16),
}

/// Reads numbers from the front of a control frame's payload.
struct Cursor<'a> {
    payload: &'a [u8],
    /// Kind of the frame, for errors.
    kind: u16,
}

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (bytes, rest) =
            self.payload.split_first_chunk::<N>().ok_or(FrameError::Malformed(self.kind))?;
        self.payload = rest;
        Ok(*bytes)
    }

    fn number(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    /// The id of a stream, never 0.
    fn id(&mut self) -> Result<u32, FrameError> {
        let id = self.number()? & ID_MASK;
        if id == 0 { Err(FrameError::Malformed(self.kind)) } else { Ok(id) }
    }

    fn rest(self) -> &'a [u8] {
        self.payload
    }
}

impl Frame {
    /// Decodes the payload of a control frame. `inflater` is that of the connection, because all
    /// headers of a connection are one compressed stream.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn control(
        kind: u16,
        flags: u8,
        payload: &[u8],
        inflater: &mut Inflater,
    ) -> Result<Self, FrameError> {
        let mut cursor = Cursor { payload, kind };
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            SYN_STREAM => {
                let id = cursor.id()?;
                // Associated stream, priority and slot are not used here.
                let _: [u8; 6] = cursor.take()?;
                Self::SynStream { id, fin, headers: inflater.block(cursor.rest())? }
            }
            SYN_REPLY => {
                let id = cursor.id()?;
                Self::SynReply { id, fin, headers: inflater.block(cursor.rest())? }
            }
            RST_STREAM => Self::Reset { id: cursor.id()?, status: cursor.number()? },
            SETTINGS => {
                let count = usize::try_from(cursor.number()?).unwrap_or(usize::MAX);
                if count > SETTINGS_MAX {
                    return Err(FrameError::Malformed(kind));
                }
                let mut pairs = Vec::with_capacity(count);
                for _ in 0..count {
                    // The first byte has flags of the setting, which are not used here.
                    pairs.push((cursor.number()? & 0x00ff_ffff, cursor.number()?));
                }
                Self::Settings(pairs)
            }
            PING => Self::Ping(cursor.number()?),
            GOAWAY => Self::GoAway { last: cursor.number()? & ID_MASK, status: cursor.number()? },
            HEADERS => {
                let id = cursor.id()?;
                Self::Headers { id, fin, headers: inflater.block(cursor.rest())? }
            }
            WINDOW_UPDATE => Self::WindowUpdate {
                id: cursor.number()? & ID_MASK,
                // The highest bit of a delta is reserved as in ids.
                delta: cursor.number()? & ID_MASK,
            },
            other => Self::Unknown(other),
        })
    }

    /// Encodes the frame; of a data frame only the head, so that its content is not copied here.
    ///
    /// # Errors
    /// When the headers cannot be compressed, or a part is too large.
    pub fn encode(&self, deflater: &mut Deflater) -> Result<Vec<u8>, FrameError> {
        let words =
            |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_be_bytes()).collect() };
        let (kind, fin, payload) = match self {
            Self::Data { id, fin, bytes } => {
                let length = encode_length(bytes.len())?;
                let mut out = id.to_be_bytes().to_vec();
                out.push(if *fin { FLAG_FIN } else { 0 });
                out.extend_from_slice(&length);
                return Ok(out);
            }
            Self::SynStream { id, fin, headers } => {
                // No associated stream; priority 0 and slot 0.
                let mut payload = words(&[*id, 0]);
                payload.extend_from_slice(&[0, 0]);
                payload.extend(deflater.block(headers)?);
                (SYN_STREAM, *fin, payload)
            }
            Self::SynReply { id, fin, headers } => {
                (SYN_REPLY, *fin, [words(&[*id]), deflater.block(headers)?].concat())
            }
            Self::Reset { id, status } => (RST_STREAM, false, words(&[*id, *status])),
            Self::Settings(pairs) => {
                let count =
                    u32::try_from(pairs.len()).map_err(|_| FrameError::Malformed(SETTINGS))?;
                let mut payload = words(&[count]);
                payload.extend(pairs.iter().flat_map(|(id, value)| words(&[*id, *value])));
                (SETTINGS, false, payload)
            }
            Self::Ping(id) => (PING, false, words(&[*id])),
            Self::GoAway { last, status } => (GOAWAY, false, words(&[*last, *status])),
            Self::Headers { id, fin, headers } => {
                (HEADERS, *fin, [words(&[*id]), deflater.block(headers)?].concat())
            }
            Self::WindowUpdate { id, delta } => (WINDOW_UPDATE, false, words(&[*id, *delta])),
            Self::Unknown(kind) => return Err(FrameError::Malformed(*kind)),
        };
        let [version_high, version_low] = VERSION.to_be_bytes();
        let mut out = vec![CONTROL | version_high, version_low];
        out.extend_from_slice(&u16::to_be_bytes(kind));
        out.push(if fin { FLAG_FIN } else { 0 });
        out.extend_from_slice(&encode_length(payload.len())?);
        out.extend(payload);
        Ok(out)
    }
}

/// Encodes a length in three bytes.
fn encode_length(bytes: usize) -> Result<[u8; 3], FrameError> {
    match u32::try_from(bytes).map(u32::to_be_bytes) {
        Ok([0, a, b, c]) => Ok([a, b, c]),
        _ => Err(FrameError::TooLarge(bytes)),
    }
}
