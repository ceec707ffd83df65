//! Validates a ClusterTrustBundle: named after its signer, with distinct certificates of
//! authorities.

use std::collections::BTreeMap;

use api::field::{Error, ErrorList, Path};
use api::validation::immutable;
use api::validation::signers::{bundle_name, signer_name};
use api::value::{get, str_at, str_in};
use serde_json::Value;
use x509_parser::pem::Pem;

/// `MaxTrustBundleSize`.
const BUNDLE_BYTES_MAX: usize = 1 << 20;
const OMITTED: &str = "<value omitted>";

/// Validates a new bundle.
pub(super) fn validate(object: &Value) -> ErrorList {
    let mut errors = name_and_signer(object);
    errors.extend(anchors(str_in(object, &["spec", "trustBundle"])));
    errors
}

/// Validates a changed bundle; unchanged anchors are not read again.
pub(super) fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = name_and_signer(object);
    let (new, old) = (get(object, "spec"), get(old, "spec"));
    if str_at(new, "trustBundle") != str_at(old, "trustBundle") {
        errors.extend(anchors(str_at(new, "trustBundle")));
    }
    let field = Path::new("spec").child("signerName");
    errors.extend(immutable(get(new, "signerName"), get(old, "signerName"), &field));
    errors
}

/// Validates that name and signer match.
fn name_and_signer(object: &Value) -> ErrorList {
    let name = str_in(object, &["metadata", "name"]);
    let signer = str_in(object, &["spec", "signerName"]);
    let texts = bundle_name(name, signer);
    let field = Path::new("metadata").child("name");
    let mut errors: ErrorList =
        texts.into_iter().map(|text| Error::invalid(&field, name, text)).collect();
    if !signer.is_empty() {
        errors.extend(signer_name(signer, &Path::new("spec").child("signerName")));
    }
    errors
}

fn anchors(bundle: &str) -> ErrorList {
    let field = Path::new("spec").child("trustBundle");
    if bundle.len() > BUNDLE_BYTES_MAX {
        return vec![Error::too_long(&field, BUNDLE_BYTES_MAX)];
    }
    let mut errors = ErrorList::new();
    let mut seen: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (index, block) in Pem::iter_from_buffer(bundle.as_bytes()).flatten().enumerate() {
        match anchor_error(&block) {
            Some(error) => {
                errors.push(Error::invalid(&field, OMITTED, format!("entry {index} {error}")));
            }
            None => seen.entry(block.contents).or_default().push(index),
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    if seen.is_empty() {
        errors.push(Error::invalid(&field, OMITTED, "at least one trust anchor must be provided"));
    }
    for indices in seen.values().filter(|indices| indices.len() > 1) {
        let listed: Vec<String> = indices.iter().map(usize::to_string).collect();
        let text = format!("duplicate trust anchor (indices [{}])", listed.join(" "));
        errors.push(Error::invalid(&field, OMITTED, text));
    }
    errors
}

/// Why a block is not a trust anchor.
fn anchor_error(block: &Pem) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    let Ok(certificate) = block.parse_x509() else {
        return Some("does not parse as X.509".to_owned());
    };
    let constraints = certificate.basic_constraints().ok().flatten();
    let is_ca = constraints.is_some_and(|c| c.value.ca);
    (!is_ca).then(|| "does not have the CA bit set".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn authority() -> String {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("c"), folder.path().join("k"));
        base::pki::Ca::load_or_create(&cert, &key, "test").unwrap().cert_pem().to_owned()
    }

    fn bundle(name: &str, signer: &str, anchors: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": anchors}})
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_begin_with_the_signer_name() {
        let anchors = authority();
        let errors_of = |name, signer| texts(&validate(&bundle(name, signer, &anchors)));
        assert_eq!(errors_of("a.b:c:0", "a.b/c"), [""; 0]);
        assert_eq!(errors_of("plain", ""), [""; 0]);
        assert_eq!(
            errors_of("x", "a.b/c"),
            [
                "metadata.name: Invalid value: \"x\": ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:"
            ]
        );
        assert_eq!(
            errors_of("a:b", ""),
            [
                "metadata.name: Invalid value: \"a:b\": ClusterTrustBundle without signer name must not have \":\" in its name"
            ]
        );
    }

    #[test]
    fn anchors_are_distinct_authorities() {
        let anchors = authority();
        let errors_of = |anchors: &str| texts(&validate(&bundle("a", "", anchors)));
        let invalid = |text: &str| {
            vec![format!("spec.trustBundle: Invalid value: \"<value omitted>\": {text}")]
        };
        assert_eq!(errors_of(""), invalid("at least one trust anchor must be provided"));
        assert_eq!(
            errors_of(&format!("{anchors}{anchors}")),
            invalid("duplicate trust anchor (indices [0 1])")
        );
        let key = anchors.replace("CERTIFICATE", "PRIVATE KEY");
        assert_eq!(errors_of(&key), invalid("entry 0 has bad block type: PRIVATE KEY"));
        let noise = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(errors_of(noise), invalid("entry 0 does not parse as X.509"));
    }

    #[test]
    fn the_signer_is_immutable() {
        let anchors = authority();
        let (old, new) =
            (bundle("a.b:c:0", "a.b/c", &anchors), bundle("a.b:d:0", "a.b/d", &anchors));
        assert_eq!(
            texts(&validate_change(&new, &old)),
            ["spec.signerName: Invalid value: \"a.b/d\": field is immutable"]
        );
    }
}
