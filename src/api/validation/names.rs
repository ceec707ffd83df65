//! The formats of names, labels, keys and numbers, which CEL expressions use as well.

pub use kcel::names::*;

/// Validates a fully qualified domain name: a subdomain of at least two labels.
pub fn fully_qualified(field: &crate::field::Path, name: &str) -> crate::field::ErrorList {
    use crate::field::Error;
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let trimmed = name.strip_suffix('.').unwrap_or(name);
    let errors = dns1123_subdomain(trimmed);
    if !errors.is_empty() {
        return vec![Error::invalid(field, trimmed, errors.join(","))];
    }
    if trimmed.split('.').count() < 2 {
        return vec![Error::invalid(
            field,
            trimmed,
            "should be a domain with at least two segments separated by dots",
        )];
    }
    let bad = trimmed.split('.').find_map(|label| {
        Some((label, dns1123_label(label))).filter(|(_, errors)| !errors.is_empty())
    });
    bad.map(|(label, errors)| Error::invalid(field, label, errors.join(","))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::validation::tests::same;

    /// `IsFullyQualifiedDomainName` of `k8s.io/apimachinery/pkg/util/validation`.
    #[test]
    fn domains_have_at_least_two_labels() {
        let check = |name: &str, expected: &[&str]| {
            same(&fully_qualified(&Path::new("d"), name), expected);
        };
        check("a.com", &[]);
        check("k8s.io.", &[]);
        check("dev.k8s.io", &[]);
        check("foo.example.com", &[]);
        check("", &["d: Required value"]);
        const TWO: &str = "should be a domain with at least two segments separated by dots";
        check("io", &[&format!("d: Invalid value: \"io\": {TWO}")]);
        check("io.", &[&format!("d: Invalid value: \"io\": {TWO}")]);
        for name in ["k8s.i&o", ".k8s.io", "-k8s.io", "*.example.com", "Example.com"] {
            let text = format!("d: Invalid value: \"{name}\": a lowercase RFC 1123 subdomain...");
            check(name, &[&text]);
        }
        let long = "a".repeat(64);
        check(
            &format!("{long}.com"),
            &[&format!("d: Invalid value: \"{long}\": must be no more than 63 characters")],
        );
    }
}
