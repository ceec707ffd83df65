//! Parses the audit flags of upstream's API server, with its names and defaults
//! (`pkg/server/options/audit.go`).

use std::path::PathBuf;
use std::time::Duration;

/// The maximum of the flags for buffer and batch sizes.
const BUFFER_MAX: i64 = 1_000_000;

/// The mode of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Asynchronously, in batches; if the buffer is full, events are dropped and counted.
    Batch,
    /// Synchronously; failures are counted.
    Blocking,
    /// Like `Blocking`, but a request fails if its first event cannot be delivered.
    BlockingStrict,
}

/// The parameters of [`Mode::Batch`].
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The maximum number of pending events.
    pub buffer_size: usize,
    /// The maximum number of events per batch.
    pub max_size: usize,
    /// The maximum time between two batches.
    pub max_wait: Duration,
    /// Batches per second and burst; `None` is no limit.
    pub throttle: Option<(f32, u32)>,
}

/// The limits for serialized events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate {
    /// The size in bytes above which an event is written without objects, or dropped.
    pub max_event: usize,
    /// The maximum size of a batch in bytes.
    pub max_batch: usize,
}

/// The parameters of both outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The mode.
    pub mode: Mode,
    /// The parameters of batches.
    pub batch: Batch,
    /// The size limits; `None` is no limit.
    pub truncate: Option<Truncate>,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The event as JSON.
    Json,
    /// Human-readable.
    Legacy,
}

/// The parameters of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The path; `None` is standard output.
    pub path: Option<PathBuf>,
    /// Days to keep rotated files; 0 is no limit.
    pub max_age: u64,
    /// The number of rotated files to keep; 0 is no limit.
    pub max_backup: usize,
    /// The size in bytes at which the file is rotated; 0 is never.
    pub max_bytes: u64,
    /// Whether rotated files are compressed.
    pub compress: bool,
    /// The format of a line.
    pub format: Format,
    /// The parameters of the output.
    pub output: Output,
}

/// The parameters of the webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Webhook {
    /// The kubeconfig with its endpoint.
    pub config_file: PathBuf,
    /// The delay before the first retry.
    pub initial_backoff: Duration,
    /// The parameters of the output.
    pub output: Output,
}

/// The parsed flags.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AuditFlags {
    /// The policy file; without one nothing is recorded.
    pub policy_file: Option<PathBuf>,
    /// The log, if it has a path.
    pub log: Option<Log>,
    /// The webhook, if it has a kubeconfig.
    pub webhook: Option<Webhook>,
}

/// A flag is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// The flag is not supported; contains its name.
    #[error("{0}")]
    Unknown(String),
    /// The value is invalid.
    #[error("{flag}={value}: {reason}")]
    Value {
        /// The flag.
        flag: String,
        /// The value.
        value: String,
        /// The reason.
        reason: String,
    },
    /// The value is negative.
    #[error("--{flag} {value} can't be a negative number")]
    Negative {
        /// The flag.
        flag: String,
        /// The value.
        value: i64,
    },
    /// `audit-log-format` is unknown.
    #[error("invalid audit log format {0}, allowed formats are \"legacy,json\"")]
    Format(String),
    /// The mode of an output is unknown.
    #[error(
        "invalid audit {output} mode {mode}, allowed modes are \"batch,blocking,blocking-strict\""
    )]
    Mode {
        /// The output: `log` or `webhook`.
        output: String,
        /// The mode.
        mode: String,
    },
    /// A parameter of batches is not positive.
    #[error("invalid audit batch {output} {parameter} {value}, must be a positive number")]
    Batch {
        /// The output: `log` or `webhook`.
        output: String,
        /// The parameter in upstream's words.
        parameter: &'static str,
        /// The value.
        value: String,
    },
    /// The maximum size of an event is not positive.
    #[error("invalid audit truncate {output} max event size {size}, must be a positive number")]
    EventSize {
        /// The output: `log` or `webhook`.
        output: String,
        /// The size.
        size: i64,
    },
    /// The maximum size of a batch is less than that of an event.
    #[error(
        "invalid audit truncate {output} max batch size {batch}, must be greater than max event size ({event})"
    )]
    BatchSize {
        /// The output: `log` or `webhook`.
        output: String,
        /// The maximum size of a batch.
        batch: i64,
        /// The maximum size of an event.
        event: i64,
    },
}

