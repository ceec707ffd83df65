//! The CA certificates of the system.

use std::path::Path;

/// Paths of the bundle, in the order of Go's crypto/x509.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's bundle as PEM; empty if it has none.
pub async fn bundle() -> String {
    let read = || BUNDLES.iter().find_map(|path| crate::fs::read_to_string(Path::new(path)).ok());
    crate::tasks::blocking(read).await.ok().flatten().unwrap_or_default()
}
