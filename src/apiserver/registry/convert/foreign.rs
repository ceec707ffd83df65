//! Reads values that another API server has written, such as those in a k3s datastore: protobuf,
//! perhaps of an older version, and without the fields that upstream sets whenever it reads.

use std::sync::Arc;

use api::schema::Schema;
use api::{Gvk, codec, defaults};
use serde_json::Value;

use super::autoscaling;
use crate::serialization;

/// Kinds whose bytes in an older version have another meaning than in the newest one: group,
/// version and kind (`*` is any kind). All others of `k8s.io/api` 0.37.1 have the same fields under
/// the same numbers in all their versions.
const CHANGED_VERSIONS: [(&str, &str, &str); 15] = [
    ("apps", "v1beta1", "Deployment"),
    ("discovery.k8s.io", "v1beta1", "EndpointSlice"),
    ("flowcontrol.apiserver.k8s.io", "v1beta1", "PriorityLevelConfiguration"),
    ("flowcontrol.apiserver.k8s.io", "v1beta2", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "v1beta1", "Ingress"),
    ("node.k8s.io", "v1alpha1", "RuntimeClass"),
    // An empty selector means none.
    ("policy", "v1beta1", "PodDisruptionBudget"),
    ("certificates.k8s.io", "v1beta1", "PodCertificateRequest"),
    ("certificates.k8s.io", "v1alpha1", "PodCertificateRequest"),
    ("autoscaling", "v2beta1", "*"),
    ("autoscaling", "v2beta2", "*"),
    ("rbac.authorization.k8s.io", "v1alpha1", "*"),
    ("resource.k8s.io", "v1beta1", "*"),
    ("resource.k8s.io", "v1alpha3", "*"),
    ("storagemigration.k8s.io", "v1alpha1", "*"),
];

/// Why bytes that another API server has stored cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForeignError {
    /// The bytes are malformed.
    #[error(transparent)]
    Malformed(#[from] codec::DecodeError),
    /// The bytes are of another kind, or of a version with another form.
    #[error(
        "it is stored as {api_version} {kind}, which cannot be read as {stored_version} {stored_kind}: have the API server that wrote it write it again in that version (kubectl get … -o json | kubectl replace -f -)",
        stored_version = stored.api_version(),
        stored_kind = stored.kind
    )]
    OtherKind { api_version: String, kind: String, stored: Gvk },
    /// The schema lacks the kind.
    #[error("{0} is unknown")]
    UnknownKind(Arc<str>),
}

/// Decodes enveloped protobuf into the version that the kind is stored in here and applies the
/// defaults. Upstream applies defaults when it reads, so the stored bytes lack those of the status
/// and of fields that were added later.
///
/// # Errors
/// When the bytes are malformed, or of a kind or version that cannot be read as `stored`.
pub(super) fn read(stored: &Gvk, bytes: &[u8]) -> Result<Value, ForeignError> {
    let schema = Schema::builtin();
    let envelope = codec::protobuf::open(bytes)?;
    let given = Gvk::from_api_version(&envelope.api_version, &envelope.kind);
    let own = given.group == stored.group && given.kind == stored.kind;
    let known = own && schema.kind(&given).is_some();
    if !own || !known && has_changed(&given) {
        return Err(ForeignError::OtherKind {
            api_version: envelope.api_version.to_string(),
            kind: envelope.kind.to_string(),
            stored: stored.clone(),
        });
    }
    let kind = if known { &given } else { stored };
    let ty = schema.kind(kind).ok_or_else(|| ForeignError::UnknownKind(kind.kind.clone()))?;
    let mut value = codec::protobuf::decode_message(&schema, ty, envelope.raw)?;
    serialization::default(&schema, kind, &mut value);
    defaults::defaulter(&kind.group, &kind.version, &kind.kind)(&mut value);
    serialization::normalize(&schema, kind, &mut value);
    if &*given.group == "autoscaling" && &*given.version == "v1" {
        value = autoscaling::v1_to_v2(value);
    }
    Ok(value)
}

fn has_changed(given: &Gvk) -> bool {
    CHANGED_VERSIONS.iter().any(|(group, version, kind)| {
        *group == &*given.group
            && *version == &*given.version
            && (*kind == "*" || *kind == &*given.kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Bytes of the newest version in an envelope that names another version, as upstream stores
    /// them.
    fn stored(api_version: &str, object: &Value) -> Vec<u8> {
        let newest = codec::protobuf::encode_object(&Schema::builtin(), object).unwrap();
        let raw = codec::protobuf::open(&newest).unwrap().raw;
        let field = |tag: u8, bytes: &[u8]| {
            let mut out = vec![tag << 3 | 2];
            let mut length = bytes.len();
            while length > 127 {
                out.push(u8::try_from(length & 127).unwrap() | 128);
                length >>= 7;
            }
            out.push(u8::try_from(length).unwrap());
            out.extend_from_slice(bytes);
            out
        };
        let kind = object["kind"].as_str().unwrap();
        let head = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &head), field(2, raw)].concat()
    }

    fn gvk(api_version: &str, kind: &str) -> Gvk {
        Gvk::from_api_version(api_version, kind)
    }

    #[test]
    fn defaults_that_upstream_applies_on_read_are_set() {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "n"}, "spec": {"resources": {}}, "status": {}});
        let read = read(&gvk("v1", "PersistentVolumeClaim"), &stored("v1", &claim)).unwrap();
        // `SetDefaults_PersistentVolumeClaim` and `SetDefaults_PersistentVolumeClaimSpec`.
        assert_eq!(read["status"], json!({"phase": "Pending"}));
        assert_eq!(read["spec"]["volumeMode"], "Filesystem");
    }

    #[test]
    fn an_older_version_with_the_same_fields_is_read() {
        let address = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": "10.43.0.7"},
            "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}});
        let bytes = stored("networking.k8s.io/v1beta1", &address);
        let read = read(&gvk("networking.k8s.io/v1", "IPAddress"), &bytes).unwrap();
        assert_eq!(read["spec"], address["spec"]);
        assert_eq!(read["metadata"]["name"], "10.43.0.7");
    }

    #[test]
    fn autoscaling_v1_is_read_as_v2() {
        let scaler = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}});
        let bytes = stored("autoscaling/v1", &scaler);
        let read = read(&gvk("autoscaling/v2", "HorizontalPodAutoscaler"), &bytes).unwrap();
        let target = json!({"type": "Utilization", "averageUtilization": 70});
        assert_eq!(read["spec"]["metrics"][0]["resource"]["target"], target);
        assert_eq!(read["spec"]["minReplicas"], 1);
    }

    #[test]
    fn other_kinds_and_changed_versions_are_rejected_by_name() {
        let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": "i"}, "spec": {}});
        let wanted = gvk("networking.k8s.io/v1", "Ingress");
        for version in ["networking.k8s.io/v1beta1", "extensions/v1beta1"] {
            let refused = read(&wanted, &stored(version, &ingress)).unwrap_err().to_string();
            let named = format!(
                "stored as {version} Ingress, which cannot be read as networking.k8s.io/v1 Ingress"
            );
            assert!(refused.contains(&named), "{refused}");
        }
        assert!(
            read(
                &gvk("v1", "Secret"),
                &stored("v1", &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}))
            )
            .is_err()
        );
    }
}
