//! Validation of certificate signers: their names, the names of their trust bundles, and the
//! certificate requests of pods.
//!
//! The rules and texts are those of upstream's `pkg/apis/core/validation/names.go` and
//! `validation.go`.

use serde_json::Value;

use super::{each, names};
use crate::field::{Error, ErrorList, Path, go_quote};
use crate::value::entries;

/// Minimum lifetime of a pod certificate that can be requested, in seconds.
pub const EXPIRATION_MIN: i64 = 3600;
/// Maximum lifetime of a pod certificate that can be requested, in seconds: 91 days.
const EXPIRATION_MAX: i64 = 91 * 24 * 3600;
/// The maximum lifetime for signers of `kubernetes.io` and its subdomains, in seconds: one day.
const KUBERNETES_EXPIRATION_MAX: i64 = 24 * 3600;
/// Maximum length in bytes of the domain of a signer name.
const DOMAIN_MAX: usize = 253;
/// Maximum length in bytes of a signer name: the domain, a slash, and a path with the length of a
/// label, a dot and a subdomain.
const NAME_MAX: usize = DOMAIN_MAX + 1 + (253 + 63 + 1);
/// Maximum total size in bytes of the keys and values of all user annotations.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// A check of one part of a name.
type NameCheck = fn(&str) -> names::Messages;

/// Validates a signer name of the form `domain.example/path` (`ValidateSignerName`).
pub fn signer_name(name: &str, field: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let Some((domain, path)) = name.split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let text =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return vec![Error::invalid(field, name, text)];
    };
    let mut errors = ErrorList::new();
    if domain.len() > DOMAIN_MAX {
        errors.push(Error::too_long(field, DOMAIN_MAX));
    }
    let parts: [(&str, NameCheck); 2] =
        [(domain, names::dns1123_label), (path, names::dns1123_subdomain)];
    for (index, (part, rule)) in parts.into_iter().enumerate() {
        let bad = part.split('.').map(|label| (label, rule(label))).find(|(_, e)| !e.is_empty());
        if let Some((label, texts)) = bad {
            let label = go_quote(label);
            let texts = texts.into_iter().map(|t| format!("validating label {label}: {t}"));
            errors.extend(each(field, part, texts.collect()));
        }
        if index == 0 && !domain.contains('.') {
            let text = "should be a domain with at least two segments separated by dots";
            errors.push(Error::invalid(field, domain, text));
        }
    }
    if name.len() > NAME_MAX {
        errors.push(Error::too_long(field, NAME_MAX));
    }
    errors
}

/// The maximum lifetime, in seconds, of a pod certificate of a signer.
pub fn expiration_max(signer: &str) -> i64 {
    let domain = signer.split('/').next().unwrap_or_default();
    if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") {
        KUBERNETES_EXPIRATION_MAX
    } else {
        EXPIRATION_MAX
    }
}

/// Validates the name of a ClusterTrustBundle: it begins with the name of the signer; without a
/// signer it has no colon (`ValidateClusterTrustBundleName`).
pub fn bundle_name(name: &str, signer: &str) -> names::Messages {
    if signer.is_empty() {
        if name.contains(':') {
            return vec![
                "ClusterTrustBundle without signer name must not have \":\" in its name".to_owned(),
            ];
        }
        return names::name_is_subdomain(name, false);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::name_is_subdomain(rest, false),
        None => vec![format!(
            "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
        )],
    }
}

/// The signer in the name of a ClusterTrustBundle; empty if the name has none.
pub fn signer_of_bundle(name: &str) -> String {
    name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default()
}

/// Validates the annotations that a pod passes to its signer: keys have a domain, and the total
/// size is bounded (`ValidateUserAnnotations`).
pub fn user_annotations(object: &Value, key: &str, path: &Path) -> ErrorList {
    let field = path.child(key);
    let mut errors = ErrorList::new();
    let mut size = 0;
    for (name, value) in entries(object, key) {
        size += name.len() + value.as_str().map_or(0, str::len);
        let name = name.to_lowercase();
        if name.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        let texts = names::qualified_name(&name);
        if texts.is_empty() && !name.contains('/') {
            let text = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            errors.push(Error::invalid(&field, name, text));
        } else {
            errors.extend(each(&field, name, texts));
        }
    }
    if size > ANNOTATIONS_MAX {
        errors.push(Error::too_long(&field, ANNOTATIONS_MAX));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_signer_has_a_domain_and_a_path() {
        let faults = |name: &str| texts(&signer_name(name, &Path::new("s")));
        assert_eq!(faults("example.com/a"), [""; 0]);
        assert_eq!(faults(""), ["s: Required value"]);
        assert_eq!(
            faults("example/a"),
            [
                "s: Invalid value: \"example\": should be a domain with at least two segments separated by dots"
            ]
        );
        assert_eq!(
            faults("a.b/c/d"),
            [
                "s: Invalid value: \"a.b/c/d\": must be a fully qualified domain and path of the form 'example.com/signer-name'"
            ]
        );
        let long = format!("a.b/{}", vec!["x".repeat(100); 6].join("."));
        assert_eq!(faults(&long), ["s: Too long: may not be more than 571 bytes"]);
    }

    #[test]
    fn signers_of_kubernetes_give_a_day() {
        assert_eq!(expiration_max("example.com/a"), 7_862_400);
        assert_eq!(expiration_max("kubernetes.io/a"), 86_400);
        assert_eq!(expiration_max("x.kubernetes.io/a"), 86_400);
        assert_eq!(expiration_max("xkubernetes.io/a"), 7_862_400);
    }

    #[test]
    fn bundles_are_named_after_their_signer() {
        assert_eq!(bundle_name("a.b:c:0", "a.b/c"), [""; 0]);
        assert_eq!(
            bundle_name("x", "a.b/c"),
            ["ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:"]
        );
        assert_eq!(signer_of_bundle("a.b:c:0"), "a.b/c");
        assert_eq!(signer_of_bundle("plain"), "");
    }

    #[test]
    fn user_annotations_have_keys_with_a_domain() {
        let of = |value| texts(&user_annotations(&json!({"a": value}), "a", &Path::new("s")));
        assert_eq!(of(json!({"acme.io/Foo": "x"})), [""; 0]);
        assert_eq!(
            of(json!({"foo": "x"})),
            [
                "s.a: Invalid value: \"foo\": must be a domain-prefixed key (such as \"acme.io/foo\")"
            ]
        );
        assert_eq!(of(json!({"": "x"})), ["s.a: Required value"]);
        assert_eq!(
            of(json!({"a.b/c": "x".repeat(262_144)})),
            ["s.a: Too long: may not be more than 262144 bytes"]
        );
    }
}
