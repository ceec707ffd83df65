//! Compression of older versions: each is stored as its difference to the next version.
//!
//! Versions of an object are alike: of a pod's second state about a tenth is not in its third.

use bytes::Bytes;

/// Smaller values are stored as they are: compression is not worth the work.
const PACKED_BYTES_MIN: usize = 512;

/// One version in this many is stored whole, so that reading an old one decompresses few.
const WHOLE_EVERY: i64 = 16;

/// The value of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Uncompressed.
    Whole(Bytes),
    /// Compressed with the next version's value as the dictionary.
    Packed {
        /// LZ4 data.
        bytes: Box<[u8]>,
        /// Length of the value.
        len: u32,
    },
}

impl Value {
    /// Stores `value` of the version with this number, before `next`.
    pub(super) fn pack(value: Bytes, version: i64, next: &[u8]) -> Self {
        let small = value.len() < PACKED_BYTES_MIN || next.len() < PACKED_BYTES_MIN;
        let Some(len) = u32::try_from(value.len()).ok().filter(|_| !small) else {
            return Self::Whole(value);
        };
        if version % WHOLE_EVERY == 0 {
            return Self::Whole(value);
        }
        let packed = lz4_flex::block::compress_with_dict(&value, next);
        // Less than a quarter saved is not worth the decompression.
        if packed.len() > value.len() / 4 * 3 {
            return Self::Whole(value);
        }
        Self::Packed { bytes: packed.into_boxed_slice(), len }
    }

    /// Length of the value.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(value) => value.len(),
            // The length was checked when the value was compressed.
            Self::Packed { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        }
    }

    /// The value; `next` is the value of the next version.
    pub(super) fn unpack(&self, next: &[u8]) -> Bytes {
        match self {
            Self::Whole(value) => value.clone(),
            // Data compressed by this process decompresses; a bug must not pass for a value.
            Self::Packed { bytes, .. } => {
                lz4_flex::block::decompress_with_dict(bytes, self.len(), next)
                    .unwrap_or_else(|e| unreachable!("cannot decompress a value: {e}"))
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &str) -> Bytes {
        let labels: String =
            (0..60).map(|n| format!("\"label-{n}\":\"value-{}\",", n * 7919)).collect();
        Bytes::from(format!("{{\"metadata\":{{{labels}\"name\":\"a\"}},\"status\":\"{status}\"}}"))
    }

    #[test]
    fn like_values_take_little_and_come_back() {
        let (old, new) = (pod("Pending"), pod("Running, and for an hour already"));
        let kept = Value::pack(old.clone(), 1, &new);
        let Value::Packed { bytes, .. } = &kept else { panic!("it is kept whole") };
        assert!(bytes.len() < old.len() / 10, "{} of {}", bytes.len(), old.len());
        assert_eq!(kept.len(), old.len());
        assert_eq!(kept.unpack(&new), old);
    }

    #[test]
    fn small_unlike_and_sixteenth_values_stay_whole() {
        let (old, new) = (pod("Pending"), pod("Running"));
        assert_eq!(Value::pack(old.clone(), 16, &new), Value::Whole(old.clone()));
        assert_eq!(Value::pack(old.clone(), 1, b""), Value::Whole(old.clone()));
        assert_eq!(Value::pack("a".into(), 1, &new), Value::Whole("a".into()));
        let mut seed = 1_u32;
        let noise: Bytes = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_be_bytes()[0]
        })
        .take(4096)
        .collect();
        assert_eq!(Value::pack(noise.clone(), 1, &new), Value::Whole(noise));
    }
}