/// Names and values of flags; the last occurrence of a name applies.
struct FlagValues<'a>(Vec<(&'a str, &'a str)>);

const FLAGS: [&str; 10] = [
    "audit-policy-file",
    "audit-log-path",
    "audit-log-maxage",
    "audit-log-maxbackup",
    "audit-log-maxsize",
    "audit-log-format",
    "audit-log-compress",
    "audit-webhook-config-file",
    "audit-webhook-initial-backoff",
    "audit-webhook-batch-initial-backoff",
];

/// The flags of both outputs, without the prefix `audit-log-` or `audit-webhook-`.
const SHARED: [&str; 11] = [
    "mode",
    "batch-buffer-size",
    "batch-max-size",
    "batch-max-wait",
    "batch-throttle-enable",
    "batch-throttle-qps",
    "batch-throttle-burst",
    "truncate-enabled",
    "truncate-max-batch-size",
    "truncate-max-event-size",
    "version",
];

fn is_known(name: &str) -> bool {
    let shared = |prefix| name.strip_prefix(prefix).is_some_and(|rest| SHARED.contains(&rest));
    FLAGS.contains(&name) || shared("audit-log-") || shared("audit-webhook-")
}

impl AuditFlags {
    /// Parses `NAME=VALUE` arguments like the flags `--NAME` of upstream's API server; a name alone
    /// means `true`.
    ///
    /// # Errors
    /// If a flag is unknown or its value is invalid.
    pub fn parse(arguments: &[String]) -> Result<Self, FlagError> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (name, value) = component_config::flags::parts(argument);
            let value = value.unwrap_or("true");
            if !is_known(name) {
                return Err(FlagError::Unknown(name.to_owned()));
            }
            values.push((name, value));
        }
        let values = FlagValues(values);
        let policy_file = values.text("audit-policy-file").map(PathBuf::from);
        Ok(Self { policy_file, log: values.log()?, webhook: values.webhook()? })
    }
}

