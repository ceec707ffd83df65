//! SELinux labels of volumes: a volume whose plugin supports it is mounted with the label of its
//! pod (`mount -o context`), and its files need not be labelled one by one.
//!
//! Nothing of this happens on a machine whose kernel has no SELinux or no policy. What is mounted
//! with which label is on disk, in the records of the pods' volumes.

mod desired;
mod label;
pub(crate) mod labels;
mod machine;
pub(crate) mod metrics;
pub(crate) mod mount_option;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use parking_lot::Mutex;

use desired::{DesiredVolumes, LabelConflict, NewUse};
use label::{ContainerContexts, TranslationError, random_level};
use labels::{HeldLabels, VolumeLabels};
pub(crate) use machine::is_enabled;

use crate::pods::pod::Pod;

/// Why a volume cannot be mounted with the label of its pod; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelinuxError {
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// Containers of the pod need different labels.
    #[error("multiple SELinux labels found: {}", .0.join(","))]
    MultipleLabels(Vec<String>),
    #[error(transparent)]
    Conflict(#[from] LabelConflict),
    /// The pod that uses the volume ends; its unique name.
    #[error(
        "waiting for unmount of volume {0:?}, because it is already mounted to a different pod \
         with a different SELinux label"
    )]
    Mounted(String),
}

impl SelinuxError {
    /// Whether the volume is not among those that the pod is to have (`failed to process volumes`).
    pub(crate) fn is_unprocessed(&self) -> bool {
        !matches!(self, Self::Mounted(_))
    }
}

/// A volume that a pod is about to use, as the rules about labels see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LabelledVolume<'a> {
    /// Name in the pod.
    pub(crate) name: &'a str,
    /// Name of the PersistentVolume, or of the volume in its pod.
    pub(crate) spec_name: &'a str,
    /// The name that is unique on a node.
    pub(crate) unique_name: &'a str,
    /// Name of the plugin, with that of the CSI driver.
    pub(crate) plugin: &'a str,
    /// The access modes of the PersistentVolume; `None` for a volume of a pod.
    pub(crate) access_modes: Option<&'a [String]>,
    /// Whether the plugin mounts volumes with a label (`SupportsSELinuxContextMount`).
    pub(crate) is_supported: bool,
}

impl<'a> LabelledVolume<'a> {
    /// A volume of a pod that no other pod shares, and that is never mounted with a label.
    pub(crate) fn of_pod(name: &'a str) -> Self {
        Self {
            name,
            spec_name: name,
            unique_name: name,
            plugin: "",
            access_modes: None,
            is_supported: false,
        }
    }

    /// A PersistentVolume of a plugin that never mounts it with a label.
    pub(crate) fn without_support(
        name: &'a str,
        spec_name: &'a str,
        access_modes: &'a [String],
    ) -> Self {
        Self { spec_name, access_modes: Some(access_modes), ..Self::of_pod(name) }
    }
}

/// The labels of the volumes of this node.
#[derive(Debug, Default)]
pub(crate) struct Selinux {
    /// `None` without SELinux.
    contexts: Option<ContainerContexts>,
    desired: Mutex<DesiredVolumes>,
}

/// The access mode as metrics have it: the widest one (`getVolumeAccessMode`).
fn access_mode(modes: Option<&[String]>) -> &'static str {
    let Some(modes) = modes else { return "inline" };
    let names = [
        ("ReadWriteMany", "RWX"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteOnce", "RWO"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let found = names.iter().find(|(name, _)| modes.iter().any(|mode| mode == name));
    found.map_or("", |(_, short)| short)
}

/// The options of all containers that mount a volume (`GetPodVolumeNames`).
fn options_of<'a>(pod: &'a Pod, volume: &str) -> Vec<&'a core::SELinuxOptions> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|s| s.se_linux_options.as_ref());
    let containers = pod.containers.iter().map(|member| &member.container);
    let mounting =
        containers.filter(|c| c.volume_mounts.iter().flatten().any(|m| m.name == volume));
    let own = |c: &'a core::Container| c.security_context.as_ref()?.se_linux_options.as_ref();
    mounting.filter_map(|container| own(container).or(of_pod)).collect()
}

fn is_recursive(pod: &Pod) -> bool {
    let context = pod.spec().security_context.as_ref();
    context.and_then(|s| s.se_linux_change_policy.as_deref()) == Some("Recursive")
}

/// Returns the label with which a pod needs a volume; empty for none (`GetMountSELinuxLabel`).
fn needed_label(
    contexts: &ContainerContexts,
    pod: &Pod,
    of: LabelledVolume<'_>,
) -> Result<String, SelinuxError> {
    let options = options_of(pod, of.name).into_iter();
    let labels = options.map(|options| contexts.file_label(options, random_level));
    let mut labels = labels.collect::<Result<BTreeSet<String>, TranslationError>>()?;
    if labels.len() > 1 {
        return Err(SelinuxError::MultipleLabels(labels.into_iter().collect()));
    }
    let label = labels.pop_first().unwrap_or_default();
    Ok(if of.is_supported && !is_recursive(pod) { label } else { String::new() })
}

