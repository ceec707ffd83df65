//! The metrics of the API server, as tables of families under upstream's names, and what counts
//! them.

pub(crate) mod admission;
pub(crate) mod exposition;
pub(crate) mod request_totals;
pub(crate) mod requests;
pub(crate) mod storage;

/// All families that are counted as things happen, in the order of `/metrics`.
const ALL: [&[&base::metrics::Family]; 3] = [&admission::ALL, &requests::ALL, &storage::ALL];

/// Appends them to `/metrics`.
pub(crate) fn render(out: &mut String) {
    for family in ALL.iter().flat_map(|families| families.iter()) {
        family.render(out);
    }
}

/// `true` or `false`, as labels say it.
pub(crate) fn word(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}
