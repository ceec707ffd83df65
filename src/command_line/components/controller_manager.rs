//! Arguments of kube-controller-manager and kube-cloud-controller-manager.

use super::Component;
use super::Effect::{Bool, Fixed, List, NoEffect, Refused, Value};

const PROCESS: &str =
    "the controllers are part of the server, without a listener or client of their own";
const WORKERS: &str = "the number of workers is fixed";
const EVENTS: &str = "controllers act on events, not at intervals";
const SIGNING: &str =
    "the cluster's own CAs sign; `kube-lite certificate rotate-ca --path DIR` installs others";
const ZONES: &str = "the rates of evictions are those of upstream's defaults";
const PROFILING: &str = "there is no profiling endpoint";
const LEADER: &str = "the leader is that of the store";
const LEADERS: &str = "one server of a cluster runs the controllers at a time";
const CLOUD: &str =
    "kube-lite has no cloud providers; run the provider's controller in the cluster";
const NODE_ARGUMENT: &str = "nodes use --kubelet-arg";

/// What kube-lite does with each argument of kube-controller-manager.
pub const CONTROLLER_MANAGER: Component = Component {
    flag: "kube-controller-manager-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("allocate-node-cidrs", Fixed("true", "the pod network needs address ranges of nodes")),
        ("attach-detach-reconcile-sync-period", NoEffect(EVENTS)),
        ("authentication-kubeconfig", NoEffect(PROCESS)),
        ("authorization-always-allow-paths", NoEffect(PROCESS)),
        ("authorization-kubeconfig", NoEffect(PROCESS)),
        ("bind-address", NoEffect(PROCESS)),
        ("cloud-config", Refused(CLOUD)),
        ("cloud-provider", Fixed("external", CLOUD)),
        ("cluster-cidr", Refused("use --cluster-cidr of kube-lite")),
        ("cluster-signing-cert-file", Refused(SIGNING)),
        ("cluster-signing-duration", Value),
        ("cluster-signing-key-file", Refused(SIGNING)),
        ("concurrent-cron-job-syncs", NoEffect(WORKERS)),
        ("concurrent-daemonset-syncs", NoEffect(WORKERS)),
        ("concurrent-deployment-syncs", NoEffect(WORKERS)),
        ("concurrent-device-taint-eviction-syncs", NoEffect(WORKERS)),
        ("concurrent-disruption-syncs", NoEffect(WORKERS)),
        ("concurrent-endpoint-syncs", NoEffect(WORKERS)),
        ("concurrent-ephemeralvolume-syncs", NoEffect(WORKERS)),
        ("concurrent-gc-syncs", NoEffect(WORKERS)),
        ("concurrent-horizontal-pod-autoscaler-syncs", NoEffect(WORKERS)),
        ("concurrent-job-syncs", NoEffect(WORKERS)),
        ("concurrent-namespace-syncs", NoEffect(WORKERS)),
        ("concurrent-node-lifecycle-syncs", NoEffect(WORKERS)),
        ("concurrent-rc-syncs", NoEffect(WORKERS)),
        ("concurrent-replicaset-syncs", NoEffect(WORKERS)),
        ("concurrent-resource-quota-syncs", NoEffect(WORKERS)),
        ("concurrent-resourceclaim-syncs", NoEffect(WORKERS)),
        ("concurrent-service-endpoint-syncs", NoEffect(WORKERS)),
        ("concurrent-service-syncs", NoEffect(WORKERS)),
        ("concurrent-serviceaccount-token-syncs", NoEffect(WORKERS)),
        ("concurrent-statefulset-syncs", NoEffect(WORKERS)),
        ("concurrent-ttl-after-finished-syncs", NoEffect(WORKERS)),
        ("configure-cloud-routes", NoEffect("kube-lite configures no routes of clouds")),
        ("contention-profiling", NoEffect(PROFILING)),
        ("controller-start-interval", NoEffect("controllers start at once")),
        ("controllers", List),
        ("disable-attach-detach-reconcile-sync", NoEffect(EVENTS)),
        ("disable-force-detach-on-timeout", Bool),
        ("enable-dynamic-provisioning", Fixed("true", "use --disable=local-storage")),
        (
            "enable-garbage-collector",
            Fixed("true", "use controllers=*,-garbage-collector-controller"),
        ),
        ("enable-hostpath-provisioner", Fixed("false", "the default class makes local volumes")),
        ("endpoint-updates-batch-period", Fixed("0s", "changes are written at once")),
        ("endpointslice-updates-batch-period", Fixed("0s", "changes are written at once")),
        ("flex-volume-plugin-dir", NoEffect("kube-lite has no FlexVolumes")),
        ("horizontal-pod-autoscaler-cpu-initialization-period", Value),
        ("horizontal-pod-autoscaler-downscale-stabilization", Value),
        ("horizontal-pod-autoscaler-initial-readiness-delay", Value),
        ("horizontal-pod-autoscaler-sync-period", Value),
        ("horizontal-pod-autoscaler-tolerance", Value),
        ("kube-api-burst", NoEffect(PROCESS)),
        ("kube-api-content-type", NoEffect(PROCESS)),
        ("kube-api-qps", NoEffect(PROCESS)),
        ("kubeconfig", NoEffect(PROCESS)),
        ("large-cluster-size-threshold", Fixed("50", ZONES)),
        ("leader-elect", Fixed("true", LEADERS)),
        ("leader-elect-lease-duration", NoEffect(LEADER)),
        ("leader-elect-renew-deadline", NoEffect(LEADER)),
        ("leader-elect-retry-period", NoEffect(LEADER)),
        ("legacy-service-account-token-clean-up-period", Value),
        ("logging-format", Fixed("text", "kube-lite writes text lines")),
        ("min-resync-period", NoEffect(EVENTS)),
        ("namespace-sync-period", NoEffect(EVENTS)),
        ("node-cidr-mask-size", Value),
        ("node-cidr-mask-size-ipv4", Value),
        ("node-cidr-mask-size-ipv6", Value),
        ("node-eviction-rate", Fixed("0.1", ZONES)),
        ("node-monitor-grace-period", Value),
        ("node-monitor-period", NoEffect(EVENTS)),
        ("node-startup-grace-period", Value),
        ("node-status-update-frequency", Refused(NODE_ARGUMENT)),
        (
            "pod-eviction-timeout",
            Refused("Kubernetes removed it; use --default-unreachable-toleration-seconds"),
        ),
        ("profiling", NoEffect(PROFILING)),
        ("pvclaimbinder-sync-period", NoEffect(EVENTS)),
        (
            "resource-quota-sync-period",
            NoEffect("quotas are counted on events, and every 5 minutes"),
        ),
        ("root-ca-file", Refused(SIGNING)),
        ("route-reconciliation-period", NoEffect("kube-lite configures no routes of clouds")),
        ("secondary-node-eviction-rate", Fixed("0.01", ZONES)),
        ("secure-port", NoEffect(PROCESS)),
        (
            "service-account-private-key-file",
            Refused("`kube-lite certificate rotate-ca --path DIR` installs another key"),
        ),
        ("service-cluster-ip-range", Refused("use --service-cidr of kube-lite")),
        ("terminated-pod-gc-threshold", Value),
        ("tls-cert-file", NoEffect(PROCESS)),
        ("tls-cipher-suites", NoEffect(PROCESS)),
        ("tls-min-version", NoEffect(PROCESS)),
        ("tls-private-key-file", NoEffect(PROCESS)),
        ("unhealthy-zone-threshold", Fixed("0.55", ZONES)),
        (
            "use-service-account-credentials",
            Fixed("true", "each controller acts as its service account"),
        ),
        ("v", NoEffect("use -v or --debug of kube-lite")),
    ],
};

