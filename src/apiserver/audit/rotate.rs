//! Rotates the log file at a maximum size, and removes or compresses rotated files: with the names
//! and rules of lumberjack, which upstream's API server uses.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use base::Shutdown;
use bytes::Bytes;
use sorting::CompactSort as _;

use crate::audit::flags::Log;

/// The format of the time in the name of a rotated file.
const TIME: &str = "%Y-%m-%dT%H-%M-%S";
/// The suffix of a compressed file.
const COMPRESSED: &str = ".gz";
/// The number of bytes to compress between checks for a shutdown.
const CHUNK: usize = 256 * 1024;

/// The rules for rotation and rotated files.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    path: PathBuf,
    /// 0 is no limit.
    max_bytes: u64,
    max_backup: usize,
    max_age: Duration,
    compress: bool,
}

impl Rules {
    /// The rules of a log at `path`.
    pub(super) fn new(path: &Path, log: &Log) -> Self {
        Self {
            path: path.to_path_buf(),
            max_bytes: log.max_bytes,
            max_backup: log.max_backup,
            max_age: Duration::from_secs(log.max_age.saturating_mul(24 * 3600)),
            compress: log.compress,
        }
    }

    /// Whether the file is rotated.
    pub(super) fn rotates(&self) -> bool {
        self.max_bytes > 0
    }
}

/// The current log file.
#[derive(Debug)]
pub(super) struct LogFile {
    rules: Rules,
    /// The file and its size in bytes.
    open: Option<(File, u64)>,
    /// Whether the file was rotated since the last [`LogFile::take_rotated`].
    is_rotated: bool,
}

impl LogFile {
    /// Opens the file; creates it and its directory if they do not exist, accessible only by their
    /// owner.
    ///
    /// # Errors
    /// The I/O error, with the path.
    pub(super) fn open(rules: Rules) -> io::Result<Self> {
        if let Some(folder) = rules.path.parent().filter(|p| !p.as_os_str().is_empty())
            && !folder.exists()
        {
            base::fs::create_dir(folder, 0o700)?;
        }
        let mut file = Self { rules, open: None, is_rotated: false };
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

    /// Whether the file was rotated since the last call.
    pub(super) fn take_rotated(&mut self) -> bool {
        std::mem::take(&mut self.is_rotated)
    }

    /// Appends a line; rotates the file first if the line does not fit.
    ///
    /// # Errors
    /// The I/O error, with the path; a part of the line may have been written.
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
            // Two rotations within a millisecond must not overwrite each other's file.
            time += Duration::from_millis(1);
        };
        match std::fs::rename(path, &backup) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(named("rename", path, &error));
            }
            _ => self.is_rotated = true,
        }
        self.reopen()
    }
}

fn named(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// The parts before and after the time in the names of rotated files: `audit-` and `.log`.
fn backup_affixes(path: &Path) -> (String, String) {
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
    let (prefix, extension) = backup_affixes(path);
    let stamp = jiff::Timestamp::try_from(UNIX_EPOCH + time).unwrap_or_default();
    let stamp = format!("{}.{:03}", stamp.strftime(TIME), time.subsec_millis());
    path.with_file_name(format!("{prefix}{stamp}{extension}"))
}

fn compressed_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    PathBuf::from(name)
}

/// A rotated file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RotatedFile {
    /// Unix time of the rotation.
    time: Duration,
    /// The name without the suffix of compression.
    name: String,
    is_compressed: bool,
}

/// Parses the name of a rotated file; `None` for other files.
fn parse(name: &str, prefix: &str, extension: &str) -> Option<RotatedFile> {
    let (plain, is_compressed) =
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
    Some(RotatedFile { time, name: plain.to_owned(), is_compressed })
}

/// The actions for rotated files.
#[derive(Debug, Default, PartialEq, Eq)]
struct TidyActions {
    remove: Vec<RotatedFile>,
    compress: Vec<RotatedFile>,
}

/// Decides which rotated files are removed and compressed; `now` is Unix time.
fn tidy_actions(rules: &Rules, mut all: Vec<RotatedFile>, now: Duration) -> TidyActions {
    all.compact_sort_by(|a, b| b.time.cmp(&a.time).then_with(|| b.name.cmp(&a.name)));
    let mut actions = TidyActions::default();
    let mut kept: Vec<String> = Vec::new();
    for file in all {
        if !kept.contains(&file.name) {
            kept.push(file.name.clone());
        }
        let exceeds_count = rules.max_backup > 0 && kept.len() > rules.max_backup;
        let exceeds_age = !rules.max_age.is_zero() && file.time + rules.max_age < now;
        if exceeds_count || exceeds_age {
            actions.remove.push(file);
        } else if rules.compress && !file.is_compressed {
            actions.compress.push(file);
        }
    }
    actions
}

