//! Names and passwords of clients (RFC 7617), checked against a file of htpasswd.

mod hash;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use ring::hmac;
use tokio::sync::Semaphore;

pub use hash::{HashError, PasswordHash};

/// Passwords that were verified and are remembered, of all rules.
const VERIFIED_MAX: usize = 1024;
/// Passwords that are verified at once: each takes a processor for some milliseconds.
const RUNNING_MAX: usize = 2;
/// The same and those that wait; further requests are answered with 503.
const WAITING_MAX: usize = 64;
/// Bytes of a name and a password.
const CREDENTIALS_BYTES_MAX: usize = 512;
/// Users of one file.
const USERS_MAX: usize = 1000;

/// Why a request is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No or wrong credentials: 401.
    Unauthorized,
    /// Too many passwords are being verified: 503.
    Busy,
}

/// The users of a rule.
#[derive(Debug)]
pub struct BasicAuth {
    /// The header `WWW-Authenticate`.
    pub challenge: HeaderValue,
    users: BTreeMap<String, Arc<PasswordHash>>,
}

/// A hash of credentials.
type CredentialsTag = [u8; 32];

/// Credentials that were right: for lookup, and in the order in which they are forgotten.
type VerifiedTags = (HashSet<CredentialsTag>, VecDeque<CredentialsTag>);

/// Credentials that were right, as hashes under a key of this process.
struct Verified {
    key: hmac::Key,
    known: Mutex<VerifiedTags>,
    running: Semaphore,
    waiting: Semaphore,
}

fn verified() -> Option<&'static Verified> {
    static VERIFIED: OnceLock<Option<Verified>> = OnceLock::new();
    let made = VERIFIED.get_or_init(|| {
        let random = ring::rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random).ok()?;
        Some(Verified {
            key,
            known: Mutex::default(),
            running: Semaphore::new(RUNNING_MAX),
            waiting: Semaphore::new(WAITING_MAX),
        })
    });
    made.as_ref()
}

impl Verified {
    /// A hash of credentials and of the hash that they match, so that a changed file forgets them.
    fn tag(&self, hash: &PasswordHash, password: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(hash.text().as_bytes());
        context.update(&[0]);
        context.update(password);
        let mut out = [0; 32];
        out.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        out
    }

    fn remember(&self, tag: [u8; 32]) {
        let mut known = self.known.lock();
        let (set, order) = &mut *known;
        if !set.insert(tag) {
            return;
        }
        order.push_back(tag);
        if order.len() > VERIFIED_MAX
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
    }
}

impl BasicAuth {
    /// The users of a file with lines `name:hash`. Lines that cannot be used are returned as
    /// sentences.
    pub fn from_file(realm: &str, text: &str) -> (Self, Vec<String>) {
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let entries = lines.map(|line| line.split_once(':').unwrap_or((line, "")));
        Self::from_users(realm, entries)
    }

    /// The users of pairs of name and hash.
    pub fn from_users<'a>(
        realm: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> (Self, Vec<String>) {
        let (mut users, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, hash) in entries {
            if users.len() >= USERS_MAX {
                problems.push(format!("only the first {USERS_MAX} users are known"));
                break;
            }
            // Of two lines with the same name nginx reads the first.
            match PasswordHash::parse(hash.split(':').next().unwrap_or_default()) {
                Ok(hash) => {
                    users.entry(name.to_owned()).or_insert_with(|| Arc::new(hash));
                }
                Err(error) => problems.push(format!("user {name:?} is not known: {error}")),
            }
        }
        let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
        let challenge = HeaderValue::from_str(&format!("Basic realm=\"{quoted}\""));
        let challenge = challenge.unwrap_or(HeaderValue::from_static("Basic realm=\"\""));
        (Self { challenge, users }, problems)
    }

    /// Checks the credentials of a request. Hashes are computed on the blocking pool.
    ///
    /// # Errors
    /// They are missing or wrong, or too many are being checked.
    pub async fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let (name, password) = credentials(headers).ok_or(Refusal::Unauthorized)?;
        let hash = self.users.get(&name).ok_or(Refusal::Unauthorized)?;
        let shared = verified().ok_or(Refusal::Busy)?;
        let tag = shared.tag(hash, &password);
        if shared.known.lock().0.contains(&tag) {
            return Ok(());
        }
        let _waiting = shared.waiting.try_acquire().map_err(|_| Refusal::Busy)?;
        let _running = shared.running.acquire().await.map_err(|_| Refusal::Busy)?;
        let hash = Arc::clone(hash);
        let matches = base::tasks::blocking(move || hash.matches(&password, &shared.key)).await;
        if !matches.map_err(|_| Refusal::Busy)? {
            return Err(Refusal::Unauthorized);
        }
        shared.remember(tag);
        Ok(())
    }
}

/// Name and password of a request.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > CREDENTIALS_BYTES_MAX * 2 {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    if decoded.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let at = decoded.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8(decoded.get(..at)?.to_vec()).ok()?;
    Some((name, decoded.get(at + 1..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = format!("Basic {}", STANDARD.encode(text));
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&value).unwrap());
        headers
    }

    // RFC 7617: the name ends at the first colon of the credentials.
    #[tokio::test]
    async fn credentials_are_checked() {
        let file = "# users\n\
            sha:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n\
            plain:{PLAIN}a:b\n\
            des:Po0R4v8S2Zy1s\n\n\
            old:$1$abc$def\n";
        let (auth, problems) = BasicAuth::from_file("Say \"hi\"", file);
        assert_eq!(auth.challenge, "Basic realm=\"Say \\\"hi\\\"\"");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("user \"des\" is not known: "), "{problems:?}");
        for (text, expected) in [
            ("sha:password", Ok(())),
            ("sha:password", Ok(())),
            ("sha:Password", Err(Refusal::Unauthorized)),
            ("plain:a", Ok(())),
            ("unknown:password", Err(Refusal::Unauthorized)),
            ("sha", Err(Refusal::Unauthorized)),
            ("des:password", Err(Refusal::Unauthorized)),
        ] {
            assert_eq!(auth.check(&request(text)).await, expected, "{text}");
        }
        assert_eq!(auth.check(&HeaderMap::new()).await, Err(Refusal::Unauthorized));
        let long = format!("sha:{}", "x".repeat(10_000));
        assert_eq!(auth.check(&request(&long)).await, Err(Refusal::Unauthorized));
    }

    #[tokio::test]
    async fn a_changed_hash_forgets_a_verified_password() {
        let (first, _) = BasicAuth::from_file("", "u:{PLAIN}one");
        assert_eq!(first.check(&request("u:one")).await, Ok(()));
        let (second, _) = BasicAuth::from_file("", "u:{PLAIN}two");
        assert_eq!(second.check(&request("u:one")).await, Err(Refusal::Unauthorized));
    }
}
