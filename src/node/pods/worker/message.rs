//! Termination messages of containers: the message file, or, if configured, the end of the log.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState, label};

/// Bytes kept of a message file and of a log (`MaxContainerTerminationMessageLength`, `…LogLength`,
/// `…LogLines`).
const MESSAGE_MAX: u64 = 4096;
const LOG_MAX: usize = 2048;
const LOG_LINES_MAX: usize = 80;
/// Bytes read of the log file: each line has a prefix of about 40 bytes.
const LOG_TAIL: u64 = 16 << 10;

/// Fills in the messages of exited containers.
pub(super) fn fill_termination_messages(observed: &mut ObservedPod, _logs: &Path) {
    for container in observed.containers.iter_mut().filter(|c| c.state == ObservedState::Exited) {
        if container.reason.is_empty() {
            container.reason =
                if container.exit_code == 0 { "Completed" } else { "Error" }.to_owned();
        }
        let termination_message = termination_message(container);
        if !termination_message.is_empty() {
            container.message = if container.message.is_empty() {
                termination_message
            } else {
                format!("{}: {termination_message}", container.message)
            };
        }
    }
}

fn termination_message(container: &ObservedContainer) -> String {
    let path =
        container.annotations.get(label::MESSAGE_PATH).map(String::as_str).unwrap_or_default();
    let absolute = Path::new("/").join(path);
    let file = container.mounts.iter().find(|(inside, _)| Path::new(inside) == absolute);
    if let (Some((_, host)), false) = (file, path.is_empty()) {
        let mut data = Vec::new();
        let read =
            std::fs::File::open(host).and_then(|f| f.take(MESSAGE_MAX).read_to_end(&mut data));
        if read.is_ok() && !data.is_empty() {
            return String::from_utf8_lossy(&data).into_owned();
        }
    }
    let policy = container.annotations.get(label::MESSAGE_POLICY).map(String::as_str);
    if policy == Some("FallbackToLogsOnError") && container.exit_code != 0 {
        return log_tail(Path::new(&container.log_path)).unwrap_or_default();
    }
    String::new()
}

fn log_tail(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LOG_TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut data = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut data)?;
    let text = String::from_utf8_lossy(&data);
    let mut lines: Vec<&str> = text.lines().collect();
    if from > 0 && !lines.is_empty() {
        lines.remove(0);
    }
    let mut out = String::new();
    for line in lines.iter().skip(lines.len().saturating_sub(LOG_LINES_MAX)) {
        // `<time> <stream> <tag> <text>`; a partial line has tag P and no end.
        let mut parts = line.splitn(4, ' ');
        let tag = parts.nth(2).unwrap_or("F");
        out.push_str(parts.next().unwrap_or_default());
        if tag.starts_with('F') {
            out.push('\n');
        }
    }
    let mut at = out.len().saturating_sub(LOG_MAX);
    while !out.is_char_boundary(at) {
        at += 1;
    }
    Ok(out.split_off(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_termination_message_has_log_lines_without_prefixes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:00Z \
            stdout F two\n2026-01-01T00:00:00Z stderr F three\n",
        )
        .unwrap();
        assert_eq!(log_tail(file.path()).unwrap(), "one two\nthree\n");
    }
}
