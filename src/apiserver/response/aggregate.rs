//! Several error messages as one, as upstream's `utilerrors.Aggregate` shows them.

/// Joins the messages in brackets; repeated ones are shown once, and one alone stays as it is.
pub(crate) fn aggregate(mut all: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|text| seen.insert(text.clone()));
    match all.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}
