//! `kube-lite certificate check`: lists the certificates in the files of this machine, in the
//! format of k3s.

use std::path::{Path, PathBuf};

use api::k8s::jiff::Timestamp;
use base::pki::{self, CertificateInfo};
use sorting::CompactSort as _;

use crate::command_line::CheckOutput;
use crate::error_catalogue::{CERTIFICATE_COMMAND, CommandError};

/// Maximum number of files per folder.
const FILES_MAX: usize = 256;
const DAY: i64 = 24 * 60 * 60;

/// One certificate of a file.
struct Row {
    path: PathBuf,
    certificate: CertificateInfo,
}

/// The list of the certificates in this data directory.
///
/// # Errors
/// There are none, or a file cannot be read.
pub(crate) fn run(data_dir: &Path, output: CheckOutput) -> Result<String, CommandError> {
    let mut rows = Vec::new();
    for path in files(data_dir) {
        let row = |certificate| Row { path: path.clone(), certificate };
        rows.extend(certificates(&path)?.into_iter().map(row));
    }
    if rows.is_empty() {
        return Err(CERTIFICATE_COMMAND.error(format!(
            "there are no certificates in {}; give the data directory with --data-dir",
            data_dir.display()
        )));
    }
    let now = i64::try_from(pki::now()).unwrap_or(i64::MAX);
    Ok(match output {
        CheckOutput::Text => rows.iter().map(|row| text(row, now)).collect(),
        CheckOutput::Table => table(&rows, now),
    })
}

/// The files with certificates in a data directory.
pub(super) fn files(data_dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["server/tls", "server/tls/etcd", "agent"] {
        let entries = std::fs::read_dir(data_dir.join(folder)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "crt"));
        paths.compact_sort();
        files.extend(paths.into_iter().take(FILES_MAX));
    }
    files
}

/// The certificates in a file.
///
/// # Errors
/// The file cannot be read, or it contains something else.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateInfo>, CommandError> {
    let text = base::fs::read_to_string(path).map_err(|e| CERTIFICATE_COMMAND.error(e))?;
    pki::describe(&text).map_err(|e| CERTIFICATE_COMMAND.error(format!("{}: {e}", path.display())))
}

fn rfc3339(seconds: i64) -> String {
    Timestamp::from_second(seconds).map(|t| t.to_string()).unwrap_or_default()
}

/// The state of a certificate in k3s's words.
fn status(certificate: &CertificateInfo, now: i64) -> &'static str {
    if now > certificate.not_after {
        "EXPIRED"
    } else if now < certificate.not_before {
        "NOT YET VALID"
    } else if pki::due_at(certificate.not_after, u64::try_from(now).unwrap_or_default()) {
        "WARNING"
    } else {
        "OK"
    }
}

fn text(row: &Row, now: i64) -> String {
    let certificate = &row.certificate;
    let end = rfc3339(certificate.not_after);
    let state = match status(certificate, now) {
        "EXPIRED" => format!("has ended at {end}"),
        "NOT YET VALID" => format!("is not valid before {}", rfc3339(certificate.not_before)),
        "WARNING" => format!("ends soon, at {end}"),
        _ => format!("is ok, expires at {end}"),
    };
    format!("{}: certificate {} {state}\n", row.path.display(), certificate.subject)
}

/// The remaining time in the words and steps of k3s (go-humanize's `RelTime`: a month has 30 days,
/// a year twelve of them).
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
    // go-humanize prints two years from one and a half years on.
    let count = if seconds >= 18 * 30 * DAY { (seconds / step).max(2) } else { seconds / step };
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn table(certificates: &[Row], now: i64) -> String {
    let head = ["FILENAME", "SUBJECT", "USAGES", "EXPIRES", "RESIDUAL TIME", "STATUS"];
    let mut rows = vec![head.map(str::to_owned), head.map(|title| "-".repeat(title.len()))];
    for Row { path, certificate } in certificates {
        rows.push([
            path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            certificate.common_name.clone(),
            certificate.usages.join(","),
            rfc3339(certificate.not_after),
            residual(certificate.not_after.saturating_sub(now)),
            status(certificate, now).to_owned(),
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
        let error = run(dir.path(), CheckOutput::Table).unwrap_err().to_string();
        assert!(error.contains("there are no certificates in"), "{error}");
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
        let error = run(dir.path(), CheckOutput::Text).unwrap_err().to_string();
        assert!(error.contains("client-admin.crt: holds no certificate"), "{error}");
    }

    #[test]
    fn status_warns_before_the_expiry() {
        let certificate = CertificateInfo {
            not_before: 100 * DAY,
            not_after: 465 * DAY,
            ..CertificateInfo::default()
        };
        for (day, expected) in
            [(99, "NOT YET VALID"), (101, "OK"), (380, "WARNING"), (466, "EXPIRED")]
        {
            assert_eq!(status(&certificate, day * DAY), expected);
        }
        assert_eq!(
            [-1, 0, 59, 3 * 60 * 60, DAY, 13 * DAY, 29 * DAY, 60 * DAY].map(residual),
            ["none", "none", "59 seconds", "3 hours", "1 day", "1 week", "4 weeks", "2 months"]
        );
        // One second after a certificate for one year was issued, one year remains.
        assert_eq!(
            [359 * DAY, 365 * DAY - 1, 365 * DAY, 550 * DAY, 3650 * DAY - 1].map(residual),
            ["11 months", "1 year", "1 year", "2 years", "10 years"]
        );
    }
}
