//! The flags of the API server about audit, under upstream's names and with its defaults
//! (`pkg/server/options/audit.go`).

use std::path::PathBuf;
use std::time::Duration;

/// Most events that a buffer may be asked to hold.
const BUFFER_MAX: i64 = 1_000_000;

/// When events are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Later, in batches; what finds the buffer full is dropped and counted.
    Batch,
    /// Before the request goes on; a failure is counted.
    Blocking,
    /// As `Blocking`, and a request that cannot be recorded when it comes is refused.
    BlockingStrict,
}

/// How batches are made; of [`Mode::Batch`] alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Events that wait.
    pub buffer_size: usize,
    /// Events of one batch.
    pub max_size: usize,
    /// The longest time between two batches.
    pub max_wait: Duration,
    /// Batches per second and at once; `None` is no limit.
    pub throttle: Option<(f32, u32)>,
}

/// Sizes of serialized events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate {
    /// Bytes of an event above which it goes without objects, or not at all.
    pub max_event: usize,
    /// Bytes of the events of one batch.
    pub max_batch: usize,
}

/// What both ways out have.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// When events are handed over.
    pub mode: Mode,
    /// How batches are made.
    pub batch: Batch,
    /// What is too large.
    pub truncate: Option<Truncate>,
}

/// Form of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The event as JSON.
    Json,
    /// One line for people.
    Legacy,
}

/// The log.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Where; `None` is standard output.
    pub path: Option<PathBuf>,
    /// Days that old files stay; 0 is for ever.
    pub max_age: u64,
    /// Old files that stay; 0 is all.
    pub max_backup: usize,
    /// Bytes at which a new file begins; 0 is never.
    pub max_bytes: u64,
    /// Old files are compressed.
    pub compress: bool,
    /// Form of a line.
    pub format: Format,
    /// How events come here.
    pub output: Output,
}

/// The webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Webhook {
    /// The kubeconfig that says where it is.
    pub config_file: PathBuf,
    /// Time before a failed delivery is tried again.
    pub initial_backoff: Duration,
    /// How events come here.
    pub output: Output,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// What is recorded; without it nothing is.
    pub policy_file: Option<PathBuf>,
    /// The log, when it has a path.
    pub log: Option<Log>,
    /// The webhook, when it has a file.
    pub webhook: Option<Webhook>,
}

/// Why flags cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The API server has no such flag here.
    #[error("{0}")]
    Unknown(String),
    /// A value makes no sense.
    #[error("{0}")]
    Value(String),
}

/// Values as they were given, later ones winning.
struct Given<'a>(Vec<(&'a str, &'a str)>);

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

/// Those that both ways out have, behind `audit-log-` and `audit-webhook-`.
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

impl Settings {
    /// Reads `NAME=VALUE` as the flag `--NAME` of upstream's API server has it; a name alone
    /// switches something on.
    ///
    /// # Errors
    /// The flag that is not known, or whose value makes no sense.
    pub fn of(arguments: &[String]) -> Result<Self, Fault> {
        let mut given = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (name, value) = crate::flags::parts(argument);
            let value = value.unwrap_or("true");
            if !is_known(name) {
                return Err(Fault::Unknown(name.to_owned()));
            }
            given.push((name, value));
        }
        let given = Given(given);
        let policy_file = given.text("audit-policy-file").map(PathBuf::from);
        Ok(Self { policy_file, log: given.log()?, webhook: given.webhook()? })
    }
}

