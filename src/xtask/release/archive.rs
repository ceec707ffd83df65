//! Deterministic archives and digests: the same content gives the same bytes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const BLOCK: usize = 512;

/// A tar archive in the ustar format. Entries belong to root and have one modification time.
pub(super) struct Tar {
    bytes: Vec<u8>,
    mtime: u64,
}

impl Tar {
    /// `mtime`: the modification time of all entries, in seconds since 1970.
    pub(super) fn new(mtime: u64) -> Self {
        Self { bytes: Vec::new(), mtime }
    }

    /// Adds a directory.
    pub(super) fn directory(&mut self, name: &str, mode: u32) -> Result<()> {
        self.header(&format!("{name}/"), mode, 0, b'5')
    }

    /// Adds a file.
    pub(super) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.header(name, mode, content.len(), b'0')?;
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    /// The archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }

    fn header(&mut self, name: &str, mode: u32, size: usize, kind: u8) -> Result<()> {
        ensure!(name.len() <= 100, "{name} is too long for a tar archive");
        ensure!(size < 1 << 33, "{name} is too large for a tar archive");
        let mut block = [0u8; BLOCK];
        let mut put = |at: usize, text: &str| {
            for (target, byte) in block.iter_mut().skip(at).zip(text.bytes()) {
                *target = byte;
            }
        };
        put(0, name);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, &format!("{:011o}", self.mtime));
        put(148, "        ");
        put(156, char::from(kind).encode_utf8(&mut [0; 4]));
        put(257, "ustar");
        put(263, "00");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        let sum = format!("{sum:06o}\0 ");
        for (target, byte) in block.iter_mut().skip(148).zip(sum.bytes()) {
            *target = byte;
        }
        self.bytes.extend_from_slice(&block);
        Ok(())
    }
}

/// Compresses with gzip, without a name and a time.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .args(["-6", "-n", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run gzip")?;
    let mut input = child.stdin.take().context("gzip has no input")?;
    let output = std::thread::scope(|scope| {
        let writer = scope.spawn(move || input.write_all(content));
        let output = child.wait_with_output();
        match writer.join() {
            Ok(written) => written.context("cannot write to gzip")?,
            Err(_) => bail!("the thread that writes to gzip panicked"),
        }
        output.context("cannot read from gzip")
    })?;
    ensure!(output.status.success(), "gzip: {}", output.status);
    Ok(output.stdout)
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file and creates its directory.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the `tar` of the machine lists.
    fn listed(archive: &[u8], arguments: &[&str]) -> String {
        let mut child = Command::new("tar")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(archive).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    fn example() -> Vec<u8> {
        let mut tar = Tar::new(86_400);
        tar.directory("bin", 0o755).unwrap();
        tar.file("bin/a", 0o755, b"content").unwrap();
        tar.file("empty", 0o644, b"").unwrap();
        tar.finish()
    }

    #[test]
    fn tar_reads_names_modes_owners_sizes_and_times() {
        let want = "drwxr-xr-x 0/0 0 1970-01-02 00:00 bin/\n\
                    -rwxr-xr-x 0/0 7 1970-01-02 00:00 bin/a\n\
                    -rw-r--r-- 0/0 0 1970-01-02 00:00 empty\n";
        let lines = listed(&example(), &["--numeric-owner", "-tvf", "-"]);
        let words: Vec<String> =
            lines.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(words.join("\n") + "\n", want);
        assert_eq!(listed(&example(), &["-xOf", "-", "bin/a"]), "content");
    }

    #[test]
    fn gzip_output_is_the_same_each_time_and_without_a_time() {
        let compressed = gzip(&example()).unwrap();
        assert_eq!(compressed, gzip(&example()).unwrap());
        assert_eq!(compressed.get(..8).unwrap(), [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn sha256_of_an_empty_file_is_that_of_fips_180() {
        let want = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b""), want);
    }
}
