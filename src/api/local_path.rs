//! The configuration of local-path volumes, as rancher's local-path-provisioner reads it: the file
//! `config.json` of the ConfigMap `local-path-config`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

/// Namespace of the ConfigMap.
pub const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap.
pub const CONFIG_MAP: &str = "local-path-config";
/// Key of the configuration in the ConfigMap.
pub const KEY: &str = "config.json";
/// The node name of the paths of all nodes that are not listed.
pub const NOT_LISTED: &str = "DEFAULT_PATH_FOR_NON_LISTED_NODES";

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum LocalPathConfigError {
    /// The text is no JSON of this form.
    #[error("config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A node is listed twice.
    #[error("duplicate node {0}")]
    DuplicateNode(String),
    /// A path is relative.
    #[error("path must start with / for path {path} on node {node}")]
    Relative {
        /// The node's name.
        node: String,
        /// The path.
        path: String,
    },
    /// A path is the root directory.
    #[error("cannot use root ('/') as path on node {0}")]
    Root(String),
    /// A path is listed twice for a node.
    #[error("duplicate path {path} on node {node}")]
    DuplicatePath {
        /// The node's name.
        node: String,
        /// The path.
        path: String,
    },
    /// The shared file system has no usable path.
    #[error("sharedFileSystemPath must be an absolute path other than /, not {0:?}")]
    Shared(String),
    /// The paths of one class are invalid.
    #[error("config for class {class} is invalid: {error}")]
    Class {
        /// The name of the StorageClass.
        class: String,
        /// What is wrong.
        error: Box<LocalPathConfigError>,
    },
}

/// Why a configuration names no directory for a volume. The texts are those of rancher's
/// provisioner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoStoragePath {
    /// `storageClassConfigs` has no such class.
    #[error("storageClassConfigs of ConfigMap local-path-config has no StorageClass {0}")]
    Class(String),
    /// The class has paths of nodes and a shared path.
    #[error(
        "both nodePathMap and sharedFileSystemPath are defined. Please make sure only one is in use"
    )]
    Both,
    /// The class has neither paths of nodes nor a shared path.
    #[error("both nodePathMap and sharedFileSystemPath are unconfigured")]
    Neither,
    /// The node is not listed, and there is no default.
    #[error("config doesn't contain node {0}, and no {NOT_LISTED} available")]
    Node(String),
    /// The list of the node is empty.
    #[error("no local path available on node {0}")]
    Empty(String),
    /// The path of the StorageClass is not one of the node's.
    #[error("config doesn't contain path {path} on node {node}")]
    Path {
        /// The node's name.
        node: String,
        /// The parameter `nodePath`.
        path: String,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClassDocument {
    node_path_map: Option<Vec<NodeDocument>>,
    shared_file_system_path: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeDocument {
    node: String,
    paths: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    setup_command: Option<String>,
    teardown_command: Option<String>,
    #[serde(flatten)]
    class: ClassDocument,
    storage_class_configs: Option<BTreeMap<String, ClassDocument>>,
}

/// Where the volumes of one StorageClass, or of all classes, are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoragePaths {
    nodes: BTreeMap<String, Vec<String>>,
    shared: Option<String>,
}

/// The storage directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageDirectory {
    /// Its absolute path.
    pub path: String,
    /// Whether the path is that of the nodes that are not listed.
    pub is_default: bool,
}

/// A valid configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalPathConfig {
    paths: StoragePaths,
    classes: BTreeMap<String, StoragePaths>,
    /// `setupCommand` and `teardownCommand`, by name, that are set.
    pub commands: Vec<&'static str>,
}

/// The path without `.`, `..`, doubled and trailing slashes, as Go's `filepath.Clean` returns it.
fn clean(path: &str) -> String {
    let mut out = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            _ => {}
        }
    }
    out.to_string_lossy().into_owned()
}

