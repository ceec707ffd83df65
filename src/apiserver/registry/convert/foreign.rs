//! Values that another API server has written, as one finds them in the datastore of a k3s:
//! protobuf, perhaps of an older version, and without what that server fills in whenever it reads.

use api::schema::Schema;
use api::{Gvk, codec, defaults};
use serde_json::Value;

use super::autoscaling;
use crate::serialization;

/// Kinds whose bytes in an older version mean something else than in the newest one: by group (`*`
/// is any kind), version and kind. All others of `k8s.io/api` 0.37.1 have the same fields under the
/// same numbers in all their versions.
const OTHERWISE: [(&str, &str, &str); 15] = [
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

/// The object that these enveloped bytes hold, in the version that it is stored in here, with its
/// defaults: upstream applies them as it reads, so what it has stored lacks those of the status,
/// and those of fields that came later.
///
/// # Errors
/// A sentence: the bytes are malformed, or of a kind or version that cannot be read as `stored`.
pub(super) fn read(stored: &Gvk, bytes: &[u8]) -> Result<Value, String> {
    let schema = Schema::builtin();
    let envelope = codec::protobuf::open(bytes).map_err(|e| e.to_string())?;
    let given = Gvk::from_api_version(&envelope.api_version, &envelope.kind);
    let own = given.group == stored.group && given.kind == stored.kind;
    let known = own && schema.kind(&given).is_some();
    if !own || !known && differs(&given) {
        return Err(format!(
            "it is stored as {} {}, which cannot be read as {} {}: have the API server that wrote it write it anew in that version (kubectl get … -o json | kubectl replace -f -)",
            envelope.api_version,
            envelope.kind,
            stored.api_version(),
            stored.kind
        ));
    }
    let kind = if known { &given } else { stored };
    let ty = schema.kind(kind).ok_or_else(|| format!("{} is unknown", kind.kind))?;
    let mut value = codec::protobuf::decode_message(&schema, ty, envelope.raw)
        .map_err(|error| error.to_string())?;
    serialization::default(&schema, kind, &mut value);
    defaults::defaulter(&kind.group, &kind.version, &kind.kind)(&mut value);
    serialization::normalize(&schema, kind, &mut value);
    if &*given.group == "autoscaling" && &*given.version == "v1" {
        value = autoscaling::v1_to_v2(value);
    }
    Ok(value)
}

fn differs(given: &Gvk) -> bool {
    OTHERWISE.iter().any(|(group, version, kind)| {
        *group == &*given.group
            && *version == &*given.version
            && (*kind == "*" || *kind == &*given.kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What upstream stores: the bytes of the newest version in an envelope that says another one.
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
    fn what_upstream_fills_in_as_it_reads_is_there() {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "n"}, "spec": {"resources": {}}, "status": {}});
        let read = read(&gvk("v1", "PersistentVolumeClaim"), &stored("v1", &claim)).unwrap();
        // `SetDefaults_PersistentVolumeClaim` and `SetDefaults_PersistentVolumeClaimSpec`.
        assert_eq!(read["status"], json!({"phase": "Pending"}));
        assert_eq!(read["spec"]["volumeMode"], "Filesystem");
    }

    #[test]
    fn an_older_version_of_the_same_form_is_read() {
        let address = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": "10.43.0.7"},
            "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}});
        let bytes = stored("networking.k8s.io/v1beta1", &address);
        let read = read(&gvk("networking.k8s.io/v1", "IPAddress"), &bytes).unwrap();
        assert_eq!(read["spec"], address["spec"]);
        assert_eq!(read["metadata"]["name"], "10.43.0.7");
    }

    #[test]
    fn an_autoscaler_of_version_1_becomes_one_of_version_2() {
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
    fn what_means_something_else_is_refused_by_name() {
        let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": "i"}, "spec": {}});
        let wanted = gvk("networking.k8s.io/v1", "Ingress");
        for version in ["networking.k8s.io/v1beta1", "extensions/v1beta1"] {
            let refused = read(&wanted, &stored(version, &ingress)).unwrap_err();
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
