//! The configuration in effect as `KubeletConfiguration`, served at `/configz`.

use serde_json::{Value, json};

use super::state::KubeletApi;

/// Returns the body of the response.
pub(super) fn configz(api: &KubeletApi) -> String {
    let config = &api.node.identity.config;
    let listening = config.kubelet_api.as_ref().and_then(|http| http.listener.local_addr().ok());
    let address = listening.map(|address| address.ip().to_string());
    let seconds = |d: std::time::Duration| format!("{}s", d.as_secs());
    let eviction = config.eviction.texts();
    let others = json!({
        "evictionHard": eviction.hard,
        "evictionSoft": eviction.soft,
        "evictionSoftGracePeriod": eviction.soft_grace,
        "evictionMinimumReclaim": eviction.min_reclaim,
        "evictionMaxPodGracePeriod": config.eviction_max_pod_grace,
        "shutdownGracePeriod": seconds(config.shutdown_grace.total),
        "shutdownGracePeriodCriticalPods": seconds(config.shutdown_grace.critical),
        "imageMaximumGCAge": seconds(config.image_age_max),
        "imagePullCredentialsVerificationPolicy": config.image_verification.name(),
        "userNamespaces": {"idsPerPod": config.ids_per_pod},
    });
    let mut fields = json!({
        "staticPodPath": config.manifest_dirs.first(),
        "syncFrequency": "5m0s",
        "port": config.kubelet_api.as_ref().map_or(0, |h| h.port),
        "address": address,
        "readOnlyPort": 0,
        "authentication": {"x509": {}, "webhook": {"enabled": true, "cacheTTL": "2m0s"},
        "anonymous": {"enabled": false}},
        "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "5m0s",
        "cacheUnauthorizedTTL": "30s"}},
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "resolvConf": config.resolv_conf,
        "nodeStatusReportFrequency": seconds(config.status_interval),
        "nodeLeaseDurationSeconds": 40,
        "imageGCHighThresholdPercent": config.image_gc_high,
        "imageGCLowThresholdPercent": config.image_gc_low,
        "imageMinimumGCAge": seconds(config.image_age_min),
        "cgroupRoot": config.cgroup_root,
        "cgroupsPerQOS": true,
        "cgroupDriver": "cgroupfs",
        "maxPods": config.max_pods,
        "podsPerCore": config.pods_per_core,
        "podPidsLimit": config.pod_pids_max.unwrap_or(-1),
        "seccompDefault": config.hardened || config.seccomp_default,
        "allowedUnsafeSysctls": config.allowed_sysctls,
        "maxParallelImagePulls": config.image_pulls_max,
        "nodeStatusUpdateFrequency": seconds(config.status_check_interval),
        "evictionPressureTransitionPeriod": seconds(config.pressure_transition),
        "crashLoopBackOff": {"maxContainerRestartPeriod": seconds(config.restart_delay_max)},
        "failSwapOn": false,
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "containerLogMaxSize": config.log_max_size.to_string(),
        "containerLogMaxFiles": config.log_max_files,
        "systemReserved": config.reserved,
        "kubeReserved": config.kube_reserved,
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": config.runtime.endpoint.clone()
            .unwrap_or_else(|| config.runtime.run_dir.join("containerd.sock")),
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
    });
    // The macro's recursion is limited.
    if let (Some(fields), Value::Object(others)) = (fields.as_object_mut(), others) {
        fields.extend(others);
    }
    json!({ "kubeletconfig": fields }).to_string()
}
