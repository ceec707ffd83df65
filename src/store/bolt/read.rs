//! Reads an untrusted database: every page, length, position and kind is checked, and no page is
//! visited twice.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{BRANCH, ELEMENT, HEAD, IS_BUCKET, LEAF, MAGIC, META, META_PAGE, VERSION, checksum};

/// Maximum depth of a tree; one of 2^32 pages has a depth of about six.
const DEPTH_MAX: usize = 24;
/// Maximum size of a leaf: etcd's largest configurable request is far smaller.
const LEAF_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of a branch: keys have at most 32 KiB, and few of them fit in a page then.
const BRANCH_BYTES_MAX: u64 = 4 << 20;
/// Smallest and largest page size of any machine.
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 1024..=64 * 1024;

/// The bytes of a possible database.
pub(crate) trait Source {
    /// Reads from `offset` until the buffer is full.
    ///
    /// # Errors
    /// Errors of the file system; [`io::ErrorKind::UnexpectedEof`] past the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Source for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let from = usize::try_from(offset).map_err(|_| end())?;
        let bytes = from.checked_add(buffer.len()).and_then(|to| self.get(from..to));
        buffer.copy_from_slice(bytes.ok_or_else(end)?);
        Ok(())
    }
}

/// Errors of reading a database.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Errors of the file system.
    Io(io::Error),
    /// The file is not a database.
    Foreign(String),
    /// The database is damaged at this byte.
    Damaged(u64, Damage),
}

/// The damage of a database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    /// No meta page is valid.
    #[error("neither of its first pages matches its checksum")]
    Meta,
    /// The file is shorter than its meta page says.
    #[error("it is cut off: {pages} pages of {page_size} bytes are missing after byte {length}")]
    Truncated {
        /// Number of pages.
        pages: u64,
        /// Size of a page in bytes.
        page_size: u64,
        /// Size of the file in bytes.
        length: u64,
    },
    /// A page id is too large.
    #[error("page {0} lies after the last one")]
    PageBeyondEnd(u64),
    /// A page is part of two trees, or twice of one.
    #[error("two places refer to page {0}")]
    SharedPage(u64),
    /// The id in a page is not its own.
    #[error("page {0} has the id of another one")]
    PageId(u64),
    /// A page is neither a branch nor a leaf.
    #[error("page {id} is of the kind {kind:#x}, not a part of a tree")]
    PageKind {
        /// Id of the page.
        id: u64,
        /// Kind of the page.
        kind: u16,
    },
    /// A page is too large.
    #[error("page {id} has {bytes} bytes, more than any of its kind")]
    PageSize {
        /// Id of the page.
        id: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// An element is outside of its page.
    #[error("element {0} does not lie within its page")]
    Element(usize),
    /// An element of the root is not a bucket.
    #[error("an element of the root is not a bucket")]
    NotABucket,
    /// A bucket contains a bucket.
    #[error("a bucket contains a bucket, which etcd never writes")]
    NestedBucket,
    /// An inline page is not a leaf.
    #[error("the inline page of a bucket is not a leaf")]
    InlinePage,
    /// The tree is too deep.
    #[error("the tree is deeper than any that etcd writes")]
    Depth,
    /// A branch has no elements.
    #[error("page {0} refers to no other")]
    EmptyBranch(u64),
    /// The keys of a page are not sorted.
    #[error("keys are out of order")]
    KeyOrder,
    /// A key is smaller than the first key of its branch.
    #[error("a key is smaller than the first key of its page's branch")]
    MisplacedKey,
    /// The caller refuses a key and its value.
    #[error("{0}")]
    Record(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// Content of a verified meta page.
struct Meta {
    page_size: u64,
    root: u64,
    pages: u64,
    transaction: u64,
}

impl Meta {
    /// Parses the bytes of a page.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let meta = bytes.get(HEAD..HEAD + META + 8)?;
        let right = u16_at(bytes, 8)? == META_PAGE
            && u32_at(meta, 0)? == MAGIC
            && u32_at(meta, 4)? == VERSION
            && u64_at(meta, META)? == checksum(meta.get(..META)?);
        let page_size = u64::from(u32_at(meta, 8)?);
        let known = PAGE_SIZES.contains(&page_size) && page_size.is_power_of_two();
        (right && known).then_some(Self {
            page_size,
            root: u64_at(meta, 16)?,
            pages: u64_at(meta, 40)?,
            transaction: u64_at(meta, 48)?,
        })
    }
}

/// Location of a bucket's keys.
#[derive(Debug)]
pub(crate) enum Bucket {
    /// A tree with this root page.
    Page(u64),
    /// An inline page.
    Inline(Vec<u8>),
}

/// A page and its offset.
struct Page {
    bytes: Vec<u8>,
    offset: u64,
}

/// An element of a page.
struct Element<'a> {
    flags: u32,
    key: &'a [u8],
    value: &'a [u8],
    child: u64,
}

