//! Reads both formats of image archives: OCI layout (`index.json`) and `docker save`
//! (`manifest.json`).

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use proto::containerd::types::Descriptor;
use serde::Deserialize;

use super::contents::{ArchiveContents, ArchiveImage, Blob, BlobSource, descriptor};
use super::decompress;
use crate::digest::{sha256, sha256_of};
use crate::runtime::images::{name, tarball};

/// Maximum size of a manifest or configuration.
const JSON_MAX: u64 = 8 << 20;
/// Maximum depth of nested indexes.
const DEPTH_MAX: u8 = 4;

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Reads the contents of an archive. A compressed one is decompressed into a nameless file in the
/// directory `scratch`, of at most `room` bytes.
pub(crate) fn open(path: &Path, scratch: &Path, room: u64) -> io::Result<ArchiveContents> {
    let mut file = decompress::open(path, scratch, room)?;
    let entries = tarball::index(&mut file)?.into_iter().map(|e| (e.name.clone(), e)).collect();
    let mut archive = Archive { file: Arc::new(file), entries, visited: HashSet::new() };
    let mut contents = ArchiveContents::default();
    if archive.entries.contains_key("index.json") {
        archive.layout(&mut contents)?;
    } else if archive.entries.contains_key("manifest.json") {
        archive.docker(&mut contents)?;
    } else {
        return Err(invalid(
            "contains neither index.json (OCI layout) nor manifest.json (docker save)",
        ));
    }
    if contents.images.iter().all(|image| image.names.is_empty()) {
        return Err(invalid("contains no image that has a name and is complete"));
    }
    Ok(contents)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct OciIndex {
    #[serde(default)]
    manifests: Vec<OciDescriptor>,
    config: Option<OciDescriptor>,
    #[serde(default)]
    layers: Vec<OciDescriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

struct Archive {
    file: Arc<File>,
    entries: BTreeMap<String, tarball::TarEntry>,
    visited: HashSet<String>,
}

impl Archive {
    fn entry(&self, name: &str) -> io::Result<tarball::TarEntry> {
        self.entries.get(name).cloned().ok_or_else(|| invalid(format!("{name} is missing")))
    }

    fn json(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let entry = self.entry(name)?;
        if entry.size > JSON_MAX {
            return Err(invalid(format!("{name} is larger than {JSON_MAX} bytes")));
        }
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(entry.offset))?;
        let mut data = Vec::new();
        file.take(entry.size).read_to_end(&mut data)?;
        Ok(data)
    }

    fn source(&self, entry: &tarball::TarEntry) -> BlobSource {
        BlobSource::File { archive: Arc::clone(&self.file), offset: entry.offset }
    }

    fn layout(&mut self, contents: &mut ArchiveContents) -> io::Result<()> {
        let index: OciIndex = serde_json::from_slice(&self.json("index.json")?)?;
        for manifest in index.manifests {
            let name = ["io.containerd.image.name", "org.opencontainers.image.ref.name"]
                .iter()
                .find_map(|key| manifest.annotations.get(*key))
                .filter(|name| name.contains(['/', ':']));
            let names: Vec<String> = name.map(|n| name::normalize(n)).into_iter().collect();
            if self.walk(&manifest, 0, contents)? && !names.is_empty() {
                let target = descriptor(&manifest.media_type, &manifest.digest, manifest.size);
                contents.images.push(ArchiveImage { names, target });
            }
        }
        Ok(())
    }

    /// Adds a manifest or index and its references, leaves first; `false` if the archive does not
    /// contain it (other platforms).
    fn walk(
        &mut self,
        node: &OciDescriptor,
        depth: u8,
        contents: &mut ArchiveContents,
    ) -> io::Result<bool> {
        let Some((algorithm, hex)) = node.digest.split_once(':') else {
            return Err(invalid(format!("{:?} is not a digest", node.digest)));
        };
        let Ok(entry) = self.entry(&format!("blobs/{algorithm}/{hex}")) else { return Ok(false) };
        if !self.visited.insert(node.digest.clone()) {
            return Ok(true);
        }
        let mut children = Vec::new();
        if ["index.v1", "manifest.list", "manifest.v"].iter().any(|t| node.media_type.contains(t)) {
            if depth == DEPTH_MAX {
                return Err(invalid("indexes are nested too deeply"));
            }
            let inner: OciIndex = serde_json::from_slice(&self.json(&entry.name)?)?;
            for child in inner.manifests.iter().chain(&inner.config).chain(&inner.layers) {
                if self.walk(child, depth + 1, contents)? {
                    children.push(child.digest.clone());
                } else if inner.config.is_some() {
                    return Err(invalid(format!(
                        "{} of manifest {} is missing",
                        child.digest, node.digest
                    )));
                }
            }
        }
        let descriptor = descriptor(&node.media_type, &node.digest, entry.size);
        contents.blobs.push(Blob { descriptor, source: self.source(&entry), children });
        Ok(true)
    }

    fn docker(&mut self, contents: &mut ArchiveContents) -> io::Result<()> {
        let list: Vec<DockerImage> = serde_json::from_slice(&self.json("manifest.json")?)?;
        for image in list {
            let config = self.blob(&image.config, "application/vnd.oci.image.config.v1+json")?;
            let layers = image
                .layers
                .iter()
                .map(|l| self.blob(l, "application/vnd.oci.image.layer.v1.tar"))
                .collect::<io::Result<Vec<Blob>>>()?;
            let json = |d: &Descriptor| {
                serde_json::json!({"mediaType": d.media_type,
                "digest": d.digest, "size": d.size})
            };
            let manifest = serde_json::json!({
                "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": json(&config.descriptor),
                "layers": layers.iter().map(|l| json(&l.descriptor)).collect::<Vec<_>>(),
            });
            let bytes = manifest.to_string().into_bytes();
            let target = descriptor(
                "application/vnd.oci.image.manifest.v1+json",
                &sha256(&bytes),
                bytes.len() as u64,
            );
            let mut children = vec![config.descriptor.digest.clone()];
            children.extend(layers.iter().map(|l| l.descriptor.digest.clone()));
            contents.blobs.push(config);
            contents.blobs.extend(layers);
            let source = BlobSource::Bytes(bytes.into());
            contents.blobs.push(Blob { descriptor: target.clone(), source, children });
            let tags = image.repo_tags.unwrap_or_default();
            let names = tags.iter().map(|t| name::normalize(t)).collect();
            contents.images.push(ArchiveImage { names, target });
        }
        Ok(())
    }

    /// Reads a file of the archive as a blob; a compressed layer is detected by its magic number.
    fn blob(&mut self, name: &str, media_type: &str) -> io::Result<Blob> {
        let entry = self.entry(name)?;
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(entry.offset))?;
        let digest = sha256_of(file.take(entry.size))?;
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(entry.offset))?;
        let mut magic = Vec::new();
        file.take(entry.size.min(2)).read_to_end(&mut magic)?;
        let media_type = if magic == [0x1f, 0x8b] {
            format!("{media_type}+gzip")
        } else {
            media_type.to_owned()
        };
        let descriptor = descriptor(&media_type, &digest, entry.size);
        Ok(Blob { descriptor, source: self.source(&entry), children: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_yield_blobs_before_their_references() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("i.tar");
        let (layer, config) = (&b"layer"[..], &b"{}"[..]);
        let manifest =
            br#"[{"Config":"c.json","RepoTags":["busybox:1"],"Layers":["l/layer.tar"]}]"#;
        std::fs::write(
            &path,
            tarball::write(&[
                ("manifest.json", 0o644, manifest),
                ("c.json", 0o644, config),
                ("l/layer.tar", 0o644, layer),
            ]),
        )
        .unwrap();
        let contents = open(&path, directory.path(), 0).unwrap();
        assert_eq!(contents.images[0].names, ["docker.io/library/busybox:1"]);
        assert_eq!(contents.blobs.len(), 3);
        assert_eq!(contents.blobs[2].children, [sha256(config), sha256(layer)]);

        let blob = |b: &[u8]| format!("blobs/sha256/{}", &sha256(b)[7..]);
        let manifest = serde_json::json!({
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": sha256(config), "size": 2},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": sha256(layer), "size": 5}],
        })
        .to_string();
        let index = serde_json::json!({"manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": sha256(manifest.as_bytes()), "size": manifest.len(),
            "annotations": {"org.opencontainers.image.ref.name": "r.io/a:2"}}]})
        .to_string();
        std::fs::write(
            &path,
            tarball::write(&[
                ("index.json", 0o644, index.as_bytes()),
                (&blob(manifest.as_bytes()), 0o644, manifest.as_bytes()),
                (&blob(config), 0o644, config),
                (&blob(layer), 0o644, layer),
            ]),
        )
        .unwrap();
        let contents = open(&path, directory.path(), 0).unwrap();
        assert_eq!(contents.images[0].names, ["r.io/a:2"]);
        let order: Vec<&str> =
            contents.blobs.iter().map(|b| b.descriptor.digest.as_str()).collect();
        assert_eq!(order, [sha256(config), sha256(layer), sha256(manifest.as_bytes())]);
        std::fs::write(&path, tarball::write(&[("x", 0o644, b"")])).unwrap();
        let error = open(&path, directory.path(), 0).unwrap_err().to_string();
        assert!(error.contains("neither index.json"), "{error}");
        // Only the index was written so far: its manifest is missing.
        let text = index.as_bytes();
        std::fs::write(&path, tarball::write(&[("index.json", 0o644, text)])).unwrap();
        let error = open(&path, directory.path(), 0).unwrap_err().to_string();
        assert!(error.contains("contains no image that has a name"), "{error}");
    }
}
