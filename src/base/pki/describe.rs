//! Describes certificates for status output.

use x509_parser::prelude::{FromDer, X509Certificate};

use super::{CertificateError, certificates};

/// The properties of a certificate that status output shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The whole subject.
    pub subject: String,
    /// The common name of the subject; empty if it has none.
    pub common_name: String,
    /// The usages among `ServerAuth`, `ClientAuth`, `CertSign` that the certificate has.
    pub usages: Vec<&'static str>,
    /// Start of validity, in seconds since the epoch.
    pub not_before: i64,
    /// End of validity, in seconds since the epoch.
    pub not_after: i64,
}

/// Describes all certificates of a PEM text.
///
/// # Errors
/// If the text contains no certificate, or one that cannot be parsed.
pub fn describe(pem: &str) -> Result<Vec<CertificateInfo>, CertificateError> {
    let all = certificates(pem)?;
    if all.is_empty() {
        return Err(CertificateError::Missing);
    }
    all.iter().map(|der| describe_one(der)).collect()
}

fn describe_one(der: &[u8]) -> Result<CertificateInfo, CertificateError> {
    let (_, cert) = X509Certificate::from_der(der).map_err(CertificateError::Der)?;
    let extended = cert.extended_key_usage().ok().flatten().map(|usage| usage.value);
    let signs = cert.key_usage().ok().flatten().is_some_and(|usage| usage.value.key_cert_sign());
    let usages = [
        ("ServerAuth", extended.is_some_and(|usage| usage.server_auth)),
        ("ClientAuth", extended.is_some_and(|usage| usage.client_auth)),
        ("CertSign", signs),
    ];
    let common_name = cert.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Ok(CertificateInfo {
        subject: cert.subject().to_string(),
        common_name: common_name.unwrap_or_default().to_owned(),
        usages: usages.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect(),
        not_before: cert.validity().not_before.timestamp(),
        not_after: cert.validity().not_after.timestamp(),
    })
}
