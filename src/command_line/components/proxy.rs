//! Arguments of kube-proxy.

use super::Component;
use super::Effect::{Fixed, List, NoEffect, Refused, Value};

const NFTABLES: &str = "the proxy always uses nftables";
const PROCESS: &str = "the proxy is part of the node, without a client or listener of its own";
const CONNTRACK: &str =
    "kube-lite changes no settings of the kernel; write a file in /etc/sysctl.d";

/// What kube-lite does with each argument.
pub const PROXY: Component = Component {
    flag: "kube-proxy-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("bind-address", NoEffect(PROCESS)),
        ("cleanup", Refused("kube-lite-killall.sh removes the rules")),
        ("cluster-cidr", NoEffect("the pod network is that of --cluster-cidr")),
        ("config", Refused("give the settings as arguments")),
        ("config-sync-period", NoEffect("the proxy acts on events")),
        ("conntrack-max-per-core", Fixed("0", CONNTRACK)),
        ("conntrack-min", Fixed("0", CONNTRACK)),
        ("conntrack-tcp-be-liberal", Fixed("false", CONNTRACK)),
        ("conntrack-tcp-timeout-close-wait", Fixed("0s", CONNTRACK)),
        ("conntrack-tcp-timeout-established", Fixed("0s", CONNTRACK)),
        ("conntrack-udp-timeout", Fixed("0s", CONNTRACK)),
        ("conntrack-udp-timeout-stream", Fixed("0s", CONNTRACK)),
        ("detect-local-mode", Refused("the proxy recognizes pods of its node by their bridge")),
        ("healthz-bind-address", Value),
        ("healthz-port", Value),
        ("hostname-override", Refused("use --node-name")),
        ("iptables-localhost-nodeports", Value),
        ("iptables-masquerade-bit", NoEffect(NFTABLES)),
        ("iptables-min-sync-period", NoEffect(NFTABLES)),
        ("iptables-sync-period", NoEffect(NFTABLES)),
        ("ipvs-exclude-cidrs", NoEffect(NFTABLES)),
        ("ipvs-min-sync-period", NoEffect(NFTABLES)),
        ("ipvs-scheduler", NoEffect(NFTABLES)),
        ("ipvs-strict-arp", NoEffect(NFTABLES)),
        ("ipvs-sync-period", NoEffect(NFTABLES)),
        ("ipvs-tcp-timeout", NoEffect(NFTABLES)),
        ("ipvs-tcpfin-timeout", NoEffect(NFTABLES)),
        ("ipvs-udp-timeout", NoEffect(NFTABLES)),
        ("kube-api-burst", NoEffect(PROCESS)),
        ("kube-api-qps", NoEffect(PROCESS)),
        ("kubeconfig", NoEffect(PROCESS)),
        ("logging-format", Fixed("text", "kube-lite writes text lines")),
        ("masquerade-all", Fixed("false", "pods keep their address towards pods")),
        ("metrics-bind-address", Value),
        ("metrics-port", Value),
        ("nodeport-addresses", List),
        ("oom-score-adj", NoEffect("the service file sets that of the process")),
        ("profiling", NoEffect("there is no profiling endpoint")),
        ("proxy-mode", Value),
        ("show-hidden-metrics-for-version", NoEffect("the proxy has no hidden metrics")),
        ("v", NoEffect("use -v or --debug of kube-lite")),
    ],
};
