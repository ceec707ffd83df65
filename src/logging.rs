//! Structured logs to standard error, quiet by default; one line for each event, whatever clients put into it.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Bytes of one event; user agents, names and paths of clients stand in some.
const LINE_MAX: usize = 16 * 1024;

/// Standard error, with each event on one line: a name with a newline or an escape sequence in it neither forges a line nor
/// moves the cursor of who reads (CVE-2021-25743).
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    /// Takes one event whole, as `tracing_subscriber` hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event without control characters but the newline at its end, and cut where it is too long.
fn line(event: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(event.strip_suffix(b"\n").unwrap_or(event));
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if out.len() > LINE_MAX {
            out.push('…');
            break;
        }
        // Also separators and overrides of direction, with which a terminal shows another order.
        if c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    out.into_bytes()
}

/// Starts logging at `info` (`debug` with `--debug`; `-v N` from 4 on is debug, as klog's habit: there is nothing finer).
/// `filter` overrides both (the variable `KUBE_LITE_LOG`).
pub fn start(debug: bool, verbosity: u8, filter: Option<&str>) {
    let level = if debug || verbosity >= 4 { "debug" } else { "info" };
    // Libraries are heard only when something is wrong.
    let default = format!(
        "warn,kube_lite={level},base={level},store={level},apiserver={level},client={level},controllers={level},scheduler={level},node={level},net={level},cluster={level}"
    );
    let filter =
        EnvFilter::try_new(filter.unwrap_or(&default)).unwrap_or_else(|_| EnvFilter::new(default));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines(io::stderr()))
        .with_ansi(false)
        .with_span_events(FmtSpan::NONE)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C2.6: a client's text neither forges a line nor commands a terminal, and no name is longer than a line may be.
    #[test]
    fn an_event_is_one_line() {
        let shown = |event: &str| String::from_utf8(line(event.as_bytes())).unwrap();
        assert_eq!(shown("INFO a=1\n"), "INFO a=1\n");
        assert_eq!(
            shown("agent=x\n2026 ERROR forged \u{1b}[2J\r\t\u{9b}1m \u{202e}\n"),
            "agent=x\\n2026 ERROR forged \\u{1b}[2J\\r\\t\\u{9b}1m \\u{202e}\n"
        );
        assert!(shown(&"é".repeat(64 * 1024)).len() <= LINE_MAX + 8);
        let mut out = Vec::new();
        let event = b"one\ntwo\n";
        assert_eq!(Lines(&mut out).write(event).unwrap(), event.len());
        assert_eq!(out, b"one\\ntwo\n");
    }
}
