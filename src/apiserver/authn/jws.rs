//! JSON Web Signatures in compact form: ES256 and RS256 keys, signing, verification, key IDs, JWKS.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PublicKeyData as _};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, RsaKeyPair, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Value, json};
use sorting::CompactSort as _;

/// The maximum length of a token, in bytes; typical ones have about 1 KiB.
const MAX_TOKEN: usize = 16 * 1024;

/// An unusable key.
#[derive(Debug, thiserror::Error)]
#[error(
    "service-account key cannot be used: {0}; it must be a PEM file with P-256 or RSA private keys"
)]
pub struct BadKey(#[source] KeyProblem);

/// What is wrong with a key.
#[derive(Debug, thiserror::Error)]
enum KeyProblem {
    #[error("{reason}")]
    Pem { reason: String },
    #[error("the file holds no key")]
    NoKey,
    #[error(transparent)]
    Generate(#[from] rcgen::Error),
    #[error("{0}")]
    Rejected(ring::error::KeyRejected),
    #[error("unexpected length of the public point")]
    PointLength,
    #[error("neither P-256 nor RSA")]
    Algorithm,
    #[error(transparent)]
    Claims(#[from] serde_json::Error),
    #[error("signing failed")]
    Signing,
}

enum Private {
    Ec(Box<EcdsaKeyPair>),
    Rsa(Box<RsaKeyPair>),
}

/// A private key that signs tokens.
pub struct SigningKey {
    private: Private,
    public: PublicKey,
}

/// A public key that verifies tokens.
#[derive(Debug, Clone)]
pub struct PublicKey {
    algorithm: Algorithm,
    /// The key in ring's format: an uncompressed point, or PKCS#1.
    raw: Vec<u8>,
    key_id: String,
    jwk: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Es256,
    Rs256,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl SigningKey {
    /// Generates a P-256 key as PEM (PKCS#8).
    ///
    /// # Errors
    /// If the random generator fails.
    pub fn generate_pem() -> Result<String, BadKey> {
        Ok(KeyPair::generate().map_err(|e| BadKey(e.into()))?.serialize_pem())
    }

    /// Parses PEM: P-256 signs ES256, RSA signs RS256. Of several keys, returns the first one,
    /// which is the signing key.
    ///
    /// # Errors
    /// If the text is not such a key.
    pub fn from_pem(pem: &str) -> Result<Self, BadKey> {
        Ok(Self::all(pem)?.0)
    }

    /// The signing key, and the public keys of the former signing keys after it.
    ///
    /// # Errors
    /// If one of the keys is unusable.
    pub fn all(pem: &str) -> Result<(Self, Vec<PublicKey>), BadKey> {
        let mut keys = base::pki::rotation::keys(pem)
            .map_err(|e| BadKey(KeyProblem::Pem { reason: e.to_string() }))?
            .into_iter();
        let signs = keys.next().ok_or(BadKey(KeyProblem::NoKey))?;
        let former = keys.map(|pair| Self::of(&pair).map(|key| key.public));
        Ok((Self::of(&signs)?, former.collect::<Result<_, _>>()?))
    }

    fn of(pair: &KeyPair) -> Result<Self, BadKey> {
        let key_id =
            b64(ring::digest::digest(&ring::digest::SHA256, &pair.subject_public_key_info())
                .as_ref());
        let common =
            |algorithm: Algorithm| json!({"use": "sig", "kid": key_id, "alg": algorithm.name()});
        let rejected = |e: ring::error::KeyRejected| BadKey(KeyProblem::Rejected(e));
        let (private, algorithm, raw, own) = if pair.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256) {
            let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
            let ec =
                EcdsaKeyPair::from_pkcs8(algorithm, pair.serialized_der(), &SystemRandom::new())
                    .map_err(rejected)?;
            let point = ec.public_key().as_ref().to_vec();
            let (Some(x), Some(y)) = (point.get(1..33), point.get(33..65)) else {
                return Err(BadKey(KeyProblem::PointLength));
            };
            let own = json!({"kty": "EC", "crv": "P-256", "x": b64(x), "y": b64(y)});
            (Private::Ec(Box::new(ec)), Algorithm::Es256, point, own)
        } else if pair.is_compatible(&rcgen::PKCS_RSA_SHA256) {
            let rsa = RsaKeyPair::from_pkcs8(pair.serialized_der()).map_err(rejected)?;
            let public = rsa.public();
            let parts = signature::RsaPublicKeyComponents::<Vec<u8>>::from(public);
            let own = json!({"kty": "RSA", "n": b64(&parts.n), "e": b64(&parts.e)});
            let raw = public.as_ref().to_vec();
            (Private::Rsa(Box::new(rsa)), Algorithm::Rs256, raw, own)
        } else {
            return Err(BadKey(KeyProblem::Algorithm));
        };
        let mut jwk = common(algorithm);
        if let (Value::Object(jwk), Value::Object(own)) = (&mut jwk, own) {
            jwk.extend(own);
        }
        Ok(Self { private, public: PublicKey { algorithm, raw, key_id, jwk } })
    }

    /// The public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs the claims; returns `header.claims.signature`.
    ///
    /// # Errors
    /// If the random generator or the key fails.
    pub fn sign(&self, claims: &impl serde::Serialize) -> Result<String, BadKey> {
        let header = json!({"alg": self.public.algorithm.name(), "kid": self.public.key_id});
        let claims = serde_json::to_vec(claims).map_err(|e| BadKey(e.into()))?;
        let mut token = format!("{}.{}", b64(header.to_string().as_bytes()), b64(&claims));
        let rng = SystemRandom::new();
        let failed = |_| BadKey(KeyProblem::Signing);
        let signature = match &self.private {
            Private::Ec(key) => key.sign(&rng, token.as_bytes()).map_err(failed)?.as_ref().to_vec(),
            Private::Rsa(key) => {
                let mut out = vec![0; key.public().modulus_len()];
                key.sign(&signature::RSA_PKCS1_SHA256, &rng, token.as_bytes(), &mut out)
                    .map_err(failed)?;
                out
            }
        };
        token.push('.');
        token.push_str(&b64(&signature));
        Ok(token)
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    crit: Option<Value>,
}

/// The claims of a compact token, without verification.
pub fn unverified_claims<T: for<'de> Deserialize<'de>>(token: &str) -> Option<T> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

/// The signature of a token is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is not a compact JSON Web Signature.
    #[error("malformed token")]
    Malformed,
    /// The header contains an extension that must be understood.
    #[error("unsupported critical header")]
    CriticalHeader,
    /// No key has the ID that the header names.
    #[error("invalid signature, no keys found")]
    NoKey,
    /// No key signed the token.
    #[error("invalid signature")]
    Invalid,
}

/// Verifies the signature with the key that the header names, or with any key if it names none.
///
/// # Errors
/// If no key signed the token.
pub fn verify(token: &str, keys: &[PublicKey]) -> Result<(), SignatureError> {
    const MALFORMED: SignatureError = SignatureError::Malformed;
    let (signed, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
    let (header, _) = signed.split_once('.').ok_or(MALFORMED)?;
    let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| MALFORMED)?;
    let header: Header = serde_json::from_slice(&header).map_err(|_| MALFORMED)?;
    if header.crit.is_some() {
        return Err(SignatureError::CriticalHeader);
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| MALFORMED)?;
    let mut candidates =
        keys.iter().filter(|key| header.kid.is_empty() || key.key_id == header.kid).peekable();
    if candidates.peek().is_none() {
        return Err(SignatureError::NoKey);
    }
    // The key determines the algorithm, never the token.
    let is_genuine = candidates.any(|key| {
        let algorithm: &dyn signature::VerificationAlgorithm = match key.algorithm {
            Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        };
        header.alg == key.algorithm.name()
            && UnparsedPublicKey::new(algorithm, &key.raw)
                .verify(signed.as_bytes(), &signature)
                .is_ok()
    });
    if is_genuine { Ok(()) } else { Err(SignatureError::Invalid) }
}

/// The document at `/openid/v1/jwks`.
pub fn jwks(keys: &[PublicKey]) -> Value {
    json!({"keys": keys.iter().map(|key| key.jwk.clone()).collect::<Vec<_>>()})
}

/// The names of the keys' algorithms, sorted and without duplicates.
pub fn algorithms(keys: &[PublicKey]) -> Vec<&'static str> {
    let mut names: Vec<_> = keys.iter().map(|key| key.algorithm.name()).collect();
    names.compact_sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_pem(&SigningKey::generate_pem().unwrap()).unwrap()
    }

    #[test]
    fn a_signature_is_valid_for_its_key_and_content_only() {
        let (ours, other) = (key(), key());
        let token = ours.sign(&json!({"iss": "x"})).unwrap();
        let both = [other.public().clone(), ours.public().clone()];
        assert_eq!(verify(&token, &both), Ok(()));
        assert_eq!(verify(&token, &both[..1]), Err(SignatureError::NoKey));
        let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
        parts[1] = b64(br#"{"iss":"y"}"#);
        assert_eq!(verify(&parts.join("."), &both), Err(SignatureError::Invalid));
    }

    #[test]
    fn former_keys_verify_and_do_not_sign() {
        let (old, new) = (SigningKey::generate_pem().unwrap(), SigningKey::generate_pem().unwrap());
        let token = SigningKey::from_pem(&old).unwrap().sign(&json!({"iss": "x"})).unwrap();
        let (signs, former) = SigningKey::all(&format!("{new}{old}")).unwrap();
        let keys: Vec<_> = [signs.public().clone()].into_iter().chain(former).collect();
        assert_eq!(verify(&token, &keys), Ok(()));
        assert_eq!(verify(&token, &keys[..1]), Err(SignatureError::NoKey));
        let fresh = signs.sign(&json!({"iss": "x"})).unwrap();
        assert_eq!(verify(&fresh, &keys[..1]), Ok(()));
        assert_eq!(jwks(&keys)["keys"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_token_that_names_another_algorithm_is_rejected() {
        let ours = key();
        let token = ours.sign(&json!({})).unwrap();
        let rest = token.split_once('.').unwrap().1;
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"HS256"}"#, r#"{"alg":"ES256","crit":["x"]}"#]
        {
            assert!(
                verify(&format!("{}.{rest}", b64(header.as_bytes())), &[ours.public().clone()])
                    .is_err()
            );
        }
    }

    #[test]
    fn the_key_set_contains_the_coordinates_of_the_point() {
        let document = jwks(&[key().public().clone()]);
        let jwk = &document["keys"][0];
        assert_eq!(
            (jwk["kty"].as_str(), jwk["crv"].as_str(), jwk["alg"].as_str(), jwk["use"].as_str()),
            (Some("EC"), Some("P-256"), Some("ES256"), Some("sig"))
        );
        // 32 bytes in base64url without padding.
        assert_eq!(["x", "y", "kid"].map(|f| jwk[f].as_str().unwrap().len()), [43, 43, 43]);
    }
}
