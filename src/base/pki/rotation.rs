//! Rotation of a CA: validates a new CA so that no machine that trusts the old one loses its
//! connection, and generates a valid successor.
//!
//! Except for randomness, functions are pure: texts in, texts out. The rules are those of k3s
//! (`certificate rotate-ca`), checked with real chains: a certificate of the new CA must verify
//! against the old bundle, and one of the old CA against the new bundle.

use std::sync::Arc;

use rcgen::KeyPair;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::SecretValue;

use super::{
    Ca, CertificateError, ChainError, Error, KeyError, Profile, RotationError, Usage, certificates,
    tls,
};

/// Maximum number of certificates in a bundle and of keys in a file: every handshake carries the
/// bundle.
const MANY: usize = 16;

/// The texts of a CA's two files.
#[derive(Clone, PartialEq, Eq)]
pub struct CaFiles {
    /// PEM: the CA's certificate first, then those of its chain and of the rotation.
    pub cert: String,
    /// PEM of the key.
    pub key: SecretValue<String>,
}

/// Object identifiers of an elliptic curve public key and of the supported curves, in DER (RFC
/// 5480).
const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
/// `rsaEncryption` with its parameters, NULL (RFC 8017, A.1).
const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// A DER element whose content is the concatenation of these parts.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            out.push(0x80 | u8::try_from(significant.len()).unwrap_or(0x7f));
            out.extend(significant);
        }
    }
    out.extend(content);
    out
}

/// Wraps a key in PKCS#1 or SEC 1 format in PKCS#8 (RFC 5958).
fn wrapped(algorithm: &[&[u8]], key: &[u8]) -> Vec<u8> {
    let (algorithm, key) = (element(0x30, algorithm), element(0x04, &[key]));
    element(0x30, &[&[0x02, 0x01, 0x00], &algorithm, &key])
}

fn pair(key: &PrivateKeyDer<'_>) -> Option<KeyPair> {
    let read = |der: Vec<u8>| KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).ok();
    match key {
        PrivateKeyDer::Pkcs8(key) => read(key.secret_pkcs8_der().to_vec()),
        PrivateKeyDer::Sec1(key) => {
            let key = key.secret_sec1_der();
            [P256, P384].into_iter().find_map(|curve| read(wrapped(&[EC, curve], key)))
        }
        PrivateKeyDer::Pkcs1(key) => read(wrapped(&[RSA], key.secret_pkcs1_der())),
        _ => None,
    }
}

/// Parses all private keys of a PEM text: PKCS#8 and the older formats of openssl.
///
/// # Errors
/// [`KeyError`].
pub fn keys(pem: &str) -> Result<Vec<KeyPair>, KeyError> {
    let mut found = Vec::new();
    for key in PrivateKeyDer::pem_slice_iter(pem.as_bytes()) {
        let key = key.map_err(KeyError::Pem)?;
        found.push(pair(&key).ok_or(KeyError::Unsupported(found.len() + 1))?);
    }
    match found.len() {
        0 => Err(KeyError::Missing),
        1..=MANY => Ok(found),
        _ => Err(KeyError::TooMany(MANY)),
    }
}

/// Verifies the chain of a leaf with these trust anchors at `now` (seconds since the epoch).
fn verify_chain(
    leaf: &[CertificateDer<'static>],
    anchors: RootCertStore,
    usage: Usage,
    now: u64,
) -> Result<(), ChainError> {
    let (end, rest) = leaf.split_first().ok_or(ChainError::Empty)?;
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
    let (anchors, provider) = (Arc::new(anchors), Arc::new(default_provider()));
    if usage != Usage::Server {
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::clone(&anchors),
            Arc::clone(&provider),
        );
        let verifier = verifier.build().map_err(ChainError::ClientVerifier)?;
        verifier.verify_client_cert(end, rest, at).map_err(ChainError::Verify)?;
    }
    if usage != Usage::Client {
        let verifier = WebPkiServerVerifier::builder_with_provider(anchors, provider);
        let verifier = verifier.build().map_err(ChainError::ServerVerifier)?;
        let name = ServerName::try_from(PROBE).map_err(ChainError::Name)?;
        verifier.verify_server_cert(end, rest, &name, &[], at).map_err(ChainError::Verify)?;
    }
    Ok(())
}

