//! The grammar and the tag of image references, which defaulting requires.

/// Returns whether the tag of a valid reference is `latest`, explicitly or by default. Such an
/// image has the pull policy `Always` by default.
pub fn means_latest(reference: &str) -> bool {
    parts(reference)
        .is_some_and(|(tag, digest)| tag == Some("latest") || (tag.is_none() && digest.is_none()))
}

/// Returns the tag and the digest of a reference by the distribution grammar, normalized as in
/// Docker; returns `None` if the reference is invalid.
fn parts(reference: &str) -> Option<(Option<&str>, Option<&str>)> {
    if reference.len() == 64
        && reference.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    {
        return None; // The reference is a bare image ID.
    }
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    if digest.is_some_and(|d| !digest_ok(d)) {
        return None;
    }
    let (name, tag) = match rest.rfind(':') {
        Some(colon) if !rest[colon..].contains('/') => (&rest[..colon], Some(&rest[colon + 1..])),
        _ => (rest, None),
    };
    if tag.is_some_and(|t| !tag_ok(t)) {
        return None;
    }
    let (domain, path) = match name.split_once('/') {
        Some((head, tail))
            if head.contains(['.', ':']) || head == "localhost" || head.to_lowercase() != head =>
        {
            (Some(head), tail)
        }
        _ => (None, name),
    };
    let fits = domain.map_or("docker.io/library/".len(), str::len) + path.len() < 256;
    let good = fits && domain.is_none_or(domain_ok) && path.split('/').all(component_ok);
    good.then_some((tag, digest))
}

fn tag_ok(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn digest_ok(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let part = |p: &str| {
        p.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && p.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let known = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => false,
    };
    known
        && algorithm.split(['-', '_', '+', '.']).all(part)
        && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn domain_ok(domain: &str) -> bool {
    let (host, port) = domain.split_once(':').map_or((domain, None), |(h, p)| (h, Some(p)));
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
        && host.split('.').all(label)
}

/// Returns whether a path component is valid: lower-case letters and digits, separated by one dot,
/// one or two underscores, or any number of dashes.
fn component_ok(component: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    let bytes = component.as_bytes();
    if !bytes.first().copied().is_some_and(alnum) || !bytes.last().copied().is_some_and(alnum) {
        return false;
    }
    component
        .split(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase())
        .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_and_latest_mean_latest() {
        for image in ["busybox", "nginx:latest", "quay.io/x/y", "localhost:5000/a/b", "a__b/c-d"] {
            assert!(means_latest(image), "{image}");
        }
        let digest = format!("busybox@sha256:{}", "a".repeat(64));
        for image in
            ["nginx:1.27", digest.as_str(), "", "Bad_Name!", "UPPER", "a..b", &"a".repeat(260)]
        {
            assert!(!means_latest(image), "{image}");
        }
    }
}
