//! Zip archives of one deflated file, as k3s compresses snapshots; their content is not trusted.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use flate2::read::DeflateDecoder;
use flate2::{Compression, Crc, CrcWriter, write::DeflateEncoder};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const DEFLATED: u16 = 8;
const STORED: u16 = 0;
/// Sizes of the headers.
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
/// Maximum size of a comment after the end record.
const COMMENT_MAX: u64 = 65_535;
/// Version 2.0 of the format: deflated files.
const VERSION: u16 = 20;
/// 1 January 1980, the earliest date of the format; the name of a snapshot contains its time.
const DATE: u16 = 0x21;

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive cannot be used: {what}"))
}

fn four(bytes: u64) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| bad("files of 4 GiB and more cannot be compressed"))
}

/// Packs `from` as the file `name` into the new archive `to`, synced.
///
/// # Errors
/// Errors of the file system; a file of 4 GiB or more.
pub(crate) fn pack(from: &Path, to: &Path, name: &str) -> io::Result<()> {
    let mut source = File::open(from)?;
    let size = four(source.metadata()?.len())?;
    let length = u16::try_from(name.len()).map_err(|_| bad("the name is too long"))?;
    // A leftover of a killed process.
    let _ = std::fs::remove_file(to);
    let mut archive = File::options().write(true).create_new(true).mode(0o600).open(to)?;
    archive.write_all(&[0; LOCAL_BYTES])?;
    archive.write_all(name.as_bytes())?;
    let data = LOCAL_BYTES as u64 + u64::from(length);
    let encoder = DeflateEncoder::new(&mut archive, Compression::default());
    let mut writer = CrcWriter::new(encoder);
    io::copy(&mut source, &mut writer)?;
    let crc = writer.crc().sum();
    writer.into_inner().finish()?;
    let end = archive.stream_position()?;
    let packed = four(end - data)?;
    let mut common = Vec::new();
    for half in [VERSION, 0, DEFLATED, 0, DATE] {
        common.extend_from_slice(&half.to_le_bytes());
    }
    for word in [crc, packed, size] {
        common.extend_from_slice(&word.to_le_bytes());
    }
    common.extend_from_slice(&length.to_le_bytes());
    common.extend_from_slice(&[0; 2]);
    let mut local = LOCAL.to_le_bytes().to_vec();
    local.extend_from_slice(&common);
    archive.write_all_at(&local, 0)?;
    let mut tail = CENTRAL.to_le_bytes().to_vec();
    // Created on Unix, a regular file with mode 0600.
    tail.extend_from_slice(&(3 << 8 | VERSION).to_le_bytes());
    tail.extend_from_slice(&common);
    tail.extend_from_slice(&[0; 6]);
    tail.extend_from_slice(&(0o100_600_u32 << 16).to_le_bytes());
    tail.extend_from_slice(&[0; 4]);
    tail.extend_from_slice(name.as_bytes());
    let central = four(tail.len() as u64)?;
    tail.extend_from_slice(&END.to_le_bytes());
    for half in [0_u16, 0, 1, 1] {
        tail.extend_from_slice(&half.to_le_bytes());
    }
    for word in [central, four(end)?] {
        tail.extend_from_slice(&word.to_le_bytes());
    }
    tail.extend_from_slice(&[0; 2]);
    archive.write_all(&tail)?;
    archive.sync_all()
}

/// Whether a file starts like an archive.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn is_archive(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(u32::from_le_bytes(magic) == LOCAL),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let bytes = bytes.get(at..at + 2).and_then(|b| b.try_into().ok());
    bytes.map(u16::from_le_bytes).ok_or_else(|| bad("it is cut off"))
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map(u32::from_le_bytes).ok_or_else(|| bad("it is cut off"))
}

/// The single file of an archive.
struct Member {
    deflated: bool,
    crc: u32,
    packed: u64,
    size: u64,
    begin: u64,
}

