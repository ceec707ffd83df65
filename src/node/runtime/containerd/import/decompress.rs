//! Decompresses image archives into a nameless file, because the blobs of an archive are read in
//! another order than they are stored in.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// How an archive is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
    Lz4,
    Bzip2,
    Xz,
}

impl Compression {
    /// Recognizes a compression by the magic number of its file format, whatever the file's name.
    fn of(magic: &[u8]) -> Self {
        let formats: [(&[u8], Self); 5] = [
            (&[0x1f, 0x8b], Self::Gzip),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&[0x04, 0x22, 0x4d, 0x18], Self::Lz4),
            (b"BZh", Self::Bzip2),
            (&[0xfd, b'7', b'z', b'X', b'Z'], Self::Xz),
        ];
        let found = formats.into_iter().find(|(start, _)| magic.starts_with(start));
        found.map_or(Self::None, |(_, compression)| compression)
    }
}

fn unsupported(format: &str, program: &str) -> io::Error {
    let why = format!(
        "archives compressed with {format} are not supported; decompress it with `{program} -d`"
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Opens an archive for reading at any offset. A compressed one is decompressed into a nameless
/// file in the directory `scratch`, of at most `room` bytes.
///
/// # Errors
///
/// I/O errors, corrupt data, unsupported compressions, and an archive that needs more than `room`
/// bytes.
pub(super) fn open(path: &Path, scratch: &Path, room: u64) -> io::Result<File> {
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    (&file).take(6).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    let compression = Compression::of(&magic);
    match compression {
        Compression::None => return Ok(file),
        Compression::Bzip2 => return Err(unsupported("bzip2", "bzip2")),
        Compression::Xz => return Err(unsupported("xz", "xz")),
        Compression::Gzip | Compression::Zstd | Compression::Lz4 => {}
    }
    let mut plain = Limited { file: base::fs::scratch(scratch)?, room, left: room };
    match compression {
        Compression::Gzip => {
            io::copy(&mut flate2::read::MultiGzDecoder::new(BufReader::new(file)), &mut plain)?;
        }
        Compression::Lz4 => {
            io::copy(&mut lz4_flex::frame::FrameDecoder::new(BufReader::new(file)), &mut plain)?;
        }
        _ => copy_zstd(BufReader::new(file), &mut plain)?,
    }
    Ok(plain.file)
}

/// Decompresses all frames of a zstd file; parallel compressors write several.
fn copy_zstd(mut source: impl BufRead, target: &mut impl Write) -> io::Result<()> {
    let mut decoder = FrameDecoder::new();
    while !source.fill_buf()?.is_empty() {
        match StreamingDecoder::new_with_decoder(&mut source, &mut decoder) {
            Ok(mut frame) => {
                io::copy(&mut frame, target)?;
            }
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                io::copy(&mut source.by_ref().take(length.into()), &mut io::sink())?;
            }
            Err(error) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
            }
        }
    }
    Ok(())
}

/// A file of limited size.
struct Limited {
    file: File,
    room: u64,
    left: u64,
}

impl Write for Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(length).ok_or_else(|| {
            let why = format!("decompressed, it needs more than {} bytes of disk space", self.room);
            io::Error::new(io::ErrorKind::StorageFull, why)
        })?;
        self.file.write_all(data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `printf hello | zstd`.
    const ZSTD: [u8; 18] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x29, 0x00, 0x00, b'h', b'e', b'l', b'l', b'o', 0xa3,
        0x6d, 0x9f, 0x88,
    ];

    fn opened(data: &[u8], room: u64) -> io::Result<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("archive");
        std::fs::write(&path, data).unwrap();
        let mut file = open(&path, directory.path(), room)?;
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "the decompressed copy has no name");
        let mut plain = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut plain).unwrap();
        Ok(plain)
    }

    #[test]
    fn every_supported_compression_is_recognized_by_its_content() {
        assert_eq!(opened(b"plain", 0).unwrap(), b"plain");
        assert_eq!(opened(b"", 0).unwrap(), b"");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"hello").unwrap();
        assert_eq!(opened(&gzip.finish().unwrap(), 5).unwrap(), b"hello");
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(b"hello").unwrap();
        assert_eq!(opened(&lz4.finish().unwrap(), 5).unwrap(), b"hello");
        assert_eq!(opened(&ZSTD, 5).unwrap(), b"hello");
        for (magic, program) in [(&b"BZh91AY"[..], "bzip2"), (b"\xfd7zXZ\0", "xz")] {
            let error = opened(magic, 5).unwrap_err().to_string();
            assert!(error.contains(&format!("decompress it with `{program} -d`")), "{error}");
        }
    }

    #[test]
    fn zstd_files_may_have_several_frames_and_skippable_ones() {
        // A skippable frame of three bytes (RFC 8878, 3.1.2).
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let all = [&ZSTD[..], &skippable, &ZSTD].concat();
        assert_eq!(opened(&all, 10).unwrap(), b"hellohello");
        assert!(opened(&ZSTD[..12], 10).is_err(), "truncated");
        assert!(opened(&[&ZSTD[..], b"rest"].concat(), 10).is_err(), "garbage after a frame");
    }

    #[test]
    fn a_decompressed_archive_is_limited_to_the_free_space() {
        let error = opened(&ZSTD, 4).unwrap_err();
        assert_eq!(error.to_string(), "decompressed, it needs more than 4 bytes of disk space");
    }
}
