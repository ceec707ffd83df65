//! Writes a database bottom up: keys are added in order, pages are written as they fill, and the
//! root is known at the end.

use std::io;

use sorting::CompactSort as _;

use super::{
    BRANCH, ELEMENT, FREE_LIST, HEAD, IS_BUCKET, LEAF, MAGIC, META, META_PAGE, VERSION, checksum,
};

/// Page size, that of nearly all machines.
const PAGE: usize = 4096;
/// Size of the write buffer.
const WRITE_BYTES: usize = 1024 * 1024;
/// The page of the free list, after the meta pages; the data follows.
const FREE_LIST_PAGE: u64 = 2;

/// Destination of a database.
pub(crate) trait Sink {
    /// Writes all of `data`.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
}

/// A page header in a buffer with capacity for `size` bytes.
fn page(id: u64, kind: u16, count: usize, size: usize) -> io::Result<Vec<u8>> {
    let overflow = size.div_ceil(PAGE).saturating_sub(1);
    let (Ok(count), Ok(overflow)) = (u16::try_from(count), u32::try_from(overflow)) else {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    };
    let mut page = Vec::with_capacity((overflow as usize + 1) * PAGE);
    page.extend_from_slice(&id.to_le_bytes());
    page.extend_from_slice(&kind.to_le_bytes());
    page.extend_from_slice(&count.to_le_bytes());
    page.extend_from_slice(&overflow.to_le_bytes());
    Ok(page)
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes.len());
    length.map(u32::to_le_bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

/// Distance from the element `index` to the byte `at` after the last of `count` elements.
fn position(index: usize, count: usize, at: usize) -> io::Result<[u8; 4]> {
    let position = u32::try_from((count - index) * ELEMENT + at);
    position.map(u32::to_le_bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

/// Elements of the current leaf.
#[derive(Default)]
struct Leaf {
    /// Flags, key length, value length.
    elements: Vec<(u32, usize, usize)>,
    content: Vec<u8>,
}

impl Leaf {
    fn size(&self) -> usize {
        HEAD + self.elements.len() * ELEMENT + self.content.len()
    }

    fn push(&mut self, flags: u32, key: &[u8], value: &[u8]) {
        self.elements.push((flags, key.len(), value.len()));
        self.content.extend_from_slice(key);
        self.content.extend_from_slice(value);
    }

    fn first_key(&self) -> Vec<u8> {
        let length = self.elements.first().map_or(0, |(_, key, _)| *key);
        self.content.get(..length).unwrap_or_default().to_vec()
    }

    fn encode(&self, id: u64) -> io::Result<Vec<u8>> {
        let count = self.elements.len();
        let mut out = page(id, LEAF, count, self.size())?;
        let mut at = 0;
        for (index, (flags, key, value)) in self.elements.iter().enumerate() {
            out.extend_from_slice(&flags.to_le_bytes());
            out.extend_from_slice(&position(index, count, at)?);
            let content = self.content.get(at..).unwrap_or_default();
            out.extend_from_slice(&length(content.get(..*key).unwrap_or_default())?);
            out.extend_from_slice(&length(content.get(*key..key + value).unwrap_or_default())?);
            at += key + value;
        }
        out.extend_from_slice(&self.content);
        Ok(out)
    }
}

/// Elements of the current branch: the first key of each page, and the page.
#[derive(Default)]
struct Branch(Vec<(Vec<u8>, u64)>);

impl Branch {
    fn size(&self) -> usize {
        HEAD + self.0.iter().map(|(key, _)| ELEMENT + key.len()).sum::<usize>()
    }

    fn encode(elements: &[(Vec<u8>, u64)], id: u64) -> io::Result<Vec<u8>> {
        let size = HEAD + elements.iter().map(|(key, _)| ELEMENT + key.len()).sum::<usize>();
        let mut out = page(id, BRANCH, elements.len(), size)?;
        let mut at = 0;
        for (index, (key, child)) in elements.iter().enumerate() {
            out.extend_from_slice(&position(index, elements.len(), at)?);
            out.extend_from_slice(&length(key)?);
            out.extend_from_slice(&child.to_le_bytes());
            at += key.len();
        }
        elements.iter().for_each(|(key, _)| out.extend_from_slice(key));
        Ok(out)
    }
}

/// A database being written.
pub(crate) struct Writer<'a> {
    sink: &'a mut dyn Sink,
    /// Finished pages, and the position of the first one.
    buffer: Vec<u8>,
    offset: u64,
    /// Id of the next page.
    next: u64,
    /// Names and values of the finished buckets.
    buckets: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Writer<'a> {
    /// An empty database.
    pub(crate) fn new(sink: &'a mut dyn Sink) -> Self {
        let next = FREE_LIST_PAGE + 1;
        Self { sink, buffer: Vec::new(), offset: next * PAGE as u64, next, buckets: Vec::new() }
    }

    /// Starts a bucket; it must be finished before the next.
    pub(crate) fn bucket(&mut self, name: &[u8]) -> BucketWriter<'_, 'a> {
        BucketWriter {
            writer: self,
            name: name.to_vec(),
            leaf: Leaf::default(),
            branches: Vec::new(),
            last: Vec::new(),
        }
    }

    fn put_page(&mut self, encode: impl FnOnce(u64) -> io::Result<Vec<u8>>) -> io::Result<u64> {
        let id = self.next;
        let page = encode(id)?;
        let pages = page.len().div_ceil(PAGE);
        self.buffer.extend_from_slice(&page);
        self.next += pages as u64;
        let end = self.next * PAGE as u64 - self.offset;
        self.buffer.resize(usize::try_from(end).map_err(io::Error::other)?, 0);
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(id)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.write_at(self.offset, &self.buffer)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest, meta pages last; returns the size of the file.
    ///
    /// # Errors
    /// Errors of the sink.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let mut root = Leaf::default();
        self.buckets.compact_sort();
        self.buckets.iter().for_each(|(name, value)| root.push(IS_BUCKET, name, value));
        let root = self.put_page(|id| root.encode(id))?;
        self.flush()?;
        let mut front = Vec::with_capacity((FREE_LIST_PAGE as usize + 1) * PAGE);
        for (id, transaction) in [(0, 2_u64), (1, 1)] {
            front.extend_from_slice(&page(id, META_PAGE, 0, PAGE)?);
            let begin = front.len();
            for number in [MAGIC, VERSION, PAGE as u32, 0] {
                front.extend_from_slice(&number.to_le_bytes());
            }
            for number in [root, 0, FREE_LIST_PAGE, self.next, transaction] {
                front.extend_from_slice(&number.to_le_bytes());
            }
            debug_assert_eq!(front.len() - begin, META);
            let checksum = checksum(front.get(begin..).unwrap_or_default());
            front.extend_from_slice(&checksum.to_le_bytes());
            front.resize((id as usize + 1) * PAGE, 0);
        }
        front.extend_from_slice(&page(FREE_LIST_PAGE, FREE_LIST, 0, PAGE)?);
        front.resize(front.len().next_multiple_of(PAGE), 0);
        self.sink.write_at(0, &front)?;
        Ok(self.next * PAGE as u64)
    }
}

/// A bucket being written.
pub(crate) struct BucketWriter<'w, 'a> {
    writer: &'w mut Writer<'a>,
    name: Vec<u8>,
    leaf: Leaf,
    /// From the parents of the leaves upwards.
    branches: Vec<Branch>,
    last: Vec<u8>,
}

impl BucketWriter<'_, '_> {
    /// Adds a key after all previous ones.
    ///
    /// # Errors
    /// Errors of the sink; a key out of order.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key <= self.last.as_slice() {
            return Err(io::Error::other("keys of a database are out of order"));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        let size = self.leaf.size() + ELEMENT + key.len() + value.len();
        if size > PAGE && !self.leaf.elements.is_empty() {
            self.end_leaf()?;
        }
        self.leaf.push(0, key, value);
        Ok(())
    }

    fn end_leaf(&mut self) -> io::Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        let id = self.writer.put_page(|id| leaf.encode(id))?;
        self.add(leaf.first_key(), id)
    }

    /// Adds a page to the parents. A branch is written one element late, so that its successor has
    /// at least two.
    fn add(&mut self, key: Vec<u8>, id: u64) -> io::Result<()> {
        let mut up = Some((key, id));
        let mut level = 0;
        while let Some((key, id)) = up.take() {
            if self.branches.len() == level {
                self.branches.push(Branch::default());
            }
            let Some(branch) = self.branches.get_mut(level) else { break };
            if branch.size() + ELEMENT + key.len() > PAGE && branch.0.len() > 2 {
                let kept = branch.0.split_off(branch.0.len() - 1);
                let full = std::mem::replace(&mut branch.0, kept);
                let page = self.writer.put_page(|id| Branch::encode(&full, id))?;
                up = full.into_iter().next().map(|(first, _)| (first, page));
            }
            branch.0.push((key, id));
            level += 1;
        }
        Ok(())
    }

    /// Finishes the bucket.
    ///
    /// # Errors
    /// Errors of the sink.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let mut value = Vec::new();
        if self.leaf.elements.is_empty() {
            // Without keys its page is stored inline.
            value.extend_from_slice(&[0; HEAD]);
            value.extend_from_slice(&page(0, LEAF, 0, 0)?);
        } else {
            self.end_leaf()?;
            let mut level = 0;
            let root = loop {
                let elements =
                    std::mem::take(&mut self.branches.get_mut(level).ok_or_else(no_root)?.0);
                let [(first, only)] = elements.as_slice() else {
                    let page = self.writer.put_page(|id| Branch::encode(&elements, id))?;
                    let first = elements.into_iter().next().ok_or_else(no_root)?.0;
                    if self.branches.len() == level + 1 {
                        break page;
                    }
                    self.branches.get_mut(level + 1).ok_or_else(no_root)?.0.push((first, page));
                    level += 1;
                    continue;
                };
                if self.branches.len() == level + 1 {
                    break *only;
                }
                let up = (first.clone(), *only);
                self.branches.get_mut(level + 1).ok_or_else(no_root)?.0.push(up);
                level += 1;
            };
            value.extend_from_slice(&root.to_le_bytes());
            value.extend_from_slice(&0_u64.to_le_bytes());
        }
        self.writer.buckets.push((self.name, value));
        Ok(())
    }
}

fn no_root() -> io::Error {
    io::Error::other("a bucket of a database has no root")
}