/// Name in certificates that are only issued to test their verification.
const PROBE: &str = "probe";

fn probe(ca: &Ca, usage: Usage, now: u64) -> Result<Vec<CertificateDer<'static>>, RotationError> {
    let profile = Profile { usage, ..Profile::server(PROBE, &[PROBE.to_owned()], &[]) };
    let leaf = ca.issue_at(&profile, now).map_err(RotationError::Issue)?;
    certificates(&leaf.cert_pem).map_err(RotationError::Bundle)
}

/// Validates a new CA that replaces `old`; returns its texts in the stored form. `usage` is the
/// purpose of its certificates. With `force` it need not be linked to the old one; all machines
/// must then receive the new CA by other means.
///
/// # Errors
/// [`RotationError`]: the new CA is not usable, or (without `force`) machines would lose their
/// connection.
pub fn admit(
    old: &CaFiles,
    new: &CaFiles,
    usage: Usage,
    force: bool,
    now: u64,
) -> Result<CaFiles, RotationError> {
    check_ca_certificate(&new.cert, now)?;
    let key = keys(&new.key).map_err(RotationError::Key)?.swap_remove(0);
    let kept = CaFiles { cert: new.cert.clone(), key: key.serialize_pem().into() };
    let new = Ca::parse(kept.cert.clone(), &kept.key).map_err(RotationError::Pair)?;
    let leaf = probe(&new, usage, now)?;
    verify_chain(&leaf, tls::roots(&new.bundle())?, usage, now)
        .map_err(RotationError::Untrusted)?;
    // A machine that joins knows only the end of the chain, by the hash in its token.
    let end = super::ca_hash(&kept.cert).and_then(|hash| named(&kept.cert, &hash));
    let end = end.map_err(RotationError::Bundle)?;
    verify_chain(&leaf, tls::roots(&end)?, usage, now).map_err(RotationError::ChainEnd)?;
    if force {
        return Ok(kept);
    }
    let old = Ca::parse(old.cert.clone(), &old.key).map_err(RotationError::CaInUse)?;
    verify_chain(&leaf, tls::roots(&old.bundle())?, usage, now)
        .map_err(RotationError::NewUntrusted)?;
    let leaf = probe(&old, usage, now)?;
    verify_chain(&leaf, tls::roots(&new.bundle())?, usage, now)
        .map_err(RotationError::OldUntrusted)?;
    Ok(kept)
}

/// Checks that the first certificate of a file is a CA certificate that is valid at `now`, in
/// seconds since the epoch.
fn check_ca_certificate(pem: &str, now: u64) -> Result<(), RotationError> {
    let chain = certificates(pem).map_err(RotationError::Certificate)?;
    let first = chain.first().ok_or(RotationError::NoCertificate)?;
    if chain.len() > MANY {
        return Err(RotationError::TooManyCertificates(MANY));
    }
    let (_, parsed) = X509Certificate::from_der(first)
        .map_err(|e| RotationError::Certificate(CertificateError::Der(e)))?;
    let authority = parsed.basic_constraints().ok().flatten().is_some_and(|b| b.value.ca);
    let signs = parsed.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
    if !authority || !signs {
        return Err(RotationError::NotCa);
    }
    let (from, to) = (parsed.validity().not_before, parsed.validity().not_after);
    let now_signed = i64::try_from(now).unwrap_or(i64::MAX);
    if to.timestamp() <= now_signed || from.timestamp() > now_signed {
        return Err(RotationError::NotValidNow { from, to });
    }
    Ok(())
}

