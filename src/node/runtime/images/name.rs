//! Converts image references to the full form that runtimes use.

/// Normalizes `busybox` to `docker.io/library/busybox:latest`, as
/// `github.com/distribution/reference` does.
pub fn normalize(reference: &str) -> String {
    let (name, suffix) = split(reference);
    let suffix = if suffix.is_empty() { ":latest" } else { suffix };
    let (registry, path) = match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest.to_owned())
        }
        _ => ("docker.io", name.to_owned()),
    };
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let path = if registry == "docker.io" && !path.contains('/') {
        format!("library/{path}")
    } else {
        path
    };
    format!("{registry}/{path}{suffix}")
}

/// Splits off the suffix, which begins with `:` or `@` or is empty.
pub(crate) fn split(reference: &str) -> (&str, &str) {
    let at = reference.find('@').unwrap_or(reference.len());
    let slash = reference[..at].rfind('/').map_or(0, |i| i + 1);
    let end = reference[slash..at].find(':').map_or(at, |i| slash + i);
    reference.split_at(end)
}

/// Whether the pull policy defaults to `Always`: no digest, and the tag is `latest`.
pub(crate) fn is_latest(reference: &str) -> bool {
    normalize(reference).ends_with(":latest")
}

/// Whether the reference is plausible; the runtime validates it fully.
pub fn is_valid(reference: &str) -> bool {
    let (name, suffix) = split(reference);
    let path_is_fine = |p: &str| {
        !p.is_empty()
            && p.split('/').all(|part| {
                !part.is_empty()
                    && part.bytes().all(|b| {
                        b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b)
                    })
            })
    };
    let path = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => rest,
        _ => name,
    };
    let suffix_is_fine = suffix.is_empty()
        || (suffix.len() > 1
            && suffix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:@+".contains(&b)));
    path_is_fine(path) && suffix_is_fine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_with_registry_and_tag() {
        for (short, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("a/b:1", "docker.io/a/b:1"),
            ("localhost/a", "localhost/a:latest"),
            ("r.io:5000/a", "r.io:5000/a:latest"),
            ("r.io/a@sha256:00", "r.io/a@sha256:00"),
        ] {
            assert_eq!(normalize(short), full);
        }
        assert!(
            is_latest("busybox")
                && is_latest("a:latest")
                && !is_latest("a:1")
                && !is_latest("a@sha256:0")
        );
        assert!(is_valid("a/b:1") && !is_valid("A/b") && !is_valid("") && !is_valid("a b"));
    }
}
