//! Node passwords: a node name belongs to the first machine that claims it, until its Node is
//! deleted.

use std::time::Duration;

use base::clock;

use crate::token::{Secret, constant_time_eq};

/// Minimum length of a password, in characters.
pub const CHARACTERS_MIN: usize = 32;

/// How long a name stays reserved for a machine that has joined but has no Node yet.
pub const GRACE: Duration = Duration::from_secs(5 * 60);

/// Name of the Secret in `kube-system` that holds the hash of a node's password.
pub fn secret_name(node: &str) -> String {
    format!("{node}.node-password.kube-lite")
}

/// The node that a password Secret of this name belongs to.
pub fn node_of(secret_name: &str) -> Option<&str> {
    secret_name.strip_suffix(".node-password.kube-lite")
}

/// A new password: 256 random bits, in hex.
pub fn new() -> Secret {
    let mut bytes = [0; 32];
    clock::random_bytes(&mut bytes);
    let text = base::hex(&bytes);
    text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
}

/// The stored hash of a password: `$sha256:<salt>:<hex>`. Passwords are random, so a slow hash is
/// not needed.
pub fn hash(password: &Secret) -> String {
    let mut salt = [0; 16];
    clock::random_bytes(&mut salt);
    let salt = base::hex(&salt);
    salted(&salt, password.reveal())
}

fn salted(salt: &str, password: &str) -> String {
    let text = format!("{salt}:{password}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let hex = base::hex(digest.as_ref());
    format!("$sha256:{salt}:{hex}")
}

/// Whether a stored hash matches this password.
pub fn matches(stored: &str, password: &Secret) -> bool {
    let salt = stored.strip_prefix("$sha256:").and_then(|rest| rest.split_once(':'));
    salt.is_some_and(|(salt, _)| constant_time_eq(stored, &salted(salt, password.reveal())))
}

/// The stored state of a node name.
#[derive(Debug, Clone, Copy)]
pub struct NameRecord<'a> {
    /// The hash and its age; `None` when the name is unclaimed.
    pub stored: Option<(&'a str, Duration)>,
    /// Whether a Node of this name exists.
    pub node_exists: bool,
}

/// The decision about a machine's claim of a node name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The name is free: store the hash, replacing an old one.
    Take,
    /// The name already belongs to this machine.
    Own,
    /// The name belongs to another machine.
    Refuse,
}

/// Decides whether a machine with this password may use a name.
pub fn claim(record: NameRecord<'_>, password: &Secret) -> Claim {
    match record.stored {
        None => Claim::Take,
        Some((stored, _)) if matches(stored, password) => Claim::Own,
        Some((_, age)) if record.node_exists || age < GRACE => Claim::Refuse,
        Some(_) => Claim::Take,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_its_first_machine_until_its_node_is_deleted() {
        let (first, second) = (new(), new());
        let stored = hash(&first);
        assert!(!stored.contains(first.reveal()));
        assert_ne!(stored, hash(&first));
        let minute = Duration::from_secs(60);
        for (known, password, want) in [
            (None, &second, Claim::Take),
            (Some((6 * minute, true)), &first, Claim::Own),
            (Some((6 * minute, true)), &second, Claim::Refuse),
            (Some((4 * minute, false)), &first, Claim::Own),
            (Some((4 * minute, false)), &second, Claim::Refuse),
            (Some((6 * minute, false)), &second, Claim::Take),
        ] {
            let known = NameRecord {
                stored: known.map(|(age, _)| (stored.as_str(), age)),
                node_exists: known.is_some_and(|(_, exists)| exists),
            };
            assert_eq!(claim(known, password), want, "{known:?}");
        }
    }

    #[test]
    fn damaged_hashes_match_no_password() {
        let password = new();
        for stored in ["", "$sha256:", "$sha256:a:b", "$1:a:b"] {
            assert!(!matches(stored, &password), "{stored}");
        }
        assert_eq!(node_of(&secret_name("a.b")), Some("a.b"));
    }
}
