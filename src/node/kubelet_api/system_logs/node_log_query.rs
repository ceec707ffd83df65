//! Queries of `/logs/` (upstream's `nodeLogQuery`): the services or the file whose log is
//! requested, with the checks and texts of upstream.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use api::codec::time::{Moment, Precision, parse_time};
use api::custom::check_pattern;
use api::field::{self, Error, ErrorList};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::super::query::Query;

/// Maximum number of lines from the end of a log.
const TAIL_LINES_MAX: i64 = 100_000;
/// Maximum length of the name of a service, in bytes.
const SERVICE_LENGTH_MAX: usize = 256;
/// Maximum number of services of one query.
const SERVICES_MAX: usize = 4;

/// A query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    pub(super) services: Vec<String>,
    pub(super) files: Vec<String>,
    pub(super) options: LogOptions,
}

/// The options, which apply to services only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogOptions {
    since: Option<LogTime>,
    until: Option<LogTime>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

/// A time, and its text in the query.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LogTime {
    moment: Moment,
    text: String,
}

impl LogTime {
    /// The form that journalctl takes: the fields of the text, without its offset, as upstream
    /// writes them (`2006-1-2 15:4:5`). RFC 3339 has each field at a fixed place.
    fn argument(&self) -> String {
        let field = |from: usize, to: usize| {
            let digits = self.text.get(from..to).unwrap_or_default();
            digits.parse::<u16>().unwrap_or_default()
        };
        format!(
            "{:04}-{}-{} {:02}:{}:{}",
            field(0, 4),
            field(5, 7),
            field(8, 10),
            field(11, 13),
            field(14, 16),
            field(17, 19)
        )
    }
}

fn path(name: &str) -> field::Path {
    field::Path::new(name)
}

/// Reads the parameters of a request; `None` if none of them belongs to a query.
///
/// # Errors
///
/// The parameters that are invalid.
pub(super) fn parse(query: &Query) -> Result<Option<NodeLogQuery>, ErrorList> {
    let (mut parsed, mut errors) = (NodeLogQuery::default(), ErrorList::new());
    let given = query.all("query");
    for name in given {
        // A path is a hint that a file is requested.
        if name.contains(['/', '\\']) {
            parsed.files.push(name.clone());
        } else if !name.trim().is_empty() {
            parsed.services.push(name.clone());
        }
    }
    if !given.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
        errors.push(Error::invalid(&path("query"), given.to_vec(), "may not be empty"));
    }
    let value = |name: &str| query.first(name).filter(|value| !value.is_empty());
    let mut time = |name: &str| {
        let text = value(name)?;
        match parse_time(text, Precision::Exact) {
            Ok(moment) => Some(LogTime { moment, text: text.to_owned() }),
            Err(_) => {
                errors.push(Error::invalid(&path(name), text, "invalid time format"));
                None
            }
        }
    };
    parsed.options.since = time("sinceTime");
    parsed.options.until = time("untilTime");
    let mut number = |name: &str| {
        let text = value(name)?;
        let parsed = parse_number(text);
        let error = |error: NumberError| {
            errors.push(Error::invalid(&path(name), text, error.to_string()));
        };
        parsed.map_err(error).ok()
    };
    parsed.options.boot = number("boot");
    parsed.options.tail_lines = number("tailLines");
    value("pattern").unwrap_or_default().clone_into(&mut parsed.options.pattern);
    match errors.is_empty() {
        true => Ok(Some(parsed).filter(|parsed| *parsed != NodeLogQuery::default())),
        false => Err(errors),
    }
}

/// The error of Go's `strconv.Atoi`.
#[derive(Debug, thiserror::Error)]
#[error("strconv.Atoi: parsing {}: {why}", field::go_quote(.text))]
struct NumberError {
    text: String,
    why: &'static str,
}

/// A number in Go's decimal form.
fn parse_number(text: &str) -> Result<i64, NumberError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| NumberError { text: text.to_owned(), why })
}

/// Why a service cannot be passed to journalctl.
fn service_error(name: &str) -> Option<String> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if name.len() > SERVICE_LENGTH_MAX {
        Some(format!("length must be less than {SERVICE_LENGTH_MAX}"))
    } else if !name.chars().all(is_safe) {
        Some("input contains unsupported characters".to_owned())
    } else {
        None
    }
}

