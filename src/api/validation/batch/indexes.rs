//! Validation of the indexes in a job's status, such as `0,2-4`: they are in ascending order and
//! less than `completions` (`validateIndexesFormat` and the related rules of
//! `pkg/apis/batch/validation`).

use serde_json::Value;

use crate::field::{Error, ErrorList, Path, go_quote};
use crate::value::{get, has, int_at, str_at};

/// Returns the errors of `completedIndexes` and `failedIndexes`, as far as the update changes them.
pub(super) fn errors(job: &Value, old: &Value) -> ErrorList {
    let (spec, status, was) = (get(job, "spec"), get(job, "status"), get(old, "status"));
    let path = Path::new("status");
    let (done, failed) = (str_at(status, "completedIndexes"), str_at(status, "failedIndexes"));
    let (done_path, failed_path) = (path.child("completedIndexes"), path.child("failedIndexes"));
    let done_changed = done != str_at(was, "completedIndexes");
    let failed_changed = get(status, "failedIndexes") != get(was, "failedIndexes");
    let (has_failed, per_index) = (has(status, "failedIndexes"), has(spec, "backoffLimitPerIndex"));
    let completions = int_at(spec, "completions");
    let mut errors = ErrorList::new();
    if let (true, Some(count)) = (done_changed, completions) {
        errors.extend(format_error(done, count, &done_path));
    }
    if let (true, true, Some(count)) = (failed_changed && has_failed, per_index, completions) {
        errors.extend(format_error(failed, count, &failed_path));
    }
    if done_changed && !done.is_empty() && str_at(spec, "completionMode") != "Indexed" {
        let text = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(Error::invalid(&done_path, done, text));
    }
    if failed_changed && has_failed && !per_index {
        let text = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.push(Error::invalid(&failed_path, failed, text));
    }
    if let (true, Some(count)) = ((done_changed || failed_changed) && has_failed, completions)
        && let Some(index) = overlap(done, failed, count)
    {
        let text = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.push(Error::invalid(&failed_path, failed, text));
    }
    errors
}

fn format_error(text: &str, completions: i64, path: &Path) -> Option<Error> {
    let name = path.to_string();
    let name = name.rsplit('.').next().unwrap_or_default();
    let error = count(text, completions).err()?;
    Some(Error::invalid(path, text, format!("error parsing {name}: {error}")))
}

/// The error of a text that is not a valid list of indexes, such as `0-2,5`. The texts are those of
/// upstream's `validateIndexesFormat`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum IndexesError {
    #[error("cannot convert string to integer for index: {}", go_quote(.0))]
    NotANumber(String),
    #[error("too large index: {}", go_quote(.0))]
    TooLarge(String),
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    NotIncreasing { previous: i64, current: i64 },
    #[error(
        "the fragment {} violates the requirement that an index interval can have at most two \
         parts separated by '-'",
        go_quote(.0)
    )]
    Interval(String),
}

/// Returns the number of indexes in a text such as `0-2,5`. The indexes are in ascending order and
/// less than `completions`.
///
/// # Errors
///
/// Returns the error of the first invalid part.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, IndexesError> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut total, mut last) = (0, None);
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(previous) = last.filter(|last| *last >= first) {
            return Err(IndexesError::NotIncreasing { previous, current: first });
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first and the last index of a part.
fn interval(part: &str, completions: i64) -> Result<(i64, i64), IndexesError> {
    let index = |text: &str| match text.parse::<i64>() {
        Ok(number) if number < completions => Ok(number),
        Ok(_) => Err(IndexesError::TooLarge(text.to_owned())),
        Err(_) => Err(IndexesError::NotANumber(text.to_owned())),
    };
    let limits: Vec<&str> = part.split('-').collect();
    match limits.as_slice() {
        [one] => index(one).map(|one| (one, one)),
        [first, last] => {
            let (first, last) = (index(first)?, index(last)?);
            if first >= last {
                return Err(IndexesError::NotIncreasing { previous: first, current: last });
            }
            Ok((first, last))
        }
        _ => Err(IndexesError::Interval(part.to_owned())),
    }
}

/// Returns the first index that both texts contain. Invalid parts are ignored: `count` reports
/// them.
fn overlap(done: &str, failed: &str, completions: i64) -> Option<i64> {
    if done.is_empty() || failed.is_empty() {
        return None;
    }
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (done, failed) = (read(done), read(failed));
    let (mut done, mut failed) = (done.iter().peekable(), failed.iter().peekable());
    while let (Some((done_first, done_last)), Some((first, last))) = (done.peek(), failed.peek()) {
        if done_first <= last && first <= done_last {
            return Some(*done_first.max(first));
        }
        if done_first <= first {
            done.next();
        } else {
            failed.next();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(mode: &str, done: &str, failed: Value) -> Vec<String> {
        let spec = json!({"completions": 5, "completionMode": mode, "backoffLimitPerIndex": if mode == "Indexed" { json!(1) } else { Value::Null }});
        let job =
            json!({"spec": spec, "status": {"completedIndexes": done, "failedIndexes": failed}});
        errors(&job, &json!({"spec": spec})).iter().map(ToString::to_string).collect()
    }

    /// The first expected text is the response of kube-apiserver 1.37.1, the others are texts of
    /// its source.
    #[test]
    fn indexes_are_read_as_upstream_reads_them() {
        assert_eq!(
            said("NonIndexed", "completedIndexesValue", Value::Null),
            [
                "status.completedIndexes: Invalid value: \"completedIndexesValue\": error parsing completedIndexes: cannot convert string to integer for index: \"completedIndexesValue\"",
                "status.completedIndexes: Invalid value: \"completedIndexesValue\": cannot set non-empty completedIndexes when non-indexed completion mode",
            ]
        );
        assert_eq!(
            said("NonIndexed", "", json!("")),
            [
                "status.failedIndexes: Invalid value: \"\": cannot set non-null failedIndexes when backoffLimitPerIndex is null"
            ]
        );
        assert!(said("Indexed", "0,2-3", json!("1,4")).is_empty());
        for (done, why) in [
            (
                "1-2-3",
                "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
            ),
            ("5", "too large index: \"5\""),
            ("3,1", "non-increasing order, previous: 3, current: 1"),
            ("2-2", "non-increasing order, previous: 2, current: 2"),
        ] {
            let want = format!(
                "status.completedIndexes: Invalid value: \"{done}\": error parsing completedIndexes: {why}"
            );
            assert_eq!(said("Indexed", done, Value::Null), [want]);
        }
        assert_eq!(
            said("Indexed", "0-2", json!("2,3")),
            [
                "status.failedIndexes: Invalid value: \"2,3\": failedIndexes and completedIndexes overlap at index: 2"
            ]
        );
    }
}
