//! A log file that begins anew at a size, with old files that are counted, aged and compressed:
//! names and rules of lumberjack, which upstream's API server writes with.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use base::Shutdown;
use bytes::Bytes;

use crate::audit::flags::Log;

/// Time in the name of an old file.
const TIME: &str = "%Y-%m-%dT%H-%M-%S";
/// Behind the name of an old file that is compressed.
const COMPRESSED: &str = ".gz";
/// Bytes compressed between looks at whether the process stops.
const CHUNK: usize = 256 * 1024;

/// What a file is kept by.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    path: PathBuf,
    /// 0 is no bound.
    max_bytes: u64,
    max_backup: usize,
    max_age: Duration,
    compress: bool,
}

impl Rules {
    /// Of a log at this path.
    pub(super) fn new(path: &Path, log: &Log) -> Self {
        Self {
            path: path.to_path_buf(),
            max_bytes: log.max_bytes,
            max_backup: log.max_backup,
            max_age: Duration::from_secs(log.max_age.saturating_mul(24 * 3600)),
            compress: log.compress,
        }
    }

    /// Whether old files are looked after.
    pub(super) fn rotates(&self) -> bool {
        self.max_bytes > 0
    }
}

/// The file that is written.
#[derive(Debug)]
pub(super) struct LogFile {
    rules: Rules,
    open: Option<(File, u64)>,
    /// Old files came since [`LogFile::take_rotated`].
    rotated: bool,
}

impl LogFile {
    /// Opens it, and makes it and its folder when they are not there: for their owner alone.
    ///
    /// # Errors
    /// The I/O error, with the path.
    pub(super) fn open(rules: Rules) -> io::Result<Self> {
        if let Some(folder) = rules.path.parent().filter(|p| !p.as_os_str().is_empty())
            && !folder.exists()
        {
            base::fs::create_dir(folder, 0o700)?;
        }
        let mut file = Self { rules, open: None, rotated: false };
        file.reopen()?;
        Ok(file)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let path = &self.rules.path;
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = opened.map_err(|e| named("open", path, &e))?;
        let size = file.metadata().map_err(|e| named("read", path, &e))?.len();
        self.open = Some((file, size));
        Ok(())
    }

    /// Old files came since this was asked last.
    pub(super) fn take_rotated(&mut self) -> bool {
        std::mem::take(&mut self.rotated)
    }

    /// Appends a line, in a new file when it does not fit into this one.
    ///
    /// # Errors
    /// The I/O error, with the path; the line may then stand in part.
    pub(super) fn write(&mut self, line: &Bytes) -> io::Result<()> {
        let (length, max) = (line.len() as u64, self.rules.max_bytes);
        if max > 0 && length > max {
            let text = format!("write length {length} exceeds maximum file size {max}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.open.is_none() {
            self.reopen()?;
        }
        if max > 0 && self.open.as_ref().is_some_and(|(_, size)| size + length > max) {
            self.rotate()?;
        }
        let Some((file, size)) = &mut self.open else {
            return Err(io::Error::other("the log is not open"));
        };
        file.write_all(line).map_err(|e| named("write", &self.rules.path, &e))?;
        *size += length;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.open = None;
        let path = &self.rules.path;
        let mut time = base::clock::unix_time();
        let backup = loop {
            let backup = backup_name(path, time);
            if !backup.exists() && !compressed_name(&backup).exists() {
                break backup;
            }
            // Two within a millisecond: none may take the place of the other.
            time += Duration::from_millis(1);
        };
        match std::fs::rename(path, &backup) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(named("rename", path, &error));
            }
            _ => self.rotated = true,
        }
        self.reopen()
    }
}

fn named(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// What stands before and behind the time in the names of old files: `audit-` and `.log`.
fn frame(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.rfind('.') {
        Some(dot) => {
            let (stem, extension) = name.split_at(dot);
            (format!("{stem}-"), extension.to_owned())
        }
        None => (format!("{name}-"), String::new()),
    }
}

fn backup_name(path: &Path, time: Duration) -> PathBuf {
    let (prefix, extension) = frame(path);
    let stamp = jiff::Timestamp::try_from(UNIX_EPOCH + time).unwrap_or_default();
    let stamp = format!("{}.{:03}", stamp.strftime(TIME), time.subsec_millis());
    path.with_file_name(format!("{prefix}{stamp}{extension}"))
}

fn compressed_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    PathBuf::from(name)
}

