//! Validates the certificates that a signer issues: a leaf for the requested key, within the limits
//! of the request.

use std::time::Duration;

use api::field::{Error, ErrorList, Path};
use api::value::{get, int_at, str_at};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::key;

/// `MaxCertificateChainSize`, in bytes.
const CHAIN_MAX: usize = 100 * 1024;
/// Largest difference between now and the begin of a certificate, in seconds.
const SKEW: i64 = 5 * 60;
/// Shortest lifetime of a certificate, in seconds.
const LIFE_MIN: i64 = 3600;
/// Shortest time between the refresh and either end of the lifetime, in seconds.
const MARGIN: i64 = 10 * 60;

/// Errors of an issued status; `spec` is that of the request.
pub(super) fn issued(status: &Value, spec: &Value, now: Duration) -> ErrorList {
    match leaf(status, spec) {
        Err(errors) => errors,
        Ok((begin, end)) => times(status, spec, begin, end, now)
            .and_then(|()| rest(str_at(status, "certificateChain")))
            .err()
            .into_iter()
            .collect(),
    }
}

fn field() -> Path {
    Path::new("status").child("certificateChain")
}

fn wrong(chain: &str, why: &str) -> Error {
    Error::invalid(&field(), chain, why)
}

/// The blocks of a PEM text; other text is skipped.
fn blocks(chain: &str) -> impl Iterator<Item = Pem> {
    Pem::iter_from_buffer(chain.as_bytes()).flatten()
}

fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    rest.is_empty().then_some(certificate)
}