impl NodeLogQuery {
    /// The errors of a query about the files below `root`. Blocks.
    pub(super) fn validate(&self, root: &Path) -> ErrorList {
        let Self { services, files, options } = self;
        let query = path("query");
        let mut errors: ErrorList = services
            .iter()
            .filter_map(|name| Some(Error::invalid(&query, name.as_str(), service_error(name)?)))
            .collect();
        if services.len() > SERVICES_MAX {
            errors.push(Error::too_many(&query, services.len(), SERVICES_MAX));
        }
        match (files.as_slice(), services.as_slice()) {
            ([], []) => errors.push(Error::required(&query, "cannot be empty with options")),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", files.join(" "), services.join(" "));
                errors.push(Error::invalid(&query, both, "cannot specify a file and service"));
            }
            ([_, _, ..], []) => {
                let why = "cannot specify more than one file";
                errors.push(Error::invalid(&query, files.clone(), why));
            }
            ([_], []) if *options != LogOptions::default() => {
                let why = "cannot specify file with options";
                errors.push(Error::invalid(&query, files.clone(), why));
            }
            ([file], []) => {
                if let Err(error) = open_beneath(root, file, OFlag::O_PATH) {
                    let why = format!("statat {file}: {}", go_text(error));
                    errors.push(Error::invalid(&query, files.clone(), why));
                }
            }
            ([], [_, ..]) => {}
        }
        options.validate(&mut errors);
        errors
    }
}

impl LogOptions {
    fn validate(&self, errors: &mut ErrorList) {
        if let (Some(since), Some(until)) = (&self.since, &self.until)
            && since.moment > until.moment
        {
            let why = "must be after `sinceTime`";
            errors.push(Error::invalid(&path("untilTime"), until.text.as_str(), why));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            errors.push(Error::invalid(&path("boot"), boot, "must be less than 1"));
        }
        if let Some(lines) = self.tail_lines.filter(|n| !(0..=TAIL_LINES_MAX).contains(n)) {
            let why = format!("must be between 0 and {TAIL_LINES_MAX}, inclusive");
            errors.push(Error::invalid(&path("tailLines"), lines, why));
        }
        if let Err(error) = check_pattern(&self.pattern) {
            let why = error.to_string();
            errors.push(Error::invalid(&path("pattern"), self.pattern.as_str(), why));
        }
    }

    /// Whether the query is about the boot of the machine that is running.
    pub(super) fn is_current_boot(&self) -> bool {
        self.boot.unwrap_or_default() == 0
    }

    /// The arguments of journalctl for these services (upstream's `getLoggingCmd`).
    pub(super) fn arguments(&self, services: &[String]) -> Vec<String> {
        let mut arguments =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        let times = [("since", &self.since), ("until", &self.until)];
        for (name, time) in times.into_iter().filter_map(|(name, t)| Some((name, t.as_ref()?))) {
            arguments.push(format!("--{name}={}", time.argument()));
        }
        if let Some(lines) = self.tail_lines {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if !self.pattern.is_empty() {
            arguments.push(format!("--grep={}", self.pattern));
        }
        if let Some(boot) = self.boot {
            arguments.extend(["--boot".to_owned(), boot.to_string()]);
        }
        arguments
    }
}

/// Opens a file below a directory. As Go's `os.Root` does, this refuses a path, and a symbolic
/// link, that leads out of the directory. Does not block on a FIFO without a writer.
///
/// # Errors
///
/// The file does not exist, or is not below the directory (`EXDEV`).
pub(super) fn open_beneath(root: &Path, file: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
    let directory = File::open(root)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
    // openat2 refuses flags that have no effect with O_PATH.
    let more = if flags.contains(OFlag::O_PATH) { OFlag::empty() } else { OFlag::O_NONBLOCK };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | more)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(&directory, file, how)
}

