//! Content types of log files: by extension, else by the first bytes.

use std::ffi::OsStr;

/// Returns the type of a file extension, from Go's table of well-known types as far as logs need
/// it.
pub(super) fn of_extension(extension: &OsStr) -> Option<&'static str> {
    match extension.to_str()?.to_ascii_lowercase().as_str() {
        "css" => Some("text/css; charset=utf-8"),
        "csv" => Some("text/csv; charset=utf-8"),
        "gz" => Some("application/gzip"),
        "htm" | "html" => Some("text/html; charset=utf-8"),
        "js" | "mjs" => Some("text/javascript; charset=utf-8"),
        "json" => Some("application/json"),
        "pdf" => Some("application/pdf"),
        "png" => Some("image/png"),
        "svg" => Some("image/svg+xml"),
        "xml" => Some("text/xml; charset=utf-8"),
        "zip" => Some("application/zip"),
        _ => None,
    }
}

/// Detects the type by the first bytes, as Go's `DetectContentType` does. Markup is not detected: a
/// browser would execute what a program has logged.
pub(super) fn detect(start: &[u8]) -> &'static str {
    const SIGNATURES: [(&[u8], &str); 7] = [
        (b"\xfe\xff", "text/plain; charset=utf-16be"),
        (b"\xff\xfe", "text/plain; charset=utf-16le"),
        (b"\xef\xbb\xbf", "text/plain; charset=utf-8"),
        (b"\x1f\x8b\x08", "application/x-gzip"),
        (b"PK\x03\x04", "application/zip"),
        (b"%PDF-", "application/pdf"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
    ];
    if let Some((_, found)) = SIGNATURES.iter().find(|(magic, _)| start.starts_with(magic)) {
        return found;
    }
    let binary = |b: &u8| matches!(b, 0x00..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if start.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}
