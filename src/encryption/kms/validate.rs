//! Validates what plugins return and what is stored, like upstream's `ValidateEncryptedObject`
//! (`encrypt/envelope/kmsv2/envelope.go`).

use api::validation::names::name_is_subdomain;

use super::wire::{Annotations, Stored};
use crate::errors::{AnnotationError, KeyIdError, ObjectError, SourceError};

/// The maximum length of a key ID and of an encrypted seed, then that of annotations, in bytes.
const TEXT_MAX: usize = 1024;
pub(super) const ANNOTATIONS_MAX: usize = 32 * 1024;

/// Validates the ID of a key.
pub(super) fn key_id(id: &str) -> Result<(), KeyIdError> {
    match id.len() {
        0 => Err(KeyIdError::Empty),
        1..=TEXT_MAX => Ok(()),
        length => Err(KeyIdError::TooLong { length, max: TEXT_MAX }),
    }
}

fn encrypted_source(source: &[u8]) -> Result<(), SourceError> {
    match source.len() {
        0 => Err(SourceError::Empty),
        1..=TEXT_MAX => Ok(()),
        length => Err(SourceError::TooLong { length, max: TEXT_MAX }),
    }
}

fn annotation_errors(annotations: &Annotations) -> Vec<AnnotationError> {
    let mut errors = Vec::new();
    for name in annotations.keys() {
        let invalid = |reason: String| AnnotationError::Name { name: name.clone(), reason };
        let plain = name.strip_suffix('.').unwrap_or(name);
        let reasons = name_is_subdomain(plain, false);
        if name.is_empty() {
            errors.push(AnnotationError::NoName);
        } else if !reasons.is_empty() {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            errors.push(invalid(reasons.join(",")));
        } else if !plain.contains('.') {
            let reason = "should be a domain with at least two segments separated by dots";
            errors.push(invalid(reason.to_owned()));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS_MAX {
        errors.push(AnnotationError::Size { size, max: ANNOTATIONS_MAX });
    }
    errors
}

/// Validates an encrypted seed with the ID of its key and its annotations.
pub(super) fn sealed_key(
    source: &[u8],
    id: &str,
    annotations: &Annotations,
) -> Result<(), ObjectError> {
    encrypted_source(source).map_err(ObjectError::Source)?;
    key_id(id).map_err(ObjectError::KeyId)?;
    let errors = annotation_errors(annotations);
    if errors.is_empty() { Ok(()) } else { Err(ObjectError::Annotations(errors)) }
}

/// Decodes and validates a stored object, the value after the prefix.
pub(super) fn decode(rest: &[u8]) -> Result<Stored, ObjectError> {
    let stored = Stored::decode(rest)?;
    if stored.data.is_empty() {
        return Err(ObjectError::NoData);
    }
    sealed_key(&stored.source, &stored.key_id, &stored.annotations)?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of upstream's `envelope_test.go`.
    #[test]
    fn lengths_and_annotation_names_are_limited() {
        let good = Annotations::from([("a.example.com".to_owned(), vec![1])]);
        assert_eq!(sealed_key(b"x", "k", &good), Ok(()));
        let named = |name: &str, size: usize| Annotations::from([(name.to_owned(), vec![1; size])]);
        for (source, id, annotations, want) in [
            (
                &b""[..],
                "k",
                good.clone(),
                "failed to validate encrypted DEK source: encrypted DEK source is empty",
            ),
            (
                &[1; 1025],
                "k",
                good.clone(),
                "failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size of 1024",
            ),
            (b"x", "", good.clone(), "failed to validate key id: keyID is empty"),
            (
                b"x",
                "k",
                named("panda", 1),
                "failed to validate annotations: annotations: Invalid value: \"panda\": should be a domain with at least two segments separated by dots",
            ),
            (
                b"x",
                "k",
                named("a.b", ANNOTATIONS_MAX),
                "failed to validate annotations: total size of annotations is 32771, which exceeds the max size of 32768",
            ),
        ] {
            assert_eq!(sealed_key(source, id, &annotations).unwrap_err().to_string(), want);
        }
    }
}
