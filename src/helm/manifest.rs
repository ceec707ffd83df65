//! Rendered files as documents: hooks, the order of kinds, what is kept
//! (`pkg/release/v1/util` of Helm).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;
use sorting::CompactSort as _;

use crate::release::{Hook, HookExecution};
use crate::yaml;

/// Kinds in the order of installation (`InstallOrder`); other kinds follow.
const INSTALL_ORDER: &[&str] = &[
    "PriorityClass",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "SecretList",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleList",
    "ClusterRoleBinding",
    "ClusterRoleBindingList",
    "Role",
    "RoleList",
    "RoleBinding",
    "RoleBindingList",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Kinds in the order of removal (`UninstallOrder`).
const UNINSTALL_ORDER: &[&str] = &[
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "APIService",
    "Ingress",
    "IngressClass",
    "Service",
    "CronJob",
    "Job",
    "StatefulSet",
    "HorizontalPodAutoscaler",
    "Deployment",
    "ReplicaSet",
    "ReplicationController",
    "Pod",
    "DaemonSet",
    "RoleBindingList",
    "RoleBinding",
    "RoleList",
    "Role",
    "ClusterRoleBindingList",
    "ClusterRoleBinding",
    "ClusterRoleList",
    "ClusterRole",
    "CustomResourceDefinition",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "StorageClass",
    "ConfigMap",
    "SecretList",
    "Secret",
    "ServiceAccount",
    "PodDisruptionBudget",
    "PodSecurityPolicy",
    "LimitRange",
    "ResourceQuota",
    "NetworkPolicy",
    "Namespace",
    "PriorityClass",
];

const HOOK: &str = "helm.sh/hook";
const HOOK_WEIGHT: &str = "helm.sh/hook-weight";
const HOOK_DELETE_POLICY: &str = "helm.sh/hook-delete-policy";
const HOOK_OUTPUT_LOG_POLICY: &str = "helm.sh/hook-output-log-policy";
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

/// A rendered document is not YAML.
#[derive(Debug, Clone, thiserror::Error)]
#[error("YAML parse error on {file}: {cause}")]
pub struct ManifestError {
    /// Path of the template.
    pub file: String,
    /// Reason.
    pub cause: yaml::YamlError,
}

/// A document that is not a hook.
#[derive(Debug, Clone)]
pub struct Document {
    /// Path of its template.
    pub file: String,
    /// Text.
    pub text: String,
    /// The object; null for a document of comments.
    pub object: Value,
}

impl Document {
    /// The kind.
    pub fn kind(&self) -> &str {
        api::value::str_at(&self.object, "kind")
    }
}

/// The documents of a text (`SplitManifests`).
pub fn split(text: &str) -> Vec<&str> {
    static SEPARATOR: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?m)^---[ \t]*").ok());
    let Some(separator) = SEPARATOR.as_ref() else { return Vec::new() };
    let parts = separator.split(text.trim_start()).map(str::trim_start);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Sorts rendered files into hooks and other documents, in the order of installation.
///
/// # Errors
/// A document is not YAML.
pub fn sort(files: &BTreeMap<String, String>) -> Result<(Vec<Hook>, Vec<Document>), ManifestError> {
    let (mut hooks, mut documents) = (Vec::new(), Vec::new());
    for (file, text) in files {
        let base = file.rsplit('/').next().unwrap_or_default();
        if base.starts_with('_') {
            continue;
        }
        for text in split(text) {
            let object = yaml::parse(text.as_bytes());
            let object = object.map_err(|cause| ManifestError { file: file.clone(), cause })?;
            match annotation(&object, HOOK) {
                Some(events) => hooks.extend(hook(file, text, &object, events)),
                None => {
                    documents.push(Document { file: file.clone(), text: text.to_owned(), object })
                }
            }
        }
    }
    hooks.compact_sort_by(|a, b| by_kind(&a.kind, &b.kind, INSTALL_ORDER));
    documents.compact_sort_by(|a, b| by_kind(a.kind(), b.kind(), INSTALL_ORDER));
    Ok((hooks, documents))
}

/// The documents of a release's manifest in the order of removal, without those to keep.
///
/// # Errors
/// A document is not YAML.
pub fn to_remove(manifest: &str) -> Result<(Vec<Document>, Vec<Document>), ManifestError> {
    let files = BTreeMap::from([("manifest".to_owned(), manifest.to_owned())]);
    let (_, mut documents) = sort(&files)?;
    documents.compact_sort_by(|a, b| by_kind(a.kind(), b.kind(), UNINSTALL_ORDER));
    Ok(documents.into_iter().partition(|document| !is_kept(&document.object)))
}

/// Whether an object stays when its release drops it.
pub fn is_kept(object: &Value) -> bool {
    annotation(object, RESOURCE_POLICY).is_some_and(|p| p.trim().eq_ignore_ascii_case("keep"))
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

fn by_kind(a: &str, b: &str, order: &[&str]) -> std::cmp::Ordering {
    let place = |kind: &str| order.iter().position(|known| *known == kind);
    match (place(a), place(b)) {
        (None, None) => a.cmp(b),
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (Some(_), None) => std::cmp::Ordering::Less,
        (Some(a), Some(b)) => a.cmp(&b),
    }
}

/// A hook; `None` if one of its events is unknown, as Helm skips it.
fn hook(file: &str, text: &str, object: &Value, events: &str) -> Option<Hook> {
    let mut known = Vec::new();
    for event in events.split(',').map(|event| event.trim().to_ascii_lowercase()) {
        let is_known = matches!(
            event.as_str(),
            "pre-install"
                | "post-install"
                | "pre-delete"
                | "post-delete"
                | "pre-upgrade"
                | "post-upgrade"
                | "pre-rollback"
                | "post-rollback"
                | "test"
                | "test-success"
        );
        if !is_known {
            tracing::warn!(file, event, "helm: skip hook with an unknown event");
            return None;
        }
        known.push(if event == "test-success" { "test".to_owned() } else { event });
    }
    let words = |name: &str| -> Vec<String> {
        let text = annotation(object, name);
        let words = text.into_iter().flat_map(|text| text.split(','));
        words.map(|word| word.trim().to_ascii_lowercase()).collect()
    };
    let weight = annotation(object, HOOK_WEIGHT).and_then(|weight| weight.parse().ok());
    Some(Hook {
        name: api::value::str_in(object, &["metadata", "name"]).to_owned(),
        kind: api::value::str_at(object, "kind").to_owned(),
        path: file.to_owned(),
        manifest: text.to_owned(),
        events: known,
        last_run: HookExecution::default(),
        weight: weight.unwrap_or_default(),
        delete_policies: words(HOOK_DELETE_POLICY),
        output_log_policies: words(HOOK_OUTPUT_LOG_POLICY),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_sorted_by_kind_and_hooks_taken_out() {
        let files = BTreeMap::from([
            ("c/templates/_x.yaml".to_owned(), "kind: Secret".to_owned()),
            (
                "c/templates/a.yaml".to_owned(),
                "kind: Deployment\n---\nkind: Widget\n--- \nkind: Service\n---\n# no object\n"
                    .to_owned(),
            ),
            (
                "c/templates/b.yaml".to_owned(),
                "kind: Job\nmetadata: {name: j, annotations: {\
                 helm.sh/hook: 'pre-install, pre-upgrade', \
                 helm.sh/hook-weight: '-5', helm.sh/hook-delete-policy: hook-succeeded}}\n---\n\
                 kind: Job\nmetadata: {annotations: {helm.sh/hook: crd-install}}"
                    .to_owned(),
            ),
        ]);
        let (hooks, documents) = sort(&files).unwrap();
        let kinds: Vec<&str> = documents.iter().map(Document::kind).collect();
        assert_eq!(kinds, ["Service", "Deployment", "", "Widget"]);
        assert_eq!(hooks.len(), 1);
        assert_eq!((hooks[0].weight, hooks[0].events.len()), (-5, 2));
        assert_eq!(hooks[0].delete_policies, ["hook-succeeded"]);
    }

    #[test]
    fn documents_with_the_policy_keep_are_kept() {
        let manifest = "---\nkind: Namespace\n---\nkind: Service\n---\nkind: Secret\n\
                        metadata: {annotations: {helm.sh/resource-policy: keep}}";
        let (remove, keep) = to_remove(manifest).unwrap();
        let kinds: Vec<&str> = remove.iter().map(Document::kind).collect();
        assert_eq!((kinds, keep.len()), (vec!["Service", "Namespace"], 1));
    }
}
