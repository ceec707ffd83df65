//! Client certificates: the common name is the user, the organizations are the groups.

use std::sync::Arc;

use http::HeaderMap;
use ring::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::request::user::User;

/// The extra key that identifies the credential, for audit.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Verifies client certificates with the client CA, and those of front proxies with the
/// request-header CA.
///
/// TLS itself accepts any certificate ([`base::pki::tls::server`]), as in upstream, so that the
/// response to an invalid one is 401 and not a broken connection.
pub struct Verifier {
    client: Arc<dyn ClientCertVerifier>,
    proxy: Option<Arc<dyn ClientCertVerifier>>,
    /// The allowed common names of front proxies; empty allows all.
    proxy_names: Vec<String>,
}

/// The identity that the peer of a connection proved with its certificate; created once per
/// connection.
#[derive(Debug, Clone)]
pub struct Peer {
    verdict: Result<Verified, CertificateError>,
    /// The end of the validity period, Unix time in seconds.
    not_after: i64,
}

#[derive(Debug, Clone)]
enum Verified {
    User(User),
    /// A front proxy, whose `X-Remote-*` headers are trusted.
    Proxy,
}

/// A client certificate is rejected.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("unreadable client certificate: {0}")]
    Unreadable(x509_parser::nom::Err<x509_parser::error::X509Error>),
    #[error("front proxy {common_name:?} is not among the allowed names")]
    ProxyName { common_name: String },
    #[error(transparent)]
    Verification(rustls::Error),
    #[error("client certificate without common name")]
    NoCommonName,
    #[error("client certificate has expired")]
    Expired,
}

/// CA certificates that cannot be used for verification.
#[derive(Debug, thiserror::Error)]
#[error("cannot verify clients against the {ca} CA: {why}; check the certificate file")]
pub struct BadCa {
    ca: &'static str,
    why: String,
}