fn storage_paths(document: ClassDocument) -> Result<StoragePaths, LocalPathConfigError> {
    let mut nodes = BTreeMap::new();
    for NodeDocument { node, paths } in document.node_path_map.unwrap_or_default() {
        if nodes.contains_key(&node) {
            return Err(LocalPathConfigError::DuplicateNode(node));
        }
        let mut cleaned = Vec::new();
        for path in paths.unwrap_or_default() {
            if !path.starts_with('/') {
                return Err(LocalPathConfigError::Relative { node, path });
            }
            let short = clean(&path);
            if short == "/" {
                return Err(LocalPathConfigError::Root(node));
            }
            if cleaned.contains(&short) {
                return Err(LocalPathConfigError::DuplicatePath { node, path });
            }
            cleaned.push(short);
        }
        nodes.insert(node, cleaned);
    }
    let shared = document.shared_file_system_path.filter(|path| !path.is_empty());
    if let Some(path) = shared.as_ref().filter(|p| !p.starts_with('/') || clean(p) == "/") {
        return Err(LocalPathConfigError::Shared(path.clone()));
    }
    Ok(StoragePaths { nodes, shared: shared.as_deref().map(clean) })
}

impl StoragePaths {
    /// Whether every node reaches the volumes.
    ///
    /// # Errors
    /// The configuration has both kinds of paths, or none.
    pub fn is_shared(&self) -> Result<bool, NoStoragePath> {
        match (&self.shared, self.nodes.is_empty()) {
            (Some(_), false) => Err(NoStoragePath::Both),
            (Some(_), true) => Ok(true),
            (None, false) => Ok(false),
            (None, true) => Err(NoStoragePath::Neither),
        }
    }

    /// The storage directory of a volume on `node`: the one that the class names with `requested`,
    /// or one of the node's, chosen by `seed` so that a second attempt uses the same directory.
    ///
    /// # Errors
    /// The configuration names no such directory.
    pub fn choose(
        &self,
        node: &str,
        requested: Option<&str>,
        seed: &str,
    ) -> Result<StorageDirectory, NoStoragePath> {
        if self.is_shared()? {
            let path = self.shared.clone().unwrap_or_default();
            return Ok(StorageDirectory { path, is_default: false });
        }
        let own = self.nodes.get(node);
        let paths = own
            .or_else(|| self.nodes.get(NOT_LISTED))
            .ok_or_else(|| NoStoragePath::Node(node.to_owned()))?;
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        let count = u64::try_from(paths.len()).unwrap_or(u64::MAX).max(1);
        let index = usize::try_from(hasher.finish() % count).unwrap_or_default();
        let picked = paths.get(index).ok_or_else(|| NoStoragePath::Empty(node.to_owned()))?.clone();
        let path = match requested.filter(|path| !path.is_empty()) {
            None => picked,
            Some(path) if paths.iter().any(|known| known == path) => path.to_owned(),
            Some(path) => {
                return Err(NoStoragePath::Path { node: node.to_owned(), path: path.to_owned() });
            }
        };
        Ok(StorageDirectory { path, is_default: own.is_none() && requested.is_none() })
    }

    fn allows(&self, node: &str, path: &str) -> bool {
        let listed = self.nodes.get(node).or_else(|| self.nodes.get(NOT_LISTED));
        let is_listed = listed.is_some_and(|paths| paths.iter().any(|known| known == path));
        is_listed || self.shared.as_deref() == Some(path)
    }
}

impl LocalPathConfig {
    /// Parses `config.json`.
    ///
    /// # Errors
    /// What is invalid.
    pub fn parse(text: &str) -> Result<Self, LocalPathConfigError> {
        let document: Document = serde_json::from_str(text)?;
        let mut config = Self::default();
        for (name, command) in [
            ("setupCommand", document.setup_command),
            ("teardownCommand", document.teardown_command),
        ] {
            if command.is_some_and(|command| !command.is_empty()) {
                config.commands.push(name);
            }
        }
        let classes = document.storage_class_configs.unwrap_or_default();
        if classes.is_empty() {
            config.paths = storage_paths(document.class)?;
        }
        for (class, paths) in classes {
            let paths = storage_paths(paths).map_err(|error| LocalPathConfigError::Class {
                class: class.clone(),
                error: Box::new(error),
            })?;
            config.classes.insert(class, paths);
        }
        Ok(config)
    }

    /// The paths of a StorageClass.
    ///
    /// # Errors
    /// `storageClassConfigs` is set and lacks the class.
    pub fn of_class(&self, class: &str) -> Result<&StoragePaths, NoStoragePath> {
        if self.classes.is_empty() {
            return Ok(&self.paths);
        }
        self.classes.get(class).ok_or_else(|| NoStoragePath::Class(class.to_owned()))
    }