fn member(archive: &File) -> io::Result<Member> {
    let length = archive.metadata()?.len();
    let from = length.saturating_sub(COMMENT_MAX + END_BYTES as u64);
    let mut tail = vec![0; usize::try_from(length - from).map_err(io::Error::other)?];
    archive.read_exact_at(&mut tail, from)?;
    let at = tail.windows(4).rposition(|bytes| bytes == END.to_le_bytes());
    let end = at.and_then(|at| tail.get(at..)).ok_or_else(|| bad("its end is missing"))?;
    if end.len() != END_BYTES + usize::from(u16_at(end, 20)?) {
        return Err(bad("it is cut off"));
    }
    if u16_at(end, 10)? != 1 {
        return Err(bad("it does not hold one file"));
    }
    let at = u64::from(u32_at(end, 16)?);
    let mut central = [0; CENTRAL_BYTES];
    archive.read_exact_at(&mut central, at).map_err(|_| bad("it is cut off"))?;
    let flags = u16_at(&central, 8)?;
    let method = u16_at(&central, 10)?;
    if u32_at(&central, 0)? != CENTRAL || flags & 1 != 0 || ![STORED, DEFLATED].contains(&method) {
        return Err(bad("its file is encrypted, packed in another way, or damaged"));
    }
    let offset = u64::from(u32_at(&central, 42)?);
    let mut local = [0; LOCAL_BYTES];
    archive.read_exact_at(&mut local, offset).map_err(|_| bad("it is cut off"))?;
    if u32_at(&local, 0)? != LOCAL {
        return Err(bad("its file is not where it says"));
    }
    let names = u64::from(u16_at(&local, 26)?) + u64::from(u16_at(&local, 28)?);
    Ok(Member {
        deflated: method == DEFLATED,
        crc: u32_at(&central, 16)?,
        packed: u64::from(u32_at(&central, 20)?),
        size: u64::from(u32_at(&central, 24)?),
        begin: offset + LOCAL_BYTES as u64 + names,
    })
}

/// Unpacks the single file of an archive, and verifies its size and checksum.
///
/// # Errors
/// Errors of the file systems; an invalid archive.
pub(crate) fn unpack(mut archive: &File, to: &mut dyn Write) -> io::Result<()> {
    let member = member(archive)?;
    archive.seek(SeekFrom::Start(member.begin))?;
    let packed = BufReader::new(archive.take(member.packed));
    let source: Box<dyn Read + '_> =
        if member.deflated { Box::new(DeflateDecoder::new(packed)) } else { Box::new(packed) };
    // Reading one more byte than declared detects a wrong size.
    let mut source = source.take(member.size + 1);
    let (mut crc, mut size) = (Crc::new(), 0);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(bad(&error.to_string())),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        crc.update(bytes);
        size += read as u64;
        to.write_all(bytes)?;
    }
    if size != member.size || crc.sum() != member.crc {
        return Err(bad("its file does not match its checksum"));
    }
    Ok(())
}

/// Unpacks an archive and discards the data.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn check(path: &Path) -> io::Result<()> {
    unpack(&File::open(path)?, &mut io::sink())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpack_restores_packed_content_and_detects_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("a.zip"));
        let content: Vec<u8> = (0..200_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        std::fs::write(&from, &content).unwrap();
        pack(&from, &to, "name-1").unwrap();
        let archive = File::open(&to).unwrap();
        assert!(is_archive(&archive).unwrap() && !is_archive(&File::open(&from).unwrap()).unwrap());
        let mut out = Vec::new();
        unpack(&archive, &mut out).unwrap();
        assert!(out == content && archive.metadata().unwrap().len() < 200_000);
        let good = std::fs::read(&to).unwrap();
        assert_eq!(good[..12], *b"PK\x03\x04\x14\0\0\0\x08\0\0\0");
        for at in (0..good.len()).step_by(good.len() / 97).chain([good.len() - 8]) {
            let mut changed = good.clone();
            changed[at] ^= 0x10;
            std::fs::write(&to, &changed).unwrap();
            let mut out = Vec::new();
            // Fields that are not read, such as the date, may change; the data may not.
            assert!(
                unpack(&File::open(&to).unwrap(), &mut out).is_err() || out == content,
                "byte {at}"
            );
        }
        for length in [0, 4, 100, good.len() - 1] {
            std::fs::write(&to, &good[..length]).unwrap();
            assert!(check(&to).is_err(), "{length} bytes");
        }
    }
}