impl Verifier {
    /// Creates a verifier: clients must be signed by `client_ca`, front proxies by
    /// `request_header_ca` and, unless `proxy_names` is empty, be named there.
    ///
    /// # Errors
    /// If the certificates of a CA are unusable.
    pub fn new(
        client_ca: &[CertificateDer<'static>],
        request_header_ca: &[CertificateDer<'static>],
        proxy_names: &[&str],
    ) -> Result<Self, BadCa> {
        let proxy = if request_header_ca.is_empty() {
            None
        } else {
            Some(verifier(request_header_ca, "request-header")?)
        };
        Ok(Self {
            client: verifier(client_ca, "client")?,
            proxy,
            proxy_names: proxy_names.iter().map(|n| (*n).to_owned()).collect(),
        })
    }

    /// Verifies the chain that the peer presented in the handshake; `None` without a certificate.
    pub fn peer(&self, chain: &[CertificateDer<'_>]) -> Option<Peer> {
        let (end, rest) = chain.split_first()?;
        let parsed = X509Certificate::from_der(end.as_ref());
        let not_after =
            parsed.as_ref().map_or(0, |(_, cert)| cert.validity().not_after.timestamp());
        let verdict = match parsed {
            Ok((_, cert)) => self.verify(end, rest, &cert),
            Err(error) => Err(CertificateError::Unreadable(error)),
        };
        Some(Peer { verdict, not_after })
    }

    fn verify(
        &self,
        end: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        cert: &X509Certificate<'_>,
    ) -> Result<Verified, CertificateError> {
        let now = UnixTime::now();
        let common_name = cert
            .subject()
            .iter_common_name()
            .next()
            .and_then(|cn| cn.as_str().ok())
            .unwrap_or_default();
        match self.client.verify_client_cert(end, rest, now) {
            Ok(_) => Ok(Verified::User(user(end, cert, common_name)?)),
            Err(error) => match &self.proxy {
                Some(proxy) if proxy.verify_client_cert(end, rest, now).is_ok() => {
                    if self.proxy_names.is_empty()
                        || self.proxy_names.iter().any(|n| n == common_name)
                    {
                        Ok(Verified::Proxy)
                    } else {
                        Err(CertificateError::ProxyName { common_name: common_name.to_owned() })
                    }
                }
                _ => Err(CertificateError::Verification(error)),
            },
        }
    }
}

fn verifier(
    ca: &[CertificateDer<'static>],
    name: &'static str,
) -> Result<Arc<dyn ClientCertVerifier>, BadCa> {
    let bad = |why: String| BadCa { ca: name, why };
    let mut roots = RootCertStore::empty();
    for cert in ca {
        roots.add(cert.clone()).map_err(|e| bad(e.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|e| bad(e.to_string()))
}

fn user(
    end: &CertificateDer<'_>,
    cert: &X509Certificate<'_>,
    common_name: &str,
) -> Result<User, CertificateError> {
    if common_name.is_empty() {
        return Err(CertificateError::NoCommonName);
    }
    let groups = cert
        .subject()
        .iter_organization()
        .filter_map(|o| o.as_str().ok())
        .map(str::to_owned)
        .collect();
    let mut fingerprint = String::from("X509SHA256=");
    for byte in digest(&SHA256, end.as_ref()).as_ref() {
        fingerprint.push_str(&format!("{byte:02x}"));
    }
    let extra = [(CREDENTIAL_ID.to_owned(), vec![fingerprint])].into();
    Ok(User { name: common_name.to_owned(), groups, extra, ..User::default() })
}

impl Peer {
    /// The user, unless the certificate has expired since the handshake; for a front proxy, the
    /// user in its headers.
    ///
    /// # Errors
    /// If the certificate is rejected.
    pub(super) fn user(&self, headers: &HeaderMap) -> Result<Option<User>, CertificateError> {
        let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX);
        crate::metrics::requests::EXPIRATION.observe(&[], (self.not_after - now) as f64);
        if self.not_after < i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX) {
            return Err(CertificateError::Expired);
        }
        match &self.verdict {
            Ok(Verified::User(user)) => Ok(Some(user.clone())),
            Ok(Verified::Proxy) => Ok(remote_user(headers)),
            Err(error) => Err(error.clone()),
        }
    }
}

/// The user in the headers `X-Remote-User`, `-Uid`, `-Group` and `-Extra-*` of a front proxy.
fn remote_user(headers: &HeaderMap) -> Option<User> {
    let one = |name: &str| {
        let value = headers.get(name).and_then(super::impersonate::text);
        value.filter(|v| !v.is_empty()).map(str::to_owned)
    };
    let name = one("x-remote-user")?;
    let groups = headers
        .get_all("x-remote-group")
        .iter()
        .filter_map(super::impersonate::text)
        .map(str::to_owned)
        .collect();
    let mut user =
        User { name, uid: one("x-remote-uid").unwrap_or_default(), groups, ..User::default() };
    for (key, value) in headers {
        if let (Some(key), Some(value)) =
            (key.as_str().strip_prefix("x-remote-extra-"), super::impersonate::text(value))
        {
            user.extra.entry(super::impersonate::unescape(key)).or_default().push(value.to_owned());
        }
    }
    Some(user)
}

/// The identity of the peer's certificate, verified once per connection; an extension of each
/// request.
#[derive(Debug, Clone)]
pub struct PeerIdentity(pub Arc<Peer>);

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair,
    };

    fn ca(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(
        ca: &CertifiedIssuer<'static, KeyPair>,
        name: &str,
        groups: &[&str],
        expired: bool,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        // rcgen keeps one value per type; naming the type by its number allows a second one.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        params.signed_by(&KeyPair::generate().unwrap(), ca).unwrap().der().clone()
    }

    fn verify(
        chain: &[CertificateDer<'_>],
        client: &CertifiedIssuer<'_, KeyPair>,
        proxy: &CertifiedIssuer<'_, KeyPair>,
    ) -> Peer {
        let own = |c: &CertificateDer<'_>| [c.clone().into_owned()];
        Verifier::new(&own(client.der()), &own(proxy.der()), &["front"])
            .unwrap()
            .peer(chain)
            .unwrap()
    }

    #[test]
    fn only_certificates_of_the_client_ca_authenticate() {
        let (client, proxy, stranger) = (ca("client"), ca("proxy"), ca("stranger"));
        let forged =
            HeaderMap::from_iter([("x-remote-user".parse().unwrap(), "root".parse().unwrap())]);
        let user = verify(&[leaf(&client, "jane", &["dev", "ops"], false)], &client, &proxy)
            .user(&forged)
            .unwrap()
            .unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups),
            ("jane", vec!["dev".to_owned(), "ops".to_owned()])
        );
        assert!(
            user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256=")
                && user.extra[CREDENTIAL_ID][0].len() == 11 + 64
        );
        assert!(
            verify(&[leaf(&stranger, "jane", &[], false)], &client, &proxy).user(&forged).is_err()
        );
        assert!(
            verify(&[leaf(&client, "jane", &[], true)], &client, &proxy).user(&forged).is_err()
        );
        assert!(
            verify(&[CertificateDer::from(vec![1, 2, 3])], &client, &proxy).user(&forged).is_err()
        );
    }

    #[test]
    fn only_an_allowed_front_proxy_sets_the_user_by_headers() {
        let (client, proxy) = (ca("client"), ca("proxy"));
        let header = |k: &'static str, v: &'static str| {
            (http::HeaderName::from_static(k), http::HeaderValue::from_static(v))
        };
        let headers = HeaderMap::from_iter([
            header("x-remote-user", "jane"),
            header("x-remote-group", "dev"),
            header("x-remote-extra-a%2fb", "c"),
        ]);
        let user = verify(&[leaf(&proxy, "front", &[], false)], &client, &proxy)
            .user(&headers)
            .unwrap()
            .unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups[0].as_str(), user.extra["a/b"][0].as_str()),
            ("jane", "dev", "c")
        );
        assert!(
            verify(&[leaf(&proxy, "other", &[], false)], &client, &proxy).user(&headers).is_err()
        );
    }
}