    /// Whether `path` is a storage directory of `node` for any class.
    pub fn allows(&self, node: &str, path: &str) -> bool {
        self.paths.allows(node, path) || self.classes.values().any(|c| c.allows(node, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the provisioner's README.
    const EXAMPLE: &str = r#"{"nodePathMap":[
        {"node":"DEFAULT_PATH_FOR_NON_LISTED_NODES","paths":["/opt/local-path-provisioner"]},
        {"node":"yasker-lp-dev1","paths":["/opt/local-path-provisioner","/data1/"]},
        {"node":"yasker-lp-dev3","paths":[]}]}"#;

    fn chosen(node: &str, requested: Option<&str>) -> Result<(String, bool), String> {
        let config = LocalPathConfig::parse(EXAMPLE).unwrap();
        let choice = config.of_class("any").unwrap().choose(node, requested, "uid");
        choice.map(|c| (c.path, c.is_default)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_listed_node_uses_its_own_paths_and_the_others_the_default() {
        let default = "/opt/local-path-provisioner".to_owned();
        assert_eq!(chosen("other", None), Ok((default.clone(), true)));
        assert_eq!(chosen("yasker-lp-dev1", Some("/data1")), Ok(("/data1".into(), false)));
        assert!(!chosen("yasker-lp-dev1", None).unwrap().1);
        assert_eq!(chosen("yasker-lp-dev1", None), chosen("yasker-lp-dev1", None));
        let none = "no local path available on node yasker-lp-dev3";
        assert_eq!(chosen("yasker-lp-dev3", None), Err(none.into()));
        let wrong = "config doesn't contain path /data2 on node yasker-lp-dev1";
        assert_eq!(chosen("yasker-lp-dev1", Some("/data2")), Err(wrong.into()));
    }

    #[test]
    fn invalid_configurations_are_rejected_with_the_place() {
        let class = |inner: &str| format!(r#"{{"storageClassConfigs":{{"fast":{inner}}}}}"#);
        let map = |nodes: &str| format!(r#"{{"nodePathMap":[{nodes}]}}"#);
        for (text, want) in [
            ("{".to_owned(), "config.json: EOF while parsing an object"),
            (map(r#"{"node":"a"},{"node":"a"}"#), "duplicate node a"),
            (map(r#"{"node":"a","paths":["x"]}"#), "path must start with / for path x on node a"),
            (map(r#"{"node":"a","paths":["/x/.."]}"#), "cannot use root ('/') as path on node a"),
            (map(r#"{"node":"a","paths":["/x","/x/"]}"#), "duplicate path /x/ on node a"),
            (
                class(&map(r#"{"node":"a","paths":[""]}"#)),
                "config for class fast is invalid: path must start with / for path  on node a",
            ),
            (r#"{"sharedFileSystemPath":"nfs"}"#.to_owned(), "sharedFileSystemPath must be"),
        ] {
            let error = LocalPathConfig::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn a_shared_path_excludes_paths_of_nodes() {
        let paths = |text: &str| LocalPathConfig::parse(text).unwrap().of_class("c").cloned();
        let shared = paths(r#"{"sharedFileSystemPath":"/nfs/"}"#).unwrap();
        assert_eq!(shared.is_shared(), Ok(true));
        assert_eq!(shared.choose("n", None, "").unwrap().path, "/nfs");
        let both = paths(r#"{"sharedFileSystemPath":"/nfs","nodePathMap":[{"node":"a"}]}"#);
        assert_eq!(both.unwrap().is_shared(), Err(NoStoragePath::Both));
        assert_eq!(paths("{}").unwrap().is_shared(), Err(NoStoragePath::Neither));
    }

    #[test]
    fn classes_have_their_own_paths() {
        let config = LocalPathConfig::parse(
            r#"{"setupCommand":"/bin/x","storageClassConfigs":{
                "fast":{"nodePathMap":[{"node":"n","paths":["/ssd"]}]},
                "nfs":{"sharedFileSystemPath":"/nfs"}}}"#,
        )
        .unwrap();
        assert_eq!(config.commands, ["setupCommand"]);
        assert!(config.of_class("fast").unwrap().choose("n", None, "").is_ok());
        assert_eq!(config.of_class("slow"), Err(NoStoragePath::Class("slow".into())));
        for (node, path, want) in
            [("n", "/ssd", true), ("m", "/ssd", false), ("m", "/nfs", true), ("n", "/", false)]
        {
            assert_eq!(config.allows(node, path), want, "{node} {path}");
        }
    }
}
