//! Fields of KubeletConfiguration files (`kubelet.config.k8s.io/v1beta1`): the argument of the
//! kubelet that each one is the same as, or what kube-lite does with those without an argument.

use self::Form::{
    Any, Bool, Duration, Gates, GracePeriods, Headers, Number, Pairs, ReservedMemory, Taints, Text,
    Texts, Url,
};
use super::Component;
use super::Effect::{Fixed, NoEffect, Refused, Value};
use super::kubelet::{ENFORCE, EVENTS, PROCESS, URL, URL_HEADER};

/// The form of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A string.
    Text,
    /// A duration in Go's notation.
    Duration,
    /// A whole number.
    Number,
    /// A boolean.
    Bool,
    /// A list of strings.
    Texts,
    /// An object with strings; the argument joins name and value by this text.
    Pairs(&'static str),
    /// An object with booleans.
    Gates,
    /// A list of taints.
    Taints,
    /// A list of NUMA nodes with amounts of memory.
    ReservedMemory,
    /// A list of priorities with grace periods.
    GracePeriods,
    /// A URL, whose password is a secret.
    Url,
    /// An object with lists of strings, which are secrets.
    Headers,
    /// Any value of a field that is refused, or has no effect.
    Any,
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its path, with dots.
    pub path: &'static str,
    /// Its argument; `None` for a field in [`CONFIG_FIELDS`].
    pub argument: Option<&'static str>,
    /// The form of its value.
    pub form: Form,
    /// Whether a zero value (`0`, `0s`, `false`, an empty string, list or object) is the same as
    /// none: upstream's field is no pointer.
    pub zero_is_unset: bool,
}

/// A field with the effect of an argument, whose zero value counts.
const fn pointer(path: &'static str, argument: &'static str, form: Form) -> Field {
    Field { path, argument: Some(argument), form, zero_is_unset: false }
}

/// A field with the effect of an argument, whose zero value is the same as none.
const fn plain(path: &'static str, argument: &'static str, form: Form) -> Field {
    Field { path, argument: Some(argument), form, zero_is_unset: true }
}

/// A field without an argument.
const fn own(path: &'static str, form: Form, zero_is_unset: bool) -> Field {
    Field { path, argument: None, form, zero_is_unset }
}

