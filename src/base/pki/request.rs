//! Certificate requests of machines: the machine generates the key, the CA decides the content.

use std::time::Duration;

use rcgen::{CertificateSigningRequestParams, KeyPair};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest, X509Name};

use crate::SecretValue;

use super::error::RequestMismatch;
use super::{
    Ca, CertificateError, Error, LEAF_VALIDITY, Leaf, Profile, certificates, set_validity,
};

/// Generates a key, as PEM (PKCS#8, ECDSA P-256).
///
/// # Errors
/// When key generation fails.
pub fn new_key() -> Result<SecretValue<String>, Error> {
    KeyPair::generate()
        .map(|key| key.serialize_pem().into())
        .map_err(|e| Error::Sign { name: "a new key".into(), why: e.to_string() })
}

/// Creates a PEM request with the common name and organization of `profile`. It requests no names
/// and usages: the CA decides those.
///
/// # Errors
/// When the key cannot be parsed.
pub fn request(profile: &Profile, key_pem: &str) -> Result<String, Error> {
    let sign =
        |e: rcgen::Error| Error::Sign { name: profile.common_name.clone(), why: e.to_string() };
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(organization) = &profile.organization {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization.as_str());
    }
    params.distinguished_name.push(rcgen::DnType::CommonName, profile.common_name.as_str());
    let key = KeyPair::from_pem(key_pem).map_err(sign)?;
    params.serialize_request(&key).and_then(|made| made.pem()).map_err(sign)
}

/// End of validity of the first certificate of a PEM text, in seconds since the epoch.
///
/// # Errors
/// [`CertificateError`].
pub fn not_after(cert_pem: &str) -> Result<i64, CertificateError> {
    let der = certificates(cert_pem)?.into_iter().next().ok_or(CertificateError::Missing)?;
    let (_, cert) = X509Certificate::from_der(&der).map_err(CertificateError::Der)?;
    Ok(cert.validity().not_after.timestamp())
}

/// The last certificate of the first one's chain within the bundle, as DER.
pub(crate) fn root_of(bundle: &[Vec<u8>]) -> Option<Vec<u8>> {
    let parsed: Vec<_> = bundle
        .iter()
        .map(|der| X509Certificate::from_der(der).map(|(_, cert)| cert).ok())
        .collect::<Option<_>>()?;
    let mut at = 0;
    // A chain is at most as long as the bundle.
    for _ in 0..parsed.len() {
        let cert = parsed.get(at)?;
        if cert.issuer() == cert.subject() {
            break;
        }
        let Some(above) = parsed.iter().position(|c| c.subject() == cert.issuer()) else { break };
        at = above;
    }
    bundle.get(at).cloned()
}

impl Ca {
    /// Signs a certificate of `profile` for the key of a request, valid for [`LEAF_VALIDITY`] from
    /// `now` (seconds since the epoch). `key_pem` of the result is empty: the key never leaves its
    /// machine.
    ///
    /// # Errors
    /// When the request is damaged, names another user or group, or requests names or usages.
    pub fn sign_request(&self, csr_pem: &str, profile: &Profile, now: u64) -> Result<Leaf, Error> {
        let bad = |why: String| Error::Sign { name: profile.common_name.clone(), why };
        let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
            .map_err(|e| bad(format!("no PEM request: {e}")))?;
        check(&der, profile).map_err(|e| bad(e.to_string()))?;
        let request = CertificateSigningRequestParams::from_der(&der)
            .map_err(|e| bad(format!("no request: {e}")))?;
        let mut params = profile.params().map_err(|e| bad(e.to_string()))?;
        set_validity(&mut params, now, LEAF_VALIDITY);
        let cert =
            params.signed_by(&request.public_key, &self.issuer).map_err(|e| bad(e.to_string()))?;
        Ok(Leaf {
            cert_pem: format!("{}{}", cert.pem(), self.cert_pem),
            key_pem: SecretValue::default(),
            not_after: i64::try_from(
                Duration::from_secs(now).saturating_add(LEAF_VALIDITY).as_secs(),
            )
            .unwrap_or(i64::MAX),
        })
    }
}

