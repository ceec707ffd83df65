//! A reader of tar archives: the regular files of the ustar, pax and GNU formats.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// The most bytes of an extended header or long name.
const EXTENSION_MAX: u64 = 1 << 20;

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
    #[error("the archive has more than {0} files")]
    Files(usize),
    /// Too many bytes.
    #[error("decompressed chart is larger than the maximum size {0}")]
    Size(u64),
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
/// The archive is damaged, has more than `files_max` files or more than `bytes_max` bytes.
pub(super) fn read(
    mut input: impl Read,
    files_max: usize,
    bytes_max: u64,
) -> Result<Vec<Member>, TarError> {
    let (mut members, mut left, mut count) = (Vec::new(), bytes_max, 0_usize);
    let (mut long_name, mut pax_name) = (None, None);
    loop {
        let mut block = [0_u8; BLOCK];
        if !fill(&mut input, &mut block)? || block.iter().all(|byte| *byte == 0) {
            return Ok(members);
        }
        count += 1;
        if count > files_max {
            return Err(TarError::Files(files_max));
        }
        let header = Header::parse(&block).ok_or(TarError::Header(count))?;
        let limit = if header.is_extension() { EXTENSION_MAX } else { left };
        if header.size > limit {
            return Err(TarError::Size(bytes_max));
        }
        let data = content(&mut input, header.size)?;
        match header.kind {
            b'x' => pax_name = pax_path(&data),
            b'g' => {}
            b'L' => long_name = Some(text(&data)),
            b'K' => {}
            kind => {
                let name = pax_name.take().or(long_name.take()).unwrap_or(header.name);
                if matches!(kind, b'0' | 0 | b'7') && !name.ends_with('/') {
                    left = left.saturating_sub(header.size);
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
