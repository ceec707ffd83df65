//! Errors of parsing, issuing and replacing certificates and keys.

use rustls::pki_types::pem;
use x509_parser::nom;
use x509_parser::prelude::{PEMError, X509Error};

/// A DER structure that cannot be parsed.
pub type DerError = nom::Err<X509Error>;

/// Why a PEM text contains no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A block is not valid PEM.
    #[error("no PEM certificate: {0}")]
    Pem(#[source] pem::Error),
    /// The text contains no certificate.
    #[error("holds no certificate")]
    Missing,
    /// One of several certificates cannot be parsed.
    #[error("holds a damaged certificate")]
    Damaged,
    /// The certificate cannot be parsed.
    #[error("{0}")]
    Der(#[source] DerError),
}

/// Why a PEM text contains no usable private keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A block is not valid PEM.
    #[error("no PEM key: {0}")]
    Pem(#[source] pem::Error),
    /// The algorithm of a key is not supported.
    #[error(
        "key {0} in it is of a kind that is not known; use P-256, P-384, Ed25519 or RSA of at least \
         2048 bits"
    )]
    Unsupported(usize),
    /// The text contains no private key.
    #[error("holds no private key that can be read (encrypted ones cannot)")]
    Missing,
    /// The text contains more keys than allowed.
    #[error("holds more than {0} keys")]
    TooMany(usize),
}

/// Why a certificate and a key are not a CA.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The certificate is not usable.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate cannot be an issuer.
    #[error("{0}")]
    Issuer(#[source] rcgen::Error),
    /// The key is not usable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key belongs to another certificate.
    #[error("is not the key of the CA's certificate")]
    KeyMismatch,
}

impl CaError {
    /// Whether the key is at fault, not the certificate.
    pub(crate) fn is_key(&self) -> bool {
        matches!(self, Self::Key(_) | Self::KeyMismatch)
    }

    /// Names the file at fault.
    pub(crate) fn file(&self) -> &'static str {
        if self.is_key() { "the key" } else { "the certificate" }
    }
}

/// Why a [`super::Profile`] cannot be part of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProfileError {
    /// A DNS name has invalid characters.
    #[error("{0:?} is no DNS name")]
    DnsName(String),
    /// A URI has invalid characters.
    #[error("{0:?} is no URI")]
    Uri(String),
}

/// Why a machine's certificate request does not match its [`super::Profile`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestMismatch {
    /// The request cannot be parsed.
    #[error("no request: {0}")]
    Der(#[source] DerError),
    /// Bytes follow the request.
    #[error("the request has bytes behind its end")]
    TrailingBytes,
    /// The request contains extensions.
    #[error("the request asks for names or usages, which are the server's to decide")]
    Extensions,
    /// The request names another subject.
    #[error("the request is for {0}")]
    Subject(String),
}

/// Why a key for a pod certificate cannot be generated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyGenerationError {
    /// The random number generator failed.
    #[error("the system gives no randomness")]
    Random,
    /// The key cannot be encoded.
    #[error("{0}")]
    Key(#[source] rcgen::Error),
}

