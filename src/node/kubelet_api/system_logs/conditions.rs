//! The conditional headers of RFC 9110 as Go's `checkPreconditions` reads them for files, which have no entity tag.

use http::HeaderMap;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// What the headers of a request say about its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Proceed,
    NotModified,
    Failed,
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// Seconds since the epoch of an HTTP date.
fn date(headers: &HeaderMap, name: &http::HeaderName) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text(headers, name)?).ok().map(|at| at.timestamp().as_second())
}

/// An HTTP date; empty for one that has none.
pub(super) fn format(modified: i64) -> String {
    Timestamp::from_second(modified)
        .and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at))
        .unwrap_or_default()
}

/// The client has the file as it is.
pub(super) fn unmodified_since(headers: &HeaderMap, modified: i64) -> bool {
    date(headers, &IF_MODIFIED_SINCE).is_some_and(|since| modified <= since)
}

/// Whether and how the request is answered.
pub(super) fn check(headers: &HeaderMap, modified: i64) -> Condition {
    let failed = match text(headers, &IF_MATCH) {
        Some(tags) => !has_star(tags),
        None => date(headers, &IF_UNMODIFIED_SINCE).is_some_and(|since| modified > since),
    };
    if failed {
        return Condition::Failed;
    }
    let unmodified = match text(headers, &IF_NONE_MATCH) {
        Some(tags) => has_star(tags),
        None => unmodified_since(headers, modified),
    };
    if unmodified { Condition::NotModified } else { Condition::Proceed }
}

/// `*` matches every file, an entity tag none.
fn has_star(tags: &str) -> bool {
    tags.split(',').any(|tag| tag.trim() == "*")
}

/// The ranges that a client asks for belong to the file as it is.
pub(super) fn range_is_current(headers: &HeaderMap, modified: i64) -> bool {
    text(headers, &IF_RANGE).is_none() || date(headers, &IF_RANGE) == Some(modified)
}
