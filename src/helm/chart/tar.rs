//! A reader of tar archives: the regular files of the ustar, pax and GNU formats.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// The most bytes of an extended header or long name.
const EXTENSION_MAX: u64 = 1 << 20;
/// The largest decompressed chart (`MaxDecompressedChartSize`).
pub(crate) const BYTES_MAX: u64 = 100 << 20;
/// The most files of an archive.
const FILES_MAX: usize = 20_000;

/// The archive is damaged or exceeds a limit.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The bytes cannot be read or decompressed.
    #[error("cannot read the archive: {0}")]
    Read(#[from] io::Error),
    /// A header has a wrong checksum or number.
    #[error("the archive is damaged: bad header of file {0}")]
    Header(usize),
    /// Too many files.
    #[error("the archive has more than {FILES_MAX} files")]
    Files,
    /// Too many bytes.
    #[error("decompressed chart is larger than the maximum size {BYTES_MAX}")]
    Size,
}

/// What an archive, with the archives inside of it, may still contain.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) files: usize,
    pub(super) bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { files: FILES_MAX, bytes: BYTES_MAX }
    }
}

/// A file of an archive.
#[derive(Debug)]
pub(super) struct Member {
    /// Path.
    pub(super) name: String,
    /// Time of the last change, in seconds since 1970.
    pub(super) modified: i64,
    /// Content.
    pub(super) data: Vec<u8>,
}

/// Reads all regular files; directories are skipped, and so are links and devices, whose content
/// is empty for Helm too.
///
/// # Errors
/// The archive is damaged or exceeds the limits.
pub(super) fn read(mut input: impl Read, limits: &mut Limits) -> Result<Vec<Member>, TarError> {
    let (mut members, mut count) = (Vec::new(), 0_usize);
    let (mut long_name, mut pax_name) = (None, None);
    loop {
        let mut block = [0_u8; BLOCK];
        if !fill(&mut input, &mut block)? || block.iter().all(|byte| *byte == 0) {
            return Ok(members);
        }
        count += 1;
        limits.files = limits.files.checked_sub(1).ok_or(TarError::Files)?;
        let header = Header::parse(&block).ok_or(TarError::Header(count))?;
        if header.is_extension() && header.size > EXTENSION_MAX {
            return Err(TarError::Size);
        }
        limits.bytes = limits.bytes.checked_sub(header.size).ok_or(TarError::Size)?;
        let data = content(&mut input, header.size)?;
        match header.kind {
            b'x' => pax_name = pax_path(&data),
            b'g' => {}
            b'L' => long_name = Some(text(&data)),
            b'K' => {}
            kind => {
                let name = pax_name.take().or(long_name.take()).unwrap_or(header.name);
                if matches!(kind, b'0' | 0 | b'7') && !name.ends_with('/') {
                    members.push(Member { name, modified: header.modified, data });
                }
            }
        }
    }
}

/// Fills the block; `false` at the end of the input.
fn fill(input: &mut impl Read, block: &mut [u8]) -> Result<bool, TarError> {
    let mut filled = 0;
    while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest)? {
            0 if filled == 0 => return Ok(false),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            read => filled += read,
        }
    }
    Ok(true)
}

fn content(input: &mut impl Read, size: u64) -> Result<Vec<u8>, TarError> {
    let mut data = Vec::new();
    let read = input.by_ref().take(size).read_to_end(&mut data)?;
    if u64::try_from(read).ok() != Some(size) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    io::copy(&mut input.by_ref().take(padding), &mut io::sink())?;
    Ok(data)
}

struct Header {
    name: String,
    size: u64,
    modified: i64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8; BLOCK]) -> Option<Self> {
        let (head, tail) = (block.get(..148)?, block.get(156..)?);
        let sum: u64 = head.iter().chain(tail).map(|byte| u64::from(*byte)).sum::<u64>() + 8 * 32;
        if number(block.get(148..156)?)? != sum {
            return None;
        }
        let name = text(block.get(..100)?);
        let prefix = text(block.get(345..500)?);
        let is_posix = block.get(257..263)? == b"ustar\0";
        let name = if is_posix && !prefix.is_empty() { format!("{prefix}/{name}") } else { name };
        Some(Self {
            name,
            size: number(block.get(124..136)?)?,
            modified: i64::try_from(number(block.get(136..148)?)?).ok()?,
            kind: *block.get(156)?,
        })
    }

    fn is_extension(&self) -> bool {
        matches!(self.kind, b'x' | b'g' | b'L' | b'K')
    }
}

/// An octal number, or the base-256 form of GNU for large ones.
fn number(field: &[u8]) -> Option<u64> {
    if let Some((first, rest)) = field.split_first().filter(|(first, _)| **first & 0x80 != 0) {
        let start = u64::from(*first & 0x7f);
        return rest.iter().try_fold(start, |value, byte| {
            value.checked_mul(256).map(|value| value | u64::from(*byte))
        });
    }
    let digits = text(field);
    let digits = digits.trim();
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(field.get(..end).unwrap_or(field)).into_owned()
}

/// The value of `path` in the records `LENGTH KEY=VALUE\n` of a pax header.
fn pax_path(mut data: &[u8]) -> Option<String> {
    while !data.is_empty() {
        let space = data.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(data.get(..space)?).ok()?.parse().ok()?;
        let record = data.get(space + 1..length)?;
        if let Some(path) = record.strip_prefix(b"path=") {
            return Some(text(path).trim_end_matches('\n').to_owned());
        }
        data = data.get(length..)?;
    }
    None
}

/// The archive with correct checksums in its headers, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(super) fn with_checksums(data: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (data.to_vec(), 0_usize);
    while let Some(block) = out.get_mut(at..).and_then(|rest| rest.get_mut(..BLOCK)) {
        let (head, tail) = (block.get(..148), block.get(156..));
        let bytes = head.into_iter().chain(tail).flatten();
        let sum = bytes.map(|byte| u64::from(*byte)).sum::<u64>() + 8 * 32;
        let size = block.get(124..136).and_then(number).unwrap_or_default();
        if sum != 8 * 32
            && let Some(field) = block.get_mut(148..156)
        {
            field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let blocks = usize::try_from(size).unwrap_or(usize::MAX).div_ceil(BLOCK);
        at = at.saturating_add(BLOCK).saturating_add(blocks.saturating_mul(BLOCK));
    }
    out
}