/// Validates the leaf: a certificate with valid names for the requested key, whose times the status
/// has. Returns the seconds since the epoch at which it begins and ends.
fn leaf(status: &Value, spec: &Value) -> Result<(i64, i64), ErrorList> {
    let chain = str_at(status, "certificateChain");
    if chain.len() > CHAIN_MAX {
        return Err(vec![Error::too_long(&field(), CHAIN_MAX)]);
    }
    let no = |why| Err(vec![wrong(chain, why)]);
    let Some(block) = blocks(chain).next() else {
        return no("issued certificate chain must contain at least one certificate");
    };
    if block.label != "CERTIFICATE" {
        return no("issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
    }
    let Some(leaf) = certificate(&block.contents) else {
        return no("leaf certificate does not parse as valid X.509");
    };
    let Ok(subjects) = leaf.subject_alternative_name() else {
        return no("leaf certificate does not parse as valid X.509");
    };
    let subjects = subjects.map(|s| s.value.general_names.as_slice()).unwrap_or_default();
    let mut errors = names(subjects);
    let der = STANDARD.decode(str_at(spec, "stubPKCS10Request")).unwrap_or_default();
    let Some(request) = key::parse(&der) else {
        let field = Path::new("spec").child("stubPKCS10Request");
        errors.push(Error::omitted(&field, "must be a valid PKCS#10 CSR"));
        return Err(errors);
    };
    if request.certification_request_info.subject_pki.raw != leaf.public_key().raw {
        errors.push(wrong(chain, "leaf certificate was not issued to the requested public key"));
        return Err(errors);
    }
    let consistent = "must be present and consistent with the issued certificate";
    for (key, text) in [
        ("notBefore", consistent),
        ("notAfter", consistent),
        ("beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]"),
    ] {
        if get(status, key).is_null() {
            errors.push(Error::required(&Path::new("status").child(key), text));
        }
    }
    let validity = leaf.validity();
    let times = (validity.not_before.timestamp(), validity.not_after.timestamp());
    if errors.is_empty() { Ok(times) } else { Err(errors) }
}

/// Errors of the names of the leaf.
fn names(subjects: &[GeneralName<'_>]) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut no = |name: &str, why| errors.push(wrong(name, why));
    for subject in subjects {
        match subject {
            GeneralName::DNSName(name) => {
                if name.is_empty() {
                    no(name, "leaf certificate should not contain empty DNSName");
                }
                if name.contains("..") {
                    no(name, "leaf certificate's DNSName should not contain '..'");
                }
                if name.starts_with('.') || name.ends_with('.') {
                    no(name, "leaf certificate's DNSName should not start or end with '.'");
                }
            }
            GeneralName::RFC822Name(name) if !is_address(name) => {
                no(name, "leaf certificate should not contain invalid EmailAddress");
            }
            _ => {}
        }
    }
    errors
}

/// Whether a text is an address of RFC 5322: `local@domain`, possibly in angle brackets after a
/// name.
fn is_address(text: &str) -> bool {
    let text = text.trim();
    let bare = match text.strip_suffix('>') {
        Some(inner) => inner.rsplit_once('<').map(|(_, bare)| bare),
        None => Some(text),
    };
    let Some((local, domain)) = bare.and_then(|bare| bare.rsplit_once('@')) else { return false };
    let atom = |c: char| c.is_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let atoms = |text: &str| text.split('.').all(|a| !a.is_empty() && a.chars().all(atom));
    let quoted = |t: &str| t.len() > 2 && t.starts_with('"') && t.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (atoms(local) || quoted(local)) && (atoms(domain) || literal)
}

/// Validates that the status has the times of the leaf and that these are within the limits.
fn times(status: &Value, spec: &Value, begin: i64, end: i64, now: Duration) -> Result<(), Error> {
    let time = |key: &str| -> Result<(Timestamp, &str, Path), Error> {
        let (text, field) = (str_at(status, key), Path::new("status").child(key));
        let parsed = text.parse::<Timestamp>();
        parsed.map_err(|_| Error::invalid(&field, text, "must be a time")).map(|t| (t, text, field))
    };
    let at = |seconds: i64| Timestamp::from_second(seconds).unwrap_or_default();
    let (not_before, text, field) = time("notBefore")?;
    if not_before != at(begin) {
        let why = "must be set to the NotBefore time encoded in the leaf certificate";
        return Err(Error::invalid(&field, text, why));
    }
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if not_before <= at(now.saturating_sub(SKEW)) || not_before >= at(now.saturating_add(SKEW)) {
        let why = "must be set to within 5 minutes of kube-apiserver's current time";
        return Err(Error::invalid(&field, text, why));
    }
    let (not_after, text, field) = time("notAfter")?;
    if not_after != at(end) {
        let why = "must be set to the NotAfter time encoded in the leaf certificate";
        return Err(Error::invalid(&field, text, why));
    }
    let life = end.saturating_sub(begin);
    let max = int_at(spec, "maxExpirationSeconds").unwrap_or_default();
    if life < LIFE_MIN || life > max {
        let why = if life < LIFE_MIN {
            "leaf certificate lifetime must be >= 1 hour".to_owned()
        } else {
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({max})")
        };
        // Upstream prints a duration in nanoseconds.
        return Err(Error::invalid(&self::field(), life.saturating_mul(1_000_000_000), why));
    }
    let (refresh, text, field) = time("beginRefreshAt")?;
    let why = if refresh < at(begin.saturating_add(MARGIN)) {
        "must be at least 10 minutes after status.notBefore"
    } else if refresh > at(end.saturating_sub(MARGIN)) {
        "must be at least 10 minutes before status.notAfter"
    } else {
        return Ok(());
    };
    Err(Error::invalid(&field, text, why))
}

/// Validates that only certificates follow the leaf.
fn rest(chain: &str) -> Result<(), Error> {
    for block in blocks(chain).skip(1) {
        if block.label != "CERTIFICATE" {
            // Upstream's spelling.
            let why = "issued certificate chain must consist entirely of CERTFICATE PEM blocks";
            return Err(wrong(chain, why));
        }
        if certificate(&block.contents).is_none() {
            return Err(wrong(chain, "intermediate certificate does not parse as valid X.509"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_local_part_and_a_domain() {
        for good in ["a@b.c", "\"x y\"@b.c", "Jane <jane@b.c>", "a@[1.2.3.4]"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "a", "@b.c", "a@", "a b@c", "a..b@c", "Jane jane@b.c>"] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
