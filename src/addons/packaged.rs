//! The manifests of the program. Files are written into the manifests folder at each start, where
//! the controller finds them like those of the user; CustomResourceDefinitions are applied without
//! a file, as by k3s, because the Addons need them.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use crate::document::{self, ManifestObject};
use crate::error::{ManifestError, StageError};

/// The CustomResourceDefinitions, from `manifests/` of the repository.
pub(crate) const DEFINITIONS: [&str; 3] = [
    include_str!("../../manifests/addon-crds.yaml"),
    include_str!("../../manifests/helm-crds.yaml"),
    include_str!("../../manifests/snapshot-crds.yaml"),
];

/// The CustomResourceDefinitions of the vertical pod autoscaler 1.8.1: upstream's file, compressed,
/// without the version `v1beta2`, which upstream does not serve any more.
pub(crate) const VERTICAL_AUTOSCALER: &[u8] =
    include_bytes!("../../manifests/vertical-pod-autoscaler-crds.yaml.gz");

/// A manifest of the program.
#[derive(Debug)]
pub(crate) struct PackagedManifest {
    /// Its path in the manifests folder.
    pub(crate) name: &'static str,
    /// Its text with variables.
    text: &'static str,
}

/// The manifests that the server deploys by itself, from `manifests/` of the repository.
pub(crate) const FILES: [PackagedManifest; 3] = [
    PackagedManifest { name: "ingress.yaml", text: include_str!("../../manifests/ingress.yaml") },
    PackagedManifest {
        name: "local-storage.yaml",
        text: include_str!("../../manifests/local-storage.yaml"),
    },
    PackagedManifest { name: "runtimes.yaml", text: include_str!("../../manifests/runtimes.yaml") },
];

/// Files of k3s for components that kube-lite has in the process, with the reason why they are not
/// deployed. A data directory of k3s contains them. The last one is a folder.
pub(crate) const COMPONENTS_OF_K3S: [(&str, &str); 3] = [
    ("coredns.yaml", "it is a file of k3s for the cluster DNS, which kube-lite serves itself"),
    ("ccm.yaml", "it is a file of k3s for its cloud controller, which kube-lite does not need"),
    (
        "metrics-server",
        "it is a file of k3s for the resource metrics, which kube-lite serves itself",
    ),
];

/// The objects of a compressed file.
///
/// # Errors
/// The file is damaged, which the tests rule out.
pub(crate) async fn unpack(packed: &'static [u8]) -> Result<Vec<ManifestObject>, ManifestError> {
    let objects = base::tasks::blocking(move || {
        let mut text = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(packed);
        decoder.read_to_end(&mut text).map_err(ManifestError::Packed)?;
        Ok(document::parse(&text)?)
    });
    objects.await.unwrap_or_else(|_| Ok(Vec::new()))
}

/// Writes the packaged manifests that are not disabled into the folder. A file with the right
/// content is not written.
///
/// # Errors
/// The first file or folder that cannot be written.
pub(crate) fn stage(
    folder: &Path,
    local_storage_path: &Path,
    disabled: &BTreeSet<String>,
) -> Result<(), StageError> {
    let error = |path: &Path, source| StageError { path: path.to_owned(), source };
    if !folder.is_dir() {
        base::fs::create_dir(folder, 0o700).map_err(|e| error(folder, e))?;
    }
    for file in &FILES {
        if crate::folder::is_disabled(Path::new(file.name), disabled) {
            continue;
        }
        let path = folder.join(file.name);
        let text = fill(file.text, local_storage_path);
        if std::fs::read(&path).is_ok_and(|now| now == text.as_bytes()) {
            continue;
        }
        base::fs::write_atomic(&path, text.as_bytes(), 0o600).map_err(|e| error(&path, e))?;
    }
    Ok(())
}

/// Replaces the variables in a packaged manifest. The path is inside a JSON string.
fn fill(text: &str, local_storage_path: &Path) -> String {
    let path = serde_json::Value::from(local_storage_path.to_string_lossy()).to_string();
    text.replace("%{DEFAULT_LOCAL_STORAGE_PATH}%", path.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_of_the_repository_is_packaged_and_parses() {
        // Tests run in the folder of the crate.
        let folder = Path::new("../../manifests");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_packaged = name.ends_with("-crds.yaml")
                || name.ends_with("-crds.yaml.gz")
                || FILES.iter().any(|f| f.name == name);
            assert!(is_packaged, "{name} is in no list");
        }
        for text in DEFINITIONS {
            let objects = document::parse(text.as_bytes()).unwrap();
            assert!(objects.iter().all(|o| o.kind == "CustomResourceDefinition"));
        }
        for file in FILES {
            let text = fill(file.text, Path::new("/data/sto\"rage"));
            assert!(!text.contains("%{"), "{}", file.name);
            assert!(!document::parse(text.as_bytes()).unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn the_kinds_of_the_vertical_pod_autoscaler_have_one_version() {
        let all = unpack(VERTICAL_AUTOSCALER).await.unwrap();
        let names: Vec<&str> = all.iter().map(|object| object.name.as_str()).collect();
        let expected = ["verticalpodautoscalercheckpoints", "verticalpodautoscalers"];
        assert_eq!(names, expected.map(|name| format!("{name}.autoscaling.k8s.io")));
        for object in all {
            assert_eq!(object.kind, "CustomResourceDefinition");
            let versions = object.value["spec"]["versions"].as_array().unwrap();
            let names: Vec<_> = versions.iter().map(|version| &version["name"]).collect();
            assert_eq!(names, ["v1"]);
        }
    }

    #[test]
    fn staging_writes_only_what_differs_and_nothing_disabled() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("server/manifests");
        let file = folder.join("local-storage.yaml");
        let none = BTreeSet::new();
        stage(&folder, Path::new("/a"), &BTreeSet::from(["local-storage".to_owned()])).unwrap();
        assert!(folder.is_dir() && !file.exists());
        stage(&folder, Path::new("/a"), &none).unwrap();
        let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&file).unwrap());
        let first = inode();
        stage(&folder, Path::new("/a"), &none).unwrap();
        assert_eq!(inode(), first);
        stage(&folder, Path::new("/b"), &none).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"/b\""));
        std::fs::write(&file, "changed").unwrap();
        stage(&folder, Path::new("/b"), &none).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"/b\""));
    }
}
