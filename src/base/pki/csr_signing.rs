//! Certificate requests of API users (`certificates.k8s.io`): parses the subject of a request and
//! signs the certificate as upstream's `PermissiveSigningPolicy` does. Names come from the request,
//! usages and times from the API object, and other requested extensions are left out.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SubjectPublicKeyInfo,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use super::{Ca, CsrError, SigningError};

/// Certificates start this long before now, which shortens their lifetime unless it is below
/// [`SHORT`] (`signer.go`).
const BACKDATE: Duration = Duration::from_secs(5 * 60);
const SHORT: Duration = Duration::from_secs(8 * 60 * 60);
/// The attribute type of an organization (X.520) as an OID, for a second organization in a name.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// The subject, names and key of a certificate request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsrSubject {
    /// Common name: the user.
    pub common_name: String,
    /// Organizations: the groups.
    pub organizations: Vec<String>,
    /// DNS names.
    pub dns: Vec<String>,
    /// IP addresses.
    pub ips: Vec<IpAddr>,
    /// Email addresses.
    pub emails: Vec<String>,
    /// URIs.
    pub uris: Vec<String>,
    /// Whether the subject has other attributes.
    pub has_other_attributes: bool,
    /// The key, as DER (SubjectPublicKeyInfo).
    pub key: Vec<u8>,
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