impl FlagValues<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(flag, _)| *flag == name);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str, default: i64) -> Result<i64, FlagError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| bad(name, text, "is no whole number"))
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, FlagError> {
        match self.text(name) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(text) => Err(bad(name, text, "is neither true nor false")),
        }
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, FlagError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let nanos = api::codec::time::parse_duration(text).map_err(|why| bad(name, text, why))?;
        let nanos = u64::try_from(nanos).map_err(|_| bad(name, text, "must not be negative"))?;
        Ok(Duration::from_nanos(nanos))
    }

    /// A number that cannot be negative.
    fn count(&self, name: &str, default: i64) -> Result<u64, FlagError> {
        let number = self.number(name, default)?;
        u64::try_from(number)
            .map_err(|_| FlagError::Negative { flag: name.to_owned(), value: number })
    }

    fn log(&self) -> Result<Option<Log>, FlagError> {
        let Some(path) = self.text("audit-log-path") else { return Ok(None) };
        let path = (path != "-").then(|| PathBuf::from(path));
        let batch =
            Batch { buffer_size: 10_000, max_size: 1, max_wait: Duration::ZERO, throttle: None };
        let output = self.output("log", Mode::Blocking, batch)?;
        let format = match self.text("audit-log-format") {
            None | Some("json") => Format::Json,
            Some("legacy") => Format::Legacy,
            Some(other) => return Err(FlagError::Format(other.to_owned())),
        };
        let megabytes = self.count("audit-log-maxsize", 100)?;
        Ok(Some(Log {
            path,
            max_age: self.count("audit-log-maxage", 366)?,
            max_backup: usize::try_from(self.count("audit-log-maxbackup", 100)?)
                .unwrap_or(usize::MAX),
            max_bytes: megabytes.saturating_mul(1 << 20),
            compress: self.boolean("audit-log-compress")?.unwrap_or(false),
            format,
            output,
        }))
    }

    fn webhook(&self) -> Result<Option<Webhook>, FlagError> {
        let Some(file) = self.text("audit-webhook-config-file") else { return Ok(None) };
        let batch = Batch {
            buffer_size: 10_000,
            max_size: 400,
            max_wait: Duration::from_secs(30),
            throttle: Some((10.0, 15)),
        };
        let old = self.duration("audit-webhook-batch-initial-backoff", Duration::from_secs(10))?;
        Ok(Some(Webhook {
            config_file: PathBuf::from(file),
            initial_backoff: self.duration("audit-webhook-initial-backoff", old)?,
            output: self.output("webhook", Mode::Batch, batch)?,
        }))
    }

    fn output(&self, plugin: &str, mode: Mode, batch: Batch) -> Result<Output, FlagError> {
        let name = |rest: &str| format!("audit-{plugin}-{rest}");
        let mode = match self.text(&name("mode")) {
            None => mode,
            Some("batch") => Mode::Batch,
            Some("blocking") => Mode::Blocking,
            Some("blocking-strict") => Mode::BlockingStrict,
            Some(other) => {
                let (output, mode) = (plugin.to_owned(), other.to_owned());
                return Err(FlagError::Mode { output, mode });
            }
        };
        if let Some(version) = self.text(&name("version")).filter(|v| *v != super::load::VERSION) {
            let why = format!("must be {}", super::load::VERSION);
            return Err(bad(&name("version"), version, why));
        }
        let batch = self.batch(plugin, mode, batch)?;
        Ok(Output { mode, batch, truncate: self.truncate(plugin)? })
    }

    fn batch(&self, plugin: &str, mode: Mode, defaults: Batch) -> Result<Batch, FlagError> {
        let name = |rest: &str| format!("audit-{plugin}-batch-{rest}");
        let not_positive = |parameter: &'static str, value: String| FlagError::Batch {
            output: plugin.to_owned(),
            parameter,
            value,
        };
        let positive = |rest: &str, parameter: &'static str, default: usize| {
            let default = i64::try_from(default).unwrap_or(BUFFER_MAX);
            let number = self.number(&name(rest), default)?;
            if number > BUFFER_MAX {
                let why = format!("must not be more than {BUFFER_MAX}");
                return Err(bad(&name(rest), &number.to_string(), why));
            }
            if number <= 0 && mode == Mode::Batch {
                return Err(not_positive(parameter, number.to_string()));
            }
            Ok(usize::try_from(number).unwrap_or(1))
        };
        let (qps, burst) = defaults.throttle.unwrap_or((0.0, 0));
        let limited =
            self.boolean(&name("throttle-enable"))?.unwrap_or(defaults.throttle.is_some());
        let qps = match self.text(&name("throttle-qps")) {
            None => qps,
            Some(text) => {
                text.parse().map_err(|_| bad(&name("throttle-qps"), text, "is no number"))?
            }
        };
        let burst = self.number(&name("throttle-burst"), i64::from(burst))?;
        let mut throttle = None;
        if limited && mode == Mode::Batch {
            if qps.is_nan() || qps <= 0.0 {
                return Err(not_positive("throttle QPS", qps.to_string()));
            }
            let positive = u32::try_from(burst).ok().filter(|burst| *burst > 0);
            let burst =
                positive.ok_or_else(|| not_positive("throttle burst", burst.to_string()))?;
            throttle = Some((qps, burst));
        }
        Ok(Batch {
            buffer_size: positive("buffer-size", "buffer size", defaults.buffer_size)?,
            max_size: positive("max-size", "max batch size", defaults.max_size)?,
            max_wait: self.duration(&name("max-wait"), defaults.max_wait)?,
            throttle,
        })
    }

    fn truncate(&self, plugin: &str) -> Result<Option<Truncate>, FlagError> {
        let name = |rest: &str| format!("audit-{plugin}-truncate-{rest}");
        let event = self.number(&name("max-event-size"), 100 * 1024)?;
        let batch = self.number(&name("max-batch-size"), 10 * 1024 * 1024)?;
        if event <= 0 {
            return Err(FlagError::EventSize { output: plugin.to_owned(), size: event });
        }
        if batch < event {
            return Err(FlagError::BatchSize { output: plugin.to_owned(), batch, event });
        }
        let size = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        let enabled = self.boolean(&name("enabled"))?.unwrap_or(false);
        Ok(enabled.then(|| Truncate { max_event: size(event), max_batch: size(batch) }))
    }
}

