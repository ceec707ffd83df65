//! Reads the index of a tar archive and writes small ones; file contents stay on disk.

use std::io::{self, Read, Seek, SeekFrom};

/// Maximum number of entries of an archive; an image archive has a few dozen.
const ENTRIES_MAX: usize = 100_000;
/// Maximum length of a name in a GNU or pax header.
const NAME_MAX: u64 = 64 << 10;
const BLOCK: u64 = 512;

/// A regular file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TarEntry {
    pub(crate) name: String,
    /// Offset of the content in the archive.
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a tar archive: {why}"))
}

/// Parses a number field: octal text, or base 256 if the high bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let mut value = u64::from(first & 0x7f);
        for byte in rest {
            value = value
                .checked_mul(256)
                .and_then(|v| v.checked_add(u64::from(*byte)))
                .ok_or_else(|| invalid("a size is too large"))?;
        }
        return Ok(value);
    }
    let text = text(field);
    let text = text.trim();
    if text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text, 8).map_err(|_| invalid("a number is not octal"))
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn slice(block: &[u8; 512], from: usize, length: usize) -> &[u8] {
    &block[from..from + length]
}

/// Returns the `path` of a pax header, if it has one. Records are `length key=value\n`.
fn pax_path(data: &[u8]) -> Option<String> {
    let mut rest = data;
    while !rest.is_empty() {
        let space = rest.iter().position(|b| *b == b' ')?;
        let length: usize = std::str::from_utf8(rest.get(..space)?).ok()?.parse().ok()?;
        let record = rest.get(space + 1..length.checked_sub(1)?)?;
        if let Some(path) = record.strip_prefix(b"path=") {
            return Some(String::from_utf8_lossy(path).into_owned());
        }
        rest = rest.get(length..)?;
    }
    None
}

/// Returns the regular files of an archive, in order.
///
/// # Errors
///
/// I/O errors, and files that are not tar archives.
pub(crate) fn index(archive: &mut (impl Read + Seek)) -> io::Result<Vec<TarEntry>> {
    let mut entries = Vec::new();
    let mut long_name = None;
    let mut position = archive.seek(SeekFrom::Start(0))?;
    let mut block = [0_u8; 512];
    loop {
        archive.seek(SeekFrom::Start(position))?;
        match archive.read_exact(&mut block) {
            Ok(()) => {}
            // Some writers omit the final zero blocks.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && !entries.is_empty() => break,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(invalid("it is too short"));
            }
            Err(e) => return Err(e),
        }
        if block.iter().all(|b| *b == 0) {
            break;
        }
        if slice(&block, 257, 5) != b"ustar" {
            return Err(invalid("a header has no magic"));
        }
        let size = number(slice(&block, 124, 12))?;
        let offset = position + BLOCK;
        position = size
            .checked_next_multiple_of(BLOCK)
            .and_then(|s| s.checked_add(offset))
            .ok_or_else(|| invalid("a size is too large"))?;
        match block[156] {
            kind @ (b'L' | b'x') => {
                if size > NAME_MAX {
                    return Err(invalid("a name is too long"));
                }
                let mut data = Vec::new();
                archive.by_ref().take(size).read_to_end(&mut data)?;
                long_name =
                    if kind == b'L' { Some(text(&data)) } else { pax_path(&data).or(long_name) };
            }
            b'0' | 0 => {
                let name = long_name.take().unwrap_or_else(|| {
                    let (name, prefix) =
                        (text(slice(&block, 0, 100)), text(slice(&block, 345, 155)));
                    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
                });
                if entries.len() == ENTRIES_MAX {
                    return Err(invalid("too many entries"));
                }
                let name = name.trim_start_matches("./").to_owned();
                entries.push(TarEntry { name, offset, size });
            }
            _ => long_name = None,
        }
    }
    Ok(entries)
}

/// Writes an archive of small files: name (under 100 bytes), mode, content. Owner root, time zero.
pub(crate) fn write(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, mode, content) in files {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", content.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_lists_files_and_rejects_other_formats() {
        let archive = write(&[("a", 0o644, b"one"), ("d/b", 0o755, b"two")]);
        let entries = index(&mut io::Cursor::new(&archive)).unwrap();
        let names: Vec<(&str, &[u8])> = entries
            .iter()
            .map(|e| {
                let from = usize::try_from(e.offset).unwrap();
                (e.name.as_str(), &archive[from..from + usize::try_from(e.size).unwrap()])
            })
            .collect();
        assert_eq!(names, [("a", &b"one"[..]), ("d/b", &b"two"[..])]);
        assert!(index(&mut io::Cursor::new(vec![7_u8; 600])).is_err());
        assert!(index(&mut io::Cursor::new(b"short")).is_err());
    }
}
