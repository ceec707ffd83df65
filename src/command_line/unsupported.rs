//! Flags of k3s that kube-lite does not support, each with the reason or an alternative. They are
//! refused on the command line, in the configuration file and in environment variables.

/// The name of each flag without dashes, and the text that follows `… is not supported: `.
pub(super) const FLAGS: &[(&str, &str)] = &[
    ("disable-cloud-controller", "there is no cloud controller to disable"),
    ("disable-helm-controller", "there is no Helm controller to disable"),
    ("docker", "use --container-runtime-endpoint with cri-dockerd"),
    ("egress-selector-mode", "the server always reaches agents through their tunnels"),
    ("embedded-registry", "kube-lite has no embedded registry"),
    (
        "etcd-arg",
        "the store is not an etcd process; see the flags etcd-* in `kube-lite server --help`",
    ),
    (
        "etcd-snapshot-reconcile-interval",
        "the snapshot directory is read directly, there is nothing to reconcile",
    ),
    (
        "etcd-s3-config-secret",
        "use the flags etcd-s3-*, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    ("etcd-s3-proxy", "proxies for S3 are not supported"),
    ("flannel-conf", "the overlay has no configuration file; use --flannel-backend"),
    ("flannel-cni-conf", "the CNI configuration is built in"),
    ("flannel-external-ip", "external addresses are not implemented"),
    ("flannel-ipv6-masq", "pod traffic to outside the cluster is always masqueraded"),
    ("kine-tls", "kube-lite does not use kine"),
    ("kube-controller-manager-arg", "kube-lite has no separate kube-controller-manager"),
    ("kube-scheduler-arg", "kube-lite has no separate kube-scheduler"),
    (
        "kubelet-arg",
        "kube-lite has no separate kubelet; see the section Node of `kube-lite server --help`",
    ),
    ("kube-proxy-arg", "kube-lite has no separate kube-proxy"),
    ("node-external-ip", "external addresses are not implemented"),
    ("pause-image", "the pause image is built in"),
    ("rootless", "a node needs root; a server with --disable-agent does not"),
    (
        "secrets-encryption",
        "Secrets are always encrypted at rest; `kube-lite secrets-encrypt disable` turns it off",
    ),
    (
        "secrets-encryption-provider",
        "the default is AES-GCM; use --kube-apiserver-arg=encryption-provider-config=FILE for another",
    ),
    ("selinux", "SELinux labels are not implemented"),
    ("snapshotter", "kube-lite always uses containerd's overlayfs snapshotter"),
    ("system-default-registry", "a default registry is not implemented"),
    ("vpn-auth", "VPN integration is not implemented"),
    ("vpn-auth-file", "VPN integration is not implemented"),
    ("with-node-id", "kube-lite appends no id to the node name; use --node-name"),
    ("write-kubeconfig-group", "use --write-kubeconfig-mode and chgrp"),
];

/// The reason why a flag is not supported; `None` for all other flags. `flag` may have dashes and a
/// value.
pub(super) fn reason(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
    FLAGS.iter().find(|(unsupported, _)| *unsupported == name).map(|(_, reason)| *reason)
}