/// Every field of upstream's type.
pub const FIELDS: &[Field] = &[
    plain("address", "address", Text),
    plain("allowedUnsafeSysctls", "allowed-unsafe-sysctls", Texts),
    pointer("authentication.anonymous.enabled", "anonymous-auth", Bool),
    plain("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", Duration),
    pointer("authentication.webhook.enabled", "authentication-token-webhook", Bool),
    plain("authentication.x509.clientCAFile", "client-ca-file", Text),
    plain("authorization.mode", "authorization-mode", Text),
    plain(
        "authorization.webhook.cacheAuthorizedTTL",
        "authorization-webhook-cache-authorized-ttl",
        Duration,
    ),
    plain(
        "authorization.webhook.cacheUnauthorizedTTL",
        "authorization-webhook-cache-unauthorized-ttl",
        Duration,
    ),
    plain("cgroupDriver", "cgroup-driver", Text),
    plain("cgroupRoot", "cgroup-root", Text),
    pointer("cgroupsPerQOS", "cgroups-per-qos", Bool),
    plain("clusterDNS", "cluster-dns", Texts),
    plain("clusterDomain", "cluster-domain", Text),
    own("configMapAndSecretChangeDetectionStrategy", Text, true),
    pointer("containerLogMaxFiles", "container-log-max-files", Number),
    plain("containerLogMaxSize", "container-log-max-size", Text),
    own("containerLogMaxWorkers", Number, false),
    own("containerLogMonitorInterval", Duration, false),
    plain("containerRuntimeEndpoint", "container-runtime-endpoint", Text),
    plain("contentType", "kube-api-content-type", Text),
    pointer("cpuCFSQuota", "cpu-cfs-quota", Bool),
    pointer("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", Duration),
    plain("cpuManagerPolicy", "cpu-manager-policy", Text),
    plain("cpuManagerPolicyOptions", "cpu-manager-policy-options", Pairs("=")),
    plain("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Duration),
    own(RESTART_DELAY_MAX, Duration, false),
    plain("defaultPodSysctls", "sysctls", Pairs("=")),
    plain("enableContentionProfiling", "contention-profiling", Bool),
    pointer("enableControllerAttachDetach", "enable-controller-attach-detach", Bool),
    own("enableDebugFlagsHandler", Bool, false),
    pointer("enableDebuggingHandlers", "enable-debugging-handlers", Bool),
    own("enableProfilingHandler", Bool, false),
    pointer("enableServer", "enable-server", Bool),
    own(LOG_HANDLER, Bool, false),
    own(LOG_QUERY, Bool, false),
    pointer("enforceNodeAllocatable", ENFORCE, Texts),
    plain("eventBurst", "event-burst", Number),
    pointer("eventRecordQPS", "event-qps", Number),
    plain("evictionHard", EVICTION_HARD, Pairs("<")),
    plain("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Number),
    plain("evictionMinimumReclaim", "eviction-minimum-reclaim", Pairs("=")),
    plain("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Duration),
    plain("evictionSoft", "eviction-soft", Pairs("<")),
    plain("evictionSoftGracePeriod", "eviction-soft-grace-period", Pairs("=")),
    pointer("failCgroupV1", "fail-cgroupv1", Bool),
    pointer("failSwapOn", "fail-swap-on", Bool),
    plain("featureGates", super::feature_gates::ARGUMENT, Gates),
    plain("fileCheckFrequency", "file-check-frequency", Duration),
    plain("hairpinMode", "hairpin-mode", Text),
    plain("healthzBindAddress", "healthz-bind-address", Text),
    pointer("healthzPort", "healthz-port", Number),
    plain("httpCheckFrequency", "http-check-frequency", Duration),
    pointer("imageGCHighThresholdPercent", "image-gc-high-threshold", Number),
    pointer("imageGCLowThresholdPercent", "image-gc-low-threshold", Number),
    plain("imageMaximumGCAge", "image-maximum-gc-age", Duration),
    plain("imageMinimumGCAge", "minimum-image-ttl-duration", Duration),
    own(IMAGE_VERIFICATION, Text, true),
    plain("imageServiceEndpoint", "image-service-endpoint", Text),
    own("iptablesDropBit", Number, false),
    own("iptablesMasqueradeBit", Number, false),
    plain("kernelMemcgNotification", "kernel-memcg-notification", Bool),
    plain("kubeAPIBurst", "kube-api-burst", Number),
    pointer("kubeAPIQPS", "kube-api-qps", Number),
    plain("kubeReserved", "kube-reserved", Pairs("=")),
    plain("kubeReservedCgroup", "kube-reserved-cgroup", Text),
    plain("kubeletCgroups", "kubelet-cgroups", Text),
    pointer("localStorageCapacityIsolation", "local-storage-capacity-isolation", Bool),
    own("logging.flushFrequency", Any, true),
    plain("logging.format", "logging-format", Text),
    own("logging.options", Any, true),
    plain("logging.verbosity", "v", Number),
    plain("logging.vmodule", "vmodule", Any),
    pointer("makeIPTablesUtilChains", "make-iptables-util-chains", Bool),
    plain("maxOpenFiles", "max-open-files", Number),
    pointer("maxParallelImagePulls", "max-parallel-image-pulls", Number),
    plain("maxPods", "max-pods", Number),
    plain("memoryManagerPolicy", "memory-manager-policy", Text),
    own(MEMORY_RESERVATION, Text, true),
    own(SWAP_BEHAVIOR, Text, true),
    own(MEMORY_THROTTLING, Any, false),
    own(MERGE_THRESHOLDS, Bool, false),
    own("nodeLeaseDurationSeconds", Number, true),
    pointer("nodeStatusMaxImages", "node-status-max-images", Number),
    own("nodeStatusReportFrequency", Duration, true),
    plain("nodeStatusUpdateFrequency", "node-status-update-frequency", Duration),
    pointer("oomScoreAdj", "oom-score-adj", Number),
    plain("podCIDR", "pod-cidr", Text),
    own("podLogsDir", Text, true),
    pointer("podPidsLimit", "pod-max-pids", Number),
    plain("podsPerCore", "pods-per-core", Number),
    plain("port", "port", Number),
    own(IMAGE_ALLOWLIST, Texts, true),
    plain("protectKernelDefaults", "protect-kernel-defaults", Bool),
    plain("providerID", "provider-id", Text),
    plain("qosReserved", "qos-reserved", Pairs("=")),
    plain("readOnlyPort", "read-only-port", Number),
    pointer("registerNode", "register-node", Bool),
    plain("registerWithTaints", "register-with-taints", Taints),
    plain("registryBurst", "registry-burst", Number),
    pointer("registryPullQPS", "registry-qps", Number),
    plain("reservedMemory", "reserved-memory", ReservedMemory),
    plain("reservedSystemCPUs", "reserved-cpus", Text),
    pointer("resolvConf", "resolv-conf", Text),
    plain("rotateCertificates", "rotate-certificates", Bool),
    own("runOnce", Bool, true),
    plain("runtimeRequestTimeout", "runtime-request-timeout", Duration),
    pointer("seccompDefault", "seccomp-default", Bool),
    pointer("serializeImagePulls", "serialize-image-pulls", Bool),
    plain("serverTLSBootstrap", "rotate-server-certificates", Bool),
    own("showHiddenMetricsForVersion", Text, true),
    own(SHUTDOWN, Duration, false),
    own(SHUTDOWN_BY_PRIORITY, GracePeriods, true),
    own(SHUTDOWN_CRITICAL, Duration, false),
    own("singleProcessOOMKill", Bool, false),
    plain("staticPodPath", "pod-manifest-path", Text),
    plain("staticPodURL", URL, Url),
    plain("staticPodURLHeader", URL_HEADER, Headers),
    plain("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", Duration),
    plain("syncFrequency", "sync-frequency", Duration),
    plain("systemCgroups", "system-cgroups", Text),
    plain("systemReserved", "system-reserved", Pairs("=")),
    plain("systemReservedCgroup", "system-reserved-cgroup", Text),
    plain("tlsCertFile", "tls-cert-file", Text),
    plain("tlsCipherSuites", "tls-cipher-suites", Texts),
    own("tlsCurvePreferences", Any, true),
    plain("tlsMinVersion", "tls-min-version", Text),
    plain("tlsPrivateKeyFile", "tls-private-key-file", Text),
    plain("topologyManagerPolicy", "topology-manager-policy", Text),
    plain("topologyManagerPolicyOptions", "topology-manager-policy-options", Pairs("=")),
    plain("topologyManagerScope", "topology-manager-scope", Text),
    own("tracing", Any, true),
    own(IDS_PER_POD, Number, false),
    plain("volumePluginDir", "volume-plugin-dir", Text),
    plain("volumeStatsAggPeriod", "volume-stats-agg-period", Duration),
];

/// The argument of `evictionHard`.
pub const EVICTION_HARD: &str = "eviction-hard";
/// Fields that kube-lite acts on although the kubelet has no argument for them.
pub const SHUTDOWN: &str = "shutdownGracePeriod";
/// See [`SHUTDOWN`].
pub const MEMORY_RESERVATION: &str = "memoryReservationPolicy";
/// See [`SHUTDOWN`].
pub const SWAP_BEHAVIOR: &str = "memorySwap.swapBehavior";
/// See [`SHUTDOWN`].
pub const MEMORY_THROTTLING: &str = "memoryThrottlingFactor";
/// See [`SHUTDOWN`].
pub const IDS_PER_POD: &str = "userNamespaces.idsPerPod";
/// See [`SHUTDOWN`].
pub const IMAGE_VERIFICATION: &str = "imagePullCredentialsVerificationPolicy";
/// See [`SHUTDOWN`].
pub const IMAGE_ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";
/// See [`SHUTDOWN`].
pub const RESTART_DELAY_MAX: &str = "crashLoopBackOff.maxContainerRestartPeriod";
/// See [`SHUTDOWN`].
pub const MERGE_THRESHOLDS: &str = "mergeDefaultEvictionSettings";
/// See [`SHUTDOWN`].
pub const SHUTDOWN_CRITICAL: &str = "shutdownGracePeriodCriticalPods";
/// See [`SHUTDOWN`].
pub const SHUTDOWN_BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
/// See [`SHUTDOWN`].
pub const LOG_HANDLER: &str = "enableSystemLogHandler";
/// See [`SHUTDOWN`].
pub const LOG_QUERY: &str = "enableSystemLogQuery";

/// What kube-lite does with each field that has no argument.
pub const CONFIG_FIELDS: Component = Component {
    flag: "kubelet-arg",
    arguments: &[
        ("configMapAndSecretChangeDetectionStrategy", NoEffect(EVENTS)),
        ("containerLogMaxWorkers", NoEffect("the housekeeping of the node rotates logs")),
        ("containerLogMonitorInterval", NoEffect("the housekeeping of the node rotates logs")),
        (RESTART_DELAY_MAX, Value),
        ("enableDebugFlagsHandler", NoEffect("there is no endpoint that changes the log level")),
        ("enableProfilingHandler", NoEffect("there is no profiling endpoint")),
        (LOG_HANDLER, Value),
        (LOG_QUERY, Value),
        (IMAGE_VERIFICATION, Value),
        ("iptablesDropBit", NoEffect("the node makes no iptables chains")),
        ("iptablesMasqueradeBit", NoEffect("the node makes no iptables chains")),
        ("logging.flushFrequency", NoEffect(PROCESS)),
        ("logging.options", Refused("kube-lite writes text lines to standard error")),
        (MEMORY_RESERVATION, Value),
        (SWAP_BEHAVIOR, Value),
        (MEMORY_THROTTLING, Value),
        (MERGE_THRESHOLDS, Value),
        ("nodeLeaseDurationSeconds", Fixed("40", "the duration of leases is fixed")),
        (
            "nodeStatusReportFrequency",
            Fixed("5m", "an unchanged status is sent every five minutes"),
        ),
        ("podLogsDir", Refused("use --log-dir")),
        (IMAGE_ALLOWLIST, Value),
        ("runOnce", Refused("a node runs until it is stopped")),
        ("showHiddenMetricsForVersion", NoEffect("there are no hidden metrics")),
        (SHUTDOWN, Value),
        (SHUTDOWN_BY_PRIORITY, Value),
        (SHUTDOWN_CRITICAL, Value),
        (
            "singleProcessOOMKill",
            Fixed("false", "a lack of memory ends all processes of a container, where cgroups can"),
        ),
        ("tlsCurvePreferences", Refused("the key exchanges of TLS are fixed")),
        ("tracing", Refused("the node exports no traces")),
        (IDS_PER_POD, Value),
    ],
};

#[cfg(test)]
mod tests {
    use super::super::kubelet::KUBELET;
    use super::*;

    #[test]
    fn each_field_has_one_decision() {
        let has = |component: &Component, name: &str| {
            component.arguments.iter().any(|(known, _)| *known == name)
        };
        for field in FIELDS {
            match field.argument {
                Some(argument) => assert!(has(&KUBELET, argument), "{} {argument}", field.path),
                None => assert!(has(&CONFIG_FIELDS, field.path), "{}", field.path),
            }
        }
        let own = FIELDS.iter().filter(|field| field.argument.is_none()).count();
        assert_eq!(own, CONFIG_FIELDS.arguments.len());
        let mut paths: Vec<_> = FIELDS.iter().map(|field| field.path).collect();
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }
}
