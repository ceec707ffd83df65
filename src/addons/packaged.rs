//! The manifests of the program. Files are written into the manifests folder at each start, where
//! the controller finds them like those of the user; CustomResourceDefinitions are applied without
//! a file, as by k3s, because the Addons need them.

use std::io::Read as _;
use std::path::Path;

use crate::config::Config;
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
pub(crate) fn stage(config: &Config) -> Result<(), StageError> {
    let folder = config.folder.as_path();
    let error = |path: &Path, source| StageError { path: path.to_owned(), source };
    if !folder.is_dir() {
        base::fs::create_dir(folder, 0o700).map_err(|e| error(folder, e))?;
    }
    for file in &FILES {
        if crate::folder::is_disabled(Path::new(file.name), &config.disabled) {
            continue;
        }
        let path = folder.join(file.name);
        let text = fill(file.text, config);
        if std::fs::read(&path).is_ok_and(|now| now == text.as_bytes()) {
            continue;
        }
        base::fs::write_atomic(&path, text.as_bytes(), 0o600).map_err(|e| error(&path, e))?;
    }
    Ok(())
}

/// Replaces the variables in a packaged manifest. The path is inside a JSON string.
fn fill(text: &str, config: &Config) -> String {
    let path = serde_json::Value::from(config.local_storage_path.to_string_lossy()).to_string();
    let node_ports = if config.balancer_node_ports { "true" } else { "false" };
    text.replace("%{DEFAULT_LOCAL_STORAGE_PATH}%", path.trim_matches('"'))
        .replace("%{LOAD_BALANCER_NODE_PORTS}%", node_ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path, local_storage_path: &str, disabled: &[&str]) -> Config {
        Config {
            folder: folder.to_owned(),
            disabled: disabled.iter().map(|name| (*name).to_owned()).collect(),
            vertical_autoscaler: false,
            prune_deleted_files: false,
            server: "n1".to_owned(),
            local_storage_path: local_storage_path.into(),
            balancer_node_ports: false,
        }
    }

    /// Balancers of clouds forward to node ports; ServiceLB needs none.
    #[test]
    fn the_service_of_the_ingress_has_node_ports_for_balancers_of_others() {
        let file = FILES.iter().find(|file| file.name == "ingress.yaml").unwrap();
        for others in [true, false] {
            let config =
                Config { balancer_node_ports: others, ..config(Path::new("/m"), "/s", &[]) };
            let objects = document::parse(fill(file.text, &config).as_bytes()).unwrap();
            let service = objects.iter().find(|object| object.kind == "Service").unwrap();
            assert_eq!(service.value["spec"]["allocateLoadBalancerNodePorts"], others);
        }
    }

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
            let text = fill(file.text, &config(Path::new("/m"), "/data/sto\"rage", &[]));
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
        let staged =
            |path: &str, disabled: &[&str]| stage(&config(&folder, path, disabled)).unwrap();
        staged("/a", &["local-storage"]);
        assert!(folder.is_dir() && !file.exists());
        staged("/a", &[]);
        let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&file).unwrap());
        let first = inode();
        staged("/a", &[]);
        assert_eq!(inode(), first);
        staged("/b", &[]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"/b\""));
        std::fs::write(&file, "changed").unwrap();
        staged("/b", &[]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"/b\""));
    }
}
