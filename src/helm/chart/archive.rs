//! Chart archives: the files of a `.tgz` with their paths inside the chart
//! (`pkg/chart/loader/archive` of Helm).

use flate2::read::GzDecoder;

use super::File;
use super::tar::{self, TarError};

/// The largest decompressed chart (`MaxDecompressedChartSize`).
pub(crate) const BYTES_MAX: u64 = 100 << 20;
/// The largest file that a chart may hold (`MaxDecompressedFileSize`).
const FILE_BYTES_MAX: usize = 5 << 20;
/// The most files of an archive.
const FILES_MAX: usize = 20_000;

/// The archive is not a chart.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Not an archive, or one that exceeds a limit.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// No gzip data.
    #[error("the chart is not a gzipped archive")]
    Gzip,
    /// A path that leads out of the chart.
    #[error("the chart archive contains the illegal path {0:?}")]
    Path(String),
    /// A file that is too large.
    #[error("the chart file {0:?} is larger than the maximum file size {FILE_BYTES_MAX}")]
    FileSize(String),
    /// No folder around the chart.
    #[error("chart yaml not in base directory")]
    Base,
    /// Nothing in it.
    #[error("no files in chart archive")]
    Empty,
}

/// Reads the files of an archive, without the folder that holds them.
///
/// # Errors
/// The archive is damaged, exceeds a limit or contains an illegal path.
pub(crate) fn files(data: &[u8]) -> Result<Vec<File>, ArchiveError> {
    if !data.starts_with(&[0x1f, 0x8b]) {
        return Err(ArchiveError::Gzip);
    }
    let members = tar::read(GzDecoder::new(data), FILES_MAX, BYTES_MAX)?;
    let mut files = Vec::with_capacity(members.len());
    for member in members {
        let name = inner_path(&member.name)?;
        if member.data.len() > FILE_BYTES_MAX {
            return Err(ArchiveError::FileSize(name));
        }
        let data = member.data.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec);
        files.push(File { name, data: data.unwrap_or(member.data), modified: member.modified });
    }
    if files.is_empty() {
        return Err(ArchiveError::Empty);
    }
    Ok(files)
}

/// The path without its first part; it stays inside the chart.
fn inner_path(path: &str) -> Result<String, ArchiveError> {
    let illegal = || ArchiveError::Path(path.to_owned());
    let delimiter = if path.contains('\\') { '\\' } else { '/' };
    let (base, inner) = path.split_once(delimiter).unwrap_or((path, ""));
    if base == "Chart.yaml" {
        return Err(ArchiveError::Base);
    }
    let inner = inner.replace(delimiter, "/");
    let mut parts: Vec<&str> = Vec::new();
    if inner.starts_with('/') {
        return Err(illegal());
    }
    for part in inner.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or_else(illegal)?;
            }
            part => parts.push(part),
        }
    }
    let is_drive = |part: &&&str| part.as_bytes().get(1) == Some(&b':');
    if parts.is_empty() || parts.first().filter(is_drive).is_some() {
        return Err(illegal());
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write as _;

    /// A ustar archive of these files.
    pub(crate) fn tgz(files: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, data) in files {
            let mut block = [0_u8; 512];
            let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
            put(0, name.as_bytes());
            put(100, b"0000644\0");
            put(124, format!("{:011o}\0", data.len()).as_bytes());
            put(136, b"00000000001\0");
            put(148, b"        ");
            put(156, b"0");
            put(257, b"ustar\x0000");
            let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            out.extend_from_slice(&block);
            out.extend_from_slice(data.as_bytes());
            out.resize(out.len().div_ceil(512) * 512, 0);
        }
        out.resize(out.len() + 1024, 0);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&out).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn files_lose_their_first_folder() {
        let files = files(&tgz(&[("c/Chart.yaml", "a"), ("c/templates/x.yaml", "b")])).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["Chart.yaml", "templates/x.yaml"]);
        assert_eq!((files[1].data.as_slice(), files[1].modified), (&b"b"[..], 1));
    }

    #[test]
    fn illegal_paths_and_other_data_are_refused() {
        for (path, want) in [
            ("c/../../x", "illegal path"),
            ("c//etc/x", "illegal path"),
            ("Chart.yaml", "base directory"),
            ("c/c:/x", "illegal path"),
        ] {
            let error = files(&tgz(&[(path, "")])).unwrap_err().to_string();
            assert!(error.contains(want), "{path}: {error}");
        }
        assert!(matches!(files(b"apiVersion: v1"), Err(ArchiveError::Gzip)));
        let mut damaged = tgz(&[("c/Chart.yaml", "a")]);
        damaged.truncate(damaged.len() / 2);
        assert!(files(&damaged).is_err());
    }
}