impl Given<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(given, _)| *given == name);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str, default: i64) -> Result<i64, Fault> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| bad(name, text, "is no whole number"))
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, Fault> {
        match self.text(name) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(text) => Err(bad(name, text, "is neither true nor false")),
        }
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, Fault> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let nanos = api::codec::time::parse_duration(text).map_err(|why| bad(name, text, why))?;
        let nanos = u64::try_from(nanos).map_err(|_| bad(name, text, "must not be negative"))?;
        Ok(Duration::from_nanos(nanos))
    }

    /// A number that upstream refuses below zero, in its words.
    fn count(&self, name: &str, default: i64) -> Result<u64, Fault> {
        let number = self.number(name, default)?;
        u64::try_from(number)
            .map_err(|_| Fault::Value(format!("--{name} {number} can't be a negative number")))
    }

    fn log(&self) -> Result<Option<Log>, Fault> {
        let Some(path) = self.text("audit-log-path") else { return Ok(None) };
        let path = (path != "-").then(|| PathBuf::from(path));
        let batch =
            Batch { buffer_size: 10_000, max_size: 1, max_wait: Duration::ZERO, throttle: None };
        let output = self.output("log", Mode::Blocking, batch)?;
        let format = match self.text("audit-log-format") {
            None | Some("json") => Format::Json,
            Some("legacy") => Format::Legacy,
            Some(other) => {
                return Err(Fault::Value(format!(
                    "invalid audit log format {other}, allowed formats are \"legacy,json\""
                )));
            }
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

    fn webhook(&self) -> Result<Option<Webhook>, Fault> {
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

    fn output(&self, plugin: &str, mode: Mode, batch: Batch) -> Result<Output, Fault> {
        let name = |rest: &str| format!("audit-{plugin}-{rest}");
        let mode = match self.text(&name("mode")) {
            None => mode,
            Some("batch") => Mode::Batch,
            Some("blocking") => Mode::Blocking,
            Some("blocking-strict") => Mode::BlockingStrict,
            Some(other) => {
                return Err(Fault::Value(format!(
                    "invalid audit {plugin} mode {other}, allowed modes are \"batch,blocking,blocking-strict\""
                )));
            }
        };
        if let Some(version) = self.text(&name("version")).filter(|v| *v != super::load::VERSION) {
            let why = format!("must be {}", super::load::VERSION);
            return Err(bad(&name("version"), version, why));
        }
        let batch = self.batch(plugin, mode, batch)?;
        Ok(Output { mode, batch, truncate: self.truncate(plugin)? })
    }

    fn batch(&self, plugin: &str, mode: Mode, defaults: Batch) -> Result<Batch, Fault> {
        let name = |rest: &str| format!("audit-{plugin}-batch-{rest}");
        let positive = |rest: &str, what: &str, default: usize| {
            let default = i64::try_from(default).unwrap_or(BUFFER_MAX);
            let number = self.number(&name(rest), default)?;
            if number > BUFFER_MAX {
                let why = format!("must not be more than {BUFFER_MAX}");
                return Err(bad(&name(rest), &number.to_string(), why));
            }
            if number <= 0 && mode == Mode::Batch {
                return Err(Fault::Value(format!(
                    "invalid audit batch {plugin} {what} {number}, must be a positive number"
                )));
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
                return Err(Fault::Value(format!(
                    "invalid audit batch {plugin} throttle QPS {qps}, must be a positive number"
                )));
            }
            let many = u32::try_from(burst).ok().filter(|burst| *burst > 0);
            let many = many.ok_or_else(|| {
                Fault::Value(format!(
                    "invalid audit batch {plugin} throttle burst {burst}, must be a positive number"
                ))
            })?;
            throttle = Some((qps, many));
        }
        Ok(Batch {
            buffer_size: positive("buffer-size", "buffer size", defaults.buffer_size)?,
            max_size: positive("max-size", "max batch size", defaults.max_size)?,
            max_wait: self.duration(&name("max-wait"), defaults.max_wait)?,
            throttle,
        })
    }

    fn truncate(&self, plugin: &str) -> Result<Option<Truncate>, Fault> {
        let name = |rest: &str| format!("audit-{plugin}-truncate-{rest}");
        let event = self.number(&name("max-event-size"), 100 * 1024)?;
        let batch = self.number(&name("max-batch-size"), 10 * 1024 * 1024)?;
        if event <= 0 {
            return Err(Fault::Value(format!(
                "invalid audit truncate {plugin} max event size {event}, must be a positive number"
            )));
        }
        if batch < event {
            return Err(Fault::Value(format!(
                "invalid audit truncate {plugin} max batch size {batch}, must be greater than max event size ({event})"
            )));
        }
        let size = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        let enabled = self.boolean(&name("enabled"))?.unwrap_or(false);
        Ok(enabled.then(|| Truncate { max_event: size(event), max_batch: size(batch) }))
    }
}

fn bad(name: &str, value: &str, why: impl std::fmt::Display) -> Fault {
    Fault::Value(format!("{name}={value}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<Settings, String> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        Settings::of(&arguments).map_err(|fault| fault.to_string())
    }

    #[test]
    fn defaults_are_upstreams() {
        assert_eq!(of(&[]).unwrap(), Settings::default());
        let log = of(&["audit-log-path=/x/audit.log"]).unwrap().log.unwrap();
        assert_eq!((log.max_age, log.max_backup, log.max_bytes), (366, 100, 100 * 1024 * 1024));
        assert_eq!((log.format, log.compress), (Format::Json, false));
        assert_eq!((log.output.mode, log.output.batch.buffer_size), (Mode::Blocking, 10_000));
        assert_eq!((log.output.batch.throttle, log.output.truncate), (None, None));
        let hook = of(&["--audit-webhook-config-file=/x/hook.yaml"]).unwrap().webhook.unwrap();
        assert_eq!(hook.initial_backoff, Duration::from_secs(10));
        let batch = &hook.output.batch;
        assert_eq!((hook.output.mode, batch.max_size), (Mode::Batch, 400));
        assert_eq!((batch.max_wait, batch.throttle), (Duration::from_secs(30), Some((10.0, 15))));
    }

    #[test]
    fn flags_are_read_as_upstreams_are() {
        let settings = of(&[
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
    fn what_makes_no_sense_is_refused() {
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
            assert_eq!(of(arguments).unwrap_err(), want, "{arguments:?}");
        }
        // As upstream, what is not used is not looked at.
        assert!(of(&["audit-log-maxage=-1"]).is_ok());
        assert!(of(&["audit-log-path=a", "audit-log-batch-buffer-size=0"]).is_ok());
    }
}
