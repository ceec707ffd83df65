//! Hashes of passwords as htpasswd writes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use ring::{digest, hmac};

/// The largest cost of bcrypt: a verification takes 2^14 rounds, about a second.
const BCRYPT_COST_MAX: u32 = 14;
/// Bytes of a SHA-1 sum.
const SHA1_BYTES: usize = 20;
/// The letters of crypt(3)'s base 64.
const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The order in which bytes of an MD5 sum are written, three by three.
const APR1_ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
const APR1_ROUNDS: usize = 1000;

/// Why a hash cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// Another form, such as crypt(3)'s.
    #[error("its password has an unsupported form; write it with `htpasswd -B`")]
    Form,
    /// bcrypt with too many rounds.
    #[error("the cost of its bcrypt hash is above {BCRYPT_COST_MAX}")]
    Cost,
}

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    text: String,
    form: Form,
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PasswordHash").finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq)]
enum Form {
    /// `$2y$`, `$2a$`, `$2b$`.
    Bcrypt,
    /// `$apr1$`: MD5 in 1000 rounds.
    Apr1 { salt: String },
    /// `{SHA}` and `{SSHA}`: SHA-1, of the password and a salt.
    Sha1 { sum: Vec<u8>, salt: Vec<u8> },
    /// `{PLAIN}`: the password.
    Plain { password: String },
}

impl PasswordHash {
    /// Reads a hash.
    ///
    /// # Errors
    /// It has another form, or takes too long to verify.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let form = if text.starts_with("$2") {
            let cost = text.split('$').nth(2).and_then(|cost| cost.parse::<u32>().ok());
            if cost.ok_or(HashError::Form)? > BCRYPT_COST_MAX {
                return Err(HashError::Cost);
            }
            Form::Bcrypt
        } else if let Some(rest) = text.strip_prefix("$apr1$") {
            let (salt, _) = rest.split_once('$').ok_or(HashError::Form)?;
            Form::Apr1 { salt: salt.chars().take(8).collect() }
        } else if let Some(encoded) =
            text.strip_prefix("{SHA}").or_else(|| text.strip_prefix("{SSHA}"))
        {
            let mut sum = STANDARD.decode(encoded).map_err(|_| HashError::Form)?;
            if sum.len() < SHA1_BYTES || (text.starts_with("{SHA}") && sum.len() != SHA1_BYTES) {
                return Err(HashError::Form);
            }
            let salt = sum.split_off(SHA1_BYTES);
            Form::Sha1 { sum, salt }
        } else if let Some(password) = text.strip_prefix("{PLAIN}") {
            Form::Plain { password: password.to_owned() }
        } else {
            return Err(HashError::Form);
        };
        Ok(Self { text: text.to_owned(), form })
    }

    /// The hash as the file has it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a password has this hash. Results are compared under `key`, so that the time of a
    /// comparison tells nothing.
    pub(super) fn matches(&self, password: &[u8], key: &hmac::Key) -> bool {
        let equal = |a: &[u8], b: &[u8]| hmac::verify(key, a, hmac::sign(key, b).as_ref()).is_ok();
        match &self.form {
            Form::Bcrypt => bcrypt::verify(password, &self.text).unwrap_or(false),
            Form::Apr1 { salt } => {
                let computed = format!("$apr1${salt}${}", apr1(password, salt.as_bytes()));
                equal(computed.as_bytes(), self.text.as_bytes())
            }
            Form::Sha1 { sum, salt } => {
                let mut all = password.to_vec();
                all.extend_from_slice(salt);
                equal(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &all).as_ref(), sum)
            }
            Form::Plain { password: own } => equal(password, own.as_bytes()),
        }
    }
}

/// Apache's MD5 hash of a password, in crypt(3)'s base 64.
fn apr1(password: &[u8], salt: &[u8]) -> String {
    let mut inner = [password, salt, password].concat();
    let alternate = Md5::digest(&inner);
    inner = [password, b"$apr1$", salt].concat();
    inner.extend(alternate.iter().cycle().take(password.len()));
    let mut bits = password.len();
    while bits != 0 {
        // The first letter, unless the bit is set; the digit zero if there is none.
        let first = password.first().copied().unwrap_or(0);
        inner.push(if bits & 1 == 1 { 0 } else { first });
        bits >>= 1;
    }
    let mut sum = Md5::digest(&inner);
    for round in 0..APR1_ROUNDS {
        let is_odd = round % 2 == 1;
        let mut text = if is_odd { password.to_vec() } else { sum.to_vec() };
        if round % 3 != 0 {
            text.extend_from_slice(salt);
        }
        if round % 7 != 0 {
            text.extend_from_slice(password);
        }
        text.extend_from_slice(if is_odd { sum.as_slice() } else { password });
        sum = Md5::digest(&text);
    }
    let byte = |at: usize| u32::from(sum.get(at).copied().unwrap_or(0));
    let mut out = String::with_capacity(22);
    let mut write = |mut value: u32, letters: usize| {
        for _ in 0..letters {
            let letter = LETTERS.get((value & 0x3f) as usize).copied().unwrap_or(b'.');
            out.push(char::from(letter));
            value >>= 6;
        }
    };
    for [high, middle, low] in APR1_ORDER {
        write(byte(high) << 16 | byte(middle) << 8 | byte(low), 4);
    }
    write(byte(11), 2);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // `openssl passwd -apr1`, `openssl sha1`, and the test vector of bcrypt's authors.
    #[test]
    fn forms_of_htpasswd_are_verified() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"k");
        for (hash, password) in [
            ("$apr1$8sFt66rZ$CwW5jnBTcCMb9M9VZMRdm/", "password"),
            ("$apr1$ab$ZgbyBttfAvWjwKDroS41O1", "a much longer password than sixteen bytes"),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "password"),
            ("{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0", "password"),
            ("{PLAIN}password", "password"),
            ("$2a$06$m0CrhHm10qJ3lXRY.5zDGO3rS2KdeeWLuGmsfGlMfOxih58VYVfxe", "a"),
        ] {
            let parsed = PasswordHash::parse(hash).unwrap();
            assert!(parsed.matches(password.as_bytes(), &key), "{hash}");
            assert!(!parsed.matches(b"other", &key), "{hash}");
            assert!(!format!("{parsed:?}").contains('$'), "{parsed:?}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for (hash, error) in [
            ("$6$salt$sum", HashError::Form),
            ("$1$salt$sum", HashError::Form),
            ("Po0R4v8S2Zy1s", HashError::Form),
            ("", HashError::Form),
            ("{SHA}W6ph5Mm5", HashError::Form),
            ("$2y$31$m0CrhHm10qJ3lXRY.5zDGO3rS2KdeeWLuGmsfGlMfOxih58VYVfxe", HashError::Cost),
        ] {
            assert_eq!(PasswordHash::parse(hash).unwrap_err(), error, "{hash}");
        }
    }
}
