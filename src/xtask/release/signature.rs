//! Signatures in the format of minisign (<https://jedisct1.github.io/minisign/>), algorithm `Ed`:
//! Ed25519 over the file itself, which `openssl pkeyutl -rawin` verifies, too.

use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair};

/// The algorithm without a hash of the file.
const ALGORITHM: &[u8; 2] = b"Ed";

/// A key that signs releases.
pub(super) struct Key {
    pair: Ed25519KeyPair,
}

impl Key {
    /// Reads the private key: PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes it.
    ///
    /// # Errors
    /// The file cannot be read or contains no such key.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the key {}", path.display()))?;
        Self::parse(&text).with_context(|| {
            format!(
                "{} is not a private Ed25519 key in PEM; create one: openssl genpkey -algorithm \
                 ed25519 -out FILE",
                path.display()
            )
        })
    }

    fn parse(text: &str) -> Result<Self> {
        let body: String = text
            .lines()
            .skip_while(|line| line.trim() != "-----BEGIN PRIVATE KEY-----")
            .skip(1)
            .take_while(|line| !line.starts_with("-----"))
            .map(str::trim)
            .collect();
        let der = STANDARD.decode(body).context("no base64")?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self { pair })
    }

    /// An identifier of the key, which minisign compares before it verifies.
    fn id(&self) -> [u8; 8] {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.pair.public_key().as_ref());
        let mut id = [0; 8];
        for (target, byte) in id.iter_mut().zip(digest.as_ref()) {
            *target = *byte;
        }
        id
    }

    /// The public key as minisign prints it: one line of base64.
    pub(super) fn public(&self) -> String {
        STANDARD.encode([ALGORITHM, &self.id()[..], self.pair.public_key().as_ref()].concat())
    }

    /// Signs a file. `comment` is one line and part of what is signed.
    pub(super) fn sign(&self, content: &[u8], comment: &str) -> String {
        let signature = self.pair.sign(content);
        let global = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        format!(
            "untrusted comment: kube-lite release\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode([ALGORITHM, &self.id()[..], signature.as_ref()].concat()),
            STANDARD.encode(global.as_ref()),
        )
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    /// The key of RFC 8032, section 7.1, test 1, in the form of `openssl genpkey`.
    fn example() -> Key {
        let hex = "302e020100300506032b657004220420\
            9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2).unwrap(), 16).unwrap();
        let der: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let kind = "PRIVATE KEY";
        let body = STANDARD.encode(der);
        Key::parse(&format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n")).unwrap()
    }

    #[test]
    fn the_public_key_is_that_of_rfc_8032() {
        let key = example();
        let bytes = STANDARD.decode(key.public()).unwrap();
        assert_eq!(bytes.len(), 42);
        assert_eq!(bytes.get(..2).unwrap(), ALGORITHM);
        let public: String = bytes.iter().skip(10).map(|b| format!("{b:02x}")).collect();
        assert_eq!(public, "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
    }

    #[test]
    fn both_signatures_verify_and_cover_file_and_comment() {
        let key = example();
        let text = key.sign(b"sums", "version v1 x86_64");
        let lines: Vec<&str> = text.lines().collect();
        let [_, signature, comment, global] = lines.as_slice() else { panic!("{text}") };
        let signature = STANDARD.decode(signature).unwrap().split_off(10);
        let public =
            UnparsedPublicKey::new(&ED25519, STANDARD.decode(key.public()).unwrap().split_off(10));
        public.verify(b"sums", &signature).unwrap();
        assert!(public.verify(b"other", &signature).is_err());
        let comment = comment.strip_prefix("trusted comment: ").unwrap();
        let signed = [signature.as_slice(), comment.as_bytes()].concat();
        public.verify(&signed, &STANDARD.decode(global).unwrap()).unwrap();
    }

    #[test]
    fn a_file_without_a_key_is_refused() {
        assert!(Key::parse("").is_err());
        assert!(Key::parse("-----BEGIN PRIVATE KEY-----\nAAAA\n").is_err());
    }
}
