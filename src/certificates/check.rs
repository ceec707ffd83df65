//! `kube-lite certificate check`: every certificate in the files of this machine, as k3s shows them.

use std::path::{Path, PathBuf};

use api::k8s::jiff::Timestamp;
use base::pki::{self, CertificateInfo};

use crate::command_line::CheckOutput;
use crate::error_catalogue::{CERTIFICATE_COMMAND, Refusal};

/// Files looked at.
const FILES_MAX: usize = 256;
const DAY: i64 = 24 * 60 * 60;

struct Line {
    path: PathBuf,
    shown: CertificateInfo,
}

/// The certificates below this data directory.
///
/// # Errors
/// When there are none, or a file cannot be read.
pub(crate) fn run(data_dir: &Path, output: CheckOutput) -> Result<String, Refusal> {
    let mut lines = Vec::new();
    for folder in ["server/tls", "server/tls/etcd", "agent"] {
        let entries = std::fs::read_dir(data_dir.join(folder)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "crt"));
        paths.sort();
        for path in paths.into_iter().take(FILES_MAX) {
            let failed =
                |why: String| CERTIFICATE_COMMAND.refuse(format!("{}: {why}", path.display()));
            let text =
                base::fs::read_to_string(&path).map_err(|e| CERTIFICATE_COMMAND.refuse(e))?;
            for shown in pki::describe(&text).map_err(|e| failed(e.to_string()))? {
                lines.push(Line { path: path.clone(), shown });
            }
        }
    }
    if lines.is_empty() {
        return Err(CERTIFICATE_COMMAND.refuse(format!(
            "there are no certificates in {}; give the data directory with --data-dir",
            data_dir.display()
        )));
    }
    let now = i64::try_from(pki::now()).unwrap_or(i64::MAX);
    Ok(match output {
        CheckOutput::Text => lines.iter().map(|line| text(line, now)).collect(),
        CheckOutput::Table => table(&lines, now),
    })
}

fn at(seconds: i64) -> String {
    Timestamp::from_second(seconds).map(|t| t.to_string()).unwrap_or_default()
}

/// k3s's words.
fn status(shown: &CertificateInfo, now: i64) -> &'static str {
    if now > shown.not_after {
        "EXPIRED"
    } else if now < shown.not_before {
        "NOT YET VALID"
    } else if pki::due_at(shown.not_after, u64::try_from(now).unwrap_or_default()) {
        "WARNING"
    } else {
        "OK"
    }
}

fn text(line: &Line, now: i64) -> String {
    let (shown, end) = (&line.shown, at(line.shown.not_after));
    let says = match status(shown, now) {
        "EXPIRED" => format!("has ended at {end}"),
        "NOT YET VALID" => format!("is not valid before {}", at(shown.not_before)),
        "WARNING" => format!("ends soon, at {end}"),
        _ => format!("is ok, expires at {end}"),
    };
    format!("{}: certificate {} {says}\n", line.path.display(), shown.subject)
}

/// What is left in the words and steps k3s shows (go-humanize's `RelTime`: a month has 30 days, a year twelve of them).
fn residual(seconds: i64) -> String {
    const STEPS: [(i64, &str); 7] = [
        (12 * 30 * DAY, "year"),
        (30 * DAY, "month"),
        (7 * DAY, "week"),
        (DAY, "day"),
        (60 * 60, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let Some((step, what)) = STEPS.into_iter().find(|(step, _)| seconds >= *step) else {
        return "none".to_owned();
    };
    // Of the last half of a second year it says two.
    let count = if seconds >= 18 * 30 * DAY { (seconds / step).max(2) } else { seconds / step };
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn table(lines: &[Line], now: i64) -> String {
    let head = ["FILENAME", "SUBJECT", "USAGES", "EXPIRES", "RESIDUAL TIME", "STATUS"];
    let mut rows = vec![head.map(str::to_owned), head.map(|title| "-".repeat(title.len()))];
    for Line { path, shown } in lines {
        rows.push([
            path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            shown.common_name.clone(),
            shown.usages.join(","),
            at(shown.not_after),
            residual(shown.not_after.saturating_sub(now)),
            status(shown, now).to_owned(),
        ]);
    }
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}   "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_of_a_bundle_has_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let told = run(dir.path(), CheckOutput::Table).unwrap_err().to_string();
        assert!(told.contains("there are no certificates in"), "{told}");
        cluster::certs::ensure(dir.path(), &cluster::certs::Names::default()).unwrap();
        let table = run(dir.path(), CheckOutput::Table).unwrap();
        let line = |file: &str, subject: &str| {
            let mut lines = table.lines().filter(|line| line.starts_with(file));
            lines.find(|line| line.contains(subject)).unwrap_or_default().to_owned()
        };
        let admin = line("client-admin.crt", "system:admin");
        assert!(admin.contains(" ClientAuth ") && admin.ends_with("1 year          OK"), "{admin}");
        let ca = line("client-admin.crt", "kube-lite-client-ca@");
        assert!(ca.contains(" CertSign ") && ca.ends_with("10 years        OK"), "{ca}");
        let peer = line("peer-server-client.crt", "etcd-peer");
        assert!(peer.contains(" ServerAuth,ClientAuth "), "{peer}");
        let text = run(dir.path(), CheckOutput::Text).unwrap();
        let admin = text.lines().find(|line| line.contains("client-admin.crt")).unwrap();
        assert!(
            admin.contains(": certificate O=system:masters, CN=system:admin is ok, expires at 20"),
            "{admin}"
        );
        std::fs::write(dir.path().join("server/tls/client-admin.crt"), "none").unwrap();
        let told = run(dir.path(), CheckOutput::Text).unwrap_err().to_string();
        assert!(told.contains("client-admin.crt: holds no certificate"), "{told}");
    }

    #[test]
    fn an_end_is_told_before_it_comes() {
        let shown = CertificateInfo {
            not_before: 100 * DAY,
            not_after: 465 * DAY,
            ..CertificateInfo::default()
        };
        for (day, wanted) in
            [(99, "NOT YET VALID"), (101, "OK"), (380, "WARNING"), (466, "EXPIRED")]
        {
            assert_eq!(status(&shown, day * DAY), wanted);
        }
        assert_eq!(
            [-1, 0, 59, 3 * 60 * 60, DAY, 13 * DAY, 29 * DAY, 60 * DAY].map(residual),
            ["none", "none", "59 seconds", "3 hours", "1 day", "1 week", "4 weeks", "2 months"]
        );
        // A second after a certificate was made for a year it is still one.
        assert_eq!(
            [359 * DAY, 365 * DAY - 1, 365 * DAY, 550 * DAY, 3650 * DAY - 1].map(residual),
            ["11 months", "1 year", "1 year", "2 years", "10 years"]
        );
    }
}
