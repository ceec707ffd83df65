//! The `Range` header, parsed as Go's `parseRange` does.

/// A byte range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Range {
    pub(super) fn whole(size: u64) -> Self {
        Self { start: 0, length: size }
    }

    /// The value of `Content-Range`.
    pub(super) fn content_range(self, size: u64) -> String {
        let last = self.start.saturating_add(self.length).saturating_sub(1);
        format!("bytes {}-{last}/{size}", self.start)
    }
}

/// Why a range cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RangeError {
    #[error("invalid range")]
    Invalid,
    #[error("invalid range: failed to overlap")]
    NoOverlap,
}

/// Parses the ranges of a header; empty if the whole file is to be sent.
pub(super) fn parse(header: Option<&str>, size: u64) -> Result<Vec<Range>, RangeError> {
    let Some(header) = header else { return Ok(Vec::new()) };
    let list = header.strip_prefix("bytes=").ok_or(RangeError::Invalid)?;
    let mut ranges = Vec::new();
    let (mut total, mut outside) = (0_u64, false);
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match one(part, size)? {
            Some(range) => {
                total = total.saturating_add(range.length);
                // Ranges with more bytes than the file are an attack or a mistake: the whole file
                // is sent.
                if total <= size {
                    ranges.push(range);
                }
            }
            None => outside = true,
        }
    }
    if outside && ranges.is_empty() && total == 0 {
        // Some clients send a range with every request, also for an empty file.
        return if size == 0 { Ok(ranges) } else { Err(RangeError::NoOverlap) };
    }
    Ok(if total > size { Vec::new() } else { ranges })
}

/// Parses one range of the list; `None` if it begins after the end of the file.
fn one(part: &str, size: u64) -> Result<Option<Range>, RangeError> {
    let number = |text: &str| match text.parse::<u64>() {
        Ok(number) if i64::try_from(number).is_ok() && !text.starts_with('+') => Ok(number),
        _ => Err(RangeError::Invalid),
    };
    let (first, last) = part.split_once('-').ok_or(RangeError::Invalid)?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        let length = number(last)?.min(size);
        return Ok(Some(Range { start: size.saturating_sub(length), length }));
    }
    let start = number(first)?;
    if start >= size {
        return Ok(None);
    }
    let end = size.saturating_sub(1);
    let last = if last.is_empty() { end } else { number(last)? };
    let length = last.min(end).checked_sub(start).ok_or(RangeError::Invalid)?.saturating_add(1);
    Ok(Some(Range { start, length }))
}

/// Returns a separator of the parts of a response with several ranges: random, so that no log
/// contains it.
pub(super) fn boundary() -> String {
    let random = [base::clock::random_u64(), base::clock::random_u64()];
    random.iter().map(|word| format!("{word:016x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of Go's `ParseRangeTests` (`net/http/range_test.go`).
    #[test]
    fn ranges_are_parsed_as_in_go() {
        for (header, size, expected) in [
            ("", 0, None),
            ("foo", 0, None),
            ("bytes=7", 10, None),
            ("bytes= 7 ", 10, None),
            ("bytes=1-", 0, Some(vec![])),
            ("bytes=5-4", 10, None),
            ("bytes=0-2,5-4", 10, None),
            ("bytes=--5,4--3", 10, None),
            ("bytes=A-", 10, None),
            ("bytes=A-Z", 10, None),
            ("bytes= -Z", 10, None),
            ("bytes=5-Z", 10, None),
            ("bytes=Ran-dom, garbage", 10, None),
            ("bytes=0x01-0x02", 10, None),
            ("bytes=", 10, Some(vec![])),
            ("bytes=,", 10, Some(vec![])),
            ("bytes= , , ,   ", 10, Some(vec![])),
            ("bytes=0-9", 10, Some(vec![(0, 10)])),
            ("bytes=0-", 10, Some(vec![(0, 10)])),
            ("bytes=5-", 10, Some(vec![(5, 5)])),
            ("bytes=0-20", 10, Some(vec![(0, 10)])),
            ("bytes=15-,0-5", 10, Some(vec![(0, 6)])),
            ("bytes=1-2,5-", 10, Some(vec![(1, 2), (5, 5)])),
            ("bytes=-2 , 7-", 11, Some(vec![(9, 2), (7, 4)])),
            ("bytes=0-0 ,2-2, 7-", 11, Some(vec![(0, 1), (2, 1), (7, 4)])),
            ("bytes=-5", 10, Some(vec![(5, 5)])),
            ("bytes=-15", 10, Some(vec![(0, 10)])),
            ("bytes=0-499", 10_000, Some(vec![(0, 500)])),
            ("bytes=500-700,601-999", 10_000, Some(vec![(500, 201), (601, 399)])),
        ] {
            let parsed = parse(Some(header), size).ok();
            let parsed = parsed.map(|all| all.iter().map(|r| (r.start, r.length)).collect());
            assert_eq!(parsed, expected, "{header} of {size}");
        }
        assert_eq!(parse(Some("bytes=15-"), 10), Err(RangeError::NoOverlap));
        assert_eq!(parse(Some("bytes=0-,0-,0-"), 10), Ok(Vec::new()), "more than the file");
        assert_eq!(Range { start: 5, length: 5 }.content_range(10), "bytes 5-9/10");
    }
}
