//! Arguments of the kubelet.

use super::Component;
use super::Effect::{Bool, Fixed, List, NoEffect, Refused, Value};

pub(super) const PROCESS: &str =
    "the kubelet is part of the node, without a client or process of its own";
const CERTIFICATES: &str = "kube-lite issues and renews the certificates of nodes";
const CPU_SETS: &str = "containers are updated when the shared CPUs change";
pub(super) const EVENTS: &str = "the node acts on events of the runtime and of the API";
const KERNEL: &str = "kube-lite changes no settings of the kernel";
const CGROUPS: &str = "processes outside of cgroups are not moved into one";
/// The argument with the levels of enforcement.
pub const ENFORCE: &str = "enforce-node-allocatable";
/// The argument with the URL of static pods, which may contain a password.
pub const URL: &str = "manifest-url";
/// The argument with headers for that URL, whose values are secrets.
pub const URL_HEADER: &str = "manifest-url-header";

/// What kube-lite does with each argument.
pub const KUBELET: Component = Component {
    flag: "kubelet-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("address", Refused("use --bind-address")),
        ("allowed-unsafe-sysctls", List),
        ("anonymous-auth", Fixed("false", "anonymous requests to a kubelet are always refused")),
        ("authentication-token-webhook", Fixed("true", "tokens are always reviewed")),
        ("authentication-token-webhook-cache-ttl", NoEffect("reviews are kept for two minutes")),
        ("authorization-mode", Fixed("Webhook", "every request to a kubelet is authorized")),
        ("authorization-webhook-cache-authorized-ttl", NoEffect("reviews are kept for minutes")),
        ("authorization-webhook-cache-unauthorized-ttl", NoEffect("reviews are kept for seconds")),
        ("bootstrap-kubeconfig", Refused("nodes join with --server and --token")),
        ("cert-dir", NoEffect(CERTIFICATES)),
        ("cgroup-driver", NoEffect("kube-lite and its containerd always use cgroupfs")),
        ("cgroup-root", Refused("use --cgroup-root")),
        ("cgroups-per-qos", Fixed("true", "pods are always in cgroups by quality of service")),
        ("client-ca-file", NoEffect(CERTIFICATES)),
        ("cloud-config", Refused("no cloud provider is built in")),
        ("cloud-provider", Value),
        ("cluster-dns", Refused("use --cluster-dns of the server")),
        ("cluster-domain", Refused("use --cluster-domain of the server")),
        ("config", Value),
        ("config-dir", Value),
        ("container-log-max-files", Value),
        ("container-log-max-size", Value),
        ("container-runtime-endpoint", Refused("use --container-runtime-endpoint")),
        ("containerd", NoEffect("kube-lite finds its runtime itself")),
        ("contention-profiling", NoEffect("there is no profiling endpoint")),
        ("cpu-cfs-quota", Fixed("true", "limits of CPU are always enforced")),
        ("cpu-cfs-quota-period", Fixed("100ms", "the period of CPU limits is fixed")),
        ("cpu-manager-policy", Value),
        ("cpu-manager-policy-options", Value),
        ("cpu-manager-reconcile-period", NoEffect(CPU_SETS)),
        (
            "enable-controller-attach-detach",
            Fixed("true", "the controllers of the servers attach CSI volumes"),
        ),
        ("enable-debugging-handlers", Fixed("true", "logs and exec need the kubelet API")),
        ("enable-server", Fixed("true", "the server needs the kubelet API")),
        (ENFORCE, List),
        ("event-burst", NoEffect("equal events are merged")),
        ("event-qps", NoEffect("equal events are merged")),
        ("eviction-hard", Value),
        ("eviction-max-pod-grace-period", Value),
        ("eviction-minimum-reclaim", Value),
        ("eviction-pressure-transition-period", Value),
        ("eviction-soft", Value),
        ("eviction-soft-grace-period", Value),
        ("exit-on-lock-contention", Refused("kube-lite locks its own directories")),
        ("experimental-allocatable-ignore-eviction", Bool),
        ("fail-cgroupv1", Fixed("false", "nodes with cgroup version 1 are supported")),
        (
            "fail-swap-on",
            Fixed("false", "nodes with swap start; pods use it only with LimitedSwap"),
        ),
        ("file-check-frequency", NoEffect(EVENTS)),
        ("hairpin-mode", NoEffect("pods always reach themselves through their Services")),
        ("healthz-bind-address", Value),
        ("healthz-port", Value),
        ("hostname-override", Refused("use --node-name")),
        ("housekeeping-interval", NoEffect("statistics are read when they are requested")),
        ("http-check-frequency", Value),
        ("image-credential-provider-bin-dir", Value),
        ("image-credential-provider-config", Value),
        ("image-gc-high-threshold", Value),
        ("image-gc-low-threshold", Value),
        ("image-maximum-gc-age", Value),
        ("image-minimum-gc-age", Value),
        ("image-service-endpoint", Refused("use --container-runtime-endpoint")),
        ("kernel-memcg-notification", NoEffect("memory is measured every ten seconds")),
        ("kube-api-burst", NoEffect(PROCESS)),
        ("kube-api-content-type", NoEffect(PROCESS)),
        ("kube-api-qps", NoEffect(PROCESS)),
        ("kube-reserved", Value),
        ("kube-reserved-cgroup", Value),
        ("kubeconfig", NoEffect(PROCESS)),
        ("kubelet-cgroups", NoEffect("the service file sets the cgroup of the process")),
        ("local-storage-capacity-isolation", Fixed("true", "limits of storage are enforced")),
        ("lock-file", Refused("kube-lite locks its own directories")),
        ("logging-format", Fixed("text", "kube-lite writes text lines")),
        ("make-iptables-util-chains", NoEffect("the node makes no iptables chains")),
        (URL, Value),
        (URL_HEADER, List),
        ("max-open-files", NoEffect("the service file sets the limit of open files")),
        ("max-parallel-image-pulls", Value),
        ("max-pods", Value),
        ("maximum-dead-containers", NoEffect("one dead container is kept for each container")),
        (
            "maximum-dead-containers-per-container",
            Fixed("1", "one dead container is kept for each container"),
        ),
        ("memory-manager-policy", Value),
        ("minimum-container-ttl-duration", NoEffect("one dead container is kept")),
        ("minimum-image-ttl-duration", Value),
        ("node-ip", Refused("use --node-ip")),
        ("node-labels", List),
        ("node-status-max-images", Fixed("50", "the status lists 50 images")),
        ("node-status-update-frequency", Value),
        ("oom-score-adj", NoEffect("the service file sets that of the process")),
        ("pod-cidr", Refused("the server assigns the addresses of pods")),
        ("pod-infra-container-image", Refused("the pause image is built in")),
        ("pod-manifest-path", Refused("static pods are read from agent/pod-manifests")),
        ("pod-max-pids", Value),
        ("pods-per-core", Value),
        ("port", Refused("use --kubelet-port")),
        ("protect-kernel-defaults", Bool),
        ("provider-id", Value),
        ("qos-reserved", Refused("memory of quality of service classes cannot be reserved")),
        ("read-only-port", Fixed("0", "every request to a kubelet is authenticated")),
        ("register-node", Fixed("true", "a node always registers")),
        ("register-with-taints", List),
        ("registry-burst", NoEffect("max-parallel-image-pulls limits pulls")),
        ("registry-qps", NoEffect("max-parallel-image-pulls limits pulls")),
        ("reserved-cpus", Value),
        ("reserved-memory", List),
        ("resolv-conf", Value),
        ("root-dir", Value),
        ("rotate-certificates", NoEffect(CERTIFICATES)),
        ("rotate-server-certificates", NoEffect(CERTIFICATES)),
        ("runtime-cgroups", NoEffect("the service file sets the cgroup of the runtime")),
        ("runtime-request-timeout", NoEffect("each kind of request has its own time limit")),
        ("seccomp-default", Bool),
        ("serialize-image-pulls", Bool),
        ("shutdown-grace-period", Refused("use --shutdown-grace-period")),
        (
            "shutdown-grace-period-critical-pods",
            Refused("use --shutdown-grace-period-critical-pods"),
        ),
        (
            "streaming-connection-idle-timeout",
            Fixed(
                "4h",
                "idle streams end after four hours, or five minutes with --profile=hardened",
            ),
        ),
        ("sync-frequency", NoEffect(EVENTS)),
        ("sysctls", Refused(KERNEL)),
        ("system-cgroups", Refused(CGROUPS)),
        ("system-reserved", Value),
        ("system-reserved-cgroup", Value),
        ("tls-cert-file", Refused(CERTIFICATES)),
        (
            "tls-cipher-suites",
            NoEffect("only TLS 1.3 and forward-secret AEAD suites of TLS 1.2 are offered"),
        ),
        ("tls-min-version", Value),
        ("tls-private-key-file", Refused(CERTIFICATES)),
        ("topology-manager-policy", Value),
        ("topology-manager-policy-options", Value),
        ("topology-manager-scope", Value),
        ("v", NoEffect("use -v or --debug of kube-lite")),
        ("vmodule", NoEffect("use -v or --debug of kube-lite")),
        ("volume-plugin-dir", NoEffect("there are no exec volume plugins")),
        ("volume-stats-agg-period", NoEffect("statistics are read when they are requested")),
    ],
};

