//! Validation of projected volumes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::volumes::{downward_file, key_to_path, local_path, mode};
use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::validate_selector;
use crate::validation::{each, one_of, signers};
use crate::value::{get, has, int_at, items, str_at};

const KEY_TYPES: [&str; 6] =
    ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

/// Validates a `projected` volume source and its file paths, which are distinct.
pub(super) fn projected(volume: &Value, path: &Path) -> ErrorList {
    let mut errors: ErrorList = mode(volume, "defaultMode", path).into_iter().collect();
    let mut paths = BTreeSet::new();
    for (index, source) in items(volume, "sources").iter().enumerate() {
        let at = path.child("sources").index(index);
        let mut count = 0;
        for kind in [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ] {
            let Some(part) = source.get(kind).filter(|p| p.is_object()) else { continue };
            count += 1;
            let field = at.child(kind);
            match kind {
                "secret" | "configMap" => errors.extend(keyed(part, path, &field, &mut paths)),
                "downwardAPI" => {
                    for file in items(part, "items") {
                        errors.extend(downward_file(file, &field));
                        errors.extend(claim_path(
                            str_at(file, "path"),
                            str_at(file, "path"),
                            path,
                            &mut paths,
                        ));
                    }
                }
                "serviceAccountToken" => errors.extend(token(part, path, &field)),
                "clusterTrustBundle" => {
                    errors.extend(bundle(part, &field));
                    let file = str_at(part, "path");
                    if !paths.insert(file.to_owned()) {
                        errors.push(Error::invalid(path, file, "conflicting duplicate paths"));
                    }
                }
                _ => errors.extend(certificate(part, path, &field, &mut paths)),
            }
        }
        if count > 1 {
            errors
                .push(Error::forbidden(&at, "may not specify more than 1 volume type per source"));
        }
    }
    errors
}

fn claim_path(file: &str, shown: &str, path: &Path, paths: &mut BTreeSet<String>) -> Option<Error> {
    let taken = !file.is_empty() && !paths.insert(file.to_owned());
    taken.then(|| Error::invalid(path, shown, "conflicting duplicate paths"))
}

fn keyed(source: &Value, path: &Path, field: &Path, paths: &mut BTreeSet<String>) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = str_at(source, "name");
    if name.is_empty() {
        errors.push(Error::required(&field.child("name"), ""));
    }
    for (index, item) in items(source, "items").iter().enumerate() {
        errors.extend(key_to_path(item, &field.child("items").index(index)));
        errors.extend(claim_path(str_at(item, "path"), name, path, paths));
    }
    errors
}

fn token(source: &Value, path: &Path, field: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let at = field.child("expirationSeconds");
    match int_at(source, "expirationSeconds") {
        None => errors.push(Error::required(&at, "")),
        Some(s) if s < 600 => {
            errors.push(Error::invalid(&at, s, "may not specify a duration less than 10 minutes"))
        }
        Some(s) if s > 1 << 32 => errors.push(Error::invalid(
            &at,
            s,
            "may not specify a duration larger than 2^32 seconds",
        )),
        Some(_) => {}
    }
    let file = str_at(source, "path");
    if file.is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
    } else {
        errors.extend(local_path(file, &path.child("path")));
    }
    errors
}

fn bundle(source: &Value, field: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    match (has(source, "name"), has(source, "signerName")) {
        (true, true) => errors.push(Error::invalid(
            field,
            source.clone(),
            "only one of name and signerName may be used",
        )),
        (true, false) => {
            let name = str_at(source, "name");
            if name.is_empty() {
                errors.push(Error::required(&field.child("name"), "must be a valid object name"));
            }
            let texts = signers::bundle_name(name, &signers::signer_of_bundle(name)).into_iter();
            let texts = texts.map(|text| format!("not a valid clustertrustbundlename: {text}"));
            errors.extend(each(&field.child("name"), name, texts.collect()));
            if has(source, "labelSelector") {
                let text = "labelSelector must be unset if name is specified";
                errors.push(Error::invalid(
                    &field.child("labelSelector"),
                    get(source, "labelSelector").clone(),
                    text,
                ));
            }
        }
        (false, true) => {
            if str_at(source, "signerName").is_empty() {
                errors.push(Error::required(
                    &field.child("signerName"),
                    "must be a valid signer name",
                ));
            }
            let signer = str_at(source, "signerName");
            errors.extend(signers::signer_name(signer, &field.child("signerName")));
            errors.extend(validate_selector(
                get(source, "labelSelector"),
                &field.child("labelSelector"),
                false,
            ));
        }
        (false, false) => {
            errors.push(Error::required(field, "either name or signerName must be specified"))
        }
    }
    let file = str_at(source, "path");
    if file.is_empty() {
        errors.push(Error::required(&field.child("path"), ""));
    }
    errors.extend(local_path(file, &field.child("path")));
    errors
}

