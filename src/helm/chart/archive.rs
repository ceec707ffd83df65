//! Chart archives: the files of a `.tgz` with their paths inside the chart
//! (`pkg/chart/loader/archive` of Helm).

use flate2::read::GzDecoder;

use super::File;
pub(crate) use super::tar::BYTES_MAX;
use super::tar::{self, Limits, TarError};

/// The largest file that a chart may hold (`MaxDecompressedFileSize`).
const FILE_BYTES_MAX: usize = 5 << 20;

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
pub(super) fn files(data: &[u8], limits: &mut Limits) -> Result<Vec<File>, ArchiveError> {
    if !data.starts_with(&[0x1f, 0x8b]) {
        return Err(ArchiveError::Gzip);
    }
    from_tar(GzDecoder::new(data), limits)
}

/// As [`files`], without compression.
pub(super) fn from_tar(
    input: impl std::io::Read,
    limits: &mut Limits,
) -> Result<Vec<File>, ArchiveError> {
    let members = tar::read(input, limits)?;
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
        tgz_of(files.iter().map(|(name, text)| (*name, text.as_bytes())))
    }

    /// As [`tgz`], of files that are no texts.
    pub(crate) fn tgz_of<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
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
            out.extend_from_slice(data);
            out.resize(out.len().div_ceil(512) * 512, 0);
        }
        out.resize(out.len() + 1024, 0);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&out).unwrap();
        gzip.finish().unwrap()
    }

    fn read(data: &[u8]) -> Result<Vec<File>, ArchiveError> {
        files(data, &mut Limits::default())
    }

    #[test]
    fn files_lose_their_first_folder() {
        let files = read(&tgz(&[("c/Chart.yaml", "a"), ("c/templates/x.yaml", "b")])).unwrap();
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
            let error = read(&tgz(&[(path, "")])).unwrap_err().to_string();
            assert!(error.contains(want), "{path}: {error}");
        }
        assert!(matches!(read(b"apiVersion: v1"), Err(ArchiveError::Gzip)));
        let mut damaged = tgz(&[("c/Chart.yaml", "a")]);
        damaged.truncate(damaged.len() / 2);
        assert!(read(&damaged).is_err());
    }
}
