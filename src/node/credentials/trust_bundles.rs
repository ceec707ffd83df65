//! ClusterTrustBundles that pods of this node project into volumes. All bundles are watched from
//! the first such pod on.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use api::selector::LabelSelector;
use api::{Gvr, Object};
use base64::Engine;
use client::{Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::pods::pod::Pod;

/// Maximum length of a selector as text, as in the kubelet.
const SELECTOR_MAX: usize = 100 * 1024;

/// Why a source selects no anchors; the texts are upstream's (`pkg/kubelet/clustertrustbundle`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrustBundleError {
    #[error("ClusterTrustBundle informer has not yet synced")]
    NotSynced,
    #[error(
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {0:?} not found"
    )]
    NotFound(String),
    /// The text of the parser's error.
    #[error("while parsing label selector: {0}")]
    Selector(String),
    #[error("label selector length ({length}) is larger than {SELECTOR_MAX}")]
    SelectorTooLong { length: usize },
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    /// A bundle contains text that is not a PEM certificate.
    #[error("{0}")]
    InvalidPem(String),
}

type WakeHandles = Arc<Mutex<HashMap<Arc<str>, Arc<Notify>>>>;

/// The bundles and the pods that use them.
#[derive(Debug)]
pub(crate) struct TrustBundles {
    informers: Informers,
    running: OnceLock<Informer<()>>,
    wake_handles: WakeHandles,
}

impl TrustBundles {
    pub(crate) fn new(informers: Informers) -> Self {
        Self { informers, running: OnceLock::new(), wake_handles: WakeHandles::default() }
    }

    fn running(&self) -> &Informer<()> {
        self.running.get_or_init(|| {
            let gvr = Gvr::new("certificates.k8s.io", "v1", "clustertrustbundles");
            let informer = self.informers.of_gvr(gvr);
            let wake_handles = Arc::clone(&self.wake_handles);
            informer.on_change(move |_| {
                wake_handles.lock().values().for_each(|wake| wake.notify_one())
            });
            informer
        })
    }

    /// Registers a pod that uses bundles: a change of any bundle wakes it.
    pub(crate) fn follow(&self, pod: &Pod, wake: &Arc<Notify>) {
        if projects_bundles(pod) {
            self.wake_handles.lock().insert(Arc::clone(&pod.uid), Arc::clone(wake));
            self.running();
        }
    }

    /// Drops the state of a pod that ended.
    pub(crate) fn forget(&self, pod: &Pod) {
        self.wake_handles.lock().remove(&pod.uid);
    }

    /// Returns the anchors that a source selects, as one PEM text.
    pub(crate) async fn anchors(
        &self,
        source: &core::ClusterTrustBundleProjection,
        limit: Duration,
    ) -> Result<Vec<u8>, TrustBundleError> {
        let informer = self.running();
        if tokio::time::timeout(limit, informer.synced()).await.is_err() {
            return Err(TrustBundleError::NotSynced);
        }
        select(&informer.cache().list(""), source)
    }
}

/// Whether a pod projects bundles.
fn projects_bundles(pod: &Pod) -> bool {
    let projected = pod.spec().volumes.iter().flatten().filter_map(|v| v.projected.as_ref());
    projected.flat_map(|p| p.sources.iter().flatten()).any(|s| s.cluster_trust_bundle.is_some())
}

