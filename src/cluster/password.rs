//! Node passwords: a name belongs to the machine that came first, until its Node is deleted.

use std::time::Duration;

use base::clock;

use crate::token::{Secret, same};

/// Characters that a password must have at least.
pub const CHARACTERS_MIN: usize = 32;

/// So long a name is kept for a machine that has joined and whose Node is not there yet.
pub const GRACE: Duration = Duration::from_secs(5 * 60);

/// Name of the Secret in `kube-system` that keeps a node's password.
pub fn secret_name(node: &str) -> String {
    format!("{node}.node-password.kube-lite")
}

/// The node whose password a Secret of this name keeps.
pub fn node_of(secret_name: &str) -> Option<&str> {
    secret_name.strip_suffix(".node-password.kube-lite")
}

/// A new password: 256 random bits, in hex.
pub fn new() -> Secret {
    let mut bytes = [0; 32];
    clock::random_bytes(&mut bytes);
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
}

/// What is stored of a password: `$sha256:<salt>:<hex>`. Passwords are random, so that no slow hash
/// is needed.
pub fn hash(password: &Secret) -> String {
    let mut salt = [0; 16];
    clock::random_bytes(&mut salt);
    let salt: String = salt.iter().map(|byte| format!("{byte:02x}")).collect();
    salted(&salt, password.reveal())
}

fn salted(salt: &str, password: &str) -> String {
    let text = format!("{salt}:{password}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("$sha256:{salt}:{hex}")
}

/// Whether a stored hash is of this password.
pub fn matches(stored: &str, password: &Secret) -> bool {
    let salt = stored.strip_prefix("$sha256:").and_then(|rest| rest.split_once(':'));
    salt.is_some_and(|(salt, _)| same(stored, &salted(salt, password.reveal())))
}

/// What is known of a name.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The hash, and how long ago it was stored; `None` when nobody claimed the name.
    pub stored: Option<(&'a str, Duration)>,
    /// A Node of this name exists.
    pub node_exists: bool,
}

/// What becomes of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The name is free: store the hash, in place of an old one if there is one.
    Take,
    /// It is this machine's already.
    Own,
    /// It is another machine's.
    Refuse,
}

/// Decides about a claim of a name.
pub fn claim(known: Known<'_>, password: &Secret) -> Claim {
    match known.stored {
        None => Claim::Take,
        Some((stored, _)) if matches(stored, password) => Claim::Own,
        Some((_, age)) if known.node_exists || age < GRACE => Claim::Refuse,
        Some(_) => Claim::Take,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_first_machines_until_its_node_is_gone() {
        let (first, second) = (new(), new());
        let stored = hash(&first);
        assert!(!stored.contains(first.reveal()));
        assert_ne!(stored, hash(&first));
        let minute = Duration::from_secs(60);
        for (known, who, want) in [
            (None, &second, Claim::Take),
            (Some((6 * minute, true)), &first, Claim::Own),
            (Some((6 * minute, true)), &second, Claim::Refuse),
            (Some((4 * minute, false)), &first, Claim::Own),
            (Some((4 * minute, false)), &second, Claim::Refuse),
            (Some((6 * minute, false)), &second, Claim::Take),
        ] {
            let known = Known {
                stored: known.map(|(age, _)| (stored.as_str(), age)),
                node_exists: known.is_some_and(|(_, exists)| exists),
            };
            assert_eq!(claim(known, who), want, "{known:?}");
        }
    }

    #[test]
    fn damaged_hashes_match_nobody() {
        let password = new();
        for stored in ["", "$sha256:", "$sha256:a:b", "$1:a:b"] {
            assert!(!matches(stored, &password), "{stored}");
        }
        assert_eq!(node_of(&secret_name("a.b")), Some("a.b"));
    }
}
