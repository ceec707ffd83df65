//! The identity of a server's store in its serving certificate: a node does not end pods because of
//! a server with another store.

use std::fmt;

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Prefix of the identity in a URI of the certificate.
const PREFIX: &str = "urn:kube-lite:store:";

/// The store of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreId {
    /// Identity, 32 hex digits.
    pub store: String,
    /// When an administrator replaced an earlier store by this one, in seconds since the epoch; 0
    /// if it replaces none.
    pub replaced_at: u64,
}

/// A server of the same CA with another store.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server has the store {}, this node belongs to the store {}", shown.store, known.store)]
pub struct OtherStore {
    /// The store of the server.
    pub shown: StoreId,
    /// The store of this node.
    pub known: StoreId,
}

/// Same as `Display`: TLS errors show the errors that they wrap with `Debug`.
impl fmt::Debug for OtherStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StoreId {
    /// The URI in a server's certificate.
    pub fn uri(&self) -> String {
        format!("{PREFIX}{}:{}", self.store, self.replaced_at)
    }

    fn parse(uri: &str) -> Option<Self> {
        let (store, replaced_at) = uri.strip_prefix(PREFIX)?.split_once(':')?;
        if store.len() != 32 || !store.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        Some(Self { store: store.to_owned(), replaced_at: replaced_at.parse().ok()? })
    }

    /// The identity in a certificate, DER.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(der).ok()?;
        let names = cert.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => Self::parse(uri),
            _ => None,
        })
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store)
    }
}

/// The store of a node after a server presented `shown`. A server of an earlier release presents
/// none and is trusted. A store that an administrator put in place of another one is followed; a
/// newly created empty store is not.
///
/// # Errors
/// [`OtherStore`].
pub fn follow(
    known: Option<&StoreId>,
    shown: Option<StoreId>,
) -> Result<Option<StoreId>, OtherStore> {
    match (known, shown) {
        (known, None) => Ok(known.cloned()),
        (None, shown) => Ok(shown),
        (Some(known), Some(shown)) if known.store == shown.store => {
            Ok(Some(StoreId { replaced_at: known.replaced_at.max(shown.replaced_at), ..shown }))
        }
        (Some(known), Some(shown)) if shown.replaced_at > known.replaced_at => Ok(Some(shown)),
        (Some(known), Some(shown)) => Err(OtherStore { shown, known: known.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char, replaced_at: u64) -> StoreId {
        StoreId { store: std::iter::repeat_n(digit, 32).collect(), replaced_at }
    }

    #[test]
    fn a_node_follows_its_store_and_a_deliberate_replacement_only() {
        let (own, other) = (id('a', 0), id('b', 0));
        assert_eq!(follow(None, None), Ok(None));
        assert_eq!(follow(None, Some(own.clone())), Ok(Some(own.clone())));
        assert_eq!(follow(Some(&own), None), Ok(Some(own.clone())));
        assert_eq!(follow(Some(&own), Some(own.clone())), Ok(Some(own.clone())));
        let error = follow(Some(&own), Some(other.clone())).unwrap_err();
        assert_eq!((&error.shown, &error.known), (&other, &own));
        assert_eq!(follow(Some(&own), Some(id('b', 9))), Ok(Some(id('b', 9))));
        assert!(follow(Some(&id('b', 9)), Some(own)).is_err(), "the former store came back");
        assert!(follow(Some(&id('b', 9)), Some(id('c', 9))).is_err());
    }

    #[test]
    fn the_identity_in_a_certificate_round_trips() {
        assert_eq!(StoreId::parse(&id('a', 17).uri()), Some(id('a', 17)));
        for bad in ["urn:kube-lite:store:", "urn:kube-lite:store:aa:0", "https://a"] {
            assert_eq!(StoreId::parse(bad), None, "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file);
        let ca = crate::pki::Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "ca").unwrap();
        let mut profile = crate::pki::Profile::server("s", &["s".to_owned()], &[]);
        profile.uris = vec![id('a', 3).uri()];
        let leaf = ca.ensure(&at("s.crt"), &at("s.key"), &profile).unwrap();
        let der = crate::pki::certificates(&leaf.cert_pem).unwrap().remove(0);
        assert_eq!(StoreId::of_certificate(&der), Some(id('a', 3)));
        // A server whose store was replaced renews its certificate.
        profile.uris = vec![id('b', 4).uri()];
        let renewed = ca.ensure(&at("s.crt"), &at("s.key"), &profile).unwrap();
        assert_ne!(renewed.cert_pem, leaf.cert_pem);
    }
}
