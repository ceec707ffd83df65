//! The defaults of `KubeletConfiguration` (`pkg/kubelet/apis/config/v1beta1/defaults.go`).

use serde_json::{Map, Value, json};

/// Every field with a default. Durations that have none are zero, as Go writes them.
pub(super) fn fields() -> Map<String, Value> {
    let mut fields = Map::new();
    for part in [server(), node(), pods(), resources()] {
        if let Value::Object(part) = part {
            fields.extend(part);
        }
    }
    fields
}

fn server() -> Value {
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": "2m0s"},
            "x509": {},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "contentType": "application/vnd.kubernetes.protobuf",
        "enableDebugFlagsHandler": true,
        "enableDebuggingHandlers": true,
        "enableProfilingHandler": true,
        "enableServer": true,
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "eventBurst": 100,
        "eventRecordQPS": 50,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "kubeAPIBurst": 100,
        "kubeAPIQPS": 50,
        "logging": {
            "format": "text",
            "flushFrequency": "5s",
            "verbosity": 0,
            "options": {"text": {"infoBufferSize": "0"}, "json": {"infoBufferSize": "0"}},
        },
        "port": 10250,
        "streamingConnectionIdleTimeout": "4h0m0s",
    })
}

fn node() -> Value {
    json!({
        "enableControllerAttachDetach": true,
        "fileCheckFrequency": "20s",
        "httpCheckFrequency": "20s",
        "iptablesDropBit": 15,
        "iptablesMasqueradeBit": 14,
        "makeIPTablesUtilChains": true,
        "maxOpenFiles": 1_000_000,
        "nodeLeaseDurationSeconds": 40,
        "nodeStatusMaxImages": 50,
        "nodeStatusReportFrequency": "5m0s",
        "nodeStatusUpdateFrequency": "10s",
        "oomScoreAdj": -999,
        "registerNode": true,
        "resolvConf": "/etc/resolv.conf",
        "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s",
        "syncFrequency": "1m0s",
    })
}

fn pods() -> Value {
    json!({
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "containerLogMaxFiles": 5,
        "containerLogMaxSize": "10Mi",
        "containerLogMaxWorkers": 1,
        "containerLogMonitorInterval": "10s",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
        "hairpinMode": "promiscuous-bridge",
        "imageGCHighThresholdPercent": 85,
        "imageGCLowThresholdPercent": 80,
        "imageMaximumGCAge": "0s",
        "imageMinimumGCAge": "2m0s",
        "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
        "maxPods": 110,
        "podLogsDir": "/var/log/pods",
        "podPidsLimit": -1,
        "registryBurst": 10,
        "registryPullQPS": 5,
        "runtimeRequestTimeout": "2m0s",
        "seccompDefault": false,
        "serializeImagePulls": true,
        "volumePluginDir": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
        "volumeStatsAggPeriod": "1m0s",
    })
}

fn resources() -> Value {
    json!({
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": true,
        "cpuCFSQuota": true,
        "cpuCFSQuotaPeriod": "100ms",
        "cpuManagerPolicy": "none",
        "cpuManagerReconcilePeriod": "10s",
        "enforceNodeAllocatable": ["pods"],
        "evictionPressureTransitionPeriod": "5m0s",
        "failCgroupV1": true,
        "failSwapOn": true,
        "localStorageCapacityIsolation": true,
        "memoryManagerPolicy": "None",
        "memoryReservationPolicy": "None",
        "memorySwap": {},
        "mergeDefaultEvictionSettings": false,
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
    })
}
