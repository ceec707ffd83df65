//! Warnings for the volumes of a pod: removed plugins, and files that overwrite each other.

use std::collections::BTreeMap;

use serde_json::Value;
use sorting::CompactSort as _;

use super::claim_spec;
use crate::field::{Path, go_quote};
use crate::value::{at, get, has, items, str_at};

/// JSON names of removed volume plugins, and the texts of their warnings.
const OLD: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Maximum number of warnings for the overlapping files of a volume: a response holds fewer.
const WARNINGS_MAX: usize = 512;

/// Returns the warnings for the volumes in the list at `path`.
pub(super) fn warnings(volumes: &[Value], path: &Path) -> Vec<String> {
    let mut list = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = path.index(index);
        for (key, text) in OLD {
            if has(volume, key) {
                // Upstream's text spells this field differently from its JSON name.
                let shown = if key == "storageos" { "storageOS" } else { key };
                list.push(format!("{}: {text}", field.child(shown)));
            }
        }
        let claim = at(volume, &["ephemeral", "volumeClaimTemplate", "spec"]);
        let field = field.child("ephemeral").child("volumeClaimTemplate").child("spec");
        list.extend(claim_spec(claim, &field));
    }
    list.extend(volumes.iter().flat_map(overlaps));
    list
}

/// A file of a volume.
#[derive(Clone, PartialEq)]
struct File {
    path: String,
    /// Description of its source in a projected volume; otherwise empty.
    source: String,
}

impl File {
    fn new(path: &str, source: &str) -> Self {
        Self { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
    }

    fn shown(&self) -> String {
        if self.source.is_empty() {
            go_quote(&self.path)
        } else {
            format!("{} ({})", go_quote(&self.path), self.source)
        }
    }
}

fn files(source: &Value, name: &str) -> Vec<File> {
    items(source, "items").iter().map(|item| File::new(str_at(item, "path"), name)).collect()
}

fn overlaps(volume: &Value) -> Vec<String> {
    let mut list = Vec::new();
    let name = go_quote(str_at(volume, "name"));
    for (key, kind, field) in [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("downwardAPI", "DownwardAPI", ""),
    ] {
        let source = get(volume, key);
        let kind = if field.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind} {}", go_quote(str_at(source, field)))
        };
        let clashes = clashes(files(source, ""));
        list.extend(
            clashes.into_iter().map(|c| format!("volume {name} ({kind}): overlapping paths: {c}")),
        );
    }
    let mut all = Vec::new();
    for source in items(get(volume, "projected"), "sources") {
        if source.as_object().is_none_or(serde_json::Map::is_empty) {
            list.push(format!("volume {name} (Projected) has no sources provided"));
        }
        all.extend(projected(source));
    }
    let clashes = clashes(all);
    list.extend(
        clashes.into_iter().map(|c| format!("volume {name} (Projected): overlapping paths: {c}")),
    );
    list
}

/// Returns the pairs of files of which one has the path of the other or a path below it. The order
/// is upstream's: by the later file, then by the earlier file.
fn clashes(files: Vec<File>) -> Vec<String> {
    let mut list = Vec::new();
    // The indexes of earlier files by path with a trailing slash, which is a prefix of the keys
    // below.
    let mut earlier: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, file) in files.iter().enumerate().filter(|(_, file)| !file.path.is_empty()) {
        let key = format!("{}/", file.path);
        let above = key.match_indices('/').map(|(at, _)| &key[..=at]);
        let above = above.filter(|path| path.len() < key.len());
        let mut met: Vec<usize> =
            above.filter_map(|path| earlier.get(path)).flatten().copied().collect();
        let from = earlier.range(key.clone()..);
        let below = from.take_while(|(other, _)| other.starts_with(&key));
        met.extend(below.flat_map(|(_, indexes)| indexes).take(WARNINGS_MAX));
        met.compact_sort();
        for other in met.into_iter().filter_map(|other| files.get(other)) {
            if list.len() >= WARNINGS_MAX {
                return list;
            }
            list.push(format!("{} with {}", file.shown(), other.shown()));
        }
        earlier.entry(key).or_default().push(index);
    }
    list
}

fn projected(source: &Value) -> Vec<File> {
    let named = |kind: &str, source: &Value| format!("{kind} {}", go_quote(str_at(source, "name")));
    let (map, secret) = (get(source, "configMap"), get(source, "secret"));
    let (token, bundle) = (get(source, "serviceAccountToken"), get(source, "clusterTrustBundle"));
    let downward = get(source, "downwardAPI");
    if has(map, "items") {
        files(map, &named("ConfigMap", map))
    } else if has(secret, "items") {
        files(secret, &named("Secret", secret))
    } else if has(downward, "items") {
        files(downward, "DownwardAPI")
    } else if token.is_object() {
        vec![File::new(str_at(token, "path"), "ServiceAccountToken")]
    } else if bundle.is_object() {
        let key = if has(bundle, "name") { "name" } else { "signerName" };
        let from = format!("ClusterTrustBundle {}", go_quote(str_at(bundle, key)));
        vec![File::new(str_at(bundle, "path"), &from)]
    } else {
        let certificate = get(source, "podCertificate");
        let parts = [
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
            ("credentialBundlePath", "PodCertificate credential bundle"),
        ];
        let stated = parts.into_iter().filter(|(key, _)| !str_at(certificate, key).is_empty());
        stated.map(|(key, from)| File::new(str_at(certificate, key), from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected pairs are those of upstream's `pod.warningsForOverlappingVirtualPaths`, which
    /// compares each file with all files before it.
    #[test]
    fn files_clash_with_those_at_above_and_below_their_path() {
        let check = |paths: &[&str], expected: &[&str]| {
            let files = paths.iter().map(|path| File::new(path, "")).collect();
            assert_eq!(clashes(files), expected, "{paths:?}");
        };
        check(&["a", "b", "ab"], &[]);
        check(&["a/b", "a/b/"], &[r#""a/b" with "a/b""#]);
        check(
            &["a/b/c", "x", "a", "a/b"],
            &[r#""a" with "a/b/c""#, r#""a/b" with "a/b/c""#, r#""a/b" with "a""#],
        );
        check(&["", "", "a"], &[]);
        let same = vec!["a"; 100];
        assert_eq!(clashes(same.iter().map(|p| File::new(p, "")).collect()).len(), WARNINGS_MAX);
    }
}
