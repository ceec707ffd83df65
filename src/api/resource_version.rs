//! Order of resource versions (`k8s.io/apimachinery/pkg/util/resourceversion`): decimal numbers of
//! any length without leading zeros.

use std::cmp::Ordering;

/// A text that is no resource version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource version is not well formed: {0}")]
pub struct NotWellFormed(pub String);

/// Checks that a text is a resource version that an object can have; `0` is none.
///
/// # Errors
/// The text is empty, begins with a zero, or has characters other than digits.
pub fn check(version: &str) -> Result<(), NotWellFormed> {
    let digits = version.bytes().all(|byte| byte.is_ascii_digit());
    if version.is_empty() || version.starts_with('0') || !digits {
        return Err(NotWellFormed(version.to_owned()));
    }
    Ok(())
}

/// Compares two resource versions of objects of the same resource.
///
/// # Errors
/// One of them is not well formed.
pub fn compare(a: &str, b: &str) -> Result<Ordering, NotWellFormed> {
    check(a)?;
    check(b)?;
    Ok(a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of upstream's `TestCompareResourceVersion`.
    #[test]
    fn versions_of_any_length_are_compared() {
        let long = "1".repeat(40);
        for (a, b, order) in [
            ("100", "200", Ordering::Less),
            ("200", "100", Ordering::Greater),
            ("100", "100", Ordering::Equal),
            ("99", "100", Ordering::Less),
            (&*long, "9", Ordering::Greater),
        ] {
            assert_eq!(compare(a, b), Ok(order), "{a} {b}");
        }
        for (a, b, bad) in [("", "1", ""), ("1", "0", "0"), ("a1", "1", "a1"), ("1", "01", "01")] {
            assert_eq!(compare(a, b), Err(NotWellFormed(bad.into())), "{a} {b}");
        }
    }
}
