//! Documents with static pods, of files and of a URL: decoding, defaults, and what makes a pod one
//! of this node (upstream: `pkg/kubelet/config/common.go`).

use std::io;
use std::path::Path;

use api::codec::yaml;
use api::schema::{Schema, TypeId};
use api::value::items;
use api::{Gvk, Typed};
use serde_json::{Value, json};

use crate::digest::sha256;
use crate::pods::objects;
use crate::pods::pod::{HASH_ANNOTATION, Pod, PodOrigin, SEEN_ANNOTATION, SOURCE_ANNOTATION};

/// Maximum size of a document in bytes, above the API's limit for an object.
pub(crate) const DOCUMENT_MAX: usize = 3 << 20;
/// Maximum number of pods in a list.
const PODS_MAX: usize = 1000;

/// Why a document is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidManifest {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {DOCUMENT_MAX} bytes")]
    TooLarge,
    #[error("not a valid Pod: {0}")]
    Decode(#[from] api::codec::DecodeError),
    #[error("contains kind {0:?} of {1:?}; a static pod is a Pod of v1")]
    Kind(String, String),
    #[error("contains {0} pods; at most {PODS_MAX} are read")]
    TooManyPods(usize),
    #[error("contains the pod {0} twice")]
    Twice(String),
    #[error("invalid pod: {0}")]
    Invalid(String),
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// Where a document is from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ManifestSource<'a> {
    File(&'a Path),
    /// A URL without user and password.
    Url(&'a str),
}

impl ManifestSource<'_> {
    /// The value of [`SOURCE_ANNOTATION`] (`FileSource` and `HTTPSource`).
    fn annotation(self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Url(_) => "http",
        }
    }

    /// What distinguishes a pod from one with the same content of another source.
    fn identity(self, node_name: &str) -> String {
        match self {
            Self::File(path) => format!("host:{node_name}file:{}", path.display()),
            Self::Url(url) => format!("url:{url}"),
        }
    }
}

impl std::fmt::Display for ManifestSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url.split('?').next().unwrap_or_default()),
        }
    }
}

/// The schema's type of a kind of v1.
fn type_of(schema: &Schema, kind: &str) -> Option<TypeId> {
    schema.kind(&Gvk::new("", "v1", kind))
}

/// Parses a document, YAML or JSON, as a pod of this node.
///
/// # Errors
/// Why it is rejected.
pub(crate) fn parse(
    body: &[u8],
    source: ManifestSource<'_>,
    node_name: &str,
) -> Result<Pod, InvalidManifest> {
    let schema = Schema::builtin();
    let meta = yaml::interpret(body)?;
    let type_id = type_of(&schema, "Pod")
        .filter(|_| meta.kind == "Pod" && meta.api_version == "v1")
        .ok_or_else(|| InvalidManifest::Kind(meta.kind.clone(), meta.api_version.clone()))?;
    let pod = decode(&schema, type_id, body, source)?;
    complete(&schema, pod, source, node_name)
}

/// Parses a document with one pod or a PodList. One pod that is rejected rejects the document.
///
/// # Errors
/// Why it is rejected.
pub(crate) fn parse_all(
    body: &[u8],
    source: ManifestSource<'_>,
    node_name: &str,
) -> Result<Vec<Pod>, InvalidManifest> {
    let schema = Schema::builtin();
    let meta = yaml::interpret(body)?;
    let list = type_of(&schema, "PodList").filter(|_| meta.kind == "PodList");
    let Some(type_id) = list.filter(|_| meta.api_version == "v1") else {
        return Ok(vec![parse(body, source, node_name)?]);
    };
    let mut list = decode(&schema, type_id, body, source)?;
    let Value::Array(values) = list["items"].take() else { return Ok(Vec::new()) };
    if values.len() > PODS_MAX {
        return Err(InvalidManifest::TooManyPods(values.len()));
    }
    let mut pods: Vec<Pod> = Vec::with_capacity(values.len());
    for value in values {
        let pod = complete(&schema, value, source, node_name)?;
        if pods.iter().any(|p| p.key == pod.key || p.uid == pod.uid) {
            return Err(InvalidManifest::Twice(pod.key.to_string()));
        }
        pods.push(pod);
    }
    Ok(pods)
}

fn decode(
    schema: &Schema,
    type_id: TypeId,
    body: &[u8],
    source: ManifestSource<'_>,
) -> Result<Value, InvalidManifest> {
    let decoded = yaml::decode_strict(schema, type_id, body)?;
    if !decoded.strict_errors.is_empty() {
        let why = api::codec::strict_message(&decoded.strict_errors);
        tracing::warn!(manifest = %source, why, "ignoring unknown or duplicate fields of the \
            static pod");
    }
    Ok(decoded.value)
}

/// Sets the defaults of a pod, makes it one of this node and validates it.
fn complete(
    schema: &Schema,
    mut pod: Value,
    source: ManifestSource<'_>,
    node_name: &str,
) -> Result<Pod, InvalidManifest> {
    if let Some(type_id) = type_of(schema, "Pod") {
        api::schema::defaults::apply_table(schema, type_id, &mut pod);
    }
    api::defaults::defaulter("", "v1", "Pod")(&mut pod);
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !is_name(&name) {
        return Err(InvalidManifest::Invalid(format!(
            "metadata.name: {name:?} is not a DNS subdomain"
        )));
    }
    complete_static_pod(&mut pod, &name, source, node_name);
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
fn complete_static_pod(pod: &mut Value, name: &str, source: ManifestSource<'_>, node_name: &str) {
    let content = format!("{pod}{}", source.identity(node_name));
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
    meta["annotations"][SOURCE_ANNOTATION] = source.annotation().into();
    meta["annotations"][SEEN_ANNOTATION] = seen_timestamp().into();
    meta["uid"] = uid.into();
    pod["status"] = json!({"phase": "Pending"});
    let spec = &mut pod["spec"];
    spec["nodeName"] = node_name.into();
    if matches!(source, ManifestSource::Url(_)) {
        return;
    }
    // Problems of the node do not evict its static pods of files.
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

/// Whether two manifests contain the same pod, whenever they were read.
pub(crate) fn is_equal(old: &Pod, new: &Pod) -> bool {
    let content = |pod: &Pod| {
        let mut object = pod.object.clone();
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(SEEN_ANNOTATION);
        }
        object
    };
    old.uid == new.uid && content(old) == content(new)
}

/// Whether two static pods with the same uid are of one document, from which the pod
/// was not removed in between.
pub(crate) fn is_of_same_document(a: &Pod, b: &Pod) -> bool {
    let seen = |pod: &Pod| pod.annotations().and_then(|all| all.get(SEEN_ANNOTATION)).cloned();
    a.uid == b.uid && seen(a) == seen(b)
}

#[cfg(test)]
pub(crate) mod tests;
