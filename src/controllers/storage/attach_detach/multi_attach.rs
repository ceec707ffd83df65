//! Volumes of one node at a time, and what their pods read when another node has them.

use api::k8s::api::core::v1::{ObjectReference, PersistentVolume};

use super::desired::VolumeUser;

/// The volume may be attached to one node at a time (the opposite of `IsMultiAttachAllowed`).
/// Without access modes the driver decides.
pub(super) fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    let is_shared = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
    !modes.is_empty() && !modes.iter().any(is_shared)
}

/// The message for a pod whose volume other nodes hold; `others` are the pods that use it there.
/// The names of pods in other namespaces are not shown.
pub(super) fn waiting_message(
    persistent_volume: &str,
    pod: &ObjectReference,
    others: &[&VolumeUser],
) -> String {
    let reason = if others.is_empty() {
        "Volume is already exclusively attached to one node, waiting on detach before it can be \
         attached to another node"
            .to_owned()
    } else {
        let is_near = |user: &&&VolumeUser| user.pod.namespace == pod.namespace;
        let near: Vec<&str> =
            others.iter().filter(is_near).filter_map(|u| u.pod.name.as_deref()).collect();
        let far = others.len() - near.len();
        match (near.is_empty(), far) {
            (true, _) => {
                format!("Volume is already used by {far} pod(s) in different namespaces")
            }
            (false, 0) => format!("Volume is already used by pod(s) {}", near.join(", ")),
            (false, _) => format!(
                "Volume is already used by pod(s) {} and {far} pod(s) in different namespaces",
                near.join(", ")
            ),
        }
    };
    format!("Waiting for detach for volume \"{persistent_volume}\" {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::attach_detach::desired::AttachSource;
    use serde_json::json;

    #[test]
    fn access_modes_decide_whether_several_nodes_may_attach() {
        for (modes, want) in [
            (json!([]), false),
            (json!(["ReadWriteOnce"]), true),
            (json!(["ReadWriteOncePod"]), true),
            (json!(["ReadWriteOnce", "ReadWriteOncePod"]), true),
            (json!(["ReadWriteOnce", "ReadOnlyMany"]), false),
            (json!(["ReadWriteMany"]), false),
            (json!(["ReadOnlyMany"]), false),
        ] {
            let volume: PersistentVolume =
                serde_json::from_value(json!({"metadata": {}, "spec": {"accessModes": modes}}))
                    .unwrap();
            assert_eq!(is_exclusive(&volume), want, "{modes}");
        }
    }

    #[test]
    fn the_message_names_pods_of_the_same_namespace_and_counts_others() {
        let user = |namespace: &str, name: &str| VolumeUser {
            pod: ObjectReference {
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ObjectReference::default()
            },
            node: "node1".into(),
            source: AttachSource::PersistentVolume("pv".into()),
            is_exclusive: true,
        };
        let (scheduled, near) = (user("ns1", "pod1"), user("ns1", "pod2"));
        let (second, far) = (user("ns1", "pod3"), user("ns2", "pod4"));
        for (others, want) in [
            (
                vec![],
                "exclusively attached to one node, waiting on detach before it can be attached \
                 to another node",
            ),
            (vec![&near], "used by pod(s) pod2"),
            (vec![&near, &second], "used by pod(s) pod2, pod3"),
            (vec![&far], "used by 1 pod(s) in different namespaces"),
            (vec![&second, &far], "used by pod(s) pod3 and 1 pod(s) in different namespaces"),
        ] {
            let want = format!("Waiting for detach for volume \"pv\" Volume is already {want}");
            assert_eq!(waiting_message("pv", &scheduled.pod, &others), want);
        }
    }
}