impl Ca {
    /// Generates a successor with a new key. Its bundle has its certificate twice: self-signed, and
    /// signed by this CA for machines that only trust this one. Certificates of this CA stay in the
    /// bundle, those of its predecessor are removed.
    ///
    /// # Errors
    /// When signing fails.
    pub fn successor(&self, now: u64) -> Result<CaFiles, Error> {
        let (_, own) = X509Certificate::from_der(&self.der)
            .map_err(|e| Error::Sign { name: "a new CA".into(), why: e.to_string() })?;
        let common_name = own.subject().iter_common_name().next().and_then(|n| n.as_str().ok());
        let common_name = common_name.unwrap_or("kube-lite-ca");
        let stem = common_name.rsplit_once('@').map_or(common_name, |(stem, _)| stem);
        // Two CAs with the same name could be confused.
        let name = [now, now.saturating_add(1)].map(|at| format!("{stem}@{at}"));
        let [first, second] = name;
        let name = if first == common_name { second } else { first };
        let sign = |e: rcgen::Error| Error::Sign { name: name.clone(), why: e.to_string() };
        let params = super::ca_params(&name, now);
        let key = KeyPair::generate().map_err(sign)?;
        let crossed = params.signed_by(&key, &self.issuer).map_err(sign)?;
        let alone = params.self_signed(&key).map_err(sign)?;
        let former = if own.subject() == own.issuer() {
            pem(&self.der)
        } else {
            self.bundle().iter().map(pem).collect()
        };
        Ok(CaFiles {
            cert: format!("{}{}{former}", alone.pem(), crossed.pem()),
            key: key.serialize_pem().into(),
        })
    }
}

/// As [`Ca::successor`], of the files of a CA.
///
/// # Errors
/// When the CA cannot be used, or signing fails.
pub fn successor(old: &CaFiles, now: u64) -> Result<CaFiles, RotationError> {
    let old = Ca::parse(old.cert.clone(), &old.key).map_err(RotationError::CaInUse)?;
    old.successor(now).map_err(RotationError::Issue)
}

/// Encodes a certificate as PEM, in the format of openssl.
pub fn pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap_or_default())
        .collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Validates keys for service account tokens that replace `old`: the first one signs, the others
/// verify older tokens. Returns them in the stored form.
///
/// # Errors
/// [`RotationError`]; without `force` also if the current signing key is missing.
pub fn admit_signing(old: &str, new: &str, force: bool) -> Result<String, RotationError> {
    if new.contains("PUBLIC KEY-----") {
        return Err(RotationError::PublicKey);
    }
    let new = keys(new).map_err(RotationError::SigningKeys)?;
    let known = |key: &KeyPair| {
        key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256)
            || key.is_compatible(&rcgen::PKCS_RSA_SHA256)
    };
    if let Some(at) = new.iter().position(|key| !known(key)) {
        return Err(RotationError::SigningKeyKind(at + 1));
    }
    let old = keys(old).map_err(RotationError::KeysInUse)?;
    let signs = old.first().map(spki);
    if !force && !new.iter().any(|key| Some(spki(key)) == signs) {
        return Err(RotationError::LacksSigningKey);
    }
    Ok(new.iter().map(KeyPair::serialize_pem).collect())
}

/// Generates a new signing key, followed by the former keys.
///
/// # Errors
/// When the keys in use cannot be read.
pub fn signing_successor(old: &str) -> Result<String, RotationError> {
    let new = KeyPair::generate().map_err(RotationError::Generate)?;
    let former = keys(old).map_err(RotationError::KeysInUse)?;
    let all = [new].into_iter().chain(former).take(MANY);
    Ok(all.map(|key| key.serialize_pem()).collect())
}

fn spki(key: &KeyPair) -> Vec<u8> {
    rcgen::PublicKeyData::subject_public_key_info(key)
}

/// The certificates of a bundle that match the hash of a token ([`super::ca_hash`]), which may be
/// older than the last rotation. Only these are proved by the hash: the sender of the bundle may
/// have added others.
///
/// # Errors
/// When the bundle cannot be parsed.
pub fn named(bundle: &str, hash: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all = certificates(bundle)?;
    if all.len() == 1 && super::ca_hash(bundle)? == hash {
        return Ok(all);
    }
    let is = |bytes: &[u8]| super::hex_sha256(bytes) == hash;
    // The hash of a single certificate is that of its file.
    Ok(all.into_iter().filter(|der| is(der) || is(pem(der).as_bytes())).collect())
}

#[cfg(test)]
mod tests;