impl Page {
    fn damaged(&self, damage: Damage) -> Fault {
        Fault::Damaged(self.offset, damage)
    }

    fn kind(&self) -> u16 {
        u16_at(&self.bytes, 8).unwrap_or(0)
    }

    fn count(&self) -> usize {
        usize::from(u16_at(&self.bytes, 10).unwrap_or(0))
    }

    fn element(&self, index: usize) -> Result<Element<'_>, Fault> {
        let parse = || {
            let begin = HEAD + index * ELEMENT;
            let u32_at = |at| u32_at(&self.bytes, begin + at).map(|n| n as usize);
            let slice = |position: usize, from: usize, length: usize| {
                // Content follows all elements.
                let from = begin.checked_add(position)?.checked_add(from)?;
                let bytes = self.bytes.get(from..from.checked_add(length)?)?;
                (from >= HEAD + self.count() * ELEMENT).then_some(bytes)
            };
            if self.kind() == BRANCH {
                let key = slice(u32_at(0)?, 0, u32_at(4)?)?;
                let child = u64_at(&self.bytes, begin + 8)?;
                return Some(Element { flags: 0, key, value: &[], child });
            }
            let (position, key) = (u32_at(4)?, u32_at(8)?);
            let value = slice(position, key, u32_at(12)?)?;
            let key = slice(position, 0, key)?;
            Some(Element { flags: u32_at(0)? as u32, key, value, child: 0 })
        };
        let element = parse().filter(|element| !element.key.is_empty());
        element.ok_or_else(|| self.damaged(Damage::Element(index)))
    }
}

/// Receives a key and its value; may refuse them.
type Each<'a, E> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), E>;

/// Callback for each key.
type Visit<'v> = &'v mut dyn FnMut(u32, &[u8], &[u8]) -> Result<(), Damage>;

/// A database.
pub(crate) struct Database<'a, S: ?Sized> {
    source: &'a S,
    meta: Meta,
    /// One bit per visited page.
    seen: Vec<u64>,
}

