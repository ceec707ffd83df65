//! SHA-256 digests in OCI notation, and the checksums of the kubelet's checkpoints.

use std::io::{self, Read};

fn hex(digest: &ring::digest::Digest) -> String {
    format!("sha256:{}", base::hex(digest.as_ref()))
}

/// `sha256:…` of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&ring::digest::digest(&ring::digest::SHA256, bytes))
}

/// A digest of data that arrives in parts.
pub(crate) struct Sha256(ring::digest::Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }
}

impl Sha256 {
    /// Adds a part.
    pub(crate) fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// `sha256:…` of all parts.
    pub(crate) fn finish(self) -> String {
        hex(&self.0.finish())
    }
}

/// `sha256:…` of everything that `reader` yields.
pub(crate) fn sha256_of(mut reader: impl Read) -> io::Result<String> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hex(&context.finish())),
            n => context.update(&buffer[..n]),
        }
    }
}

/// FNV-1a with 32 bits.
pub(crate) fn fnv1a_32(text: &[u8]) -> u32 {
    text.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
