//! JSON Web Keys of issuers (RFC 7517), and the verification of tokens with them (RFC 7515, 7518).

use std::time::Duration;

use api::field::go_quote;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::Value as Json;
use sorting::CompactSort as _;

/// The maximum length of a token, in bytes: one with many groups.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of keys of one issuer.
const KEYS_MAX: usize = 256;
/// The leeway for the claim `nbf`.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(60);
/// Google's issuer, and the form that its tokens may use (OpenID Connect Core 1.0, 15.6.2).
const GOOGLE: (&str, &str) = ("https://accounts.google.com", "accounts.google.com");

/// A signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
}

impl Algorithm {
    /// All supported algorithms, sorted by name.
    pub const ALL: [Self; 8] = [
        Self::Es256,
        Self::Es384,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
    ];

    /// The name in token headers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
        }
    }

    /// Parses the name.
    ///
    /// # Errors
    /// If it is unknown or unsupported.
    pub fn of(name: &str) -> Result<Self, AlgorithmError> {
        if name == "ES512" {
            return Err(AlgorithmError::Es512);
        }
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| AlgorithmError::Unknown(name.to_owned()))
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Self::Es256 | Self::Es384 => return None,
        })
    }
}

/// A signature algorithm is not supported.
#[derive(Debug, thiserror::Error)]
pub enum AlgorithmError {
    /// The cryptography library has no P-521.
    #[error("ES512 (P-521) is not supported, let the issuer sign with ES256 or ES384")]
    Es512,
    /// There is no such algorithm.
    #[error("oidc: unsupported signing alg: {}", go_quote(.0))]
    Unknown(String),
}

/// A text is not a JWK set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it has no list of keys")]
    NoKeys,
}

/// The algorithm or a standard claim of a token is not accepted. The messages are those of go-oidc
/// and of upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenClaimError {
    #[error(
        "oidc: id token signed with unsupported algorithm, expected {} got {}",
        quoted(accepted.iter().map(|algorithm| algorithm.name())),
        go_quote(.actual)
    )]
    Algorithm { accepted: Vec<Algorithm>, actual: String },
    #[error("oidc: failed to unmarshal claims: aud must be a string or a list of them")]
    AudienceType,
    #[error("oidc: failed to unmarshal claims: {claim} must be a number")]
    TimeType { claim: &'static str },
    #[error("oidc: expected audience {} got {}", expected_audiences(.expected), quoted(texts(.actual)))]
    Audience { expected: Vec<String>, actual: Vec<String> },
    /// `expiry` is the Unix time, if the token has one.
    #[error("oidc: token is expired (Token Expiry: {})", expiry_text(*.expiry))]
    Expired { expiry: Option<f64> },
    /// Both are Unix times.
    #[error(
        "oidc: current time {} before the nbf (not before) time: {}",
        moment(*.now),
        moment(*.not_before)
    )]
    NotYetValid { now: f64, not_before: f64 },
}

/// A public key of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    id: String,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    /// The numbers are big-endian, without leading zeros.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

/// Parses a JWK set. Unsupported keys are ignored, as RFC 7517 (5) recommends.
///
/// # Errors
/// If the text is not a JWK set.
pub(super) fn set(text: &[u8]) -> Result<Vec<Key>, KeySetError> {
    let value: Json = serde_json::from_slice(text)?;
    let keys = value.get("keys").and_then(Json::as_array).ok_or(KeySetError::NoKeys)?;
    Ok(keys.iter().filter_map(key).take(KEYS_MAX).collect())
}

fn key(jwk: &Json) -> Option<Key> {
    let text = |name: &str| jwk.get(name).and_then(Json::as_str).unwrap_or_default();
    let bytes = |name: &str| {
        URL_SAFE_NO_PAD.decode(text(name).trim_end_matches('=')).ok().filter(|b| !b.is_empty())
    };
    let number = |name: &str| {
        let bytes = bytes(name)?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes.get(zeros..).map(<[u8]>::to_vec)
    };
    let point = |size: usize| {
        let mut point = vec![4];
        for name in ["x", "y"] {
            let part = bytes(name).filter(|part| part.len() == size)?;
            point.extend(part);
        }
        Some(point)
    };
    let material = match (text("kty"), text("crv")) {
        ("RSA", _) => Material::Rsa { n: number("n")?, e: number("e")? },
        ("EC", "P-256") => Material::P256(point(32)?),
        ("EC", "P-384") => Material::P384(point(48)?),
        _ => return None,
    };
    Some(Key { id: text("kid").to_owned(), material })
}

/// A parsed compact token, not verified.
pub(super) struct Token {
    algorithm: String,
    key_id: String,
    is_critical: bool,
    signed: String,
    signature: Vec<u8>,
    pub(super) claims: Json,
}