impl Selinux {
    /// The node of a kernel with SELinux.
    #[cfg(test)]
    pub(crate) fn with_contexts(text: &str) -> Self {
        Self { contexts: Some(ContainerContexts::parse(text)), desired: Mutex::default() }
    }

    /// The state of this machine. `held` reads the labels of the volumes that pods have since an
    /// earlier process.
    pub(crate) async fn start(
        held: impl FnOnce() -> Vec<HeldLabels> + Send + 'static,
    ) -> Arc<Self> {
        let read = base::tasks::blocking(move || {
            is_enabled().then(|| {
                let mut desired = DesiredVolumes::default();
                for (uid, name, labels) in held() {
                    desired.restore(&uid, name, labels);
                }
                Self { contexts: Some(machine::contexts()), desired: Mutex::new(desired) }
            })
        });
        Arc::new(read.await.ok().flatten().unwrap_or_default())
    }

    /// Whether the kernel has SELinux.
    pub(crate) fn is_enabled(&self) -> bool {
        self.contexts.is_some()
    }

    /// Adds a pod to the users of a volume that is not set up for it, and returns the labels of the
    /// volume (`AddPodToVolume`).
    ///
    /// # Errors
    ///
    /// The containers of the pod or the users of a PersistentVolume need different labels.
    pub(crate) fn admit(
        &self,
        pod: &Pod,
        of: LabelledVolume<'_>,
    ) -> Result<VolumeLabels, SelinuxError> {
        let Some(contexts) = &self.contexts else { return Ok(VolumeLabels::default()) };
        if let Some(labels) = self.desired.lock().admitted(&pod.uid, of.unique_name) {
            return Ok(labels.clone());
        }
        let label = Self::checked_label(contexts, pod, of)?;
        let mode = access_mode(of.access_modes);
        let new_use = NewUse {
            unique_name: of.unique_name,
            spec_name: of.spec_name,
            is_persistent: of.access_modes.is_some(),
            is_supported: of.is_supported,
            label: &label,
        };
        let admitted = self.desired.lock().add(&pod.uid, new_use);
        let admitted =
            admitted.inspect_err(|_| metrics::count_volume_mismatch(of.plugin, mode, true))?;
        if admitted.ignored.is_some() {
            metrics::count_volume_mismatch(of.plugin, mode, false);
        }
        if admitted.is_new && !label.is_empty() {
            metrics::count_admitted(of.plugin, mode);
        }
        Ok(admitted.labels)
    }

    /// Checks the labels of the containers that use a volume which no other pod shares, or which is
    /// never mounted with a label.
    ///
    /// # Errors
    ///
    /// Containers need different labels for one PersistentVolume.
    pub(crate) fn check(&self, pod: &Pod, of: LabelledVolume<'_>) -> Result<(), SelinuxError> {
        let Some(contexts) = &self.contexts else { return Ok(()) };
        Self::checked_label(contexts, pod, of).map(drop)
    }

    /// Returns the label that a pod needs, and counts errors. That of a volume of a pod is no error
    /// (`handleSELinuxMetricError`).
    fn checked_label(
        contexts: &ContainerContexts,
        pod: &Pod,
        of: LabelledVolume<'_>,
    ) -> Result<String, SelinuxError> {
        let (mode, is_error) = (access_mode(of.access_modes), of.access_modes.is_some());
        let error = match needed_label(contexts, pod, of) {
            Ok(label) => return Ok(label),
            Err(error) => error,
        };
        if matches!(error, SelinuxError::Translation(_)) {
            metrics::count_translation_error(mode, is_error);
        } else {
            metrics::count_pod_mismatch(mode, is_error);
        }
        if is_error { Err(error) } else { Ok(String::new()) }
    }

    /// The labels of a volume that a pod uses.
    pub(crate) fn labels(&self, pod: &Pod, unique_name: &str) -> VolumeLabels {
        self.desired.lock().labels(&pod.uid, unique_name).cloned().unwrap_or_default()
    }

