//! The certificates of this machine and their expiry.

use std::path::Path;

use api::k8s::jiff::Timestamp;
use sorting::CompactSort as _;

use super::{CertificateLine, Problem};

/// Certificates are renewed months before they expire; one with fewer days left was not renewed.
const DAYS_MIN: i64 = 7;
/// Most files read per folder.
const FILES_MAX: usize = 64;

/// The certificates (`*.crt`) in these folders by expiry. `now` is in seconds since the epoch.
pub(crate) fn list(folders: &[&Path], now: u64) -> Vec<CertificateLine> {
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "crt"));
        for path in paths.take(FILES_MAX) {
            let end = std::fs::read_to_string(&path).ok().and_then(|t| base::pki::end_of(&t));
            let Some(end) = end else { continue };
            let ends = Timestamp::from_second(end).map(|t| t.to_string()).unwrap_or_default();
            let days_left = end.saturating_sub(now).div_euclid(24 * 60 * 60);
            found
                .push((end, CertificateLine { file: path.display().to_string(), ends, days_left }));
        }
    }
    found.compact_sort_by(|a, b| (a.0, &a.1.file).cmp(&(b.0, &b.1.file)));
    found.into_iter().map(|(_, line)| line).collect()
}

/// The problem of a certificate near its expiry.
pub(super) fn problem(line: &CertificateLine) -> Option<Problem> {
    let fix = "set the clock if it is wrong; else restart kube-lite and check its log for the failed renewal";
    let days = line.days_left;
    (days < DAYS_MIN).then(|| {
        let what = if days < 0 {
            format!("the certificate {} expired at {}", line.file, line.ends)
        } else {
            format!("the certificate {} expires in {days} days and was not renewed", line.file)
        };
        Problem::new(what, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_near_expiry_are_problems() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        base::pki::Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "test").unwrap();
        std::fs::write(at("broken.crt"), "no certificate").unwrap();
        let end = base::pki::end_of(&std::fs::read_to_string(at("ca.crt")).unwrap()).unwrap();
        let now = u64::try_from(end).unwrap() - 2 * 24 * 60 * 60;
        let found = list(&[folder.path()], now);
        assert_eq!((found.len(), found[0].days_left), (1, 2));
        assert!(found[0].file.ends_with("ca.crt") && problem(&found[0]).is_some());
        assert!(problem(&CertificateLine { days_left: 90, ..found[0].clone() }).is_none());
    }
}
