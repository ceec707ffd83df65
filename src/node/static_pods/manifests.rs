//! Static pods: reads manifests from directories of the machine, again whenever a directory
//! changes.

use api::Typed;
use sorting::CompactSort as _;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Gvk;
use api::codec::yaml;
use api::schema::Schema;
use api::value::items;
use base::{Problem, Problems, Shutdown};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::digest::sha256;
use crate::file_watcher::FileWatcher;
use crate::pods::objects;
use crate::pods::pod::{HASH_ANNOTATION, Pod, PodOrigin, SEEN_ANNOTATION, SOURCE_ANNOTATION};

/// Maximum size of a manifest in bytes, above the API's limit for an object.
const FILE_MAX: u64 = 3 << 20;
/// Maximum number of files that are read in a directory.
const FILES_MAX: usize = 1000;

/// Why a file is rejected as a static pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidManifest {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {FILE_MAX} bytes")]
    TooLarge,
    #[error("not a valid Pod: {0}")]
    Decode(#[from] api::codec::DecodeError),
    #[error("contains kind {0:?} of {1:?}; a static pod is a Pod of v1")]
    Kind(String, String),
    #[error("invalid pod: {0}")]
    Invalid(String),
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// The current static pods; `None` before the directories were read.
pub(crate) type StaticPodList = Option<Vec<Arc<Pod>>>;

#[derive(Debug)]
struct ManifestFile {
    digest: String,
    pod: Option<Arc<Pod>>,
    /// Why the current content is rejected.
    error: Option<String>,
}

/// The directories and their manifests.
#[derive(Debug)]
pub(crate) struct ManifestReader {
    folders: Vec<PathBuf>,
    node_name: String,
    files: BTreeMap<PathBuf, ManifestFile>,
    /// Other rejected paths of the last read, with the reasons.
    rejected: BTreeMap<PathBuf, String>,
}

/// Prefix of the keys of problem entries; the path follows.
const PROBLEMS: &str = "static-pods/";

impl ManifestReader {
    pub(crate) fn new(folders: Vec<PathBuf>, node_name: String) -> Self {
        Self { folders, node_name, files: BTreeMap::new(), rejected: BTreeMap::new() }
    }

    /// Returns a problem entry for each rejected file and directory.
    fn problems(&self) -> Vec<(String, Problem)> {
        let files = self.files.iter().filter_map(|(path, file)| Some((path, file.error.as_ref()?)));
        let all = files.chain(&self.rejected);
        let problem = |(path, error): (&PathBuf, &String)| {
            let what = format!("the static pod {} is invalid: {error}", path.display());
            let fix = "correct or remove the file; it is read again when it changes";
            (format!("{PROBLEMS}{}", path.display()), Problem { what, fix: fix.to_owned() })
        };
        all.map(problem).collect()
    }

    /// Forgets files that were removed: one that is there again is a new pod, also with the same
    /// content.
    fn forget(&mut self, removed: &BTreeSet<PathBuf>) {
        self.files.retain(|path, _| !removed.contains(path));
    }

    /// Reads all files. A file that becomes invalid is a problem until it changes, and its previous
    /// pod keeps running.
    pub(crate) fn read(&mut self) -> Vec<Arc<Pod>> {
        let mut found = BTreeMap::new();
        self.rejected.clear();
        for folder in self.folders.clone() {
            match list(&folder) {
                Ok((paths, rejected)) => {
                    self.rejected.extend(rejected);
                    for path in paths {
                        let previous = self.files.remove(&path);
                        if let Some(file) = self.read_file(&path, previous) {
                            found.insert(path, file);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.rejected.insert(folder.clone(), format!("cannot be read: {error}"));
                    let (here, others) = std::mem::take(&mut self.files)
                        .into_iter()
                        .partition(|(path, _)| path.parent() == Some(&folder));
                    found.extend::<BTreeMap<PathBuf, ManifestFile>>(here);
                    self.files = others;
                }
            }
        }
        self.files = found;
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        for (path, pod) in self.files.iter().filter_map(|(path, f)| Some((path, f.pod.as_ref()?))) {
            if pods.iter().any(|p| p.key == pod.key || p.uid == pod.uid) {
                let error = format!("another manifest contains the pod {}", pod.key);
                self.rejected.insert(path.clone(), error);
            } else {
                pods.push(Arc::clone(pod));
            }
        }
        pods
    }

    fn read_file(&self, path: &Path, previous: Option<ManifestFile>) -> Option<ManifestFile> {
        let body = match read_bounded(path) {
            Ok(body) => body,
            // Removed since the directory was listed.
            Err(InvalidManifest::Io(e)) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(reject_content(&error, String::new(), previous)),
        };
        let digest = sha256(&body);
        if let Some(file) = previous.as_ref()
            && file.digest == digest
        {
            return previous;
        }
        Some(match parse(&body, path, &self.node_name) {
            Ok(pod) => {
                // Other text of the same pod is no change.
                let kept = previous.and_then(|file| file.pod).filter(|old| is_equal(old, &pod));
                let pod = kept.unwrap_or_else(|| Arc::new(pod));
                ManifestFile { digest, pod: Some(pod), error: None }
            }
            Err(error) => reject_content(&error, digest, previous),
        })
    }
}

/// Whether two manifests contain the same pod, whenever they were read.
fn is_equal(old: &Pod, new: &Pod) -> bool {
    let content = |pod: &Pod| {
        let mut object = pod.object.clone();
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(SEEN_ANNOTATION);
        }
        object
    };
    old.uid == new.uid && content(old) == content(new)
}

/// Whether two static pods with the same uid are of one file, which was not removed in between.
pub(crate) fn is_of_same_file(a: &Pod, b: &Pod) -> bool {
    let seen = |pod: &Pod| pod.annotations().and_then(|all| all.get(SEEN_ANNOTATION)).cloned();
    a.uid == b.uid && seen(a) == seen(b)
}

/// Rejects the content of a file; its previous pod keeps running.
fn reject_content(
    error: &InvalidManifest,
    digest: String,
    previous: Option<ManifestFile>,
) -> ManifestFile {
    ManifestFile { digest, pod: previous.and_then(|f| f.pod), error: Some(error.to_string()) }
}

/// Rejected paths with the reasons.
type RejectedPaths = Vec<(PathBuf, String)>;

/// Lists the files of a directory, sorted and without hidden ones, and what is neither a file nor a
/// directory.
fn list(folder: &Path) -> io::Result<(Vec<PathBuf>, RejectedPaths)> {
    let (mut out, mut rejected) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') || path.is_dir() {
            continue;
        }
        if path.is_file() {
            out.push(path);
        } else {
            rejected.push((path, "not a regular file".to_owned()));
        }
    }
    out.compact_sort();
    if out.len() > FILES_MAX {
        let why = format!("only the first {FILES_MAX} of {} files are read", out.len());
        rejected.push((folder.to_owned(), why));
        out.truncate(FILES_MAX);
    }
    Ok((out, rejected))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, InvalidManifest> {
    use std::io::Read;
    let mut body = Vec::new();
    std::fs::File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut body)?;
    let size = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if size > FILE_MAX { Err(InvalidManifest::TooLarge) } else { Ok(body) }
}

