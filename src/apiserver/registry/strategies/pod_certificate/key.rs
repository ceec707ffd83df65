//! The key of a pod's certificate: of a kind that pods may have, and proven to be there by the
//! request's signature.

use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509CertificationRequest};
use x509_parser::public_key::PublicKey;

const ED25519: &str = "1.3.101.112";
const ELLIPTIC: &str = "1.2.840.10045.2.1";
const RSA: &str = "1.2.840.113549.1.1.1";
/// Signatures over SHA-1, which prove nothing any more.
const BROKEN: [&str; 3] = ["1.2.840.113549.1.1.5", "1.3.14.3.2.29", "1.2.840.10045.4.1"];
const NO_REQUEST: &str = "must be a valid PKCS#10 CSR";

/// Why a request is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has this, and why that is wrong.
    Is(String, &'static str),
    /// Why.
    Because(String),
}

fn because(why: &str) -> Refusal {
    Refusal::Because(why.to_owned())
}

/// A DER request with nothing behind it.
pub(super) fn parse(der: &[u8]) -> Option<X509CertificationRequest<'_>> {
    let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
    rest.is_empty().then_some(request)
}

/// The request is of a key that pods may have, and signed with it.
pub(super) fn verify(der: &[u8]) -> Result<(), Refusal> {
    let request = parse(der).ok_or_else(|| because(NO_REQUEST))?;
    suits(&request.certification_request_info.subject_pki)?;
    let algorithm = request.signature_algorithm.algorithm.to_id_string();
    if BROKEN.contains(&algorithm.as_str()) {
        return Err(because("invalid signature"));
    }
    match request.verify_signature() {
        Ok(()) => Ok(()),
        // Signers rely on this check: what cannot be checked is not taken.
        Err(X509Error::SignatureUnsupportedAlgorithm) => Err(Refusal::Because(format!(
            "this server cannot verify a signature of algorithm {algorithm} by this key; use an ECDSA P256, ECDSA P384, Ed25519 or RSA key with SHA-256 or SHA-384"
        ))),
        Err(_) => Err(because("invalid signature")),
    }
}

fn suits(key: &SubjectPublicKeyInfo<'_>) -> Result<(), Refusal> {
    match key.algorithm.algorithm.to_id_string().as_str() {
        ED25519 => Ok(()),
        ELLIPTIC => {
            let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok());
            match curve.map(|oid| oid.to_id_string()).as_deref() {
                Some("1.2.840.10045.3.1.7" | "1.3.132.0.34" | "1.3.132.0.35") => Ok(()),
                Some("1.3.132.0.33") => Err(Refusal::Is(
                    "curve P-224".to_owned(),
                    "elliptic public keys must use curve P256, P384, or P521",
                )),
                _ => Err(because(NO_REQUEST)),
            }
        }
        RSA => match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => {
                let bytes = rsa.modulus.iter().skip_while(|byte| **byte == 0).count();
                let bits = bytes * 8;
                if matches!(bits, 3072 | 4096) {
                    return Ok(());
                }
                let text = "RSA keys must have modulus size 3072 or 4096";
                Err(Refusal::Is(format!("{bits}-bit modulus"), text))
            }
            _ => Err(because(NO_REQUEST)),
        },
        _ => Err(because("unknown public key type; supported types are Ed25519, ECDSA, and RSA")),
    }
}