/// Returns the anchors of the named bundle, or of the bundles of a signer that match the selector:
/// each once, sorted by their bytes.
fn select(
    all: &[Arc<Object>],
    source: &core::ClusterTrustBundleProjection,
) -> Result<Vec<u8>, TrustBundleError> {
    let optional = source.optional == Some(true);
    let chosen: Vec<&Arc<Object>> = if let Some(name) = &source.name {
        let found = all.iter().find(|o| *o.key.name == **name);
        if found.is_none() && !optional {
            return Err(TrustBundleError::NotFound(name.clone()));
        }
        found.into_iter().collect()
    } else {
        let signer = source.signer_name.as_deref().unwrap_or_default();
        let written = source.label_selector.as_ref().map(serde_json::to_value).transpose();
        let written = written.map_err(|e| TrustBundleError::Selector(e.to_string()))?;
        let selector = LabelSelector::from_value(written.as_ref())
            .map_err(|e| TrustBundleError::Selector(e.to_string()))?;
        let length = selector.to_string().len();
        if length > SELECTOR_MAX {
            return Err(TrustBundleError::SelectorTooLong { length });
        }
        let of_signer = |o: &&Arc<Object>| text(o, "/spec/signerName").as_deref() == Some(signer);
        let found: Vec<_> =
            all.iter().filter(|o| selector.matches(&***o)).filter(of_signer).collect();
        if found.is_empty() && !optional {
            return Err(TrustBundleError::NoMatch);
        }
        found
    };
    let mut anchors = BTreeSet::new();
    for bundle in chosen {
        let pem = text(bundle, "/spec/trustBundle").unwrap_or_default();
        let certificates = base::pki::certificates(&pem)
            .map_err(|error| TrustBundleError::InvalidPem(error.to_string()))?;
        anchors.extend(certificates.into_iter().map(|c| c.to_vec()));
    }
    Ok(anchors.iter().map(|anchor| pem(anchor)).collect::<String>().into_bytes())
}

fn text(object: &Object, pointer: &str) -> Option<String> {
    Some(object.value().ok()?.pointer(pointer)?.as_str()?.to_owned())
}

/// Encodes a certificate in PEM, in the usual lines of 64 characters.
pub(crate) fn pem(der: &[u8]) -> String {
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        base64::engine::general_purpose::STANDARD.encode_string(line, &mut out);
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A bundle whose anchors are these texts; the node does not parse certificates.
    fn bundle(name: &str, signer: &str, alive: &str, anchors: &[&str]) -> Arc<Object> {
        let bundle: String = anchors.iter().map(|a| pem(a.as_bytes())).collect();
        let value = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name, "uid": name, "labels": {"alive": alive}},
            "spec": {"signerName": signer, "trustBundle": bundle},
        });
        Arc::new(Object::from_value(value).unwrap())
    }

    fn of(source: serde_json::Value) -> Result<String, TrustBundleError> {
        let all = [
            bundle("s:1:b", "s/1", "true", &["b", "a"]),
            bundle("s:1:c", "s/1", "true", &["b", "c"]),
            bundle("s:1:d", "s/1", "false", &["d"]),
            bundle("s:2:e", "s/2", "true", &["e"]),
        ];
        let source = serde_json::from_value(source).unwrap();
        select(&all, &source).map(|bytes| {
            let pem = String::from_utf8(bytes).unwrap();
            let found = base::pki::certificates(&pem).unwrap();
            found.iter().map(|c| String::from_utf8(c.to_vec()).unwrap()).collect()
        })
    }

    #[test]
    fn anchors_are_selected_by_name_or_by_signer_and_labels_without_duplicates() {
        assert_eq!(of(json!({"path": "p", "name": "s:1:b"})).unwrap(), "ab");
        let signer =
            |selector| json!({"path": "p", "signerName": "s/1", "labelSelector": selector});
        assert_eq!(of(signer(json!({"matchLabels": {"alive": "true"}}))).unwrap(), "abc");
        assert_eq!(of(signer(json!({}))).unwrap(), "abcd");
    }

    #[test]
    fn a_missing_bundle_is_an_error_unless_optional() {
        let missing = "while getting ClusterTrustBundle: \
            clustertrustbundle.certificates.k8s.io \"x\" not found";
        assert_eq!(of(json!({"path": "p", "name": "x"})).unwrap_err().to_string(), missing);
        assert_eq!(of(json!({"path": "p", "name": "x", "optional": true})).unwrap(), "");
        // A missing selector matches nothing.
        let error = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        let unmatched = of(json!({"path": "p", "signerName": "s/1"}));
        assert_eq!(unmatched.unwrap_err().to_string(), error);
        let source = json!({"path": "p", "signerName": "s/1", "optional": true});
        assert_eq!(of(source).unwrap(), "");
    }

    #[test]
    fn pem_has_lines_of_64_characters() {
        let lines: Vec<usize> = pem(&[7; 49]).lines().map(str::len).collect();
        assert_eq!(lines, [27, 64, 4, 25]);
    }
}
