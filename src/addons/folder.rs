//! Lists the manifests folder by the rules of k3s: which files are manifests, which are skipped or
//! disabled, and which links are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sorting::{CollectOrdered as _, CompactSort as _};

use crate::error::FolderError;
use crate::file::Fingerprint;
use crate::limits::{DEPTH_MAX, FILES_MAX};

/// Extensions of manifests.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// Extension of the file that makes the controller ignore the file of the same name without it.
const SKIP: &str = ".skip";

/// A manifest on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestFile {
    /// Its path relative to the folder, for messages.
    pub(crate) relative: PathBuf,
    /// What tells its states apart.
    pub(crate) fingerprint: Fingerprint,
    /// Whether it is below a linked folder, whose files belong to another program.
    pub(crate) is_linked: bool,
    /// Whether `--disable` names it.
    pub(crate) is_disabled: bool,
}

/// The content of the manifests folder.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The manifests by path, in the order in which they are applied.
    pub(crate) files: BTreeMap<PathBuf, ManifestFile>,
    /// All folders, to watch them; the folders of linked files, too.
    pub(crate) folders: BTreeSet<PathBuf>,
    /// What cannot be listed.
    pub(crate) errors: Vec<FolderError>,
}

impl Listing {
    /// Whether a file is not in the folder. A file that cannot be read may be there.
    pub(crate) fn is_removed(&self, path: &Path) -> bool {
        let may_be_there = |error: &FolderError| match error {
            FolderError::Io { path: unread, .. } | FolderError::TooDeep(unread) => {
                path.starts_with(unread)
            }
            FolderError::TooManyFiles(_) => true,
        };
        !self.files.contains_key(path) && !self.errors.iter().any(may_be_there)
    }
}

struct Walk<'a> {
    base: &'a Path,
    entries: BTreeMap<PathBuf, (Fingerprint, bool)>,
    count: usize,
    listing: Listing,
}

/// Lists the folder. Blocks.
pub(crate) fn list(base: &Path, disabled: &BTreeSet<String>) -> Listing {
    let mut walk = Walk { base, entries: BTreeMap::new(), count: 0, listing: Listing::default() };
    walk.folder(base, 0, false);
    let Walk { entries, mut listing, .. } = walk;
    let names = entries.keys().filter_map(|path| path.file_name()?.to_str());
    // As in k3s, a `.skip` file applies to files of its name in every folder.
    let skipped: BTreeSet<String> =
        names.filter_map(|name| Some(name.strip_suffix(SKIP)?.to_owned())).collect_set();
    for (path, (fingerprint, is_linked)) in entries {
        let relative = path.strip_prefix(base).unwrap_or(&path).to_owned();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_disabled = is_disabled(&relative, disabled);
        if is_manifest(&path) && (is_disabled || !skipped.contains(name)) {
            let file = ManifestFile { relative, fingerprint, is_linked, is_disabled };
            listing.files.insert(path, file);
        }
    }
    listing
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, depth: usize, is_linked: bool) {
        if depth > DEPTH_MAX {
            self.listing.errors.push(FolderError::TooDeep(path.to_owned()));
            return;
        }
        self.listing.folders.insert(path.to_owned());
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(source) => {
                self.listing.errors.push(FolderError::Io { path: path.to_owned(), source });
                return;
            }
        };
        // Sorted, so that the same files are left out whenever there are too many.
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.compact_sort();
        for path in paths {
            // Hidden files: editors write them, and mounted ConfigMaps consist of hidden folders.
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            self.count += 1;
            if self.count > FILES_MAX {
                if self.count == FILES_MAX + 1 {
                    self.listing.errors.push(FolderError::TooManyFiles(self.base.to_owned()));
                }
                return;
            }
            self.entry(path, depth, is_linked);
        }
    }

    fn entry(&mut self, path: PathBuf, depth: usize, is_linked: bool) {
        let link = std::fs::symlink_metadata(&path);
        let is_link = link.as_ref().is_ok_and(std::fs::Metadata::is_symlink);
        let metadata = if is_link { std::fs::metadata(&path) } else { link };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            // Removed since the folder was listed.
            Err(error) if !is_link && error.kind() == std::io::ErrorKind::NotFound => return,
            Err(source) if is_manifest(&path) || is_link => {
                self.listing.errors.push(FolderError::Io { path, source });
                return;
            }
            Err(_) => return,
        };
        if metadata.is_dir() {
            // Links below a linked folder are not followed: they could be a circle.
            if !(is_link && is_linked) {
                self.folder(&path, depth + 1, is_linked || is_link);
            }
            return;
        }
        if is_link
            && let Ok(target) = std::fs::canonicalize(&path)
            && let Some(folder) = target.parent()
        {
            self.listing.folders.insert(folder.to_owned());
        }
        self.entries.insert(path, (Fingerprint::of(&metadata), is_linked));
    }
}

