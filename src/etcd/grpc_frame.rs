//! The framing of gRPC messages: a prefix of five bytes, then the message. The errors and their
//! texts are those of tonic.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

use crate::service::MESSAGE_BYTES;

/// Size of a message prefix in bytes: one byte for the compression flag, four for the length.
pub(crate) const PREFIX: usize = 5;

/// Reads the length of a message from its prefix; `None` while `bytes` has only a part of the
/// prefix.
///
/// # Errors
/// The message is compressed or too long.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some(&[compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    match compressed {
        0 => {}
        1 => {
            return Err(Status::internal(
                "protocol error: received message with compressed-flag but no grpc-encoding was \
                 specified",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} (valid \
                 flags are 0 and 1), while sending request"
            )));
        }
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_BYTES {
        return Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {length} bytes, the limit is: \
             {MESSAGE_BYTES} bytes"
        )));
    }
    Ok(Some(length))
}

/// Encodes a message with its prefix.
pub(crate) fn encoded(message: &impl Message) -> Result<Bytes, Status> {
    let mut out = begin(message.encoded_len())?;
    message.encode_raw(&mut out);
    Ok(out.freeze())
}

/// Converts the length of a message to the type of its prefix.
///
/// # Errors
/// The message is longer than 4 GiB.
pub(crate) fn prefix_length(length: usize) -> Result<u32, Status> {
    u32::try_from(length).map_err(|_| {
        Status::resource_exhausted(format!(
            "Cannot return body with more than 4GB of data but got {length} bytes"
        ))
    })
}

/// A buffer with the prefix of a message of this length, and room for the message.
fn begin(length: usize) -> Result<BytesMut, Status> {
    let prefix = prefix_length(length)?;
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(prefix);
    Ok(out)
}
