//! A pod in the form that the node uses: with a checked identity and all kinds of containers in one
//! list.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use api::{Object, ObjectKey};

use crate::priority;

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerRole {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: starts in order, runs alongside the main
    /// containers.
    Sidecar,
    /// From `spec.containers`.
    Main,
    /// Added to a running pod; never restarted.
    Ephemeral,
}

/// One container of a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodContainer {
    pub(crate) role: ContainerRole,
    pub(crate) container: core::Container,
    /// Container whose process namespace an ephemeral container joins.
    pub(crate) target: Option<String>,
}

impl PodContainer {
    pub(crate) fn name(&self) -> &str {
        &self.container.name
    }

    pub(crate) fn image(&self) -> &str {
        self.container.image.as_deref().unwrap_or_default()
    }

    /// Changes if the container has to be recreated: in a running pod only the image can change.
    pub(crate) fn hash(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.name().bytes().chain([0]).chain(self.image().bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("{hash:x}")
    }
}

/// The source of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodOrigin {
    /// The API server.
    Api,
    /// A manifest on disk or at a URL.
    Static,
}

/// Annotation that marks static pods and their mirror pods.
pub(crate) const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Annotation of a mirror pod with the hash of its static pod.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Annotation with the hash of a static pod.
pub(crate) const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// Annotation with the time at which a static pod was read.
pub(crate) const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// A pod bound to this node.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) key: ObjectKey,
    /// Identity on this node; for a mirror pod, the static pod's uid.
    pub(crate) uid: Arc<str>,
    pub(crate) origin: PodOrigin,
    pub(crate) object: core::Pod,
    /// Init containers and sidecars in their order, then main, then ephemeral containers.
    pub(crate) containers: Vec<PodContainer>,
}

impl Pod {
    /// Converts an object; `None`, with a log message, if it cannot be decoded or lacks name, uid
    /// or spec.
    pub(crate) fn from_object(object: &Object) -> Option<Self> {
        let pod: core::Pod = client::informer::decode(object)?;
        let parsed = Self::new(pod, PodOrigin::Api);
        if parsed.is_none() {
            tracing::warn!(pod = %object.key, "ignoring pod without a valid uid or spec");
        }
        parsed
    }

    pub(crate) fn new(object: core::Pod, origin: PodOrigin) -> Option<Self> {
        let meta = &object.metadata;
        let key = ObjectKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?);
        let uid: Arc<str> = meta.uid.as_deref().filter(|u| is_path_safe(u))?.into();
        let spec = object.spec.as_ref()?;
        let mut containers = Vec::new();
        for container in spec.init_containers.iter().flatten() {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            let role = if sidecar { ContainerRole::Sidecar } else { ContainerRole::Init };
            containers.push(PodContainer { role, container: container.clone(), target: None });
        }
        for container in &spec.containers {
            containers.push(PodContainer {
                role: ContainerRole::Main,
                container: container.clone(),
                target: None,
            });
        }
        for ephemeral in spec.ephemeral_containers.iter().flatten() {
            containers.push(PodContainer {
                role: ContainerRole::Ephemeral,
                container: shared_fields(ephemeral),
                target: ephemeral.target_container_name.clone().filter(|t| !t.is_empty()),
            });
        }
        Some(Self { key, uid, origin, object, containers })
    }

    /// Whether the two versions are equal in everything that the node acts on, which excludes its
    /// own part of the status.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        fn foreign(pod: &Pod) -> Vec<&core::PodCondition> {
            let all = pod.api_status().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
            all.filter(|c| !crate::pods::condition_types::is_node_owned(&c.type_)).collect()
        }
        let start = |pod: &Self| pod.api_status().and_then(|s| s.start_time.clone());
        // Written by controllers and the scheduler.
        let claims = |pod: &Self| {
            let status = pod.api_status();
            let listed = status.and_then(|s| s.resource_claim_statuses.clone());
            (listed, status.and_then(|s| s.extended_resource_claim_status.clone()))
        };
        let (a, b) = (&self.object.metadata, &other.object.metadata);
        self.object.spec == other.object.spec
            && (&a.labels, &a.annotations) == (&b.labels, &b.annotations)
            && (&a.deletion_timestamp, a.deletion_grace_period_seconds, a.generation)
                == (&b.deletion_timestamp, b.deletion_grace_period_seconds, b.generation)
            && self.is_api_terminal() == other.is_api_terminal()
            && start(self) == start(other)
            && foreign(self) == foreign(other)
            && claims(self) == claims(other)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.key.namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.key.name
    }

    pub(crate) fn spec(&self) -> &core::PodSpec {
        static EMPTY: std::sync::LazyLock<core::PodSpec> =
            std::sync::LazyLock::new(core::PodSpec::default);
        self.object.spec.as_ref().unwrap_or(&EMPTY)
    }

    pub(crate) fn api_status(&self) -> Option<&core::PodStatus> {
        self.object.status.as_ref()
    }

    pub(crate) fn annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.object.metadata.annotations.as_ref()
    }

    pub(crate) fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    pub(crate) fn restart_policy(&self) -> &str {
        self.spec().restart_policy.as_deref().unwrap_or("Always")
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Grace period of the containers in seconds: that of the deletion, else that of the
    /// specification.
    pub(crate) fn grace_seconds(&self) -> i64 {
        self.object
            .metadata
            .deletion_grace_period_seconds
            .or(self.spec().termination_grace_period_seconds)
            .unwrap_or(30)
            .max(0)
    }

    /// Whether the node needs the pod (`IsCriticalPod`): static pods and those of the system's
    /// priority classes.
    pub(crate) fn is_critical(&self) -> bool {
        self.origin == PodOrigin::Static
            || self.spec().priority.is_some_and(|p| p >= priority::CRITICAL)
    }

    /// Whether the phase in the API is final.
    pub(crate) fn is_api_terminal(&self) -> bool {
        self.api_status()
            .and_then(|s| s.phase.as_deref())
            .is_some_and(|p| matches!(p, "Succeeded" | "Failed"))
    }

    pub(crate) fn container(&self, name: &str) -> Option<&PodContainer> {
        self.containers.iter().find(|m| m.name() == name)
    }

    pub(crate) fn with_role(&self, role: ContainerRole) -> impl Iterator<Item = &PodContainer> {
        self.containers.iter().filter(move |m| m.role == role)
    }

    pub(crate) fn has_init_containers(&self) -> bool {
        self.containers
            .iter()
            .any(|m| matches!(m.role, ContainerRole::Init | ContainerRole::Sidecar))
    }

    /// Whether this is the mirror pod of a static pod, which is not run itself.
    pub(crate) fn is_mirror(&self) -> bool {
        self.annotations().is_some_and(|a| a.contains_key(MIRROR_ANNOTATION))
    }
}

