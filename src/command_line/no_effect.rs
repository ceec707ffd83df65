//! Flags and variables of k3s that kube-lite accepts although they change nothing here, each with
//! the reason. `kube-lite status` and one line of the log name those that a user sets.

/// The name of each flag without dashes, and the text that follows `--NAME: `.
pub(super) const FLAGS: &[(&str, &str)] = &[
    ("alsologtostderr", "kube-lite always logs to standard error"),
    ("vmodule", "kube-lite has no log levels per source file; -v=4 turns on debug logging"),
    ("disable-selinux", "containers get no SELinux labels unless --selinux is set"),
    (
        "disable-apiserver-lb",
        "an agent connects to servers directly, without a local load balancer",
    ),
    ("flannel-ipv6-masq", "pod traffic to outside the cluster is always masqueraded, IPv6 as well"),
    ("helm-job-image", "the server applies charts in its own process, no job runs"),
    ("lb-server-port", "an agent connects to servers directly, without a local load balancer"),
    (
        "etcd-snapshot-reconcile-interval",
        "ETCDSnapshotFile objects are written after each operation, not at intervals",
    ),
    ("kine-tls", "the store is part of the server, no socket of kine needs TLS"),
    ("servicelb-namespace", "the service load balancer runs no pods"),
    (
        "prefer-bundled-bin",
        "programs in the directory bin of the data directory are always preferred",
    ),
    (
        "egress-selector-mode",
        "the server reaches nodes and pods of agents through tunnels; disabled is refused",
    ),
    ("secrets-encryption", "Secrets are always encrypted at rest; false is refused"),
    (
        "secrets-encryption-provider",
        "Secrets are always encrypted, with AES-GCM; \
         --kube-apiserver-arg=encryption-provider-config=FILE chooses another cipher",
    ),
    (
        "tls-san-security",
        "the certificate contains configured names only, never those that clients use; \
         false is refused",
    ),
];

/// The values of flags of [`FLAGS`] that are what kube-lite does in any case; others are refused,
/// with the reason.
pub(super) const VALUES: &[(&str, &[&str], &str)] = &[
    (
        "egress-selector-mode",
        &["agent", "pod", "cluster"],
        "the server reaches agents through their tunnels; remove the flag",
    ),
    (
        "secrets-encryption",
        &["true"],
        "Secrets are always encrypted at rest; `kube-lite secrets-encrypt disable` turns it off",
    ),
    (
        "secrets-encryption-provider",
        &["aescbc", "secretbox"],
        "use --kube-apiserver-arg=encryption-provider-config=FILE",
    ),
    ("tls-san-security", &["true"], "add names with --tls-san"),
];

/// Variables that are no flags, and the text that follows `NAME: `.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("K3S_AGENT_HTTP_PROXY_ALLOWED", "agents connect to servers directly, never through a proxy"),
    ("KINE_SCHEMA_MIGRATION", "kube-lite adapts the schema of an external datastore by itself"),
    ("K3S_ROOTLESS_MTU", "kube-lite has no rootless mode"),
    ("K3S_ROOTLESS_CIDR", "kube-lite has no rootless mode"),
    ("K3S_ROOTLESS_ENABLE_IPV6", "kube-lite has no rootless mode"),
    ("K3S_ROOTLESS_PORT_DRIVER", "kube-lite has no rootless mode"),
    ("K3S_ROOTLESS_DISABLE_HOST_LOOPBACK", "kube-lite has no rootless mode"),
];

/// The reason why a flag changes nothing; `None` for all other flags.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(flag, _)| *flag == name).map(|(_, reason)| *reason)
}

/// The reason why a variable changes nothing; `None` for all other variables.
pub(super) fn variable_reason(name: &str) -> Option<&'static str> {
    VARIABLES.iter().find(|(variable, _)| *variable == name).map(|(_, reason)| *reason)
}