/// Removes rotated files that exceed the maximum number or age, and compresses the others if the
/// rules say so.
///
/// # Errors
/// The first I/O error; the remaining files are handled nevertheless.
pub(super) fn tidy(rules: &Rules, shutdown: &Shutdown) -> io::Result<()> {
    let folder = match rules.path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let (prefix, extension) = backup_affixes(&rules.path);
    let entries = std::fs::read_dir(folder).map_err(|e| named("read", folder, &e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all = names.filter_map(|name| parse(&name, &prefix, &extension)).collect();
    let actions = tidy_actions(rules, all, base::clock::unix_time());
    let mut first_error = None;
    for file in actions.remove {
        let suffix = if file.is_compressed { COMPRESSED } else { "" };
        let path = folder.join(format!("{}{suffix}", file.name));
        if let Err(error) = std::fs::remove_file(&path) {
            first_error.get_or_insert(named("remove", &path, &error));
        }
    }
    for file in actions.compress {
        if shutdown.is_requested() {
            break;
        }
        if let Err(error) = compress(&folder.join(&file.name), shutdown) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Replaces a file with a compressed one.
fn compress(path: &Path, shutdown: &Shutdown) -> io::Result<()> {
    let done = compressed_name(path);
    let mut partial = done.as_os_str().to_owned();
    partial.push(".tmp");
    let partial = PathBuf::from(partial);
    let write = || -> io::Result<bool> {
        let mut from = File::open(path)?;
        let to = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
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
        std::fs::rename(&partial, &done)?;
        std::fs::remove_file(path)?;
        Ok(true)
    };
    let outcome = write();
    if !matches!(outcome, Ok(true)) {
        let _ = std::fs::remove_file(&partial);
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
    fn the_file_is_rotated_when_a_line_does_not_fit() {
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
        // A restarted server appends to the existing file.
        drop(log);
        let mut log = LogFile::open(rules(&path, 10)).unwrap();
        log.write(&Bytes::from_static(b"4\n")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three\n4\n");
        let error = log.write(&Bytes::from_static(b"0123456789\n")).unwrap_err();
        assert_eq!(error.to_string(), "write length 11 exceeds maximum file size 10");
    }

    #[test]
    fn rotations_within_a_millisecond_keep_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut log = LogFile::open(rules(&path, 2)).unwrap();
        for digit in 0..10 {
            log.write(&Bytes::from(format!("{digit}\n"))).unwrap();
        }
        assert_eq!(names(folder.path()).len(), 10);
    }

    #[test]
    fn names_of_rotated_files_contain_the_time() {
        let path = Path::new("/var/log/kube.audit.log");
        let name = backup_name(path, Duration::from_millis(1_700_000_000_042));
        assert_eq!(name, Path::new("/var/log/kube.audit-2023-11-14T22-13-20.042.log"));
        let read = parse("kube.audit-2023-11-14T22-13-20.042.log.gz", "kube.audit-", ".log");
        assert_eq!(
            read,
            Some(RotatedFile {
                time: Duration::from_millis(1_700_000_000_042),
                name: "kube.audit-2023-11-14T22-13-20.042.log".into(),
                is_compressed: true
            })
        );
        for other in ["kube.audit.log", "kube.audit-x.log", "kube.audit-2023-11-14T22-13-20.log"] {
            assert_eq!(parse(other, "kube.audit-", ".log"), None, "{other}");
        }
    }

    #[test]
    fn rotated_files_are_removed_by_number_and_age() {
        let old = |day: u64, is_compressed| RotatedFile {
            time: Duration::from_secs(day * 86_400),
            name: format!("a-{day}"),
            is_compressed,
        };
        let all = || vec![old(1, true), old(5, false), old(9, true), old(8, false), old(8, true)];
        let mut rules = rules(Path::new("a"), 1);
        let now = Duration::from_secs(10 * 86_400);
        let names = |list: &[RotatedFile]| -> Vec<String> {
            list.iter()
                .map(|file| format!("{}{}", file.name, if file.is_compressed { "z" } else { "" }))
                .collect()
        };
        assert_eq!(tidy_actions(&rules, all(), now), TidyActions::default());
        rules.compress = true;
        assert_eq!(names(&tidy_actions(&rules, all(), now).compress), ["a-8", "a-5"]);
        rules.max_backup = 2;
        let actions = tidy_actions(&rules, all(), now);
        assert_eq!(names(&actions.remove), ["a-5", "a-1z"]);
        assert_eq!(names(&actions.compress), ["a-8"]);
        rules.max_backup = 0;
        rules.max_age = Duration::from_secs(86_400);
        let removed = names(&tidy_actions(&rules, all(), now).remove);
        assert_eq!(removed, ["a-8", "a-8z", "a-5", "a-1z"]);
    }

    #[test]
    fn rotated_files_are_replaced_with_compressed_ones() {
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