impl Token {
    /// `None` if this is not a compact token.
    pub(super) fn of(token: &str) -> Option<Self> {
        if token.len() > TOKEN_BYTES_MAX || token.matches('.').count() != 2 {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Json = serde_json::from_slice(&decode(header)?).ok()?;
        let text =
            |name: &str| header.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
        Some(Self {
            algorithm: text("alg"),
            key_id: text("kid"),
            is_critical: header.get("crit").is_some(),
            signed: signed.to_owned(),
            signature: decode(signature)?,
            claims: serde_json::from_slice(&decode(claims)?).ok().filter(Json::is_object)?,
        })
    }

    /// The issuer that the token claims.
    pub(super) fn issuer(&self) -> Option<&str> {
        let given = self.claims.get("iss").and_then(Json::as_str);
        given.map(|issuer| if issuer == GOOGLE.1 { GOOGLE.0 } else { issuer })
    }

    /// Checks the signature algorithm.
    ///
    /// # Errors
    /// If it is not accepted.
    pub(super) fn check_algorithm(&self, accepted: &[Algorithm]) -> Result<(), TokenClaimError> {
        if accepted.iter().any(|algorithm| algorithm.name() == self.algorithm) {
            return Ok(());
        }
        let (accepted, actual) = (accepted.to_vec(), self.algorithm.clone());
        Err(TokenClaimError::Algorithm { accepted, actual })
    }

    /// Whether one of these keys signed the token; if it names a key ID, only keys with this ID
    /// count.
    pub(super) fn is_signed_by(&self, keys: &[Key]) -> bool {
        let Ok(algorithm) = Algorithm::of(&self.algorithm) else { return false };
        !self.is_critical
            && keys
                .iter()
                .filter(|key| self.key_id.is_empty() || key.id == self.key_id)
                .any(|key| self.is_signed(algorithm, &key.material))
    }

    fn is_signed(&self, algorithm: Algorithm, key: &Material) -> bool {
        let (message, signature) = (self.signed.as_bytes(), &self.signature);
        match (key, algorithm) {
            (Material::Rsa { n, e }, _) => algorithm.rsa().is_some_and(|parameters| {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }),
            (Material::P256(point), Algorithm::Es256) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                key.verify(message, signature).is_ok()
            }
            (Material::P384(point), Algorithm::Es384) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point);
                key.verify(message, signature).is_ok()
            }
            _ => false,
        }
    }

    /// Checks audience and validity period; `now` is the Unix time.
    ///
    /// # Errors
    /// If a claim has the wrong type or is not accepted.
    pub(super) fn check_claims(
        &self,
        audiences: &[String],
        now: Duration,
    ) -> Result<(), TokenClaimError> {
        let given: Vec<&str> = match self.claims.get("aud") {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(all)) => all
                .iter()
                .map(|one| one.as_str().ok_or(TokenClaimError::AudienceType))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(TokenClaimError::AudienceType),
        };
        if !audiences.iter().any(|audience| given.contains(&audience.as_str())) {
            return Err(TokenClaimError::Audience {
                expected: audiences.to_vec(),
                actual: given.into_iter().map(str::to_owned).collect(),
            });
        }
        let time = |claim: &'static str| match self.claims.get(claim) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .map(|seconds| Some(seconds.trunc()))
                .ok_or(TokenClaimError::TimeType { claim }),
        };
        let now = now.as_secs_f64();
        let expiry = time("exp")?;
        if expiry.is_none_or(|expiry| expiry < now) {
            return Err(TokenClaimError::Expired { expiry });
        }
        if let Some(not_before) = time("nbf")?
            && now + NOT_BEFORE_LEEWAY.as_secs_f64() < not_before
        {
            return Err(TokenClaimError::NotYetValid { now, not_before });
        }
        Ok(())
    }
}

fn texts(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(String::as_str)
}

/// The only audience, or `in` with all of them, sorted.
fn expected_audiences(audiences: &[String]) -> String {
    match audiences {
        [one] => go_quote(one),
        many => {
            let mut sorted: Vec<&str> = texts(many).collect();
            sorted.compact_sort();
            format!("in {}", quoted(sorted.into_iter()))
        }
    }
}

/// A token without expiry has Go's zero time.
fn expiry_text(expiry: Option<f64>) -> String {
    expiry.map_or_else(|| "0001-01-01 00:00:00 +0000 UTC".to_owned(), moment)
}

fn quoted<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.map(go_quote).collect();
    format!("[{}]", texts.join(" "))
}

/// A time in UTC in Go's format.
fn moment(seconds: f64) -> String {
    // Casts of floats saturate, and the calendar conversion rejects the result.
    let whole = seconds as i64;
    jiff::Timestamp::from_second(whole).map_or_else(
        |_| format!("{whole} s after 1970"),
        |time| time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string(),
    )
}