/// Parses a manifest, YAML or JSON, as a pod of this node.
pub(crate) fn parse(body: &[u8], path: &Path, node_name: &str) -> Result<Pod, InvalidManifest> {
    let schema = Schema::builtin();
    let meta = yaml::interpret(body)?;
    let kind = Gvk::new("", "v1", "Pod");
    let type_id = schema
        .kind(&kind)
        .filter(|_| meta.kind == "Pod" && meta.api_version == "v1")
        .ok_or_else(|| InvalidManifest::Kind(meta.kind.clone(), meta.api_version.clone()))?;
    let decoded = yaml::decode_strict(&schema, type_id, body)?;
    if !decoded.strict_errors.is_empty() {
        let why = api::codec::strict_message(&decoded.strict_errors);
        tracing::warn!(manifest = %path.display(), why, "ignoring unknown or duplicate fields of \
            the static pod");
    }
    let mut pod = decoded.value;
    api::schema::defaults::apply_table(&schema, type_id, &mut pod);
    api::defaults::defaulter("", "v1", "Pod")(&mut pod);
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !is_name(&name) {
        return Err(InvalidManifest::Invalid(format!(
            "metadata.name: {name:?} is not a DNS subdomain"
        )));
    }
    complete_static_pod(&mut pod, &name, path, node_name);
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    if !is_name(namespace) || namespace.contains('.') {
        return Err(InvalidManifest::Invalid(format!(
            "metadata.namespace: {namespace:?} is not a DNS label"
        )));
    }
    let errors = api::validation::core::pod::validate(&pod);
    if let Some(error) = errors.first() {
        return Err(InvalidManifest::Invalid(error.to_string()));
    }
    let object = api::k8s::api::core::v1::Pod::from_value(&pod)
        .map_err(|e| InvalidManifest::Invalid(e.to_string()))?;
    let pod = Pod::new(object, PodOrigin::Static).ok_or_else(|| {
        InvalidManifest::Invalid(
            "metadata.uid: must consist of letters, digits, - and _".to_owned(),
        )
    })?;
    match forbidden_reference(&pod) {
        Some(resource) => Err(InvalidManifest::Reference(resource)),
        None => Ok(pod),
    }
}

fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        && !text.starts_with(['-', '.'])
}

/// Completes a static pod: name with the node's name, uid and hash from the content, bound to this
/// node.
fn complete_static_pod(pod: &mut Value, name: &str, path: &Path, node_name: &str) {
    let content = format!("{pod}host:{node_name}file:{}", path.display());
    let digest = sha256(content.as_bytes());
    // The length of a 128-bit uid.
    let hash: String = digest.trim_start_matches("sha256:").chars().take(32).collect();
    let meta = &mut pod["metadata"];
    let uid = meta["uid"].as_str().filter(|u| !u.is_empty()).map_or(hash, str::to_owned);
    meta["name"] = format!("{name}-{}", node_name.to_lowercase()).into();
    if meta["namespace"].as_str().is_none_or(str::is_empty) {
        meta["namespace"] = "default".into();
    }
    if !meta["annotations"].is_object() {
        meta["annotations"] = json!({});
    }
    meta["annotations"][HASH_ANNOTATION] = uid.clone().into();
    meta["annotations"][SOURCE_ANNOTATION] = "file".into();
    meta["annotations"][SEEN_ANNOTATION] = seen_timestamp().into();
    meta["uid"] = uid.into();
    pod["status"] = json!({"phase": "Pending"});
    let spec = &mut pod["spec"];
    spec["nodeName"] = node_name.into();
    // Problems of the node do not evict its static pods.
    let tolerated = items(spec, "tolerations")
        .iter()
        .any(|t| t["operator"] == "Exists" && t["effect"] == "NoExecute" && t.get("key").is_none());
    if !tolerated {
        let mut tolerations = items(spec, "tolerations").to_vec();
        tolerations.push(json!({"operator": "Exists", "effect": "NoExecute"}));
        spec["tolerations"] = tolerations.into();
    }
}

fn seen_timestamp() -> String {
    let nanoseconds = i128::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    jiff::Timestamp::from_nanosecond(nanoseconds).map(|t| t.to_string()).unwrap_or_default()
}

/// Returns the API objects to which a static pod refers, which is not allowed.
fn forbidden_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec();
    if spec.service_account_name.as_deref().is_some_and(|n| !n.is_empty()) {
        return Some("serviceaccounts");
    }
    if let Some((source, ..)) = objects::references(pod).first() {
        return Some(match source {
            crate::pods::objects::ObjectKind::ConfigMap => "configmaps",
            crate::pods::objects::ObjectKind::Secret => "secrets",
        });
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(|v| {
        let token = |s: &api::k8s::api::core::v1::VolumeProjection| {
            s.service_account_token.is_some()
                || s.cluster_trust_bundle.is_some()
                || s.pod_certificate.is_some()
        };
        if v.persistent_volume_claim.is_some() || v.ephemeral.is_some() {
            Some("persistentvolumeclaims")
        } else if v.csi.is_some() {
            Some("csidrivers (via CSI volumes)")
        } else if v.projected.iter().flat_map(|p| p.sources.iter().flatten()).any(token) {
            Some("serviceaccounts, clustertrustbundles or podcertificates (via projected volumes)")
        } else {
            None
        }
    })
}

/// Publishes the static pods now and after each change, until shutdown.
pub(crate) async fn run(
    mut manifests: ManifestReader,
    publisher: watch::Sender<StaticPodList>,
    problems: Problems,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let folders = manifests.folders.clone();
    let mut watcher = match FileWatcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::error!(%error, "cannot watch static pod manifests; changes take effect at \
                the next start");
            None
        }
    };
    loop {
        if let Some(watcher) = &mut watcher {
            watcher.watch(&folders);
        }
        let read = base::tasks::blocking(move || {
            let pods = manifests.read();
            (manifests, pods)
        });
        let Ok((back, pods)) = read.await else { return Ok(()) };
        manifests = back;
        problems.replace(PROBLEMS, manifests.problems());
        publisher.send_replace(Some(pods));
        let changed = async {
            match &mut watcher {
                Some(watcher) => watcher.removed_by_changes(&folders).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            removed = changed => manifests.forget(&removed),
        }
    }
}

#[cfg(test)]
mod tests;
