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
