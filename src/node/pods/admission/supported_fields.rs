//! The fields that this node supports: every pod field without effect on this node leads to a
//! rejection that names it.
//!
//! [`api::unsupported`] lists the fields that no node of this version supports. Those below depend
//! on the machine and its container runtime.

use api::Typed;
use api::k8s::api::core::v1 as core;

use crate::config::RuntimeConfig;
use crate::pods::pod::Pod;
use crate::pods::rejection::Rejection;
use crate::runtime::RuntimeFeatures;

/// Features of the machine and the runtime that a pod may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeFeatures {
    pub(crate) runtime: RuntimeFeatures,
    /// Whether the kernel enforces AppArmor profiles.
    pub(crate) apparmor: bool,
    /// Whether the kernel has SELinux.
    pub(crate) selinux: bool,
    /// Whether the runtime gives containers their SELinux labels.
    pub(crate) selinux_labels: bool,
}

/// What the machine does with SELinux labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SelinuxFeatures {
    is_enabled: bool,
    has_labels: bool,
}

impl SelinuxFeatures {
    /// The supervised containerd gives containers labels with `--selinux` only; another runtime is
    /// trusted to do so.
    pub(crate) fn new(is_enabled: bool, runtime: &RuntimeConfig) -> Self {
        let has_labels = is_enabled && (runtime.selinux || runtime.endpoint.is_some());
        Self { is_enabled, has_labels }
    }
}

impl NodeFeatures {
    pub(crate) fn new(runtime: RuntimeFeatures, selinux: SelinuxFeatures) -> Self {
        let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        Self {
            runtime,
            apparmor: enabled.is_ok_and(|text| text.starts_with('Y')),
            selinux: selinux.is_enabled,
            selinux_labels: selinux.has_labels,
        }
    }
}

