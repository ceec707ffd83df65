//! The functions of the control plane that sign service-account tokens and certificates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::pki::csr_signing::CsrSubject;

/// The error of a signing function, which comes from the program that starts the controllers.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SigningError(Box<dyn std::error::Error + Send + Sync>);

impl SigningError {
    /// Wraps the error of a signing function.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// Namespace, account, uid of the account and name of the Secret to the token.
type TokenSigner = dyn Fn(&str, &str, &str, &str) -> Result<String, SigningError> + Send + Sync;

/// Signs a token for namespace, account, its uid and the Secret.
#[derive(Clone)]
pub struct SignToken(Arc<TokenSigner>);

impl SignToken {
    /// Signs with this function.
    pub fn new<F>(sign: F) -> Self
    where
        F: Fn(&str, &str, &str, &str) -> Result<String, SigningError> + Send + Sync + 'static,
    {
        Self(Arc::new(sign))
    }

    /// The token of an account for a Secret.
    pub(crate) fn sign(
        &self,
        namespace: &str,
        account: &str,
        uid: &str,
        secret: &str,
    ) -> Result<String, SigningError> {
        (self.0)(namespace, account, uid, secret)
    }
}

impl fmt::Debug for SignToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignToken")
    }
}

/// Signers of the cluster (`k8s.io/api/certificates/v1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// Client certificates of API users.
    Client,
    /// The same of kubelets.
    KubeletClient,
    /// Certificates of kubelets' own API.
    KubeletServing,
}

type RequestSigner =
    dyn Fn(Signer, &CsrSubject, &[String], Duration) -> Result<String, SigningError> + Send + Sync;

/// Signs a request by the CA of a signer: usages and time as the API says them.
#[derive(Clone)]
pub struct SignRequest(Arc<RequestSigner>);

impl SignRequest {
    /// Signs with this function.
    pub fn new(
        sign: impl Fn(Signer, &CsrSubject, &[String], Duration) -> Result<String, SigningError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(sign))
    }

    /// The certificate, as PEM.
    pub(crate) fn sign(
        &self,
        signer: Signer,
        asked: &CsrSubject,
        usages: &[String],
        validity: Duration,
    ) -> Result<String, SigningError> {
        (self.0)(signer, asked, usages, validity)
    }
}

impl fmt::Debug for SignRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignRequest")
    }
}
