//! Header blocks: names and values, compressed with one zlib stream per direction and the
//! dictionary of SPDY/3.

use std::sync::LazyLock;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::FrameError;

/// Maximum size of a block after decompression, in bytes; Kubernetes sends some hundred.
const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of pairs in a block.
const PAIRS_MAX: usize = 256;

/// Words of the dictionary that are prefixed by their length (SPDY/3, section 2.6.10.1).
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200\u{a0}OK version HTTP/1.1 url public set-cookie \
    keep-alive origin";
/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not \
Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov \
Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=\
iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut all = Vec::with_capacity(1423);
    for word in WORDS.split_ascii_whitespace() {
        let word = word.replace('\u{a0}', " ");
        let length = u32::try_from(word.len()).unwrap_or_default();
        all.extend_from_slice(&length.to_be_bytes());
        all.extend_from_slice(word.as_bytes());
    }
    all.extend_from_slice(TAIL.as_bytes());
    all
});

#[cfg(test)]
pub(super) fn dictionary() -> &'static [u8] {
    &DICTIONARY
}

/// Names in lower case and values, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// Creates headers of these pairs.
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(k, v)| (k.to_ascii_lowercase(), (*v).to_owned())).collect())
    }

    /// The first value of a name in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put = |bytes: &[u8], out: &mut Vec<u8>| {
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(bytes);
        };
        out.extend_from_slice(&u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_be_bytes());
        for (name, value) in &self.0 {
            put(name.to_ascii_lowercase().as_bytes(), &mut out);
            put(value.as_bytes(), &mut out);
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut rest = bytes;
        let mut take = |wanted: Option<usize>| -> Result<&[u8], FrameError> {
            let wanted = wanted.ok_or(FrameError::Headers)?;
            let (head, tail) = rest.split_at_checked(wanted).ok_or(FrameError::Headers)?;
            rest = tail;
            Ok(head)
        };
        let number = |bytes: &[u8]| -> Option<usize> {
            usize::try_from(u32::from_be_bytes(bytes.try_into().ok()?)).ok()
        };
        let count =
            number(take(Some(4))?).filter(|n| *n <= PAIRS_MAX).ok_or(FrameError::Headers)?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            let length = number(take(Some(4))?);
            let name = String::from_utf8_lossy(take(length)?).into_owned();
            let length = number(take(Some(4))?);
            let value = String::from_utf8_lossy(take(length)?).into_owned();
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }
}

/// Compresses the blocks of one direction.
pub struct Deflater(Option<Compress>);

impl Default for Deflater {
    fn default() -> Self {
        // Small blocks, rarely sent: speed matters more than size.
        let mut zlib = Compress::new(Compression::fast(), true);
        Self(zlib.set_dictionary(&DICTIONARY).is_ok().then_some(zlib))
    }
}

impl Deflater {
    /// Compresses one block.
    ///
    /// # Errors
    /// When compression fails.
    pub fn block(&mut self, headers: &Headers) -> Result<Vec<u8>, FrameError> {
        let zlib = self.0.as_mut().ok_or(FrameError::Headers)?;
        let input = headers.to_bytes();
        let mut out = Vec::with_capacity(input.len() / 2 + 64);
        let start = zlib.total_in();
        loop {
            let used = usize::try_from(zlib.total_in() - start).unwrap_or(input.len());
            let rest = input.get(used..).unwrap_or_default();
            zlib.compress_vec(rest, &mut out, FlushCompress::Sync)
                .map_err(|_| FrameError::Headers)?;
            // With spare capacity the flush is complete.
            if out.len() < out.capacity() {
                return Ok(out);
            }
            out.reserve(256);
        }
    }
}

/// Decompresses the blocks of one direction.
pub struct Inflater {
    zlib: Decompress,
    failed: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { zlib: Decompress::new(true), failed: false }
    }
}

impl Inflater {
    /// Decompresses one block.
    ///
    /// # Errors
    /// When the block is damaged or too large; no further block can be read then.
    pub fn block(&mut self, bytes: &[u8]) -> Result<Headers, FrameError> {
        let plain = self.inflate(bytes);
        self.failed |= plain.is_err();
        Headers::from_bytes(&plain?)
    }

    fn inflate(&mut self, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
        if self.failed {
            return Err(FrameError::Headers);
        }
        let mut out = Vec::with_capacity(1024);
        let start = self.zlib.total_in();
        loop {
            let used = usize::try_from(self.zlib.total_in() - start).unwrap_or(bytes.len());
            let rest = bytes.get(used..).unwrap_or_default();
            let before = (self.zlib.total_in(), out.len());
            match self.zlib.decompress_vec(rest, &mut out, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Err(FrameError::Headers),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.zlib.set_dictionary(&DICTIONARY).map_err(|_| FrameError::Headers)?;
                    continue;
                }
                Err(_) => return Err(FrameError::Headers),
            }
            let all_used = self.zlib.total_in() - start >= bytes.len() as u64;
            if all_used && out.len() < out.capacity() {
                return Ok(out);
            }
            if out.len() >= BLOCK_BYTES_MAX {
                return Err(FrameError::Headers);
            }
            if out.len() == out.capacity() {
                out.reserve(4096);
            } else if before == (self.zlib.total_in(), out.len()) {
                return Err(FrameError::Headers);
            }
        }
    }
}
