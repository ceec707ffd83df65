//! Limits of manifests and their folder.

/// The largest file in bytes: the bundle of definitions of a large operator has 4 MB.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;
/// The most objects of one file.
pub(crate) const OBJECTS_MAX: usize = 5000;
/// The most files and folders below the manifests folder.
pub(crate) const FILES_MAX: usize = 1000;
/// The deepest sub-folder.
pub(crate) const DEPTH_MAX: usize = 16;