/// Checks that the request contains exactly the profile's user and group.
fn check(der: &[u8], profile: &Profile) -> Result<(), RequestMismatch> {
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(RequestMismatch::Der)?;
    if !rest.is_empty() {
        return Err(RequestMismatch::TrailingBytes);
    }
    if request.certification_request_info.iter_attributes().next().is_some() {
        return Err(RequestMismatch::Extensions);
    }
    let subject = &request.certification_request_info.subject;
    let wanted: Vec<&str> = profile
        .organization
        .iter()
        .map(String::as_str)
        .chain([profile.common_name.as_str()])
        .collect();
    if names(subject) != Some(wanted) {
        return Err(RequestMismatch::Subject(subject.to_string()));
    }
    Ok(())
}

/// Organizations, then common names; `None` if the subject has other attributes.
fn names<'a>(subject: &'a X509Name<'_>) -> Option<Vec<&'a str>> {
    let organizations = subject.iter_organization();
    let all = organizations.chain(subject.iter_common_name());
    let names = all.map(|a| a.as_str().ok()).collect::<Option<Vec<_>>>()?;
    (subject.iter_attributes().count() == names.len()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::reloadable_cert::LiveCert;

    fn ca(dir: &tempfile::TempDir, name: &str) -> Ca {
        let at = |end: &str| dir.path().join(format!("{name}.{end}"));
        Ca::load_or_create(&at("crt"), &at("key"), name).unwrap()
    }

    #[test]
    fn a_certificate_has_the_key_of_the_request_and_the_names_of_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        let ca = ca(&dir, "ca");
        let key_pem = new_key().unwrap();
        let asked = Profile::server("edge2", &[], &[]);
        let csr = request(&asked, &key_pem).unwrap();
        let granted = Profile::server("edge2", &["edge2".into()], &["192.0.2.7".parse().unwrap()]);
        let signed = ca.sign_request(&csr, &granted, 1_800_000_000).unwrap();
        assert_eq!(signed.not_after, 1_800_000_000 + 365 * 24 * 60 * 60);
        assert_eq!(not_after(&signed.cert_pem).unwrap(), signed.not_after);
        let der = certificates(&signed.cert_pem).unwrap();
        let (_, cert) = X509Certificate::from_der(&der[0]).unwrap();
        let names = &cert.subject_alternative_name().unwrap().unwrap().value.general_names;
        assert_eq!(names.len(), 2);
        LiveCert::new(&Leaf { key_pem, ..signed }).unwrap();
    }

    #[test]
    fn a_request_with_another_subject_or_extensions_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = ca(&dir, "ca");
        let key_pem = new_key().unwrap();
        let node = Profile::client("system:node:a", Some("system:nodes"));
        let refused = |asked: &Profile| {
            let csr = request(asked, &key_pem).unwrap();
            ca.sign_request(&csr, &node, 0).map(drop).unwrap_err().to_string()
        };
        for (user, group) in [
            ("system:node:b", Some("system:nodes")),
            ("system:node:a", Some("system:masters")),
            ("system:node:a", None),
        ] {
            let text = refused(&Profile::client(user, group));
            assert!(text.contains("the request is for"), "{text}");
        }
        let key = KeyPair::from_pem(&key_pem).unwrap();
        let wide = rcgen::CertificateParams::new(["kubernetes".to_owned()]).unwrap();
        let csr = wide.serialize_request(&key).unwrap().pem().unwrap();
        let text = ca.sign_request(&csr, &node, 0).map(drop).unwrap_err().to_string();
        assert!(text.contains("asks for names or usages"), "{text}");
        let csr = request(&node, &key_pem).unwrap();
        let cut = csr.replacen('M', "N", 1);
        assert!(ca.sign_request(&cut, &node, 0).is_err());
        assert!(ca.sign_request("", &node, 0).is_err());
    }

    #[test]
    fn the_root_of_a_bundle_is_found_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (ca(&dir, "root"), ca(&dir, "other"));
        let leaf = root.issue(&Profile::client("a", None)).unwrap();
        let leaf = certificates(&leaf.cert_pem).unwrap()[0].to_vec();
        let (root, other) = (root.der().to_vec(), other.der().to_vec());
        assert_eq!(root_of(&[leaf.clone(), other.clone(), root.clone()]), Some(root.clone()));
        assert_eq!(root_of(&[root.clone(), leaf]), Some(root));
        assert_eq!(root_of(&[]), None);
        assert_eq!(root_of(&[b"x".to_vec()]), None);
    }
}
