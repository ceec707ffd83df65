//! Certificate authorities, the certificates they issue, and their files.
//!
//! Keys are ECDSA P-256. Files are replaced atomically, keys with mode 0600. Existing valid files
//! are kept.

pub mod csr_signing;
mod describe;
mod error;
pub mod external_roots;
pub mod pod;
pub mod reloadable_cert;
pub mod request;
pub mod rotation;
pub mod store_id;
pub mod system;
pub mod tls;
pub mod trust;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{SecretValue, clock, fs};

pub use describe::{CertificateInfo, describe};
use error::ProfileError;
pub use error::{
    CaError, CertificateError, ChainError, CsrError, DerError, KeyError, RootsError, RotationError,
    SigningError,
};

const DAY: u64 = 24 * 60 * 60;

/// Validity of a CA: ten years, as k3s.
pub const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY);

/// Validity of a certificate: one year, as k3s.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(365 * DAY);

/// A certificate is renewed when its remaining validity is shorter than this.
pub const RENEW_BEFORE: Duration = Duration::from_secs(90 * DAY);

/// 2026-01-01, in seconds since the epoch. An earlier time of the clock is wrong: this program is
/// newer.
const EARLIEST_TIME: u64 = 1_767_225_600;

/// Errors of certificate operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The content of a file is not a valid certificate or key.
    #[error(
        "{path}: {why}; restore the file from a backup, or remove the certificate and its key so that kube-lite creates new ones"
    )]
    Content {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// A certificate cannot be signed.
    #[error("cannot sign the certificate {name:?}: {why}")]
    Sign {
        /// Its common name.
        name: String,
        /// The reason.
        why: String,
    },
}

fn content(path: &Path, why: impl ToString) -> Error {
    Error::Content { path: path.display().to_string(), why: why.to_string() }
}

/// The current time in seconds since the epoch, at least 2026-01-01: the clock of a machine without
/// a battery starts in 1970.
pub fn now() -> u64 {
    clock::unix_time().as_secs().max(EARLIEST_TIME)
}

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A TLS server.
    Server,
    /// A TLS client.
    Client,
    /// Both, for connections between servers.
    Peer,
}

/// Subject, names and purpose of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Common name: the user of a client.
    pub common_name: String,
    /// Organization: the group of a client.
    pub organization: Option<String>,
    /// DNS names of a server.
    pub dns: Vec<String>,
    /// Addresses of a server.
    pub ips: Vec<IpAddr>,
    /// URIs of a server.
    pub uris: Vec<String>,
    /// Purpose of the certificate.
    pub usage: Usage,
}

impl Profile {
    /// Creates a client profile with this user and group.
    pub fn client(user: &str, group: Option<&str>) -> Self {
        let organization = group.map(str::to_owned);
        Self {
            common_name: user.to_owned(),
            organization,
            dns: Vec::new(),
            ips: Vec::new(),
            uris: Vec::new(),
            usage: Usage::Client,
        }
    }

    /// Creates a server profile with these names.
    pub fn server(common_name: &str, dns: &[String], ips: &[IpAddr]) -> Self {
        let (dns, ips) = (dns.to_vec(), ips.to_vec());
        Self {
            common_name: common_name.to_owned(),
            organization: None,
            dns,
            ips,
            uris: Vec::new(),
            usage: Usage::Server,
        }
    }

