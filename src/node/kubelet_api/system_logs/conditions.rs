//! The conditional headers of RFC 9110 as Go's `checkPreconditions` reads them for files, which
//! have no entity tag.

use http::HeaderMap;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

/// The result of the conditional headers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Proceed,
    NotModified,
    Failed,
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// Parses an HTTP date to seconds since the epoch.
fn date(headers: &HeaderMap, name: &http::HeaderName) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text(headers, name)?).ok().map(|at| at.timestamp().as_second())
}

/// Formats an HTTP date; empty for a time out of range.
pub(super) fn format(modified: i64) -> String {
    Timestamp::from_second(modified)
        .and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at))
        .unwrap_or_default()
}

/// Whether the client has the current version of the file.
pub(super) fn unmodified_since(headers: &HeaderMap, modified: i64) -> bool {
    date(headers, &IF_MODIFIED_SINCE).is_some_and(|since| modified <= since)
}

/// Evaluates the conditional headers.
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

/// `*` matches every file, an entity tag matches none.
fn has_star(tags: &str) -> bool {
    tags.split(',').any(|tag| tag.trim() == "*")
}

/// Whether the requested ranges refer to the current version of the file.
pub(super) fn range_is_current(headers: &HeaderMap, modified: i64) -> bool {
    text(headers, &IF_RANGE).is_none() || date(headers, &IF_RANGE) == Some(modified)
}
