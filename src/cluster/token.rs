//! Join tokens in the formats of k3s: a hash that pins the CA, and credentials.

pub mod files;

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use base::{SecretValue, clock};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Prefix of a token with a CA hash.
const PREFIX: &str = "K10";
/// Length of a SHA-256 in hexadecimal characters.
const HASH_CHARACTERS: usize = 64;
/// Minimum length of a secret; shorter ones can be guessed.
pub const SECRET_CHARACTERS_MIN: usize = 16;
/// Maximum length of a token.
const CHARACTERS_MAX: usize = 1024;
/// Length of the id of a bootstrap token (upstream's `BootstrapTokenIDPattern`).
const ID_CHARACTERS: usize = 6;
/// Length of the secret of a bootstrap token.
const BOOTSTRAP_SECRET_CHARACTERS: usize = 16;

/// Confidential text: `Debug` does not show it, and its memory is overwritten on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(SecretValue<String>);

impl Secret {
    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &str) -> bool {
        constant_time_eq(&self.0, other)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

/// Compares two texts by their digests, in a time that does not depend on where they differ.
pub fn constant_time_eq(a: &str, b: &str) -> bool {
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let (a, b) = (digest(a), digest(b));
    a.as_ref().iter().zip(b.as_ref()).fold(0_u8, |differ, (x, y)| differ | (x ^ y)) == 0
}

/// The credentials of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The secret that all machines of the cluster share.
    Shared {
        /// `server` or `node`.
        user: String,
        /// Its secret.
        secret: Secret,
    },
    /// A bootstrap token `id.secret`, which expires.
    Bootstrap(Secret),
}

/// A parsed token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// SHA-256 of the CA, 64 hex characters; `None` for a short token.
    pub ca_hash: Option<String>,
    /// Its credentials.
    pub credentials: Credentials,
}

/// Why a text is not a token. The messages do not contain the text, as it may be a mistyped secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// The text is too long.
    #[error("it is longer than {CHARACTERS_MAX} characters")]
    Long,
    /// The text contains a space or a control character.
    #[error("it holds a space or a control character")]
    Space,
    /// `K10` is not followed by a hash.
    #[error(
        "after K10 there must be 64 hexadecimal characters and \"::\"; was it cut when it was copied?"
    )]
    Hash,
    /// The hash is not followed by valid credentials.
    #[error("after \"::\" there must be server:SECRET, node:SECRET or a bootstrap token ID.SECRET")]
    Credentials,
}

/// Splits a bootstrap token (`[a-z0-9]{6}.[a-z0-9]{16}`) into id and secret.
pub fn bootstrap_parts(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == ID_CHARACTERS
        && secret.len() == BOOTSTRAP_SECRET_CHARACTERS
        && plain(id)
        && plain(secret))
    .then_some((id, secret))
}

/// Parses a token from a flag or a file.
///
/// # Errors
/// When the text has none of the formats.
pub fn parse(text: &str) -> Result<Token, BadToken> {
    let text = text.trim();
    if text.is_empty() {
        return Err(BadToken::Empty);
    }
    if text.len() > CHARACTERS_MAX {
        return Err(BadToken::Long);
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(BadToken::Space);
    }
    let Some(rest) = text.strip_prefix(PREFIX) else {
        return Ok(Token { ca_hash: None, credentials: short_credentials(text) });
    };
    let (hash, rest) = rest.split_once("::").ok_or(BadToken::Hash)?;
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let hash = hash.to_ascii_lowercase();
    if !hash.is_empty() && (hash.len() != HASH_CHARACTERS || !hash.bytes().all(is_hex)) {
        return Err(BadToken::Hash);
    }
    let credentials = if bootstrap_parts(rest).is_some() {
        Credentials::Bootstrap(Secret::from(rest.to_owned()))
    } else {
        let (user, secret) = rest.split_once(':').ok_or(BadToken::Credentials)?;
        if !matches!(user, "server" | "node") || secret.is_empty() {
            return Err(BadToken::Credentials);
        }
        Credentials::Shared { user: user.to_owned(), secret: Secret::from(secret.to_owned()) }
    };
    Ok(Token { ca_hash: (!hash.is_empty()).then_some(hash), credentials })
}

/// Credentials of a token without a hash: a bootstrap token, or a secret of user `node`.
fn short_credentials(text: &str) -> Credentials {
    if bootstrap_parts(text).is_some() {
        return Credentials::Bootstrap(Secret::from(text.to_owned()));
    }
    Credentials::Shared { user: "node".into(), secret: Secret::from(text.to_owned()) }
}

