//! Verifies the key of a pod's certificate: its type is allowed for pods, and the request is signed
//! with it.

use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509CertificationRequest};
use x509_parser::public_key::PublicKey;

const ED25519: &str = "1.3.101.112";
const ELLIPTIC: &str = "1.2.840.10045.2.1";
const RSA: &str = "1.2.840.113549.1.1.1";
/// Signature algorithms over SHA-1, which are broken.
const BROKEN: [&str; 3] = ["1.2.840.113549.1.1.5", "1.3.14.3.2.29", "1.2.840.10045.4.1"];

/// Why a request is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    #[error("must be a valid PKCS#10 CSR")]
    Malformed,
    #[error("invalid signature")]
    InvalidSignature,
    /// The algorithm of the signature cannot be verified with the key.
    #[error(
        "this server cannot verify a signature of algorithm {0} by this key; use an ECDSA P256, ECDSA P384, Ed25519 or RSA key with SHA-256 or SHA-384"
    )]
    UnsupportedSignature(String),
    #[error("elliptic public keys must use curve P256, P384, or P521")]
    Curve,
    /// An RSA key with a modulus of so many bits.
    #[error("RSA keys must have modulus size 3072 or 4096")]
    Modulus(usize),
    #[error("unknown public key type; supported types are Ed25519, ECDSA, and RSA")]
    KeyType,
}

impl KeyError {
    /// The property of the key that upstream's error shows as the invalid value.
    pub(super) fn offending_key(&self) -> Option<String> {
        match self {
            Self::Curve => Some("curve P-224".to_owned()),
            Self::Modulus(bits) => Some(format!("{bits}-bit modulus")),
            _ => None,
        }
    }
}

/// Parses a DER request without trailing bytes.
pub(super) fn parse(der: &[u8]) -> Option<X509CertificationRequest<'_>> {
    let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
    rest.is_empty().then_some(request)
}

/// Checks that a request has a key that pods may have and is signed with it.
///
/// # Errors
/// The first check that fails.
pub(super) fn verify(der: &[u8]) -> Result<(), KeyError> {
    let request = parse(der).ok_or(KeyError::Malformed)?;
    check_key_type(&request.certification_request_info.subject_pki)?;
    let algorithm = request.signature_algorithm.algorithm.to_id_string();
    if BROKEN.contains(&algorithm.as_str()) {
        return Err(KeyError::InvalidSignature);
    }
    match request.verify_signature() {
        Ok(()) => Ok(()),
        // Signers rely on this check, so a signature that cannot be verified is rejected.
        Err(X509Error::SignatureUnsupportedAlgorithm) => {
            Err(KeyError::UnsupportedSignature(algorithm))
        }
        Err(_) => Err(KeyError::InvalidSignature),
    }
}

fn check_key_type(key: &SubjectPublicKeyInfo<'_>) -> Result<(), KeyError> {
    match key.algorithm.algorithm.to_id_string().as_str() {
        ED25519 => Ok(()),
        ELLIPTIC => {
            let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok());
            match curve.map(|oid| oid.to_id_string()).as_deref() {
                Some("1.2.840.10045.3.1.7" | "1.3.132.0.34" | "1.3.132.0.35") => Ok(()),
                // P-224.
                Some("1.3.132.0.33") => Err(KeyError::Curve),
                _ => Err(KeyError::Malformed),
            }
        }
        RSA => match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => {
                let bytes = rsa.modulus.iter().skip_while(|byte| **byte == 0).count();
                let bits = bytes * 8;
                if matches!(bits, 3072 | 4096) {
                    return Ok(());
                }
                Err(KeyError::Modulus(bits))
            }
            _ => Err(KeyError::Malformed),
        },
        _ => Err(KeyError::KeyType),
    }
}
