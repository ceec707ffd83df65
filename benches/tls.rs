//! TLS of the clients of benchmarks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// TLS to a server of the authorities in the file `ca`, or with this self-signed certificate;
/// `identity` is a client certificate and its key, or empty.
///
/// # Errors
///
/// A file is not readable, or no certificate.
pub(crate) fn client_config(
    ca: Option<&Path>,
    identity: &[PathBuf],
) -> anyhow::Result<ClientConfig> {
    let reading = |path: &Path| format!("reading {}", path.display());
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for certificate in CertificateDer::pem_file_iter(ca).with_context(|| reading(ca))? {
            roots.add(certificate?)?;
        }
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
    let [cert, key] = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = CertificateDer::pem_file_iter(cert)
        .with_context(|| reading(cert))?
        .collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| reading(key))?;
    Ok(builder.with_client_auth_cert(chain, key)?)
}
