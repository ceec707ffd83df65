//! The labels by which containerd records the repositories of a blob. A registry mirror serves a
//! blob only for the registries that its labels name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::contents::ArchiveContents;
use crate::runtime::containerd::{Labels, SOURCE_LABEL};
use crate::runtime::images::name;

/// Returns the labels of all blobs that belong to named images, by digest; the images also count as
/// images of `registries` (k3s's `labelContent`).
pub(super) fn of(contents: &ArchiveContents, registries: &[String]) -> HashMap<String, Labels> {
    let children: HashMap<&str, &[String]> = contents
        .blobs
        .iter()
        .map(|blob| (blob.descriptor.digest.as_str(), blob.children.as_slice()))
        .collect();
    let mut found: HashMap<&str, BTreeMap<&str, BTreeSet<&str>>> = HashMap::new();
    for image in &contents.images {
        for repository in image.names.iter().map(|full| name::split(full).0) {
            let Some((own, path)) = repository.split_once('/') else { continue };
            let mut visited = HashSet::new();
            let mut open = vec![image.target.digest.as_str()];
            while let Some(digest) = open.pop() {
                if !visited.insert(digest) {
                    continue;
                }
                let sources = found.entry(digest).or_default();
                for registry in registries.iter().map(String::as_str).chain([own]) {
                    sources.entry(registry).or_default().insert(path);
                }
                open.extend(
                    children.get(digest).copied().into_iter().flatten().map(String::as_str),
                );
            }
        }
    }
    let labels = |sources: BTreeMap<&str, BTreeSet<&str>>| {
        let label = |(registry, paths): (&str, BTreeSet<&str>)| {
            let paths = paths.into_iter().collect::<Vec<_>>().join(",");
            (format!("{SOURCE_LABEL}{registry}"), paths)
        };
        sources.into_iter().map(label).collect()
    };
    found.into_iter().map(|(digest, sources)| (digest.to_owned(), labels(sources))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::containerd::import::contents::{
        ArchiveImage, Blob, BlobSource, descriptor,
    };

    #[test]
    fn a_blob_belongs_to_the_repositories_of_the_images_that_reach_it() {
        let blob = |digest: &str, children: &[&str]| Blob {
            descriptor: descriptor("", digest, 1),
            source: BlobSource::Bytes(bytes::Bytes::new()),
            children: children.iter().map(|c| (*c).to_owned()).collect(),
        };
        let image = |name: &str, digest: &str| ArchiveImage {
            names: vec![name.to_owned()],
            target: descriptor("", digest, 1),
        };
        let contents = ArchiveContents {
            blobs: vec![blob("base", &[]), blob("one", &["base"]), blob("two", &["base"])],
            images: vec![image("docker.io/library/a:1", "one"), image("r.io:5000/b:1", "two")],
        };
        let labels = of(&contents, &[]);
        let key = |registry: &str| format!("containerd.io/distribution.source.{registry}");
        assert_eq!(labels["base"][&key("docker.io")], "library/a");
        assert_eq!(labels["base"][&key("r.io:5000")], "b");
        assert_eq!(labels["one"].len(), 1);
        let labels = of(&contents, &["x.io".to_owned()]);
        assert_eq!(labels["two"][&key("x.io")], "b");
    }
}