/// An argument without its secrets, for pages that show arguments.
pub fn without_secrets(argument: &str) -> String {
    match component_config::flags::parts(argument) {
        (URL_HEADER, Some(_)) => format!("{URL_HEADER}=CLASSIFIED"),
        (URL, Some(url)) => format!("{URL}={}", without_password(url)),
        _ => argument.to_owned(),
    }
}

/// A URL with `xxxxx` for its password, as Go shows it (`URL.Redacted`).
pub fn without_password(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return text.to_owned() };
    if url.password().is_none() {
        return text.to_owned();
    }
    match url.set_password(Some("xxxxx")) {
        Ok(()) => url.into(),
        // A URL without a host has no password.
        Err(()) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_passwords_of_the_url_are_not_shown() {
        for (argument, want) in [
            ("manifest-url-header=Authorization:Bearer hush", "manifest-url-header=CLASSIFIED"),
            ("--manifest-url-header=a:hush", "manifest-url-header=CLASSIFIED"),
            ("manifest-url=https://u:hush@m/a?b", "manifest-url=https://u:xxxxx@m/a?b"),
            ("manifest-url=https://m/a", "manifest-url=https://m/a"),
            ("max-pods=7", "max-pods=7"),
        ] {
            assert_eq!(without_secrets(argument), want);
        }
    }
}