/// Why an API user's certificate request cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    /// The text is not PEM.
    #[error("{0}")]
    Pem(#[source] nom::Err<PEMError>),
    /// The request cannot be parsed.
    #[error("{0}")]
    Der(#[source] DerError),
    /// The signature does not match the key of the request.
    #[error("its signature cannot be verified: {0}")]
    Signature(#[source] X509Error),
    /// An attribute of the subject is not text.
    #[error("{0}")]
    Subject(#[source] X509Error),
    /// An IP address has an invalid length.
    #[error("an address of it has neither 4 nor 16 bytes")]
    AddressLength,
    /// A subject alternative name has an unsupported kind.
    #[error("a name of it is of a kind that no certificate has here")]
    NameKind,
}

/// Why a certificate for an API user's request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The subject has attributes that the signer does not support.
    #[error("subjects of a common name and at most two organizations are signed here, no others")]
    Subject,
    /// A name contains characters outside ASCII.
    #[error("{0:?} is no text of ASCII")]
    NotAscii(String),
    /// The signer does not support a usage.
    #[error("no certificate is signed here for usage {0:?}")]
    Usage(String),
    /// The certificate of the CA cannot be parsed.
    #[error("{0}")]
    Ca(#[source] DerError),
    /// The CA has expired.
    #[error("the signer has expired: NotAfter={0}")]
    Expired(x509_parser::time::ASN1Time),
    /// The algorithm of the key is not supported.
    #[error("its key is of a kind that is not signed here: {0}")]
    KeyKind(#[source] rcgen::Error),
    /// Signing failed.
    #[error("{0}")]
    Sign(#[source] rcgen::Error),
}

/// Why trusted root certificates for an external server cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// TLS cannot be configured.
    #[error("unable to load root certificates: {0}")]
    Config(#[source] super::tls::BadConfig),
    /// The bundle cannot be parsed.
    #[error("unable to load root certificates: {0}")]
    Parse(#[source] CertificateError),
    /// The bundle contains no certificate.
    #[error("unable to load root certificates: the bundle holds no certificate")]
    Empty,
    /// The verifier rejects the bundle.
    #[error("unable to load root certificates: {0}")]
    Verifier(#[source] rustls::client::VerifierBuilderError),
}

/// Why a certificate is not trusted by given trust anchors.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The chain is empty.
    #[error("there is no certificate")]
    Empty,
    /// A client verifier cannot be built.
    #[error("{0}")]
    ClientVerifier(#[source] rustls::server::VerifierBuilderError),
    /// A server verifier cannot be built.
    #[error("{0}")]
    ServerVerifier(#[source] rustls::client::VerifierBuilderError),
    /// The probed name is not a DNS name.
    #[error("{0}")]
    Name(#[source] rustls::pki_types::InvalidDnsNameError),
    /// Verification failed.
    #[error("{0}")]
    Verify(#[source] rustls::Error),
}

/// Why a CA or service account key cannot replace the one in use.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The certificate file is not usable.
    #[error("the certificate: {0}")]
    Certificate(#[source] CertificateError),
    /// The certificate file contains no certificate.
    #[error("the certificate: the file holds none")]
    NoCertificate,
    /// The certificate file contains too many certificates.
    #[error("the certificate: the file holds more than {0}")]
    TooManyCertificates(usize),
    /// The first certificate is not a CA certificate.
    #[error(
        "the first certificate is not one of a CA (basicConstraints CA:TRUE, keyUsage keyCertSign)"
    )]
    NotCa,
    /// The first certificate is not valid at the current time.
    #[error("the first certificate is valid from {from} to {to}, which is not now")]
    NotValidNow {
        /// Start of validity.
        from: x509_parser::time::ASN1Time,
        /// End of validity.
        to: x509_parser::time::ASN1Time,
    },
    /// The key file is not usable.
    #[error("the key: {0}")]
    Key(#[source] KeyError),
    /// Certificate and key are not a CA.
    #[error("{file}: {0}", file = .0.file())]
    Pair(#[source] CaError),
    /// The CA in use is damaged.
    #[error("the CA in use: {0}")]
    CaInUse(#[source] CaError),
    /// A bundle cannot be trust anchors.
    #[error("{0}")]
    Anchors(#[from] super::tls::BadConfig),
    /// A certificate of a CA cannot be issued.
    #[error("{0}")]
    Issue(#[source] super::Error),
    /// An issued certificate or a bundle cannot be parsed.
    #[error("{0}")]
    Bundle(#[source] CertificateError),
    /// Certificates of the new CA do not verify against its own bundle.
    #[error("certificates of it would be trusted by no machine: {0}")]
    Untrusted(#[source] ChainError),
    /// The chain of the new CA does not end at the certificate that tokens name.
    #[error("its chain does not lead to the certificate that ends it by name: {0}")]
    ChainEnd(#[source] ChainError),
    /// Machines with the old bundle would not trust certificates of the new CA.
    #[error(
        "machines that trust the CA in use would not trust certificates of the new one ({0}); have \
         its certificate, or one above it, signed by the CA in use and add that one to the file, \
         or use --force"
    )]
    NewUntrusted(#[source] ChainError),
    /// Machines with the new bundle would not trust certificates of the old CA.
    #[error(
        "certificates that the CA in use has signed would no longer be trusted ({0}); append \
         the certificate of the CA in use to the file, or use --force"
    )]
    OldUntrusted(#[source] ChainError),
    /// The file contains a public key.
    #[error(
        "holds a public key; only private keys are known here, append the former file as it is"
    )]
    PublicKey,
    /// The new keys are not usable.
    #[error(transparent)]
    SigningKeys(KeyError),
    /// A key has an algorithm that service account tokens do not support.
    #[error("key {0} in it is neither P-256 nor RSA")]
    SigningKeyKind(usize),
    /// The keys in use are damaged.
    #[error("the file in use {0}")]
    KeysInUse(#[source] KeyError),
    /// The new keys lack the one that signs tokens.
    #[error(
        "lacks the key that signs tokens now, so that all tokens would end; append the file in use \
         to it, or use --force"
    )]
    LacksSigningKey,
    /// A key cannot be generated.
    #[error("{0}")]
    Generate(#[source] rcgen::Error),
}