impl<'a, S: Source + ?Sized> Database<'a, S> {
    /// Opens the first `length` bytes of a source.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn open(source: &'a S, length: u64) -> Result<Self, Fault> {
        let mut page = [0; HEAD + META + 8];
        let mut at = |offset: u64| -> Result<Option<Meta>, Fault> {
            if offset + page.len() as u64 > length {
                return Ok(None);
            }
            source.read_at(offset, &mut page)?;
            Ok(Meta::parse(&page))
        };
        let mut metas: Vec<Meta> = at(0)?.into_iter().collect();
        let sizes = match metas.first() {
            Some(meta) => vec![meta.page_size],
            None => (10..=16).map(|bits| 1 << bits).collect(),
        };
        for size in sizes {
            metas.extend(at(size)?.filter(|meta| meta.page_size == size));
        }
        let Some(meta) = metas.into_iter().max_by_key(|meta| meta.transaction) else {
            let mut magic = [0; 4];
            let ours = length >= 20
                && source.read_at(HEAD as u64, &mut magic).is_ok()
                && u32::from_le_bytes(magic) == MAGIC;
            return Err(match ours {
                true => Fault::Damaged(0, Damage::Meta),
                false => Fault::Foreign("it does not begin as a database of etcd does".to_owned()),
            });
        };
        if meta.pages.checked_mul(meta.page_size).is_none_or(|needed| needed > length) {
            let Meta { pages, page_size, .. } = meta;
            return Err(Fault::Damaged(length, Damage::Truncated { pages, page_size, length }));
        }
        let words = usize::try_from(meta.pages.div_ceil(64)).unwrap_or(usize::MAX);
        let mut this = Self { source, meta, seen: vec![0; words] };
        this.visit(0, 0, 2)?;
        Ok(this)
    }

    /// Marks pages as visited.
    fn visit(&mut self, offset: u64, first: u64, count: u64) -> Result<(), Fault> {
        let Some(end) = first.checked_add(count).filter(|end| *end <= self.meta.pages) else {
            return Err(Fault::Damaged(offset, Damage::PageBeyondEnd(first)));
        };
        for id in first..end {
            let word = usize::try_from(id / 64).ok().and_then(|word| self.seen.get_mut(word));
            let bit = 1 << (id % 64);
            match word {
                Some(word) if *word & bit == 0 => *word |= bit,
                _ => return Err(Fault::Damaged(offset, Damage::SharedPage(id))),
            }
        }
        Ok(())
    }

    fn page(&mut self, from: u64, id: u64) -> Result<Page, Fault> {
        self.visit(from, id, 1)?;
        let size = self.meta.page_size;
        let offset = id * size;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.source.read_at(offset, &mut bytes)?;
        let page = Page { bytes, offset };
        let overflow = u64::from(u32_at(&page.bytes, 12).unwrap_or(0));
        if u64_at(&page.bytes, 0) != Some(id) {
            return Err(page.damaged(Damage::PageId(id)));
        }
        let limit = match page.kind() {
            BRANCH => BRANCH_BYTES_MAX,
            LEAF => LEAF_BYTES_MAX,
            kind => {
                return Err(page.damaged(Damage::PageKind { id, kind }));
            }
        };
        if overflow == 0 {
            return Ok(page);
        }
        let total = (overflow + 1) * size;
        if total > limit {
            return Err(page.damaged(Damage::PageSize { id, bytes: total }));
        }
        self.visit(offset, id + 1, overflow)?;
        let mut bytes = page.bytes;
        let have = bytes.len();
        bytes.resize(usize::try_from(total).unwrap_or(have), 0);
        self.source.read_at(offset + size, bytes.get_mut(have..).unwrap_or_default())?;
        Ok(Page { bytes, offset })
    }

    /// Name and location of all buckets, in order.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn buckets(&mut self) -> Result<Vec<(Vec<u8>, Bucket)>, Fault> {
        let mut buckets = Vec::new();
        let root = self.meta.root;
        self.walk(0, root, &mut |flags, name, value| {
            let page = u64_at(value, 0).filter(|_| flags == IS_BUCKET && value.len() >= 16);
            let bucket = match page.ok_or(Damage::NotABucket)? {
                0 => Bucket::Inline(value.get(16..).unwrap_or_default().to_vec()),
                page => Bucket::Page(page),
            };
            buckets.push((name.to_vec(), bucket));
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Visits all keys of a bucket with their values, in order. Each bucket can be read once.
    ///
    /// # Errors
    /// [`Fault`]; an error of `visit` counts as damage at that page.
    pub(crate) fn each<E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        bucket: Bucket,
        visit: Each<'_, E>,
    ) -> Result<(), Fault> {
        let visit: Visit<'_> = &mut |flags, key, value| match flags {
            0 => visit(key, value).map_err(|error| Damage::Record(error.into())),
            _ => Err(Damage::NestedBucket),
        };
        match bucket {
            Bucket::Page(root) => self.walk(0, root, visit),
            Bucket::Inline(bytes) => {
                let page = Page { bytes, offset: 0 };
                if page.kind() != LEAF {
                    return Err(page.damaged(Damage::InlinePage));
                }
                leaf(&page, &mut None, visit)
            }
        }
    }

    fn walk(&mut self, from: u64, root: u64, visit: Visit<'_>) -> Result<(), Fault> {
        self.descend(from, root, 0, &mut None, visit)
    }

    fn descend(
        &mut self,
        from: u64,
        id: u64,
        depth: usize,
        last: &mut Option<Vec<u8>>,
        visit: Visit<'_>,
    ) -> Result<(), Fault> {
        let page = self.page(from, id)?;
        if depth > DEPTH_MAX {
            return Err(page.damaged(Damage::Depth));
        }
        if page.kind() == LEAF {
            return leaf(&page, last, visit);
        }
        if page.count() == 0 {
            return Err(page.damaged(Damage::EmptyBranch(id)));
        }
        let mut before: Option<&[u8]> = None;
        for index in 0..page.count() {
            let element = page.element(index)?;
            // Everything before is smaller, and nothing below may be.
            let behind = before.is_none_or(|before| before < element.key)
                && last.as_deref().is_none_or(|last| last < element.key);
            if !behind {
                return Err(page.damaged(Damage::KeyOrder));
            }
            before = Some(element.key);
            let floor = element.key.to_vec();
            let mut first = true;
            let visit: Visit<'_> = &mut |flags, key, value| {
                if std::mem::take(&mut first) && key < floor.as_slice() {
                    return Err(Damage::MisplacedKey);
                }
                visit(flags, key, value)
            };
            self.descend(page.offset, element.child, depth + 1, last, visit)?;
        }
        Ok(())
    }
}

fn leaf(page: &Page, last: &mut Option<Vec<u8>>, visit: Visit<'_>) -> Result<(), Fault> {
    for index in 0..page.count() {
        let element = page.element(index)?;
        if last.as_deref().is_some_and(|last| last >= element.key) {
            return Err(page.damaged(Damage::KeyOrder));
        }
        let key = last.get_or_insert_default();
        key.clear();
        key.extend_from_slice(element.key);
        visit(element.flags, element.key, element.value).map_err(|damage| page.damaged(damage))?;
    }
    Ok(())
}
