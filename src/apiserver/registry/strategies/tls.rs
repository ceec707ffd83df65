//! Warns of a TLS Secret whose certificate and key are not a pair, with the texts of Go's
//! `tls.X509KeyPair`.

use std::sync::Arc;

use api::value::{get, str_at};
use base64::Engine;
use rustls::SignatureAlgorithm;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Warnings of a secret.
pub(super) fn warnings(object: &Value, _: Option<&Value>) -> Vec<String> {
    if str_at(object, "type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let part = |key: &str| {
        let text = str_at(get(object, "data"), key);
        base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
    };
    let checked = check(&part("tls.crt"), &part("tls.key"));
    checked.err().iter().map(ToString::to_string).collect()
}

/// Why a certificate and a key are not a pair (Go's `crypto/tls`).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum KeyPairError {
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificateInput,
    #[error(
        "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
    )]
    KeyAsCertificate,
    #[error(
        "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
        .0.join(" ")
    )]
    NoCertificate(Vec<String>),
    #[error("x509: malformed certificate")]
    MalformedCertificate,
    #[error("tls: failed to find any PEM data in key input")]
    NoKeyInput,
    #[error("tls: found a certificate rather than a key in the PEM for the private key")]
    CertificateAsKey,
    #[error(
        "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
        .0.join(" ")
    )]
    NoKey(Vec<String>),
    #[error("tls: failed to parse private key")]
    MalformedKey,
    #[error("tls: private key type does not match public key type")]
    OtherKeyType,
    #[error("tls: private key does not match public key")]
    OtherKey,
}

fn check(certificate: &[u8], key: &[u8]) -> Result<(), KeyPairError> {
    let blocks = blocks(certificate);
    let chain: Vec<CertificateDer<'static>> = blocks
        .iter()
        .filter(|block| block.kind == "CERTIFICATE")
        .map(|block| CertificateDer::from(block.bytes.clone()))
        .collect();
    let Some(first) = chain.first() else { return Err(no_certificate(&blocks)) };
    let der = private_key(key)?;
    let (_, leaf) =
        X509Certificate::from_der(first).map_err(|_| KeyPairError::MalformedCertificate)?;
    let signer = rustls::crypto::ring::sign::any_supported_type(&der)
        .map_err(|_| KeyPairError::MalformedKey)?;
    if !has_key_type(&leaf, &*signer) {
        return Err(KeyPairError::OtherKeyType);
    }
    match CertifiedKey::new(chain, Arc::clone(&signer)).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(KeyPairError::OtherKey)
        }
        _ => Ok(()),
    }
}

/// Whether the public key of a certificate has the type of a private key.
fn has_key_type(leaf: &X509Certificate<'_>, signer: &dyn SigningKey) -> bool {
    let algorithm = match leaf.public_key().algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => SignatureAlgorithm::RSA,
        "1.2.840.10045.2.1" => SignatureAlgorithm::ECDSA,
        "1.3.101.112" => SignatureAlgorithm::ED25519,
        _ => return true,
    };
    signer.algorithm() == algorithm
}

/// The types of PEM blocks.
fn kinds(blocks: &[Block]) -> Vec<String> {
    blocks.iter().map(|block| block.kind.clone()).collect()
}

fn no_certificate(blocks: &[Block]) -> KeyPairError {
    match blocks {
        [] => KeyPairError::NoCertificateInput,
        [one] if one.kind.ends_with("PRIVATE KEY") => KeyPairError::KeyAsCertificate,
        _ => KeyPairError::NoCertificate(kinds(blocks)),
    }
}

fn private_key(input: &[u8]) -> Result<PrivateKeyDer<'static>, KeyPairError> {
    let blocks = blocks(input);
    let found = blocks
        .iter()
        .find(|block| block.kind == "PRIVATE KEY" || block.kind.ends_with(" PRIVATE KEY"));
    match (found, blocks.as_slice()) {
        (Some(block), _) => {
            PrivateKeyDer::try_from(block.bytes.clone()).map_err(|_| KeyPairError::MalformedKey)
        }
        (None, []) => Err(KeyPairError::NoKeyInput),
        (None, [one]) if one.kind == "CERTIFICATE" => Err(KeyPairError::CertificateAsKey),
        (None, _) => Err(KeyPairError::NoKey(kinds(&blocks))),
    }
}

struct Block {
    kind: String,
    bytes: Vec<u8>,
}

/// The PEM blocks of a text; other text and invalid blocks are skipped.
fn blocks(input: &[u8]) -> Vec<Block> {
    let text = String::from_utf8_lossy(input);
    let (mut found, mut rest) = (Vec::new(), text.as_ref());
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        rest = after;
        let Some((kind, body)) = after.split_once("-----") else { break };
        let Some((body, after)) = body.split_once(&format!("-----END {kind}-----")) else {
            continue;
        };
        let encoded: String = body
            .lines()
            .filter(|line| !line.contains(':'))
            .flat_map(str::split_whitespace)
            .collect();
        if let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(encoded) {
            found.push(Block { kind: kind.to_owned(), bytes });
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn only_keys_of_other_certificates_are_reported() {
        let (certificate, key) = pair();
        assert_eq!(check(certificate.as_bytes(), key.as_bytes()), Ok(()));
        let (_, other) = pair();
        assert_eq!(check(certificate.as_bytes(), other.as_bytes()), Err(KeyPairError::OtherKey));
    }

    #[test]
    fn unusable_input_is_reported_as_go_does() {
        let (certificate, key) = pair();
        let error = |certificate: &str, key: &str| {
            check(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
        };
        assert_eq!(error("x", "y"), "tls: failed to find any PEM data in certificate input");
        assert_eq!(error(&certificate, "y"), "tls: failed to find any PEM data in key input");
        assert_eq!(
            error(&certificate, &certificate),
            "tls: found a certificate rather than a key in the PEM for the private key"
        );
        assert_eq!(
            error(&key, &key),
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
        );
    }
}