/// The text of an error as Go writes it.
pub(super) fn go_text(error: Errno) -> String {
    if error == Errno::EXDEV {
        return "path escapes from parent".to_owned();
    }
    let text = error.desc();
    let mut characters = text.chars();
    let first = characters.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// The text of several errors, each once, as upstream's aggregate of a list.
pub(super) fn error_text(errors: ErrorList) -> String {
    let texts: Vec<String> = field::distinct(errors).iter().map(ToString::to_string).collect();
    field::aggregate(&texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<Option<NodeLogQuery>, String> {
        parse(&Query::parse(query)).map_err(error_text)
    }

    fn valid(query: &str, root: &Path) -> Result<NodeLogQuery, String> {
        let query = parsed(query).unwrap().unwrap();
        let errors = query.validate(root);
        if errors.is_empty() { Ok(query) } else { Err(error_text(errors)) }
    }

    /// The cases of `Test_newNodeLogQuery`.
    #[test]
    fn parameters_are_parsed() {
        for query in ["", "unknown=true", "sinceTime=", "untilTime=", "boot=", "tailLines="] {
            assert_eq!(parsed(query), Ok(None), "{query}");
        }
        let number = |text: &str, why: &str| {
            let quoted = field::go_quote(text);
            format!("Invalid value: {quoted}: strconv.Atoi: parsing {quoted}: {why}")
        };
        let time = |text: &str| format!("Invalid value: \"{text}\": invalid time format");
        let huge = "99999999999999999999";
        for (name, value, want) in [
            ("sinceTime", "2019-12-04 02:00:00", time("2019-12-04 02:00:00")),
            ("untilTime", "2019-12-04 02", time("2019-12-04 02")),
            ("tailLines", "foo", number("foo", "invalid syntax")),
            ("tailLines", " ", number(" ", "invalid syntax")),
            ("boot", huge, number(huge, "value out of range")),
            ("query", "", "Invalid value: [\"\"]: may not be empty".to_owned()),
            ("query", "  ", "Invalid value: [\"  \"]: may not be empty".to_owned()),
        ] {
            assert_eq!(parsed(&format!("{name}={value}")), Err(format!("{name}: {want}")));
        }
        assert_eq!(parsed("query"), parsed("query="));
        let both = parsed("query=foo&query=/bar&query=\\x").unwrap().unwrap();
        assert_eq!(
            (both.services.join(" "), both.files.join(" ")),
            ("foo".into(), "/bar \\x".into())
        );
        assert_eq!(parsed("boot=-23").unwrap().unwrap().options.boot, Some(-23));
    }

    /// The cases of `Test_nodeLogQuery_validate` and `Test_validateServices`.
    #[test]
    fn queries_are_validated() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir(root.join("a")).unwrap();
        std::fs::write(root.join("a/b.log"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("a/out")).unwrap();
        let long = format!("query={}", "a".repeat(257));
        for query in [
            "query=svc1",
            "query=svc1&query=svc.foo&query=svc_foo&query=svc@foo",
            "query=s&sinceTime=2023-01-04T02:00:00Z&untilTime=2023-02-04T02:00:00Z",
            "query=s&boot=-1&tailLines=100000&pattern=foo",
            "query=a/b.log",
            "query=./a/../a/b.log",
        ] {
            valid(query, root).unwrap();
        }
        let escapes = "path escapes from parent";
        for (query, want) in [
            ("pattern=x", "query: Required value: cannot be empty with options"),
            ("query=s&query=/f", "query: Invalid value: \"[/f], [s]\": cannot specify a file and"),
            ("query=a/b&query=a/c", "[\"a/b\",\"a/c\"]: cannot specify more than one file"),
            ("query=a/b.log&boot=0", "[\"a/b.log\"]: cannot specify file with options"),
            ("query=/b.log", &format!("[\"/b.log\"]: statat /b.log: {escapes}")),
            ("query=a/out", &format!("[\"a/out\"]: statat a/out: {escapes}")),
            ("query=a/none", "[\"a/none\"]: statat a/none: no such file or directory"),
            ("query=svc%0A", "Invalid value: \"svc\\n\": input contains unsupported characters"),
            (&long, "length must be less than 256"),
            (
                "query=a&query=b&query=c&query=d&query=e",
                "query: Too many: 5: must have at most 4 items",
            ),
            ("query=s&boot=1", "boot: Invalid value: 1: must be less than 1"),
            (
                "query=s&tailLines=100001",
                "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
            ),
            (
                "query=s&pattern=foo\\",
                "pattern: Invalid value: \"foo\\\\\": error parsing regexp: trailing backslash at",
            ),
            (
                "query=s&sinceTime=2023-02-04T02:00:00Z&untilTime=2023-01-04T02:00:00Z",
                "untilTime: Invalid value: \"2023-01-04T02:00:00Z\": must be after `sinceTime`",
            ),
        ] {
            let error = valid(query, root).unwrap_err();
            assert!(error.contains(want), "{query}: {error}");
        }
    }

    #[test]
    fn journalctl_gets_one_argument_for_each_option() {
        let times = "sinceTime=2023-01-04T02:05:09%2B01:00";
        let query = format!("query=p1&query=p2&{times}&tailLines=3&boot=-1&pattern=-x");
        let query = parsed(&query).unwrap().unwrap();
        assert_eq!(
            query.options.arguments(&query.services),
            [
                "--utc",
                "--no-pager",
                "--output=short-precise",
                "--since=2023-1-4 02:5:9",
                "--pager-end",
                "--lines=3",
                "--unit=p1",
                "--unit=p2",
                "--grep=-x",
                "--boot",
                "-1",
            ]
        );
    }
}
