//! Structured logs to standard error, quiet by default; one line for each event, whatever clients
//! put into it.

mod queue;

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use queue::LogQueue;

/// The crates of this workspace, whose messages the log filter lets through: the build derives them
/// from the workspace's manifest.
pub fn crates() -> impl Iterator<Item = &'static str> {
    env!("KUBE_LITE_CRATES").split(',')
}

/// How long the process waits at its end for the log to be written.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

/// The queue of this process, once [`start`] ran.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Maximum size of an event in bytes. Some events contain user agents, names and paths of clients.
const LINE_MAX: usize = 16 * 1024;

/// Standard error, with each event on one line: a name with a newline or an escape sequence in it
/// neither forges a line nor moves the cursor of a terminal (CVE-2021-25743). It never fails.
struct Lines(LogQueue);

impl Write for Lines {
    /// Writes one whole event, as `tracing_subscriber` passes it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.push(&to_line(event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The event on one line, with escaped control characters, truncated if it is too long.
fn to_line(event: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(event.strip_suffix(b"\n").unwrap_or(event));
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if out.len() > LINE_MAX {
            out.push('…');
            break;
        }
        if c.is_control() || is_format_control(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    out.into_bytes()
}

/// Whether a character is a line separator or an override of the text direction, which changes the
/// order of characters on a terminal.
fn is_format_control(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Starts logging at level `info`, or `debug` with `--debug` or `-v 4` and more, as in klog.
/// `filter` (the variable `KUBE_LITE_LOG`) overrides both.
pub fn start(debug: bool, verbosity: u8, filter: Option<&str>) {
    let level = if debug || verbosity >= 4 { "debug" } else { "info" };
    let default = default_filter(level);
    let parsed = filter.map(|filter| EnvFilter::try_new(capped(filter, STATIC_MAX_LEVEL)));
    let (filter, invalid) = match parsed {
        None => (EnvFilter::new(default), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(default), Some(error)),
    };
    let queue = QUEUE.get_or_init(|| LogQueue::start(io::stderr())).clone();
    let panics = queue.clone();
    // The default hook blocks when standard error does.
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let backtrace = std::backtrace::Backtrace::capture();
        let mut text = format!("thread '{name}' {panic}");
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            text.push_str(&format!("\n{backtrace}"));
        }
        panics.push(&to_line(text.as_bytes()));
    }));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Lines(queue.clone()))
        .with_ansi(false)
        .with_span_events(FmtSpan::NONE)
        .log_internal_errors(false)
        .try_init();
    if let Some(error) = invalid {
        tracing::warn!(%error, "log: the filter in KUBE_LITE_LOG is invalid, logging at {level}");
    }
}

/// The filter without levels above `max`, which this program was built without. `EnvFilter` prints
/// a warning of such a level by `eprintln!`, which panics when standard error cannot be written.
fn capped(filter: &str, max: LevelFilter) -> String {
    let capped = filter.split(',').map(|directive| {
        let directive = directive.trim();
        let (target, level) = match directive.rsplit_once('=') {
            Some((target, level)) => (Some(target), level.parse::<LevelFilter>()),
            None => (None, directive.parse()),
        };
        match (target, level) {
            _ if directive.is_empty() => String::new(),
            (Some(target), Ok(level)) => format!("{target}={}", level.min(max)),
            (None, Ok(level)) => level.min(max).to_string(),
            // A target without a level enables all levels.
            (_, Err(_)) => format!("{directive}={max}"),
        }
    });
    capped.collect::<Vec<_>>().join(",")
}

/// The filter for a level: crates of this workspace at `level`, libraries at `warn`.
fn default_filter(level: &str) -> String {
    let ours = crates().map(|name| format!(",{name}={level}"));
    std::iter::once("warn".to_owned()).chain(ours).collect()
}

/// Writes the final error of a command to standard error, after everything logged before.
pub fn print_error(text: impl Display) {
    let text = format!("{text}\n");
    match QUEUE.get() {
        Some(queue) => queue.push(text.as_bytes()),
        None => {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// Waits for the log to be written, at the end of the process.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.lock().write(lines)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Text of a client neither forges a line nor controls a terminal, and no line exceeds the
    /// limit.
    #[test]
    fn an_event_is_one_line() {
        let written = |event: &str| String::from_utf8(to_line(event.as_bytes())).unwrap();
        assert_eq!(written("INFO a=1\n"), "INFO a=1\n");
        assert_eq!(
            written("agent=x\n2026 ERROR forged \u{1b}[2J\r\t\u{9b}1m \u{202e}\n"),
            "agent=x\\n2026 ERROR forged \\u{1b}[2J\\r\\t\\u{9b}1m \\u{202e}\n"
        );
        assert!(written(&"é".repeat(64 * 1024)).len() <= LINE_MAX + 8);
        let out = Output::default();
        let queue = LogQueue::start(out.clone());
        let event = b"one\ntwo\n";
        assert_eq!(Lines(queue.clone()).write(event).unwrap(), event.len());
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(*out.0.lock(), b"one\\ntwo\n");
    }

    #[test]
    fn filter_levels_are_capped_at_the_built_in_maximum() {
        for (filter, expected) in [
            ("trace", "debug"),
            ("5", "debug"),
            ("info", "info"),
            ("off,h2", "off,h2=debug"),
            (" warn, h2=TRACE ,store=error,", "warn,h2=debug,store=error,"),
            ("[connection{id=7}]=trace", "[connection{id=7}]=debug"),
            ("h2[connection{id=7}]", "h2[connection{id=7}]=debug"),
        ] {
            let capped = capped(filter, LevelFilter::DEBUG);
            assert_eq!(capped, expected);
            assert!(EnvFilter::try_new(&capped).is_ok(), "{capped}");
        }
        assert_eq!(capped("trace,h2", LevelFilter::TRACE), "trace,h2=trace");
        assert!(EnvFilter::try_new(capped("h2=loud=loud", LevelFilter::DEBUG)).is_err());
    }

    #[test]
    fn every_crate_of_this_program_logs_at_the_chosen_level() {
        let filter = EnvFilter::new(default_filter("debug")).to_string();
        let directives: Vec<&str> = filter.split(',').collect();
        for name in crates() {
            assert!(directives.contains(&format!("{name}=debug").as_str()), "{name}: {filter}");
        }
        assert!(directives.contains(&"warn"), "{filter}");
    }
}