/// An old file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Old {
    /// Since the epoch.
    time: Duration,
    /// Its name without the mark of compression.
    name: String,
    compressed: bool,
}

/// The time that the name of an old file tells.
fn parse(name: &str, prefix: &str, extension: &str) -> Option<Old> {
    let (plain, compressed) =
        name.strip_suffix(COMPRESSED).map_or((name, false), |plain| (plain, true));
    let stamp = plain.strip_prefix(prefix)?.strip_suffix(extension)?;
    let (seconds, millis) = stamp.split_once('.')?;
    if millis.len() != 3 {
        return None;
    }
    let time = jiff::civil::DateTime::strptime(TIME, seconds).ok()?;
    let seconds = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second();
    let seconds = u64::try_from(seconds).ok()?;
    let time = Duration::from_secs(seconds) + Duration::from_millis(millis.parse().ok()?);
    Some(Old { time, name: plain.to_owned(), compressed })
}

/// What becomes of old files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    remove: Vec<Old>,
    compress: Vec<Old>,
}

fn plan(rules: &Rules, mut all: Vec<Old>, now: Duration) -> Plan {
    all.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| b.name.cmp(&a.name)));
    let mut plan = Plan::default();
    let mut kept: Vec<String> = Vec::new();
    for old in all {
        if !kept.contains(&old.name) {
            kept.push(old.name.clone());
        }
        let too_many = rules.max_backup > 0 && kept.len() > rules.max_backup;
        let too_old = !rules.max_age.is_zero() && old.time + rules.max_age < now;
        if too_many || too_old {
            plan.remove.push(old);
        } else if rules.compress && !old.compressed {
            plan.compress.push(old);
        }
    }
    plan
}