fn bad(flag: &str, value: &str, reason: impl std::fmt::Display) -> FlagError {
    FlagError::Value { flag: flag.to_owned(), value: value.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<AuditFlags, FlagError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        AuditFlags::parse(&arguments)
    }

    #[test]
    fn defaults_are_upstreams() {
        assert_eq!(parse(&[]).unwrap(), AuditFlags::default());
        let log = parse(&["audit-log-path=/x/audit.log"]).unwrap().log.unwrap();
        assert_eq!((log.max_age, log.max_backup, log.max_bytes), (366, 100, 100 * 1024 * 1024));
        assert_eq!((log.format, log.compress), (Format::Json, false));
        assert_eq!((log.output.mode, log.output.batch.buffer_size), (Mode::Blocking, 10_000));
        assert_eq!((log.output.batch.throttle, log.output.truncate), (None, None));
        let hook = parse(&["--audit-webhook-config-file=/x/hook.yaml"]).unwrap().webhook.unwrap();
        assert_eq!(hook.initial_backoff, Duration::from_secs(10));
        let batch = &hook.output.batch;
        assert_eq!((hook.output.mode, batch.max_size), (Mode::Batch, 400));
        assert_eq!((batch.max_wait, batch.throttle), (Duration::from_secs(30), Some((10.0, 15))));
    }

    #[test]
    fn flags_are_parsed_as_in_upstream() {
        let settings = parse(&[
            "audit-policy-file=/p.yaml",
            "audit-log-path=-",
            "audit-log-maxsize=0",
            "audit-log-maxsize=7",
            "audit-log-compress",
            "audit-log-format=legacy",
            "audit-log-mode=blocking-strict",
            "audit-log-truncate-enabled=true",
            "audit-log-truncate-max-event-size=4096",
            "audit-log-version=audit.k8s.io/v1",
            "audit-webhook-config-file=h",
            "audit-webhook-batch-max-wait=1.5s",
            "audit-webhook-batch-throttle-enable=false",
            "audit-webhook-batch-initial-backoff=3s",
        ])
        .unwrap();
        let log = settings.log.unwrap();
        assert_eq!((log.path, log.max_bytes, log.compress), (None, 7 << 20, true));
        assert_eq!((log.format, log.output.mode), (Format::Legacy, Mode::BlockingStrict));
        assert_eq!(
            log.output.truncate,
            Some(Truncate { max_event: 4096, max_batch: 10 * 1024 * 1024 })
        );
        let hook = settings.webhook.unwrap();
        assert_eq!(hook.output.batch.max_wait, Duration::from_millis(1500));
        assert_eq!((hook.output.batch.throttle, hook.initial_backoff.as_secs()), (None, 3));
        assert_eq!(settings.policy_file, Some("/p.yaml".into()));
    }

    #[test]
    fn invalid_values_are_rejected_with_upstreams_messages() {
        for (arguments, want) in [
            (&["admission-control-config-file=x"][..], "admission-control-config-file"),
            (
                &["audit-log-path=a", "audit-log-maxage=-1"],
                "--audit-log-maxage -1 can't be a negative number",
            ),
            (
                &["audit-log-path=a", "audit-log-maxsize=big"],
                "audit-log-maxsize=big: is no whole number",
            ),
            (
                &["audit-log-path=a", "audit-log-mode=later"],
                "invalid audit log mode later, allowed modes are \"batch,blocking,blocking-strict\"",
            ),
            (
                &["audit-log-path=a", "audit-log-format=xml"],
                "invalid audit log format xml, allowed formats are \"legacy,json\"",
            ),
            (
                &["audit-log-path=a", "audit-log-version=audit.k8s.io/v1beta1"],
                "audit-log-version=audit.k8s.io/v1beta1: must be audit.k8s.io/v1",
            ),
            (
                &["audit-webhook-config-file=a", "audit-webhook-batch-buffer-size=0"],
                "invalid audit batch webhook buffer size 0, must be a positive number",
            ),
            (
                &["audit-webhook-config-file=a", "audit-webhook-batch-throttle-qps=0"],
                "invalid audit batch webhook throttle QPS 0, must be a positive number",
            ),
            (
                &["audit-log-path=a", "audit-log-truncate-max-batch-size=10"],
                "invalid audit truncate log max batch size 10, must be greater than max event size (102400)",
            ),
        ] {
            assert_eq!(parse(arguments).unwrap_err().to_string(), want, "{arguments:?}");
        }
        // Upstream does not validate the flags of unused outputs and modes.
        assert!(parse(&["audit-log-maxage=-1"]).is_ok());
        assert!(parse(&["audit-log-path=a", "audit-log-batch-buffer-size=0"]).is_ok());
    }
}