/// Returns reason and message for the first unsupported field.
pub(crate) fn unsupported_field(pod: &Pod, features: NodeFeatures) -> Option<Rejection> {
    let of_os = pod.spec().os.as_ref().is_some_and(|os| os.name != "linux");
    let label = pod.object.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Some(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if of_os {
        return Some(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let context = pod.spec().security_context.as_ref();
    let strict = context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    if strict && !features.runtime.strict_groups {
        return Some(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    if !features.apparmor && wants_apparmor(pod) {
        return Some(Rejection::new(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ));
    }
    let field = unsupported_by_runtime(pod, features.runtime)
        .or_else(|| selinux_labels(pod).filter(|_| features.selinux && !features.selinux_labels))
        .or_else(|| unsupported_by_table(pod))?;
    Some(Rejection::new("UnsupportedByNode", format!("{field} is not supported by this node")))
}

/// Whether a container has a profile other than `Unconfined`.
fn wants_apparmor(pod: &Pod) -> bool {
    let enforced = |p: &core::AppArmorProfile| p.type_ != "Unconfined";
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    pod.containers.iter().any(|m| {
        let own = m.container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
        own.or(of_pod).is_some_and(enforced)
    })
}

/// Returns the first field that needs a newer runtime; older ones ignore it silently.
fn unsupported_by_runtime(pod: &Pod, runtime: RuntimeFeatures) -> Option<String> {
    let mut volumes = pod.spec().volumes.iter().flatten();
    if let Some(index) = volumes.position(|v| v.image.is_some()).filter(|_| !runtime.image_volumes)
    {
        return Some(format!("spec.volumes[{index}].image"));
    }
    for member in &pod.containers {
        let name = member.name();
        let mounts = member.container.volume_mounts.iter().flatten();
        for mount in mounts {
            if mount.recursive_read_only.as_deref() == Some("Enabled")
                && !runtime.recursive_read_only
            {
                return Some(format!(
                    "recursiveReadOnly: Enabled of volumeMount {:?} in container {name:?}",
                    mount.name
                ));
            }
        }
        let signal = member.container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref());
        if signal.is_some_and(|s| !s.is_empty()) && !runtime.stop_signal {
            return Some(format!("lifecycle.stopSignal of container {name:?}"));
        }
    }
    None
}

/// With SELinux enabled, a label that is not applied would be a false promise; without it, labels
/// have no effect anyway. `--selinux` has containerd apply them.
fn selinux_labels(pod: &Pod) -> Option<String> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let labelled = |m: &crate::pods::pod::PodContainer| {
        let own = m.container.security_context.as_ref();
        own.is_some_and(|c| c.se_linux_options.is_some())
    };
    let any = of_pod.is_some() || pod.containers.iter().any(labelled);
    any.then(|| "securityContext.seLinuxOptions".to_owned())
}

fn unsupported_by_table(pod: &Pod) -> Option<String> {
    let spec = pod.spec().to_value().unwrap_or_default();
    api::unsupported::pod_spec(&spec, "spec").first().map(api::unsupported::UnsupportedField::shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::{Value, json};

    fn reason(spec: Value, features: NodeFeatures) -> Option<Rejection> {
        unsupported_field(&pod(spec), features)
    }

    #[test]
    fn unsupported_fields_are_rejected_by_name() {
        let of = |spec: Value| reason(spec, NodeFeatures::default());
        let message = |field: &str| {
            Some(Rejection::new(
                "UnsupportedByNode",
                format!("{field} is not supported by this node"),
            ))
        };
        let c = json!([{"name": "a", "image": "b"}]);
        assert_eq!(of(json!({"containers": c, "hostNetwork": true})), None);
        assert_eq!(of(json!({"containers": c, "hostUsers": false})), None);
        assert_eq!(
            of(json!({"containers": c, "volumes": [{"name": "v", "cephfs": {"monitors": ["m"]}}]})),
            message("spec.volumes[0].cephfs")
        );
        let csi = json!([{"name": "v", "csi": {"driver": "d"}}]);
        assert_eq!(of(json!({"containers": c, "volumes": csi})), None);
        let image =
            json!({"containers": c, "volumes": [{"name": "v", "image": {"reference": "r"}}]});
        assert_eq!(of(image.clone()), message("spec.volumes[0].image"));
        let newer = RuntimeFeatures { image_volumes: true, ..RuntimeFeatures::default() };
        assert_eq!(reason(image, NodeFeatures { runtime: newer, ..NodeFeatures::default() }), None);
        let stop = json!({"containers": [{"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}}]});
        assert_eq!(of(stop.clone()), message("lifecycle.stopSignal of container \"a\""));
        let newer = RuntimeFeatures { stop_signal: true, ..RuntimeFeatures::default() };
        assert_eq!(reason(stop, NodeFeatures { runtime: newer, ..NodeFeatures::default() }), None);
    }

    #[test]
    fn an_unenforceable_profile_is_rejected_as_in_upstream() {
        let spec = |kind: &str| {
            json!({"containers": [{"name": "a"}],
            "securityContext": {"appArmorProfile": {"type": kind}}})
        };
        let none = NodeFeatures::default();
        assert_eq!(reason(spec("Unconfined"), none), None);
        assert_eq!(reason(spec("RuntimeDefault"), none).unwrap().reason, "AppArmor");
        assert_eq!(reason(spec("RuntimeDefault"), NodeFeatures { apparmor: true, ..none }), None);
        let strict = json!({"containers": [{"name": "a"}],
            "securityContext": {"supplementalGroupsPolicy": "Strict"}});
        assert_eq!(reason(strict, none).unwrap().reason, "SupplementalGroupsPolicyNotSupported");
    }

    #[test]
    fn labels_that_the_runtime_does_not_set_are_rejected() {
        let mut runtime =
            crate::Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into()).runtime;
        let rejected = |is_enabled, runtime: &RuntimeConfig| {
            let selinux = SelinuxFeatures::new(is_enabled, runtime);
            let features = NodeFeatures::new(RuntimeFeatures::default(), selinux);
            let spec = json!({"containers": [{"name": "a"}],
                "securityContext": {"seLinuxOptions": {"level": "s0"}}});
            reason(spec, features).is_some()
        };
        assert!(rejected(true, &runtime) && !rejected(false, &runtime));
        runtime.selinux = true;
        assert!(!rejected(true, &runtime));
        runtime.selinux = false;
        runtime.endpoint = Some("/run/crio.sock".into());
        assert!(!rejected(true, &runtime), "another runtime has its own setting");
    }

    /// The supported fields of 1.37 by the component that implements them; all others are in the
    /// table of unsupported ones, or the test below fails.
    const ACTED: &[(&str, &str)] = &[
        // The node.
        (
            "PodSpec",
            "volumes initContainers containers ephemeralContainers restartPolicy \
             terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector \
             serviceAccountName nodeName hostNetwork hostPID hostIPC shareProcessNamespace \
             securityContext imagePullSecrets hostname subdomain affinity hostAliases priority \
             dnsConfig readinessGates runtimeClassName enableServiceLinks overhead \
             setHostnameAsFQDN os hostUsers resources hostnameOverride tolerations \
             resourceClaims",
        ),
        // The API server, the scheduler and the controllers.
        (
            "PodSpec",
            "serviceAccount automountServiceAccountToken schedulerName priorityClassName \
             preemptionPolicy topologySpreadConstraints schedulingGates",
        ),
        (
            "Container",
            "name image command args workingDir ports envFrom env resources resizePolicy \
             restartPolicy restartPolicyRules volumeMounts volumeDevices livenessProbe \
             readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy \
             imagePullPolicy securityContext stdin stdinOnce tty",
        ),
        (
            "Volume",
            "name hostPath emptyDir secret persistentVolumeClaim downwardAPI configMap projected \
             ephemeral image csi nfs iscsi fc",
        ),
        // By the CSI drivers that replace their plugins.
        (
            "Volume",
            "awsElasticBlockStore azureDisk azureFile cinder gcePersistentDisk portworxVolume \
             vsphereVolume",
        ),
        ("CSIVolumeSource", "driver readOnly fsType volumeAttributes nodePublishSecretRef"),
        (
            "ISCSIVolumeSource",
            "targetPortal iqn lun iscsiInterface fsType readOnly portals chapAuthDiscovery \
             chapAuthSession secretRef initiatorName",
        ),
        ("FCVolumeSource", "targetWWNs lun fsType readOnly wwids"),
        ("EmptyDirVolumeSource", "medium sizeLimit"),
        ("ImageVolumeSource", "reference pullPolicy"),
        (
            "VolumeProjection",
            "secret downwardAPI configMap serviceAccountToken clusterTrustBundle podCertificate",
        ),
        // Unsupported key types are in the table by their value.
        (
            "PodCertificateProjection",
            "signerName keyType maxExpirationSeconds credentialBundlePath keyPath \
             certificateChainPath userAnnotations",
        ),
        (
            "VolumeMount",
            "name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr",
        ),
        ("EnvVarSource", "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef"),
        ("ResourceRequirements", "limits requests claims"),
        ("ContainerRestartRule", "action exitCodes"),
        ("Lifecycle", "postStart preStop stopSignal"),
        // A TCP hook fails when it runs, as with upstream.
        ("LifecycleHandler", "exec httpGet sleep tcpSocket"),
        (
            "Probe",
            "exec httpGet tcpSocket grpc initialDelaySeconds timeoutSeconds periodSeconds \
             successThreshold failureThreshold terminationGracePeriodSeconds",
        ),
        // Options of Windows have no effect on Linux by definition.
        (
            "SecurityContext",
            "capabilities privileged seLinuxOptions windowsOptions runAsUser runAsGroup \
             runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount \
             seccompProfile appArmorProfile",
        ),
        // `seLinuxChangePolicy` controls how volumes are labelled; with SELinux, pods with labels
        // are rejected.
        (
            "PodSecurityContext",
            "seLinuxOptions windowsOptions runAsUser runAsGroup runAsNonRoot supplementalGroups \
             supplementalGroupsPolicy fsGroup sysctls fsGroupChangePolicy seccompProfile \
             appArmorProfile seLinuxChangePolicy",
        ),
        ("ContainerPort", "name hostPort containerPort protocol hostIP"),
        ("PodDNSConfig", "nameservers searches options"),
    ];

    #[test]
    fn every_field_is_supported_or_rejected() {
        let schema = api::schema::Schema::builtin();
        // The position of the fields of a type in a pod with one container and one volume.
        let spec_with = |type_: &str, field: &str, value: Value| -> Value {
            let container = |c: Value| json!({"containers": [c]});
            let volume = |v: Value| json!({"volumes": [v]});
            match type_ {
                "PodSpec" => json!({field: value}),
                "Container" => container(json!({field: value})),
                "Volume" => volume(json!({field: value})),
                "EmptyDirVolumeSource" => volume(json!({"emptyDir": {field: value}})),
                "ImageVolumeSource" => volume(json!({"image": {field: value}})),
                "VolumeProjection" => volume(json!({"projected": {"sources": [{field: value}]}})),
                "PodCertificateProjection" => {
                    volume(json!({"projected": {"sources": [{"podCertificate": {field: value}}]}}))
                }
                "VolumeMount" => container(json!({"volumeMounts": [{field: value}]})),
                "EnvVarSource" => container(json!({"env": [{"valueFrom": {field: value}}]})),
                "ResourceRequirements" => container(json!({"resources": {field: value}})),
                _ => json!({}),
            }
        };
        let types: std::collections::BTreeSet<&str> = ACTED.iter().map(|(t, _)| *t).collect();
        let mut undecided = Vec::new();
        for type_ in types {
            let id = schema.by_name(&format!("io.k8s.api.core.v1.{type_}")).unwrap();
            for field in &schema.get(id).fields {
                let acted = ACTED.iter().filter(|(t, _)| *t == type_);
                let mut names = acted.flat_map(|(_, names)| names.split_whitespace());
                let spec = spec_with(type_, &field.json, json!(["x"]));
                let rejected = !api::unsupported::pod_spec(&spec, "spec").is_empty();
                if !names.any(|n| *n == *field.json) && !rejected {
                    undecided.push(format!("{type_}.{}", field.json));
                }
            }
        }
        assert_eq!(undecided, Vec::<String>::new());
    }
}
