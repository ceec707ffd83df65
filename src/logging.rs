//! Structured logs to standard error, quiet by default.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Starts logging at `info` (`debug` with `--debug`; `-v N` from 4 on is debug, from 8 on trace, as klog's habit).
/// `filter` overrides both (the variable `KUBE_LITE_LOG`).
pub fn start(debug: bool, verbosity: u8, filter: Option<&str>) {
    let level = match (debug, verbosity) {
        (_, 8..) => "trace",
        (true, _) | (_, 4..) => "debug",
        _ => "info",
    };
    // Libraries are heard only when something is wrong.
    let default = format!(
        "warn,kube_lite={level},base={level},store={level},apiserver={level},client={level},controllers={level},scheduler={level},node={level},net={level},cluster={level}"
    );
    let filter =
        EnvFilter::try_new(filter.unwrap_or(&default)).unwrap_or_else(|_| EnvFilter::new(default));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_span_events(FmtSpan::NONE)
        .try_init();
}
