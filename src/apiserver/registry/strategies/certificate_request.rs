//! Validates a CertificateSigningRequest (`pkg/apis/certificates/validation`): a signed request,
//! known usages, the name of a signer, and conditions that are not removed.

use std::collections::HashSet;

use api::field::{Error, ErrorList, Path, go_quote};
use api::validation::checks::repeated;
use api::validation::signers::signer_name;
use api::value::{get, int_at, items, str_at, str_in};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// Shortest validity that a request may have, in seconds.
const EXPIRATION_MIN: i64 = 600;
/// The signer of requests from before signers had names.
const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// In the order in which errors list them.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Validates a new request.
pub(super) fn validate(object: &Value) -> ErrorList {
    request(object, &Value::Null)
}

/// Validates a changed request; only `approval` may add decisions and only `status` a certificate.
pub(super) fn validate_change(object: &Value, old: &Value) -> ErrorList {
    change("", object, old)
}

/// Validates a write to `approval` or `status`.
pub(super) fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    change(subresource, object, old)
}

fn change(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    let mut errors = request(object, old);
    let field = Path::new("status").child("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        let (now, was) = (of_kind(object, kind), of_kind(old, kind));
        let quoted = go_quote(kind);
        let decides = kind != "Failed" && subresource != "approval";
        let text = if now.len() < was.len() {
            format!("updates may not remove a condition of type {quoted}")
        } else if decides && now.len() > was.len() {
            format!("updates may not add a condition of type {quoted}")
        } else if decides && now != was {
            format!("updates may not modify a condition of type {quoted}")
        } else {
            continue;
        };
        errors.push(Error::forbidden(&field, text));
    }
    let (now, was) = (certificate(object), certificate(old));
    let field = Path::new("status").child("certificate");
    if now != was && subresource != "status" {
        errors.push(Error::forbidden(&field, "updates may not set certificate content"));
    } else if now != was && !was.is_empty() {
        let text = "updates may not modify existing certificate content";
        errors.push(Error::forbidden(&field, text));
    }
    errors
}

fn certificate(object: &Value) -> &str {
    str_in(object, &["status", "certificate"])
}

fn of_kind<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    let conditions = items(get(object, "status"), "conditions").iter();
    conditions.filter(|c| str_at(c, "type") == kind).collect()
}

/// Validates everything except the change itself; tolerates errors that the old object already has.
fn request(object: &Value, old: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    if let Err(error) = check_request(str_at(spec, "request")) {
        let request = get(spec, "request").clone();
        errors.push(Error::invalid(&path.child("request"), request, error.to_string()));
    }
    errors.extend(usages(spec, get(old, "spec"), &path.child("usages")));
    let (signer, field) = (str_at(spec, "signerName"), path.child("signerName"));
    if signer == LEGACY && str_in(old, &["spec", "signerName"]) != LEGACY {
        let text = "the legacy signerName is not allowed via this API version";
        errors.push(Error::invalid(&field, signer, text));
    } else {
        errors.extend(signer_name(signer, &field));
    }
    if let Some(seconds) = int_at(spec, "expirationSeconds").filter(|s| *s < EXPIRATION_MIN) {
        let text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(&path.child("expirationSeconds"), seconds, text));
    }
    errors.extend(conditions(object, old));
    let issued = certificate(object);
    if issued != certificate(old)
        && check_issued_chain(certificate(old)).is_ok()
        && let Err(error) = check_issued_chain(issued)
    {
        let field = Path::new("status").child("certificate");
        errors.push(Error::invalid(&field, "<certificate data>", error.to_string()));
    }
    errors
}

fn usages(spec: &Value, old: &Value, path: &Path) -> ErrorList {
    let list = |spec| -> Vec<&str> {
        items(spec, "usages").iter().map(|u| u.as_str().unwrap_or_default()).collect()
    };
    let (now, was) = (list(spec), list(old));
    let mut errors = ErrorList::new();
    if now.is_empty() {
        errors.push(Error::required(path, ""));
    }
    if was.iter().all(|usage| USAGES.contains(usage)) {
        let unknown = now.iter().enumerate().filter(|(_, usage)| !USAGES.contains(usage));
        errors.extend(unknown.map(|(at, u)| Error::not_supported(&path.index(at), *u, &USAGES)));
    }
    if !repeated(was.iter()).any() {
        let again = repeated(now.iter());
        let twice = now.iter().enumerate().filter(|(at, _)| again.at(*at));
        errors.extend(twice.map(|(at, usage)| Error::duplicate(&path.index(at), *usage)));
    }
    errors
}

fn conditions(object: &Value, old: &Value) -> ErrorList {
    let kinds = |object| -> Vec<&str> {
        items(get(object, "status"), "conditions").iter().map(|c| str_at(c, "type")).collect()
    };
    let (now, was, path) = (kinds(object), kinds(old), Path::new("status").child("conditions"));
    let had_both = was.contains(&"Approved") && was.contains(&"Denied");
    let had_unnamed = was.contains(&"");
    let had_twice = repeated(was.iter()).any();
    // Conditions are read once, because a list may be as long as a request body allows.
    let mut before = HashSet::new();
    let mut errors = ErrorList::new();
    let all = items(get(object, "status"), "conditions");
    for (index, (kind, condition)) in now.iter().zip(all).enumerate() {
        let field = path.index(index);
        if kind.is_empty() && !had_unnamed {
            errors.push(Error::required(&field.child("type"), ""));
        }
        let allowed: &[&str] = match *kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        match str_at(condition, "status") {
            "" => errors.push(Error::required(&field.child("status"), "")),
            status => {
                errors.extend(api::validation::one_of(status, allowed, &field.child("status")))
            }
        }
        let other = match *kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "-",
        };
        if before.contains(other) && !had_both {
            let text = "Approved and Denied conditions are mutually exclusive";
            errors.push(Error::invalid(&path, *kind, text));
        }
        if !before.insert(*kind) && !had_twice {
            errors.push(Error::duplicate(&field.child("type"), *kind));
        }
    }
    errors
}