    fn params(&self) -> Result<CertificateParams, ProfileError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(organization) = &self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        for name in &self.dns {
            let dns = name.as_str().try_into();
            let dns = dns.map_err(|_| ProfileError::DnsName(name.clone()))?;
            params.subject_alt_names.push(SanType::DnsName(dns));
        }
        params.subject_alt_names.extend(self.ips.iter().map(|ip| SanType::IpAddress(*ip)));
        for uri in &self.uris {
            let uri = uri.as_str().try_into().map_err(|_| ProfileError::Uri(uri.clone()))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        if self.usage != Usage::Client {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.usage != Usage::Server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Leaf {
    /// The certificate, followed by those of its CA.
    pub cert_pem: String,
    /// The key, PKCS#8.
    pub key_pem: SecretValue<String>,
    /// End of validity, in seconds since the epoch.
    pub not_after: i64,
}

/// A certificate authority with its key.
pub struct Ca {
    /// The whole file: the CA's certificate, then those of its chain and of its rotation.
    cert_pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn set_validity(params: &mut CertificateParams, now: u64, validity: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // Valid from 1970 on: a machine whose clock is not set yet must be able to join.
    params.not_before = epoch;
    params.not_after = epoch + Duration::from_secs(now).saturating_add(validity);
}

/// Certificate parameters of a CA with this name.
fn ca_params(common_name: &str, now: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    set_validity(&mut params, now, CA_VALIDITY);
    params
}

impl Ca {
    /// Loads the CA in these two files; creates it if both are missing, with a common name that
    /// starts with `name`.
    ///
    /// # Errors
    /// When only one of the files exists, or one is unreadable.
    pub fn load_or_create(cert: &Path, key: &Path, name: &str) -> Result<Self, Error> {
        match (cert.exists(), key.exists()) {
            (true, true) => Self::load(cert, key),
            (false, false) => Self::create(cert, key, name),
            (true, false) => Err(content(key, "is missing, though the CA's certificate is there")),
            (false, true) => Err(content(cert, "is missing, though the CA's key is there")),
        }
    }

    fn load(cert: &Path, key: &Path) -> Result<Self, Error> {
        let key_pem = SecretValue::from(fs::read_to_string(key)?);
        Self::parse(fs::read_to_string(cert)?, &key_pem)
            .map_err(|error| content(if error.is_key() { key } else { cert }, error))
    }

    /// Parses a CA from the first certificate and the first key of these texts.
    pub(crate) fn parse(cert_pem: String, key_pem: &str) -> Result<Self, CaError> {
        let pair = rotation::keys(key_pem)?.swap_remove(0);
        let der = certificates(&cert_pem)?.into_iter().next();
        let der = der.ok_or(CertificateError::Missing)?;
        let issuer = Issuer::from_ca_cert_der(&der, pair).map_err(CaError::Issuer)?;
        let own = rcgen::PublicKeyData::subject_public_key_info(issuer.key());
        let is_same_key = X509Certificate::from_der(&der)
            .is_ok_and(|(_, c)| c.public_key().raw == own.as_slice());
        if !is_same_key {
            return Err(CaError::KeyMismatch);
        }
        Ok(Self { cert_pem, der, issuer })
    }

    fn create(cert: &Path, key: &Path, name: &str) -> Result<Self, Error> {
        let common_name = format!("{name}@{}", now());
        let sign = |e: rcgen::Error| Error::Sign { name: common_name.clone(), why: e.to_string() };
        let params = ca_params(&common_name, now());
        let pair = KeyPair::generate().map_err(sign)?;
        let key_pem = SecretValue::from(pair.serialize_pem());
        let cert_of_ca = params.self_signed(&pair).map_err(sign)?;
        let (cert_pem, der) = (cert_of_ca.pem(), cert_of_ca.der().clone());
        // `write_pair` writes the key first: a certificate without a key is useless, while a key
        // without a certificate shows that the creation was interrupted.
        write_pair(cert, &cert_pem, key, &key_pem)?;
        Ok(Self { cert_pem, der, issuer: Issuer::new(params, pair) })
    }

    /// The certificates of the CA's file, as PEM; the CA's own certificate is the first.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The CA's own certificate, as DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// All certificates of the CA's file. Clients that trust this CA trust all of them, and thereby
    /// certificates signed by a former CA during a rotation.
    pub fn bundle(&self) -> Vec<CertificateDer<'static>> {
        // The text was parsed successfully before.
        certificates(&self.cert_pem).unwrap_or_else(|_| vec![self.der.clone()])
    }

    /// Issues a certificate of this profile for a new key.
    ///
    /// # Errors
    /// When a name is invalid, or signing fails.
    pub fn issue(&self, profile: &Profile) -> Result<Leaf, Error> {
        self.issue_at(profile, now())
    }

    fn issue_at(&self, profile: &Profile, now: u64) -> Result<Leaf, Error> {
        let sign = |why: String| Error::Sign { name: profile.common_name.clone(), why };
        let pair = KeyPair::generate().map_err(|e| sign(e.to_string()))?;
        let mut params = profile.params().map_err(|e| sign(e.to_string()))?;
        set_validity(&mut params, now, LEAF_VALIDITY);
        let cert = params.signed_by(&pair, &self.issuer).map_err(|e| sign(e.to_string()))?;
        let not_after = params.not_after.unix_timestamp();
        Ok(Leaf {
            cert_pem: format!("{}{}", cert.pem(), self.cert_pem),
            key_pem: pair.serialize_pem().into(),
            not_after,
        })
    }

    /// Loads the certificate in these files if it matches `profile` and is not due for renewal;
    /// otherwise issues and writes a new one.
    ///
    /// # Errors
    /// When a file cannot be written or signing fails; unreadable files are replaced.
    pub fn ensure(&self, cert: &Path, key: &Path, profile: &Profile) -> Result<Leaf, Error> {
        self.ensure_at(cert, key, profile, now())
    }

    /// As [`Ca::ensure`] at a given time, in seconds since the epoch (see [`now`]).
    ///
    /// # Errors
    /// As [`Ca::ensure`].
    pub fn ensure_at(
        &self,
        cert: &Path,
        key: &Path,
        profile: &Profile,
        now: u64,
    ) -> Result<Leaf, Error> {
        if let (Ok(cert_pem), Ok(key_pem)) =
            (fs::read_to_string(cert), fs::read_to_string(key).map(SecretValue::from))
            && let Some(not_after) = self.validity_if_usable(&cert_pem, &key_pem, profile, now)
        {
            return Ok(Leaf { cert_pem, key_pem, not_after });
        }
        let leaf = self.issue_at(profile, now)?;
        write_pair(cert, &leaf.cert_pem, key, &leaf.key_pem)?;
        Ok(leaf)
    }

    /// End of validity if the certificate matches the profile, the key and this CA, and is not due
    /// for renewal.
    fn validity_if_usable(
        &self,
        cert_pem: &str,
        key_pem: &str,
        profile: &Profile,
        now: u64,
    ) -> Option<i64> {
        let der = certificates(cert_pem).ok()?.into_iter().next()?;
        let (_, cert) = X509Certificate::from_der(&der).ok()?;
        let (_, ca) = X509Certificate::from_der(&self.der).ok()?;
        let key = KeyPair::from_pem(key_pem).ok()?;
        let not_after = cert.validity().not_after.timestamp();
        let organization = cert.subject().iter_organization().next().and_then(|o| o.as_str().ok());
        let is_usable = !due_at(not_after, now)
            // The file ends with the CA's file, which changes when the CA is rotated.
            && cert_pem.ends_with(&self.cert_pem)
            && cert.issuer() == ca.subject()
            && cert.verify_signature(Some(ca.public_key())).is_ok()
            && cert.public_key().raw
                == rcgen::PublicKeyData::subject_public_key_info(&key).as_slice()
            && cert.subject().iter_common_name().next().and_then(|c| c.as_str().ok())
                == Some(&profile.common_name)
            && organization == profile.organization.as_deref()
            && covers(&cert, profile);
        is_usable.then_some(not_after)
    }
}

/// Whether the certificate contains all DNS names, addresses and URIs of the profile.
fn covers(cert: &X509Certificate<'_>, profile: &Profile) -> bool {
    let Ok(Some(extension)) = cert.subject_alternative_name() else {
        return profile.dns.is_empty() && profile.ips.is_empty();
    };
    let names = &extension.value.general_names;
    let dns = |wanted: &String| {
        names.iter().any(|n| matches!(n, GeneralName::DNSName(name) if name == wanted))
    };
    let ip = |wanted: &IpAddr| {
        let octets = match wanted {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        names
            .iter()
            .any(|n| matches!(n, GeneralName::IPAddress(bytes) if *bytes == octets.as_slice()))
    };
    let uri = |wanted: &String| {
        names.iter().any(|n| matches!(n, GeneralName::URI(name) if name == wanted))
    };
    profile.dns.iter().all(dns) && profile.ips.iter().all(ip) && profile.uris.iter().all(uri)
}

/// Whether a certificate with this end of validity must be renewed at `now`, in seconds since the
/// epoch.
pub fn due_at(not_after: i64, now: u64) -> bool {
    let limit = Duration::from_secs(now).saturating_add(RENEW_BEFORE).as_secs();
    not_after < i64::try_from(limit).unwrap_or(i64::MAX)
}

/// End of validity of the first certificate of a PEM text, in seconds since the epoch; `None`
/// without a certificate.
pub fn end_of(pem: &str) -> Option<i64> {
    let der = certificates(pem).ok()?.into_iter().next()?;
    let (_, cert) = X509Certificate::from_der(&der).ok()?;
    Some(cert.validity().not_after.timestamp())
}

/// Parses all certificates of a PEM text.
///
/// # Errors
/// [`CertificateError::Pem`] if the text is damaged. A text without certificates is not an error.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|c| c.map_err(CertificateError::Pem))
        .collect()
}

/// The CA hash in a join token: SHA-256, in hex, of the file if it contains one certificate, and
/// otherwise of the root at the end of the first certificate's chain. These are k3s' rules.
///
/// # Errors
/// When the text contains no valid certificate.
pub fn ca_hash(pem: &str) -> Result<String, CertificateError> {
    let all: Vec<Vec<u8>> = certificates(pem)?.into_iter().map(|der| der.to_vec()).collect();
    let hashed = match all.as_slice() {
        [] => return Err(CertificateError::Missing),
        [_] => pem.as_bytes().to_vec(),
        several => request::root_of(several).ok_or(CertificateError::Damaged)?,
    };
    Ok(hex_sha256(&hashed))
}

/// SHA-256 in hexadecimal.
pub fn hex_sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    crate::hex(digest.as_ref())
}

fn write_pair(cert: &Path, cert_pem: &str, key: &Path, key_pem: &str) -> Result<(), Error> {
    fs::write_atomic(key, key_pem.as_bytes(), 0o600)?;
    fs::write_atomic(cert, cert_pem.as_bytes(), 0o644)?;
    Ok(())
}

/// Returns the content of a secret file; if it is missing, writes the result of `make` with mode
/// 0600.
///
/// # Errors
/// When the file cannot be read or written, or `make` fails.
pub fn ensure_secret<E: std::fmt::Display>(
    path: &Path,
    make: impl FnOnce() -> Result<String, E>,
) -> Result<SecretValue<String>, Error> {
    if path.exists() {
        return Ok(fs::read_to_string(path)?.into());
    }
    let text = SecretValue::from(make().map_err(|why| content(path, why))?);
    fs::write_atomic(path, text.as_bytes(), 0o600)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn profile() -> Profile {
        Profile::server(
            "kube-apiserver",
            &["kubernetes.default".into()],
            &["10.43.0.1".parse().unwrap()],
        )
    }

    fn temp() -> (tempfile::TempDir, impl Fn(&str) -> std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        (dir, move |name: &str| path.join(name))
    }

    #[test]
    fn a_valid_certificate_is_kept_and_replaced_when_a_name_is_missing() {
        let (_dir, at) = temp();
        let ca = Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "server-ca").unwrap();
        let first = ca.ensure(&at("s.crt"), &at("s.key"), &profile()).unwrap();
        let ca = Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "server-ca").unwrap();
        assert_eq!(
            ca.ensure(&at("s.crt"), &at("s.key"), &profile()).unwrap().cert_pem,
            first.cert_pem
        );
        let mut wider = profile();
        wider.ips.push("192.168.1.5".parse().unwrap());
        assert_ne!(ca.ensure(&at("s.crt"), &at("s.key"), &wider).unwrap().cert_pem, first.cert_pem);
        assert_eq!(std::fs::metadata(at("s.key")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(at("ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_certificate_of_another_ca_or_with_another_key_is_replaced() {
        let (_dir, at) = temp();
        let ca = Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "a").unwrap();
        let first = ca.ensure(&at("s.crt"), &at("s.key"), &profile()).unwrap();
        std::fs::write(at("s.key"), ca.issue(&profile()).unwrap().key_pem.as_bytes()).unwrap();
        let second = ca.ensure(&at("s.crt"), &at("s.key"), &profile()).unwrap();
        assert_ne!(second.cert_pem, first.cert_pem);
        let other = Ca::load_or_create(&at("cb.crt"), &at("cb.key"), "b").unwrap();
        assert_ne!(
            other.ensure(&at("s.crt"), &at("s.key"), &profile()).unwrap().cert_pem,
            second.cert_pem
        );
    }

    #[test]
    fn validity_is_a_year_from_any_clock_and_renewal_starts_at_ninety_days() {
        let (_dir, at) = temp();
        let ca = Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "a").unwrap();
        let leaf = ca.issue(&profile()).unwrap();
        let day = i64::try_from(DAY).unwrap();
        let start = i64::try_from(now()).unwrap();
        assert!((leaf.not_after - start - 365 * day).abs() < 60);
        assert!(!due_at(start + 91 * day, now()));
        assert!(due_at(start + 89 * day, now()));
    }

    #[test]
    fn a_ca_with_one_file_is_an_error_that_names_the_missing_file() {
        let (_dir, at) = temp();
        Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "a").unwrap();
        std::fs::remove_file(at("ca.key")).unwrap();
        let error =
            Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "a").err().unwrap().to_string();
        assert!(error.contains("ca.key") && error.contains("missing"), "{error}");
        Ca::load_or_create(&at("cb.crt"), &at("ca.key"), "b").unwrap();
        let error =
            Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "a").err().unwrap().to_string();
        assert!(error.contains("is not the key"), "{error}");
    }
}
