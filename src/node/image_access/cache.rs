//! A bounded cache of files that tells whether a file that it lacks is missing.

use std::collections::HashMap;

/// The files that were used last. While it contains all files, it is authoritative: what it lacks
/// does not exist.
#[derive(Debug)]
pub(super) struct FileCache<T> {
    entries: HashMap<String, (u64, T)>,
    max: usize,
    /// Counts uses, to find the file that was not used for the longest time.
    uses: u64,
    is_authoritative: bool,
}

/// What the cache knows about a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cached<T> {
    Present(T),
    Missing,
    Unknown,
}

impl<T: Clone> FileCache<T> {
    /// A cache with the listed files; `is_complete` tells whether the list contains all.
    pub(super) fn new(max: usize, listed: Vec<(String, T)>, is_complete: bool) -> Self {
        let mut cache = Self {
            is_authoritative: is_complete && listed.len() < max,
            entries: HashMap::new(),
            max,
            uses: 0,
        };
        for (key, value) in listed.into_iter().take(max) {
            cache.insert(key, value);
        }
        cache
    }

    pub(super) fn get(&mut self, key: &str) -> Cached<T> {
        self.uses += 1;
        match self.entries.get_mut(key) {
            Some((used, value)) => {
                *used = self.uses;
                Cached::Present(value.clone())
            }
            None if self.is_authoritative => Cached::Missing,
            None => Cached::Unknown,
        }
    }

    pub(super) fn insert(&mut self, key: String, value: T) {
        self.uses += 1;
        if self.entries.len() >= self.max && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
            self.is_authoritative = false;
        }
        self.entries.insert(key, (self.uses, value));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn usage_percent(&self) -> f64 {
        (self.entries.len() * 100 / self.max.max(1)) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(count: usize) -> Vec<(String, usize)> {
        (0..count).map(|n| (n.to_string(), n)).collect()
    }

    #[test]
    fn a_missing_file_is_known_to_be_missing_while_the_cache_has_all_files() {
        let mut cache = FileCache::new(3, listed(2), true);
        assert_eq!(cache.get("1"), Cached::Present(1));
        assert_eq!(cache.get("9"), Cached::Missing);
        cache.insert("2".to_owned(), 2);
        assert_eq!(cache.get("9"), Cached::Missing);
        cache.get("0");
        cache.insert("3".to_owned(), 3);
        assert_eq!(cache.get("1"), Cached::Unknown, "the oldest one made place");
        assert_eq!(cache.get("0"), Cached::Present(0));
        cache.remove("0");
        assert_eq!(cache.get("0"), Cached::Unknown);
    }

    #[test]
    fn an_incomplete_or_too_long_list_is_not_authoritative() {
        assert_eq!(FileCache::new(3, listed(1), false).get("9"), Cached::Unknown);
        let mut cropped = FileCache::new(3, listed(5), true);
        assert_eq!((cropped.get("4"), cropped.usage_percent()), (Cached::Unknown, 100.0));
        assert_eq!(FileCache::new(3, listed(3), true).get("9"), Cached::Unknown);
    }
}
