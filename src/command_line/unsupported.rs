//! Flags of k3s that kube-lite does not support, each with the reason or an alternative. They are
//! refused on the command line, in the configuration file and in environment variables.

/// The name of each flag without dashes, and the text that follows `… is not supported: `.
pub(super) const FLAGS: &[(&str, &str)] = &[
    ("docker", "use --container-runtime-endpoint with cri-dockerd"),
    ("rootless", "a node needs root; a server with --disable-agent does not"),
    ("vpn-auth", "VPN integration is not implemented"),
    ("vpn-auth-file", "VPN integration is not implemented"),
    (
        "apiserver-bind-address",
        "one listener serves the API and the join protocol; use --bind-address",
    ),
    ("apiserver-port", "one port serves the API and the join protocol; use --https-listen-port"),
    ("disable-apiserver", "a server always serves the API; roles of servers cannot be split"),
    ("disable-etcd", "a server always has the store; use --datastore-endpoint for an external one"),
    ("enable-pprof", "kube-lite has no Go runtime to profile; use `perf record -p PID`"),
    ("helm-controller-arg", "the Helm controller of the server has no arguments"),
    ("log", "kube-lite logs to standard error; redirect it, or read `journalctl -u kube-lite`"),
    ("supervisor-port", "one port serves the API and the join protocol; use --https-listen-port"),
];

/// Flags of k3s without a counterpart here that take no value.
pub(super) const BOOLEANS: &[&str] = &[
    "alsologtostderr",
    "disable-apiserver",
    "disable-apiserver-lb",
    "disable-etcd",
    "disable-selinux",
    "docker",
    "enable-pprof",
    "flannel-ipv6-masq",
    "kine-tls",
    "prefer-bundled-bin",
    "rootless",
    "secrets-encryption",
    "tls-san-security",
];

/// The reason why a flag is not supported; `None` for all other flags.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(unsupported, _)| *unsupported == name).map(|(_, reason)| *reason)
}