fn certificate(
    source: &Value,
    path: &Path,
    field: &Path,
    paths: &mut BTreeSet<String>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let signer = str_at(source, "signerName");
    errors.extend(signers::signer_name(signer, &field.child("signerName")));
    errors.extend(signers::user_annotations(source, "userAnnotations", field));
    errors.extend(one_of(str_at(source, "keyType"), &KEY_TYPES, &field.child("keyType")));
    if let Some(seconds) = int_at(source, "maxExpirationSeconds") {
        let (min, max) = (signers::EXPIRATION_MIN, signers::expiration_max(signer));
        let limit = match seconds {
            s if s < min => Some(format!(">= {min}")),
            s if s > max => Some(format!("<= {max}")),
            _ => None,
        };
        if let Some(limit) = limit {
            let text = format!("if provided, maxExpirationSeconds must be {limit}");
            errors.push(Error::invalid(&field.child("maxExpirationSeconds"), seconds, text));
        }
    }
    let mut count = 0;
    for key in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let file = str_at(source, key);
        if !file.is_empty() {
            count += 1;
            errors.extend(local_path(file, &field.child(key)));
            errors.extend(claim_path(file, file, path, paths));
        }
    }
    if count == 0 {
        errors.push(Error::required(
            field,
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(source: Value) -> Vec<String> {
        let errors = projected(&json!({"sources": [source]}), &Path::new("p"));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_certificate_names_its_signer_key_life_and_files() {
        let source = |signer: &str, seconds: i64| {
            json!({"podCertificate": {"signerName": signer, "keyType": "ED25519",
                "maxExpirationSeconds": seconds, "keyPath": "key", "userAnnotations": {"a.b/c": "d"}}})
        };
        assert_eq!(texts(source("a.b/c", 3600)), [""; 0]);
        assert_eq!(texts(source("a.b/c", 7_862_400)), [""; 0]);
        let life = |text: &str| {
            vec![format!("p.sources[0].podCertificate.maxExpirationSeconds: Invalid value: {text}")]
        };
        assert_eq!(
            texts(source("a.b/c", 3599)),
            life("3599: if provided, maxExpirationSeconds must be >= 3600")
        );
        assert_eq!(
            texts(source("a.b/c", 7_862_401)),
            life("7862401: if provided, maxExpirationSeconds must be <= 7862400")
        );
        assert_eq!(
            texts(source("kubernetes.io/c", 86_401)),
            life("86401: if provided, maxExpirationSeconds must be <= 86400")
        );
        let mut bad = source("unqualified", 3600);
        bad["podCertificate"]["userAnnotations"] = json!({"c": "d"});
        bad["podCertificate"]["certificateChainPath"] = json!("key");
        assert_eq!(
            texts(bad),
            [
                "p.sources[0].podCertificate.signerName: Invalid value: \"unqualified\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
                "p.sources[0].podCertificate.userAnnotations: Invalid value: \"c\": must be a domain-prefixed key (such as \"acme.io/foo\")",
                "p: Invalid value: \"key\": conflicting duplicate paths",
            ]
        );
    }

    #[test]
    fn a_bundle_is_named_as_bundles_are() {
        let source = |name: &str| json!({"clusterTrustBundle": {"name": name, "path": "ca"}});
        assert_eq!(texts(source("a.b:c:0")), [""; 0]);
        assert_eq!(texts(source("plain")), [""; 0]);
        let error = &texts(source("a.b:c:_"))[0];
        assert!(
            error.starts_with(
                "p.sources[0].clusterTrustBundle.name: Invalid value: \"a.b:c:_\": not a valid clustertrustbundlename: a lowercase RFC 1123 subdomain"
            ),
            "{error}"
        );
        let signer = json!({"clusterTrustBundle": {"signerName": "x", "path": "ca"}});
        assert_eq!(
            texts(signer),
            [
                "p.sources[0].clusterTrustBundle.signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'"
            ]
        );
    }
}
