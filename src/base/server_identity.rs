//! The identity of this API server, derived from the host name as in upstream.

use std::sync::OnceLock;

/// The hash of this server's identity (`apiserver_id_hash`).
pub fn own_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hash_of(own_identity().as_bytes()))
}

/// This server's identity.
pub fn own_identity() -> &'static str {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        identity(host.trim())
    })
}

/// `sha256:` and the digest in hexadecimal.
pub fn hash_of(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    format!("sha256:{}", crate::hex(digest.as_ref()))
}

/// `apiserver-` and the first half of the host name's digest in lower-case base 32.
fn identity(host: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = ring::digest::digest(&ring::digest::SHA256, host.as_bytes());
    let half = digest.as_ref().first_chunk::<16>().copied().unwrap_or_default();
    let mut number = u128::from_be_bytes(half);
    // 128 bits need 26 letters of five bits; the last two bits are padding.
    let mut letters = [0; 26];
    for (at, letter) in letters.iter_mut().rev().enumerate() {
        let bits = if at == 0 { (number << 2) & 31 } else { number & 31 };
        number >>= if at == 0 { 3 } else { 5 };
        *letter = usize::try_from(bits)
            .ok()
            .and_then(|bits| LETTERS.get(bits))
            .copied()
            .unwrap_or_default();
    }
    format!("apiserver-{}", String::from_utf8_lossy(&letters))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's identity is `apiserver-` and the first 16 bytes of the host name's SHA-256 in
    /// base32, lowercase and without padding. The digest of `localhost` begins with
    /// `49960de5880e8c687434170f6476605b` (`printf localhost | sha256sum`).
    #[test]
    fn a_server_is_named_as_upstream_names_it() {
        assert_eq!(identity("localhost"), "apiserver-jgla3zmib2ggq5buc4hwi5talm");
        assert_eq!(
            hash_of(b"localhost"),
            "sha256:49960de5880e8c687434170f6476605b8fe4aeb9a28632c7995cf3ba831d9763"
        );
    }
}