    /// Removes a pod whose containers have ended from the users of its volumes.
    pub(crate) fn release(&self, uid: &str) {
        self.desired.lock().release(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::label::tests::CONTEXTS;
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::{Value, json};

    const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

    fn volume(access_modes: Option<&[String]>) -> LabelledVolume<'_> {
        LabelledVolume {
            name: "v",
            spec_name: "pv",
            unique_name: "p/v",
            plugin: "p",
            access_modes,
            is_supported: true,
        }
    }

    fn modes(mode: &str) -> Vec<String> {
        vec![mode.to_owned()]
    }

    /// A pod with these options and this policy, whose containers have options of their own.
    fn labelled(options: Value, policy: Value, own: &[Value]) -> Pod {
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        let containers: Vec<Value> = own
            .iter()
            .enumerate()
            .map(|(index, options)| {
                json!({"name": format!("c{index}"), "volumeMounts": mounts,
                    "securityContext": {"seLinuxOptions": options}})
            })
            .collect();
        let context = json!({"seLinuxOptions": options, "seLinuxChangePolicy": policy});
        pod(json!({"containers": containers, "securityContext": context}))
    }

    fn complete() -> Value {
        json!({"user": "system_u", "role": "object_r", "type": "container_t", "level": "s0:c1,c2"})
    }

    /// The table of `Test_AddPodToVolume_SELinuxSinglePod` with all gates of 1.37.
    #[test]
    fn a_volume_is_mounted_with_the_label_of_its_pod_unless_the_pod_chooses_otherwise() {
        let incomplete = json!({"level": "s0:c1,c2"});
        for (mode, options, policy, is_supported, want) in [
            ("ReadWriteOncePod", complete(), Value::Null, true, LABEL),
            ("ReadWriteOncePod", incomplete, Value::Null, true, LABEL),
            ("ReadWriteOncePod", Value::Null, Value::Null, true, ""),
            ("ReadWriteOncePod", complete(), Value::Null, false, ""),
            ("ReadWriteMany", complete(), Value::Null, true, LABEL),
            ("ReadWriteMany", complete(), json!("Recursive"), true, ""),
            ("ReadWriteMany", complete(), json!("MountOption"), true, LABEL),
            ("ReadWriteOncePod", complete(), json!("Recursive"), true, ""),
            ("ReadWriteOncePod", complete(), json!("MountOption"), true, LABEL),
        ] {
            let modes = modes(mode);
            let of = LabelledVolume { is_supported, ..volume(Some(&modes)) };
            let pod = labelled(options.clone(), policy.clone(), &[Value::Null]);
            let labels = Selinux::with_contexts(CONTEXTS).admit(&pod, of).unwrap();
            assert_eq!(labels.mount, want, "{mode} {options} {policy} {is_supported}");
            let disabled = Selinux::default();
            assert!(disabled.admit(&pod, of).unwrap().is_empty());
        }
    }

    /// The corner cases of `TestGetMountSELinuxLabel`.
    #[test]
    fn containers_of_one_volume_need_one_label() {
        let selinux = Selinux::with_contexts(CONTEXTS);
        let level = |level: &str| json!({"level": level});
        let same = [level("s0:c1,c2"), level("s0:c1,c2"), Value::Null];
        let pod = labelled(complete(), Value::Null, &same);
        let persistent = modes("ReadWriteOnce");
        assert_eq!(selinux.admit(&pod, volume(Some(&persistent))).unwrap().mount, LABEL);
        let different = [level("s0:c123,c456"), level("s0:c234,c567"), level("s0:c345,c678")];
        let label = |level| format!("system_u:object_r:container_file_t:{level}");
        for policy in [Value::Null, json!("Recursive")] {
            let pod = labelled(Value::Null, policy, &different);
            for is_supported in [true, false] {
                let selinux = Selinux::with_contexts(CONTEXTS);
                let of = LabelledVolume { is_supported, ..volume(Some(&persistent)) };
                let labels = ["s0:c123,c456", "s0:c234,c567", "s0:c345,c678"].map(label);
                let want = SelinuxError::MultipleLabels(labels.to_vec());
                assert_eq!(selinux.admit(&pod, of), Err(want.clone()));
                assert_eq!(selinux.check(&pod, of), Err(want));
                // A volume of the pod itself is only counted.
                let inline = LabelledVolume { access_modes: None, ..of };
                assert!(selinux.admit(&pod, inline).unwrap().is_empty());
            }
        }
        let page = metrics::render();
        for line in [
            "volume_manager_selinux_pod_context_mismatch_errors_total{access_mode=\"RWO\"} ",
            "volume_manager_selinux_pod_context_mismatch_warnings_total{access_mode=\"inline\"} ",
            "volume_manager_selinux_volumes_admitted_total{access_mode=\"RWO\",\
             volume_plugin=\"p\"} ",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[test]
    fn a_container_that_uses_the_volume_as_a_device_has_no_label() {
        let selinux = Selinux::with_contexts(CONTEXTS);
        let pod = pod(json!({"securityContext": {"seLinuxOptions": complete()}, "containers": [
            {"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/v"}]},
            {"name": "d", "volumeMounts": [{"name": "other", "mountPath": "/v"}]}]}));
        let persistent = modes("ReadWriteOnce");
        assert!(selinux.admit(&pod, volume(Some(&persistent))).unwrap().is_empty());
    }

    #[test]
    fn metrics_have_the_widest_access_mode() {
        let of = |modes: &[&str]| {
            let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
            access_mode(Some(&modes))
        };
        assert_eq!(of(&["ReadWriteOnce", "ReadWriteMany"]), "RWX");
        assert_eq!(of(&["ReadWriteOnce", "ReadOnlyMany"]), "ROX");
        assert_eq!(of(&["ReadWriteOncePod"]), "RWOP");
        assert_eq!((of(&[]), access_mode(None)), ("", "inline"));
    }
}