/// The uid is used as a directory name.
fn is_path_safe(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// The fields of an ephemeral container that all containers share.
fn shared_fields(e: &core::EphemeralContainer) -> core::Container {
    core::Container {
        args: e.args.clone(),
        command: e.command.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        name: e.name.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        tty: e.tty,
        volume_devices: e.volume_devices.clone(),
        volume_mounts: e.volume_mounts.clone(),
        working_dir: e.working_dir.clone(),
        ..core::Container::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pod from JSON, with name, namespace and uid filled in.
    pub(crate) fn pod(spec: serde_json::Value) -> Pod {
        let object = serde_json::json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": spec});
        Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap()
    }

    #[test]
    fn pods_that_differ_in_their_own_status_only_are_equivalent() {
        let one = pod(serde_json::json!({"containers": [{"name": "m", "image": "a"}]}));
        let with = |status: serde_json::Value| {
            let object = core::Pod {
                status: Some(serde_json::from_value(status).unwrap()),
                ..one.object.clone()
            };
            Pod::new(object, PodOrigin::Api).unwrap()
        };
        let ready = serde_json::json!({"type": "Ready", "status": "True"});
        let gate = serde_json::json!({"type": "example.com/gate", "status": "True"});
        assert!(
            one.is_equivalent(&with(
                serde_json::json!({"phase": "Running", "conditions": [ready]})
            ))
        );
        assert!(!one.is_equivalent(&with(serde_json::json!({"conditions": [ready, gate]}))));
        assert!(!one.is_equivalent(&with(serde_json::json!({"phase": "Failed"}))));
        let claims = serde_json::json!([{"name": "c", "resourceClaimName": "p-c-1"}]);
        let created = with(serde_json::json!({"resourceClaimStatuses": claims}));
        assert!(!one.is_equivalent(&created), "a claim of the pod was created");
        let mut changed = one.clone();
        changed.object.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert!(!one.is_equivalent(&changed));
    }

    #[test]
    fn containers_are_in_order_and_unsafe_uids_rejected() {
        let mut pod = pod(serde_json::json!({
            "containers": [{"name": "m", "image": "a"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "e", "targetContainerName": "m"}],
        }));
        let roles: Vec<(&str, ContainerRole)> =
            pod.containers.iter().map(|m| (m.name(), m.role)).collect();
        assert_eq!(
            roles,
            [
                ("i", ContainerRole::Init),
                ("s", ContainerRole::Sidecar),
                ("m", ContainerRole::Main),
                ("e", ContainerRole::Ephemeral)
            ]
        );
        pod.object.metadata.uid = Some("../x".into());
        assert!(Pod::new(pod.object, PodOrigin::Api).is_none());
    }

    #[test]
    fn static_pods_and_pods_of_the_system_are_critical() {
        let with = |priority| {
            pod(serde_json::json!({"priority": priority, "containers": [{"name": "a"}]}))
        };
        let mut static_pod = with(0);
        static_pod.origin = PodOrigin::Static;
        assert!(static_pod.is_critical());
        assert!(with(2_000_000_000).is_critical());
        assert!(!with(1_999_999_999).is_critical());
    }
}