/// Whether a file name is that of a manifest.
fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|own| EXTENSIONS.iter().any(|e| own.eq_ignore_ascii_case(e)))
}

/// Whether `--disable` names a file by its name without extension, or one of its folders by the
/// path from the manifests folder.
pub(crate) fn is_disabled(relative: &Path, disabled: &BTreeSet<String>) -> bool {
    let is_named = |path: &Path| path.to_str().is_some_and(|path| disabled.contains(path));
    let mut folders = relative.ancestors().skip(1).filter(|path| *path != Path::new(""));
    let stem = relative.file_stem().map(Path::new);
    folders.any(is_named) || is_manifest(relative) && stem.is_some_and(is_named)
}

/// The name of the Addon of a file: its name up to the first period.
pub(crate) fn addon_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(listing: &Listing) -> Vec<String> {
        listing.files.values().map(|f| f.relative.display().to_string()).collect()
    }

    #[test]
    fn manifests_of_all_folders_are_listed_and_others_are_not() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        std::fs::create_dir_all(at("sub/deep")).unwrap();
        std::fs::create_dir_all(at("..data")).unwrap();
        for name in [
            "b.yaml",
            "a.YML",
            "sub/c.json",
            "sub/deep/d.yaml",
            "e.txt",
            ".f.yaml",
            "g.yaml",
            "g.yaml.skip",
            "sub/g.yaml",
            "..data/h.yaml",
            "i.yaml.tmp",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        let listing = list(base.path(), &BTreeSet::new());
        assert_eq!(names(&listing), ["a.YML", "b.yaml", "sub/c.json", "sub/deep/d.yaml"]);
        assert_eq!(listing.folders.len(), 3);
        assert!(listing.errors.is_empty());
    }

    #[test]
    fn links_to_files_and_folders_are_followed_once() {
        let (base, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (at, there) = (|n: &str| base.path().join(n), |n: &str| other.path().join(n));
        std::fs::create_dir(there("nested")).unwrap();
        std::fs::write(there("nested/manifest.yaml"), "").unwrap();
        std::fs::write(there("file.yaml"), "").unwrap();
        symlink(other.path(), there("nested/circle")).unwrap();
        symlink(other.path(), at("linked")).unwrap();
        symlink(there("file.yaml"), at("own.yaml")).unwrap();
        symlink("missing", at("dangling.yaml")).unwrap();
        let listing = list(base.path(), &BTreeSet::from(["linked".to_owned()]));
        assert_eq!(
            names(&listing),
            ["linked/file.yaml", "linked/nested/manifest.yaml", "own.yaml"]
        );
        let flags: Vec<_> = listing.files.values().map(|f| (f.is_linked, f.is_disabled)).collect();
        assert_eq!(flags, [(true, true), (true, true), (false, false)]);
        assert!(listing.folders.contains(&std::fs::canonicalize(other.path()).unwrap()));
        assert!(listing.errors[0].to_string().contains("dangling.yaml"));
    }

    #[test]
    fn disable_names_a_file_or_a_folder() {
        for (path, names, want) in [
            ("traefik.yaml", vec!["traefik"], true),
            ("traefik.yaml", vec!["traefi"], false),
            ("traefik.txt", vec!["traefik"], false),
            ("metrics-server/service.yaml", vec!["metrics-server"], true),
            ("a/b/c.yaml", vec!["a/b"], true),
            ("a/b/c.yaml", vec!["b"], false),
            ("sub/traefik.yaml", vec!["traefik"], true),
            ("a.b.yaml", vec!["a"], false),
            ("a.b.yaml", vec!["a.b"], true),
        ] {
            let names = names.into_iter().map(str::to_owned).collect();
            assert_eq!(is_disabled(Path::new(path), &names), want, "{path} {names:?}");
        }
        assert_eq!(addon_name(Path::new("/m/my-app.prod.yaml")), "my-app");
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let base = tempfile::tempdir().unwrap();
        for n in 0..=FILES_MAX {
            std::fs::write(base.path().join(format!("{n}.yaml")), "").unwrap();
        }
        let listing = list(base.path(), &BTreeSet::new());
        assert_eq!(listing.files.len(), FILES_MAX);
        assert!(listing.errors[0].to_string().contains("more than 1000 files"));
    }
}
