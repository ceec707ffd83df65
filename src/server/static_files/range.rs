//! The header `Range` of RFC 9110, for one range. Several ranges get the whole file, as the RFC
//! allows.

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteRange {
    /// The first byte.
    pub(super) start: u64,
    /// The number of bytes.
    pub(super) length: u64,
}

impl ByteRange {
    /// All bytes of a file.
    pub(super) fn whole(size: u64) -> Self {
        Self { start: 0, length: size }
    }

    /// The value of `Content-Range`.
    pub(super) fn header(&self, size: u64) -> String {
        let last = (self.start + self.length).saturating_sub(1);
        format!("bytes {}-{last}/{size}", self.start)
    }
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Requested {
    /// The whole file.
    Whole,
    /// A part of it.
    Part(ByteRange),
    /// A part behind its end.
    Unsatisfiable,
}

/// Reads the header for a file of `size` bytes. A header of another form is ignored.
pub(super) fn parse(header: &str, size: u64) -> Requested {
    let Some((first, last)) = header.strip_prefix("bytes=").and_then(|r| r.trim().split_once('-'))
    else {
        return Requested::Whole;
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let (start, end) = match (first.is_empty(), last.is_empty()) {
        (true, _) => match number(last) {
            Some(length) => (size.saturating_sub(length), size),
            None => return Requested::Whole,
        },
        (false, true) => match number(first) {
            Some(start) => (start, size),
            None => return Requested::Whole,
        },
        (false, false) => match (number(first), number(last)) {
            (Some(start), Some(last)) if start <= last => (start, size.min(last.saturating_add(1))),
            _ => return Requested::Whole,
        },
    };
    match end.checked_sub(start) {
        Some(length) if length > 0 => Requested::Part(ByteRange { start, length }),
        _ => Requested::Unsatisfiable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_read_and_other_forms_get_the_whole_file() {
        let part = |start, length| Requested::Part(ByteRange { start, length });
        for (header, want) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=0-99", part(0, 10)),
            ("bytes=3-", part(3, 7)),
            ("bytes=-4", part(6, 4)),
            ("bytes=-99", part(0, 10)),
            ("bytes=9-18446744073709551615", part(9, 1)),
            ("bytes=10-", Requested::Unsatisfiable),
            ("bytes=-0", Requested::Unsatisfiable),
            ("bytes=5-2", Requested::Whole),
            ("bytes=0-1,3-4", Requested::Whole),
            ("bytes=a-", Requested::Whole),
            ("bytes=-", Requested::Whole),
            ("lines=0-1", Requested::Whole),
        ] {
            assert_eq!(parse(header, 10), want, "{header}");
        }
        assert_eq!(ByteRange { start: 2, length: 3 }.header(10), "bytes 2-4/10");
    }
}
