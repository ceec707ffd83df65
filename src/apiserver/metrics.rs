//! The metrics of the API server: tables of families with upstream's names, and functions that
//! update them.

pub(crate) mod admission;
pub(crate) mod exposition;
pub(crate) mod request_totals;
pub(crate) mod requests;
pub(crate) mod storage;

/// All families, in the order of `/metrics`.
const ALL: [&[&base::metrics::Family]; 5] =
    [&admission::ALL, &requests::ALL, &webhook::METRICS, &storage::ALL, &encryption::METRICS];

/// Appends all families to `out`.
pub(crate) fn render(out: &mut String) {
    for family in ALL.iter().flat_map(|families| families.iter()) {
        family.render(out);
    }
}

/// The label value `true` or `false`.
pub(crate) fn word(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}