/// The PEM blocks of base64 text; invalid base64 or PEM has none.
fn blocks(encoded: &str) -> Vec<Pem> {
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    Pem::iter_from_buffer(&bytes).map_while(Result::ok).collect()
}

/// Why PEM of a request or of an issued certificate is invalid; the texts are Go's.
#[derive(Debug, thiserror::Error)]
enum PemError {
    /// The block is not a certificate request.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotARequest,
    /// The DER ends too early.
    #[error("asn1: syntax error: data truncated")]
    Truncated,
    /// The DER has another structure.
    #[error("asn1: structure error: {0}")]
    Structure(x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// The signature is not that of the key in the request.
    #[error("x509: ECDSA verification failure")]
    EcdsaSignature,
    #[error("x509: Ed25519 verification failure")]
    Ed25519Signature,
    #[error("crypto/rsa: verification error")]
    RsaSignature,
    /// An issued chain has a block of this label.
    #[error("only CERTIFICATE PEM blocks are allowed, found {}", go_quote(.0))]
    OtherBlock(String),
    /// An issued chain has no block.
    #[error("must contain at least one CERTIFICATE PEM block")]
    NoCertificate,
}

impl From<x509_parser::nom::Err<x509_parser::error::X509Error>> for PemError {
    fn from(error: x509_parser::nom::Err<x509_parser::error::X509Error>) -> Self {
        use x509_parser::error::X509Error::NomError;
        use x509_parser::nom::Err::{Error, Failure, Incomplete};
        use x509_parser::nom::error::ErrorKind::Eof;
        match error {
            Incomplete(_) | Error(NomError(Eof)) | Failure(NomError(Eof)) => Self::Truncated,
            other => Self::Structure(other),
        }
    }
}

/// Checks that the text is a certificate request signed with the key that it contains.
fn check_request(encoded: &str) -> Result<(), PemError> {
    let blocks = blocks(encoded);
    let block = blocks.first().filter(|b| b.label == "CERTIFICATE REQUEST");
    let block = block.ok_or(PemError::NotARequest)?;
    let (_, request) = X509CertificationRequest::from_der(&block.contents)?;
    let algorithm = request.signature_algorithm.algorithm.to_id_string();
    match request.verify_signature() {
        // The signer checks algorithms that this server cannot.
        Ok(()) | Err(x509_parser::error::X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(_) if algorithm.starts_with("1.2.840.10045.") => Err(PemError::EcdsaSignature),
        Err(_) if algorithm.starts_with("1.3.101.") => Err(PemError::Ed25519Signature),
        Err(_) => Err(PemError::RsaSignature),
    }
}

/// Checks that the text of an issued chain is empty or contains certificates only.
fn check_issued_chain(encoded: &str) -> Result<(), PemError> {
    if encoded.is_empty() {
        return Ok(());
    }
    let blocks = blocks(encoded);
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            return Err(PemError::OtherBlock(block.label.clone()));
        }
        block.parse_x509()?;
    }
    if blocks.is_empty() {
        return Err(PemError::NoCertificate);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn good() -> Value {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::new(Vec::new()).unwrap().serialize_request(&key);
        let pem = STANDARD.encode(pem.unwrap().pem().unwrap());
        json!({"spec": {"request": pem, "signerName": "example.com/x", "usages": ["client auth"]}})
    }

    #[test]
    fn requests_must_be_signed_pem() {
        assert_eq!(validate(&good()), []);
        assert_eq!(
            texts(&validate(&json!({"spec": {}}))),
            [
                "spec.request: Invalid value: null: PEM block type must be CERTIFICATE REQUEST",
                "spec.usages: Required value",
                "spec.signerName: Required value",
            ]
        );
        let mut cut = good();
        cut["spec"]["request"] = STANDARD
            .encode("-----BEGIN CERTIFICATE REQUEST-----\nMIHqMIGSAgEA\n-----END CERTIFICATE REQUEST-----\n")
            .into();
        assert!(texts(&validate(&cut))[0].ends_with(": asn1: syntax error: data truncated"));
    }

    #[test]
    fn usages_signer_and_expiration_are_validated() {
        let mut bad = good();
        bad["spec"]["usages"] = json!(["client auth", "client auth"]);
        bad["spec"]["signerName"] = json!("Bad_Name!");
        bad["spec"]["expirationSeconds"] = json!(599);
        assert_eq!(
            texts(&validate(&bad)),
            [
                "spec.usages[1]: Duplicate value: \"client auth\"",
                "spec.signerName: Invalid value: \"Bad_Name!\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ]
        );
    }

    #[test]
    fn decisions_belong_to_approval_and_certificates_to_status() {
        let old = good();
        let mut new = old.clone();
        new["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        assert_eq!(validate_subresource("approval", &new, &old), []);
        assert_eq!(
            texts(&validate_subresource("status", &new, &old)),
            ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
        );
        assert_eq!(
            texts(&validate_subresource("approval", &old, &new)),
            [
                "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""
            ]
        );
        let mut issued = old.clone();
        issued["status"] = json!({"certificate": STANDARD.encode("no certificate")});
        assert_eq!(
            texts(&validate_subresource("status", &issued, &old)),
            [
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block"
            ]
        );
    }
}