/// Removes old files that are too many or too old, and compresses the others when that is asked
/// for.
///
/// # Errors
/// The first I/O error; what else can be done is done.
pub(super) fn tidy(rules: &Rules, shutdown: &Shutdown) -> io::Result<()> {
    let folder = match rules.path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let (prefix, extension) = frame(&rules.path);
    let entries = std::fs::read_dir(folder).map_err(|e| named("read", folder, &e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all = names.filter_map(|name| parse(&name, &prefix, &extension)).collect();
    let plan = plan(rules, all, base::clock::unix_time());
    let mut first = None;
    for old in plan.remove {
        let end = if old.compressed { COMPRESSED } else { "" };
        let path = folder.join(format!("{}{end}", old.name));
        if let Err(error) = std::fs::remove_file(&path) {
            first.get_or_insert(named("remove", &path, &error));
        }
    }
    for old in plan.compress {
        if shutdown.is_requested() {
            break;
        }
        if let Err(error) = compress(&folder.join(&old.name), shutdown) {
            first.get_or_insert(error);
        }
    }
    first.map_or(Ok(()), Err)
}

/// Puts a compressed file in the place of this one.
fn compress(path: &Path, shutdown: &Shutdown) -> io::Result<()> {
    let done = compressed_name(path);
    let mut half = done.as_os_str().to_owned();
    half.push(".tmp");
    let half = PathBuf::from(half);
    let write = || -> io::Result<bool> {
        let mut from = File::open(path)?;
        let to =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&half)?;
        let mut to = flate2::write::GzEncoder::new(to, flate2::Compression::default());
        let mut chunk = vec![0_u8; CHUNK];
        loop {
            let count = io::Read::read(&mut from, &mut chunk)?;
            if count == 0 {
                break;
            }
            if shutdown.is_requested() {
                return Ok(false);
            }
            to.write_all(chunk.get(..count).unwrap_or_default())?;
        }
        to.finish()?.sync_all()?;
        std::fs::rename(&half, &done)?;
        std::fs::remove_file(path)?;
        Ok(true)
    };
    let outcome = write();
    if !matches!(outcome, Ok(true)) {
        let _ = std::fs::remove_file(&half);
    }
    outcome.map(|_| ()).map_err(|e| named("compress", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn rules(path: &Path, max_bytes: u64) -> Rules {
        Rules {
            path: path.to_path_buf(),
            max_bytes,
            max_backup: 0,
            max_age: Duration::ZERO,
            compress: false,
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_begins_where_a_line_does_not_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/audit.log");
        let mut log = LogFile::open(rules(&path, 10)).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for line in [&b"one\n"[..], b"two45\n", b"three\n"] {
            log.write(&Bytes::from_static(line)).unwrap();
        }
        assert!(log.take_rotated());
        assert_eq!(std::fs::read(&path).unwrap(), b"three\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let all = names(path.parent().unwrap());
        let old = all.iter().find(|name| *name != "audit.log").unwrap();
        assert!(parse(old, "audit-", ".log").is_some(), "{old}");
        assert_eq!(std::fs::read(path.with_file_name(old)).unwrap(), b"one\ntwo45\n");
        // A start goes on with what is there.
        drop(log);
        let mut log = LogFile::open(rules(&path, 10)).unwrap();
        log.write(&Bytes::from_static(b"4\n")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three\n4\n");
        let refused = log.write(&Bytes::from_static(b"0123456789\n")).unwrap_err();
        assert_eq!(refused.to_string(), "write length 11 exceeds maximum file size 10");
    }

    #[test]
    fn many_rotations_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut log = LogFile::open(rules(&path, 2)).unwrap();
        for digit in 0..10 {
            log.write(&Bytes::from(format!("{digit}\n"))).unwrap();
        }
        assert_eq!(names(folder.path()).len(), 10);
    }

    #[test]
    fn names_tell_the_time() {
        let path = Path::new("/var/log/kube.audit.log");
        let name = backup_name(path, Duration::from_millis(1_700_000_000_042));
        assert_eq!(name, Path::new("/var/log/kube.audit-2023-11-14T22-13-20.042.log"));
        let read = parse("kube.audit-2023-11-14T22-13-20.042.log.gz", "kube.audit-", ".log");
        assert_eq!(
            read,
            Some(Old {
                time: Duration::from_millis(1_700_000_000_042),
                name: "kube.audit-2023-11-14T22-13-20.042.log".into(),
                compressed: true
            })
        );
        for other in ["kube.audit.log", "kube.audit-x.log", "kube.audit-2023-11-14T22-13-20.log"] {
            assert_eq!(parse(other, "kube.audit-", ".log"), None, "{other}");
        }
    }

    #[test]
    fn old_files_go_by_number_and_age() {
        let old = |day: u64, compressed| Old {
            time: Duration::from_secs(day * 86_400),
            name: format!("a-{day}"),
            compressed,
        };
        let all = || vec![old(1, true), old(5, false), old(9, true), old(8, false), old(8, true)];
        let mut rules = rules(Path::new("a"), 1);
        let now = Duration::from_secs(10 * 86_400);
        let shown = |list: &[Old]| -> Vec<String> {
            list.iter()
                .map(|o| format!("{}{}", o.name, if o.compressed { "z" } else { "" }))
                .collect()
        };
        assert_eq!(plan(&rules, all(), now), Plan::default());
        rules.compress = true;
        assert_eq!(shown(&plan(&rules, all(), now).compress), ["a-8", "a-5"]);
        rules.max_backup = 2;
        let made = plan(&rules, all(), now);
        assert_eq!(shown(&made.remove), ["a-5", "a-1z"]);
        assert_eq!(shown(&made.compress), ["a-8"]);
        rules.max_backup = 0;
        rules.max_age = Duration::from_secs(86_400);
        assert_eq!(shown(&plan(&rules, all(), now).remove), ["a-8", "a-8z", "a-5", "a-1z"]);
    }

    #[test]
    fn old_files_are_compressed_in_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let rules = Rules { compress: true, ..rules(&path, 4) };
        let mut log = LogFile::open(rules.clone()).unwrap();
        for line in [&b"one\n"[..], b"two\n"] {
            log.write(&Bytes::from_static(line)).unwrap();
        }
        tidy(&rules, &Shutdown::new()).unwrap();
        let all = names(folder.path());
        assert_eq!(all.len(), 2, "{all:?}");
        let packed = all.iter().find(|name| name.ends_with(".log.gz")).unwrap();
        let bytes = std::fs::read(folder.path().join(packed)).unwrap();
        let mut text = String::new();
        let mut decoder = flate2::read::GzDecoder::new(bytes.as_slice());
        std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
        assert_eq!(text, "one\n");
    }
}
