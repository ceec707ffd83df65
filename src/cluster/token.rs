//! Tokens by which machines join, in k3s's forms: a hash of the CA that they pin, and what proves
//! the right to join.

pub mod files;

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use base::{SecretValue, clock};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Start of a token that names its CA.
const PREFIX: &str = "K10";
/// Hex characters of a SHA-256.
const HASH_CHARACTERS: usize = 64;
/// Fewer characters than these can be guessed.
pub const SECRET_CHARACTERS_MIN: usize = 16;
/// Characters of a token and of a secret that are read at all.
const CHARACTERS_MAX: usize = 1024;
/// Characters of the id of a bootstrap token (upstream's `BootstrapTokenIDPattern`).
const ID_CHARACTERS: usize = 6;
/// Characters of its secret.
const BOOTSTRAP_SECRET_CHARACTERS: usize = 16;

/// Text that no log may show, and that is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(SecretValue<String>);

impl Secret {
    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Equality whose time does not depend on the content.
    pub fn is(&self, other: &str) -> bool {
        same(&self.0, other)
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

/// Equality whose time does not depend on where the texts differ: of their digests.
pub fn same(a: &str, b: &str) -> bool {
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let (a, b) = (digest(a), digest(b));
    a.as_ref().iter().zip(b.as_ref()).fold(0_u8, |differ, (x, y)| differ | (x ^ y)) == 0
}

/// What a token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The secret that all machines of the cluster have.
    Shared {
        /// `server` or `node`.
        user: String,
        /// Its secret.
        secret: Secret,
    },
    /// `id.secret`, with an end of its own.
    Bootstrap(Secret),
}

/// A token that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The CA that it names, 64 hex characters; `None` for a short token.
    pub ca_hash: Option<String>,
    /// What it proves.
    pub credentials: Credentials,
}

/// A text that is no token; the text is not repeated, as it may be a secret with a slip of the pen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Nothing.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("it is longer than {CHARACTERS_MAX} characters")]
    Long,
    /// A space, a line break or the like inside.
    #[error("it holds a space or a control character")]
    Space,
    /// `K10` and something else than a hash.
    #[error(
        "after K10 there must be 64 hexadecimal characters and \"::\"; was it cut when it was copied?"
    )]
    Hash,
    /// Nothing or nobody behind the hash.
    #[error("after \"::\" there must be server:SECRET, node:SECRET or a bootstrap token ID.SECRET")]
    Credentials,
}

/// Id and secret, when it has the form of a bootstrap token (`[a-z0-9]{6}.[a-z0-9]{16}`).
pub fn bootstrap_parts(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == ID_CHARACTERS
        && secret.len() == BOOTSTRAP_SECRET_CHARACTERS
        && plain(id)
        && plain(secret))
    .then_some((id, secret))
}

/// Reads a token as it was typed or stands in a file.
///
/// # Errors
/// What is wrong with its form.
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
        return Ok(Token { ca_hash: None, credentials: short(text) });
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

/// A token without a hash: a bootstrap token, or a secret alone, which is that of a node here.
fn short(text: &str) -> Credentials {
    if bootstrap_parts(text).is_some() {
        return Credentials::Bootstrap(Secret::from(text.to_owned()));
    }
    Credentials::Shared { user: "node".into(), secret: Secret::from(text.to_owned()) }
}

impl Token {
    /// The value of the header `Authorization` that shows it.
    pub fn authorization(&self) -> Secret {
        Secret::from(match &self.credentials {
            Credentials::Shared { user, secret } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", secret.reveal())))
            }
            Credentials::Bootstrap(token) => format!("Bearer {}", token.reveal()),
        })
    }

    /// The whole token of this CA.
    ///
    /// # Errors
    /// When `ca_pem` holds no certificate.
    pub fn render(&self, ca_pem: &str) -> Result<String, String> {
        let hash = base::pki::ca_hash(ca_pem)?;
        Ok(match &self.credentials {
            Credentials::Shared { user, secret } => {
                format!("{PREFIX}{hash}::{user}:{}", secret.reveal())
            }
            Credentials::Bootstrap(token) => format!("{PREFIX}{hash}::{}", token.reveal()),
        })
    }
}

/// User and secret of a header `Authorization: Basic …`.
pub fn basic(header: &str) -> Option<(String, Secret)> {
    let (scheme, rest) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    let (user, secret) = text.split_once(':')?;
    Some((user.to_owned(), Secret::from(secret.to_owned())))
}

/// A new secret of 128 random bits, in hex.
pub fn new_secret() -> Secret {
    let mut bytes = [0; 16];
    clock::random_bytes(&mut bytes);
    Secret::from(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// A new bootstrap token, `id.secret`.
pub fn new_bootstrap() -> String {
    let mut text = random_plain(ID_CHARACTERS);
    text.push('.');
    text.push_str(&random_plain(BOOTSTRAP_SECRET_CHARACTERS));
    text
}

/// Random characters of `[a-z0-9]`, each as likely as the others.
fn random_plain(length: usize) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut byte = [0];
        clock::random_bytes(&mut byte);
        // 252 is the last multiple of 36 that a byte holds.
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
    fn every_form_of_k3s_is_read() {
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
    fn a_damaged_token_is_refused_without_being_repeated() {
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
    fn headers_carry_what_the_token_proves() {
        let token = parse(&format!("K10{HASH}::node:s:t")).unwrap();
        assert_eq!(token.authorization().reveal(), "Basic bm9kZTpzOnQ=");
        let (user, secret) = basic("basic bm9kZTpzOnQ=").unwrap();
        assert!(user == "node" && secret.is("s:t") && !secret.is("s:"));
        assert!(basic("Bearer x").is_none() && basic("Basic !").is_none());
        let token = parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!(token.authorization().reveal(), "Bearer abcdef.0123456789abcdef");
    }

    #[test]
    fn new_bootstrap_tokens_have_upstreams_form() {
        let (a, b) = (new_bootstrap(), new_bootstrap());
        assert!(bootstrap_parts(&a).is_some() && a != b, "{a} {b}");
        assert_eq!(new_secret().reveal().len(), 32);
    }
}