/// What kube-lite does with each argument of kube-cloud-controller-manager.
pub const CLOUD_CONTROLLER_MANAGER: Component = Component {
    flag: "kube-cloud-controller-manager-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("authentication-kubeconfig", NoEffect(PROCESS)),
        ("authorization-kubeconfig", NoEffect(PROCESS)),
        ("bind-address", NoEffect(PROCESS)),
        ("cloud-provider", Fixed("k3s", CLOUD)),
        ("cloud-config", Refused(CLOUD)),
        ("concurrent-service-syncs", NoEffect(WORKERS)),
        ("configure-cloud-routes", NoEffect("kube-lite configures no routes of clouds")),
        ("controllers", Refused("use --disable=servicelb or --disable-cloud-controller")),
        ("kube-api-burst", NoEffect(PROCESS)),
        ("kube-api-qps", NoEffect(PROCESS)),
        ("leader-elect", Fixed("true", LEADERS)),
        ("node-status-update-frequency", NoEffect(EVENTS)),
        ("profiling", NoEffect(PROFILING)),
        ("secure-port", NoEffect(PROCESS)),
        ("tls-cipher-suites", NoEffect(PROCESS)),
        ("tls-min-version", NoEffect(PROCESS)),
        ("v", NoEffect("use -v or --debug of kube-lite")),
    ],
};
