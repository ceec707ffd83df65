//! What is said of a TLS secret whose certificate and key do not work, in the words of Go's
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
    check(&part("tls.crt"), &part("tls.key")).err().into_iter().collect()
}

fn check(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let blocks = blocks(certificate);
    let chain: Vec<CertificateDer<'static>> = blocks
        .iter()
        .filter(|block| block.kind == "CERTIFICATE")
        .map(|block| CertificateDer::from(block.bytes.clone()))
        .collect();
    let Some(first) = chain.first() else { return Err(no_certificate(&blocks)) };
    let der = private_key(key)?;
    let (_, leaf) =
        X509Certificate::from_der(first).map_err(|_| "x509: malformed certificate".to_owned())?;
    let signer = rustls::crypto::ring::sign::any_supported_type(&der)
        .map_err(|_| "tls: failed to parse private key".to_owned())?;
    if !same_kind(&leaf, &*signer) {
        return Err("tls: private key type does not match public key type".to_owned());
    }
    match CertifiedKey::new(chain, Arc::clone(&signer)).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err("tls: private key does not match public key".to_owned())
        }
        _ => Ok(()),
    }
}

fn same_kind(leaf: &X509Certificate<'_>, signer: &dyn SigningKey) -> bool {
    let wanted = match leaf.public_key().algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => SignatureAlgorithm::RSA,
        "1.2.840.10045.2.1" => SignatureAlgorithm::ECDSA,
        "1.3.101.112" => SignatureAlgorithm::ED25519,
        _ => return true,
    };
    signer.algorithm() == wanted
}

fn kinds(blocks: &[Block]) -> String {
    blocks.iter().map(|block| block.kind.as_str()).collect::<Vec<_>>().join(" ")
}

fn no_certificate(blocks: &[Block]) -> String {
    match blocks {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.kind.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
                .to_owned()
        }
        _ => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
            kinds(blocks)
        ),
    }
}

fn private_key(input: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let blocks = blocks(input);
    let found = blocks
        .iter()
        .find(|block| block.kind == "PRIVATE KEY" || block.kind.ends_with(" PRIVATE KEY"));
    match (found, blocks.as_slice()) {
        (Some(block), _) => PrivateKeyDer::try_from(block.bytes.clone())
            .map_err(|_| "tls: failed to parse private key".to_owned()),
        (None, []) => Err("tls: failed to find any PEM data in key input".to_owned()),
        (None, [one]) if one.kind == "CERTIFICATE" => {
            Err("tls: found a certificate rather than a key in the PEM for the private key"
                .to_owned())
        }
        (None, _) => Err(format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
            kinds(&blocks)
        )),
    }
}

struct Block {
    kind: String,
    bytes: Vec<u8>,
}

/// The PEM blocks that can be read; whatever stands around them is skipped.
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
    fn pairs_that_work_are_passed_over() {
        let (certificate, key) = pair();
        assert_eq!(check(certificate.as_bytes(), key.as_bytes()), Ok(()));
        let (_, other) = pair();
        assert_eq!(
            check(certificate.as_bytes(), other.as_bytes()),
            Err("tls: private key does not match public key".to_owned())
        );
    }

    #[test]
    fn faults_are_told_in_the_words_of_go() {
        let (certificate, key) = pair();
        let fault = |certificate: &str, key: &str| {
            check(certificate.as_bytes(), key.as_bytes()).unwrap_err()
        };
        assert_eq!(fault("x", "y"), "tls: failed to find any PEM data in certificate input");
        assert_eq!(fault(&certificate, "y"), "tls: failed to find any PEM data in key input");
        assert_eq!(
            fault(&certificate, &certificate),
            "tls: found a certificate rather than a key in the PEM for the private key"
        );
        assert_eq!(
            fault(&key, &key),
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
        );
    }
}
