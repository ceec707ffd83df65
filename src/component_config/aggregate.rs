//! Joins several error messages into one, in the format of upstream's `utilerrors.Aggregate`.

/// Joins errors like [`aggregate`].
pub fn aggregate_errors<E: std::fmt::Display>(errors: &[E]) -> String {
    aggregate(errors.iter().map(ToString::to_string).collect())
}

/// Joins the messages in brackets without duplicates; a single message is returned unchanged.
pub fn aggregate(mut all: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|text| seen.insert(text.clone()));
    match all.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}