impl CsrSubject {
    /// Parses a PEM request and verifies its signature.
    ///
    /// # Errors
    /// [`CsrError`].
    pub fn parse(pem: &[u8]) -> Result<Self, CsrError> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(CsrError::Pem)?;
        let (_, request) =
            X509CertificationRequest::from_der(&block.contents).map_err(CsrError::Der)?;
        let signed = request.verify_signature();
        signed.map_err(CsrError::Signature)?;
        let info = &request.certification_request_info;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).map_err(CsrError::Subject)
        };
        let organizations = info.subject.iter_organization().map(text).collect::<Result<_, _>>()?;
        let names = info.subject.iter_common_name().map(text).collect::<Result<Vec<_>, _>>()?;
        let mut subject = Self {
            organizations,
            key: info.subject_pki.raw.to_vec(),
            common_name: names.last().cloned().unwrap_or_default(),
            ..Self::default()
        };
        let known = subject.organizations.len() + names.len().min(1);
        subject.has_other_attributes = info.subject.iter_attributes().count() != known;
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => subject.dns.push((*name).to_owned()),
                    GeneralName::RFC822Name(name) => subject.emails.push((*name).to_owned()),
                    GeneralName::URI(name) => subject.uris.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => {
                        subject.ips.push(address(bytes).ok_or(CsrError::AddressLength)?)
                    }
                    _ => return Err(CsrError::NameKind),
                }
            }
        }
        Ok(subject)
    }

    fn params(&self, usages: &[String]) -> Result<CertificateParams, SigningError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        if self.has_other_attributes || self.organizations.len() > kinds.len() {
            return Err(SigningError::Subject);
        }
        for (kind, organization) in kinds.into_iter().zip(&self.organizations) {
            params.distinguished_name.push(kind, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        let text = |name: &String| {
            name.as_str().try_into().map_err(|_| SigningError::NotAscii(name.clone()))
        };
        let names = &mut params.subject_alt_names;
        for name in &self.dns {
            names.push(SanType::DnsName(text(name)?));
        }
        for name in &self.emails {
            names.push(SanType::Rfc822Name(text(name)?));
        }
        names.extend(self.ips.iter().map(|ip| SanType::IpAddress(*ip)));
        for name in &self.uris {
            names.push(SanType::URI(text(name)?));
        }
        for usage in usages {
            match usage.as_str() {
                "digital signature" | "signing" => {
                    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
                }
                "key encipherment" => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "client auth" => {
                    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth)
                }
                "server auth" => {
                    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth)
                }
                other => return Err(SigningError::Usage(other.to_owned())),
            }
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

impl Ca {
    /// Signs a certificate, PEM, for a request with these usages (names of the API) and this
    /// validity from `now` (seconds since the epoch), limited by the validity of the CA.
    ///
    /// # Errors
    /// [`SigningError`].
    pub fn sign_csr(
        &self,
        subject: &CsrSubject,
        usages: &[String],
        valid: Duration,
        now: u64,
    ) -> Result<String, SigningError> {
        let (_, own) = X509Certificate::from_der(&self.der).map_err(SigningError::Ca)?;
        let end = u64::try_from(own.validity().not_after.timestamp()).unwrap_or(0);
        if now >= end {
            return Err(SigningError::Expired(own.validity().not_after));
        }
        let mut params = subject.params(usages)?;
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let now = Duration::from_secs(now);
        let valid = if valid < SHORT { valid } else { valid.saturating_sub(BACKDATE) };
        params.not_before = epoch + now.saturating_sub(BACKDATE);
        params.not_after = epoch + now.saturating_add(valid).min(Duration::from_secs(end));
        let key = SubjectPublicKeyInfo::from_der(&subject.key).map_err(SigningError::KeyKind)?;
        params.signed_by(&key, &self.issuer).map(|cert| cert.pem()).map_err(SigningError::Sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::KeyPair;

    fn request(organizations: &[&str], names: &[&str]) -> String {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                .unwrap();
        params.distinguished_name = DistinguishedName::new();
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        for (kind, name) in kinds.into_iter().zip(organizations) {
            params.distinguished_name.push(kind, *name);
        }
        params.distinguished_name.push(DnType::CommonName, "jane");
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_certificate_has_the_names_of_the_request_and_the_usages_of_the_object() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::load_or_create(&dir.path().join("c"), &dir.path().join("k"), "ca").unwrap();
        let now = super::super::now();
        let subject =
            CsrSubject::parse(request(&["dev", "ops"], &["a.b", "192.0.2.7"]).as_bytes()).unwrap();
        assert_eq!(
            (subject.common_name.as_str(), &*subject.organizations),
            ("jane", &words(&["dev", "ops"])[..])
        );
        assert_eq!((subject.dns.len(), subject.ips.len()), (1, 1));
        let usages = words(&["digital signature", "client auth"]);
        let signed = |valid| {
            let pem = ca.sign_csr(&subject, &usages, Duration::from_secs(valid), now).unwrap();
            super::super::certificates(&pem).unwrap().remove(0)
        };
        let der = signed(3600);
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        let organizations: Vec<_> =
            cert.subject().iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(organizations, ["dev", "ops"]);
        let names = cert.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 2);
        let usage = cert.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        assert!(cert.key_usage().unwrap().unwrap().value.digital_signature());
        assert!(!cert.basic_constraints().unwrap().unwrap().value.ca);
        let now = i64::try_from(now).unwrap();
        let times = |cert: &X509Certificate<'_>| {
            let validity = cert.validity();
            (validity.not_before.timestamp() - now, validity.not_after.timestamp() - now)
        };
        assert_eq!(times(&cert), (-300, 3600));
        // Longer validities are shortened by the backdating; none exceeds that of the CA, ten years
        // here.
        let day = signed(86_400);
        assert_eq!(times(&X509Certificate::from_der(&day).unwrap().1), (-300, 86_100));
        let century = signed(100 * 365 * 86_400);
        let (_, end) = times(&X509Certificate::from_der(&century).unwrap().1);
        assert!(end <= 3650 * 86_400, "{end}");
    }

    #[test]
    fn refusals_name_the_unsupported_part() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::load_or_create(&dir.path().join("c"), &dir.path().join("k"), "ca").unwrap();
        let subject = CsrSubject::parse(request(&["dev"], &[]).as_bytes()).unwrap();
        let refusal = |subject: &CsrSubject, usage: &str, now| {
            ca.sign_csr(subject, &words(&[usage]), SHORT, now).unwrap_err().to_string()
        };
        let now = super::super::now();
        assert!(refusal(&subject, "cert sign", now).contains("usage \"cert sign\""));
        assert!(
            refusal(&subject, "client auth", now + 4000 * 86_400)
                .contains("the signer has expired")
        );
        let many = CsrSubject { organizations: words(&["a", "b", "c"]), ..subject };
        assert!(refusal(&many, "client auth", now).contains("at most two organizations"));
        assert!(CsrSubject::parse(b"").is_err());
        // The signature does not match the forged content.
        let pem = request(&["dev"], &[]);
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let at = block.contents.windows(4).position(|four| four == b"jane").unwrap();
        let mut forged = block.contents.clone();
        forged[at..at + 4].copy_from_slice(b"root");
        let forged = super::super::rotation::pem(&forged.into())
            .replace("CERTIFICATE", "CERTIFICATE REQUEST");
        assert!(
            CsrSubject::parse(forged.as_bytes()).unwrap_err().to_string().contains("signature")
        );
    }
}
