//! Keys and requests for pod certificates: the key stays on the machine, the request proves its
//! possession.

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _, SignatureAlgorithm,
};
use ring::rand::SecureRandom as _;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::KeyGenerationError;
use super::{Error, certificates};

/// Prefix of the 32 bytes of an Ed25519 key in PKCS#8 (RFC 8410). The form with an appended public
/// key, which libraries generate, is not accepted by all others.
const ED25519_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A supported kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA on curve P-256.
    EcdsaP256,
    /// ECDSA on curve P-384.
    EcdsaP384,
    /// Ed25519.
    Ed25519,
}

impl KeyKind {
    /// The kind with this name in the Kubernetes API; RSA and P-521 are not supported.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ECDSAP256" => Some(Self::EcdsaP256),
            "ECDSAP384" => Some(Self::EcdsaP384),
            "ED25519" => Some(Self::Ed25519),
            _ => None,
        }
    }

    fn generate(self) -> Result<KeyPair, KeyGenerationError> {
        let algorithm: &'static SignatureAlgorithm = match self {
            Self::EcdsaP256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::EcdsaP384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Self::Ed25519 => {
                let mut der = ED25519_PREFIX.to_vec();
                let mut seed = [0; 32];
                let random = ring::rand::SystemRandom::new();
                random.fill(&mut seed).map_err(|_| KeyGenerationError::Random)?;
                der.extend(seed);
                let der = PrivatePkcs8KeyDer::from(der);
                let made = KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519);
                return made.map_err(KeyGenerationError::Key);
            }
        };
        KeyPair::generate_for(algorithm).map_err(KeyGenerationError::Key)
    }
}

/// A new key and its certificate request.
pub struct PodKey {
    /// The key, PKCS#8 in PEM.
    pub key_pem: String,
    /// A PKCS#10 request without names, signed with the key, as DER.
    pub request: Vec<u8>,
}

impl std::fmt::Debug for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodKey(***)")
    }
}

/// Generates a key of this kind and its request.
///
/// # Errors
/// When key generation fails.
pub fn generate(kind: KeyKind) -> Result<PodKey, Error> {
    let failed = |why: String| Error::Sign { name: "a pod's request".into(), why };
    let key = kind.generate().map_err(|e| failed(e.to_string()))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(|e| failed(e.to_string()))?;
    Ok(PodKey { key_pem: key.serialize_pem(), request: request.der().to_vec() })
}

/// End of validity, in seconds since the epoch, of the first certificate of a chain, if it matches
/// this key.
pub fn end_of_pair(key_pem: &str, chain_pem: &str) -> Option<i64> {
    let key = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes()).ok()?;
    let key = KeyPair::try_from(&key).ok()?;
    let leaf = certificates(chain_pem).ok()?.into_iter().next()?;
    let (_, leaf) = X509Certificate::from_der(&leaf).ok()?;
    let same = leaf.public_key().raw == key.subject_public_key_info().as_slice();
    same.then(|| leaf.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::X509CertificationRequest;

    #[test]
    fn a_request_has_no_names_and_is_signed_with_its_key() {
        for name in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let pod_key = generate(KeyKind::named(name).unwrap()).unwrap();
            let (rest, request) = X509CertificationRequest::from_der(&pod_key.request).unwrap();
            assert!(rest.is_empty() && request.verify_signature().is_ok(), "{name}");
            assert_eq!(request.certification_request_info.subject.iter().count(), 0);
            assert!(pod_key.key_pem.starts_with("-----BEGIN PRIVATE KEY-----"), "{name}");
        }
        assert_eq!(KeyKind::named("RSA3072"), None);
        assert_eq!(KeyKind::named("ECDSAP521"), None);
    }

    #[test]
    fn an_ed25519_key_is_encoded_without_its_public_key() {
        let pem = generate(KeyKind::Ed25519).unwrap().key_pem;
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert_eq!(der.secret_pkcs8_der().len(), 48);
        assert_eq!(der.secret_pkcs8_der()[..16], ED25519_PREFIX);
    }

    #[test]
    fn end_of_pair_requires_a_matching_key() {
        for name in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let key = generate(KeyKind::named(name).unwrap()).unwrap().key_pem;
            let mut params = CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(2040, 1, 1);
            let chain = params.self_signed(&KeyPair::from_pem(&key).unwrap()).unwrap().pem();
            assert_eq!(end_of_pair(&key, &chain), Some(2_208_988_800), "{name}");
            let other = generate(KeyKind::EcdsaP256).unwrap().key_pem;
            assert_eq!(end_of_pair(&other, &chain), None, "{name}");
            assert_eq!(end_of_pair(&key, ""), None);
        }
    }
}