impl Token {
    /// The value of the header `Authorization` for this token.
    pub fn authorization(&self) -> Secret {
        Secret::from(match &self.credentials {
            Credentials::Shared { user, secret } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", secret.reveal())))
            }
            Credentials::Bootstrap(token) => format!("Bearer {}", token.reveal()),
        })
    }

    /// Renders the token with the hash of this CA.
    ///
    /// # Errors
    /// When `ca_pem` holds no certificate.
    pub fn render(&self, ca_pem: &str) -> Result<String, base::pki::CertificateError> {
        let hash = base::pki::ca_hash(ca_pem)?;
        Ok(match &self.credentials {
            Credentials::Shared { user, secret } => {
                format!("{PREFIX}{hash}::{user}:{}", secret.reveal())
            }
            Credentials::Bootstrap(token) => format!("{PREFIX}{hash}::{}", token.reveal()),
        })
    }
}

/// Parses user and secret of a header `Authorization: Basic …`.
pub fn basic(header: &str) -> Option<(String, Secret)> {
    let (scheme, rest) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    let (user, secret) = text.split_once(':')?;
    Some((user.to_owned(), Secret::from(secret.to_owned())))
}

/// Generates a secret of 128 random bits, in hex.
pub fn new_secret() -> Secret {
    let mut bytes = [0; 16];
    clock::random_bytes(&mut bytes);
    Secret::from(base::hex(&bytes))
}

/// Generates a bootstrap token, `id.secret`.
pub fn new_bootstrap() -> String {
    let mut text = random_plain(ID_CHARACTERS);
    text.push('.');
    text.push_str(&random_plain(BOOTSTRAP_SECRET_CHARACTERS));
    text
}

/// Uniformly random characters of `[a-z0-9]`.
fn random_plain(length: usize) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut byte = [0];
        clock::random_bytes(&mut byte);
        // Bytes from 252 on are rejected: 252 is the largest multiple of 36 in a byte.
        if let Some(c) = ALPHABET.get(usize::from(byte[0] % 36)).filter(|_| byte[0] < 252) {
            text.push(char::from(*c));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn shared(user: &str, secret: &str) -> Credentials {
        Credentials::Shared { user: user.into(), secret: Secret::from(secret.to_owned()) }
    }

    #[test]
    fn all_token_formats_of_k3s_are_parsed() {
        let hash = Some(HASH.to_owned());
        for (text, ca_hash, credentials) in [
            (format!("K10{HASH}::server:abc"), hash.clone(), shared("server", "abc")),
            (format!(" K10{HASH}::node:a:b::c\n"), hash.clone(), shared("node", "a:b::c")),
            (
                format!("K10{HASH}::abcdef.0123456789abcdef"),
                hash,
                Credentials::Bootstrap(Secret::from("abcdef.0123456789abcdef".to_owned())),
            ),
            (
                "abcdef.0123456789abcdef".into(),
                None,
                Credentials::Bootstrap(Secret::from("abcdef.0123456789abcdef".to_owned())),
            ),
            ("K10::server:x".into(), None, shared("server", "x")),
            ("my-secret".into(), None, shared("node", "my-secret")),
            ("abcdef.0123456789abcdeF".into(), None, shared("node", "abcdef.0123456789abcdeF")),
        ] {
            assert_eq!(parse(&text), Ok(Token { ca_hash, credentials }), "{text}");
        }
    }

    #[test]
    fn a_malformed_token_is_refused_and_not_shown() {
        for (text, want) in [
            ("", BadToken::Empty),
            (" \n", BadToken::Empty),
            ("a b", BadToken::Space),
            (&"x".repeat(1025), BadToken::Long),
            ("K10abc::server:x", BadToken::Hash),
            (&format!("K10{HASH}"), BadToken::Hash),
            (&format!("K10{HASH}:server:x"), BadToken::Hash),
            (&format!("K10{}::server:x", "g".repeat(64)), BadToken::Hash),
            (&format!("K10{HASH}::root:x"), BadToken::Credentials),
            (&format!("K10{HASH}::server:"), BadToken::Credentials),
            (&format!("K10{HASH}::"), BadToken::Credentials),
        ] {
            assert_eq!(parse(text), Err(want), "{text}");
        }
        let token = parse(&format!("K10{HASH}::server:hush")).unwrap();
        assert!(!format!("{token:?}").contains("hush"));
    }

    #[test]
    fn authorization_headers_contain_the_credentials() {
        let token = parse(&format!("K10{HASH}::node:s:t")).unwrap();
        assert_eq!(token.authorization().reveal(), "Basic bm9kZTpzOnQ=");
        let (user, secret) = basic("basic bm9kZTpzOnQ=").unwrap();
        assert!(user == "node" && secret.matches("s:t") && !secret.matches("s:"));
        assert!(basic("Bearer x").is_none() && basic("Basic !").is_none());
        let token = parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!(token.authorization().reveal(), "Bearer abcdef.0123456789abcdef");
    }

    #[test]
    fn generated_bootstrap_tokens_match_the_upstream_pattern() {
        let (a, b) = (new_bootstrap(), new_bootstrap());
        assert!(bootstrap_parts(&a).is_some() && a != b, "{a} {b}");
        assert_eq!(new_secret().reveal().len(), 32);
    }
}
