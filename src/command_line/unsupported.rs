//! k3s flags that are known and refused by name, with what stands in.

/// Flag without dashes, and what to tell.
pub(super) const FLAGS: &[(&str, &str)] = &[
    ("disable-cloud-controller", "there is no cloud controller to disable"),
    ("disable-helm-controller", "there is no Helm controller to disable"),
    ("docker", "use --container-runtime-endpoint with cri-dockerd"),
    ("egress-selector-mode", "the server always reaches agents through their tunnels"),
    ("embedded-registry", "the embedded registry is not there yet"),
    ("etcd-arg", "the store is no etcd process"),
    (
        "etcd-snapshot-reconcile-interval",
        "snapshots are what lies in their folder, nothing is kept beside",
    ),
    (
        "etcd-s3-config-secret",
        "keys of a bucket are given by flags, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    ("etcd-s3-proxy", "the bucket is reached without a proxy"),
    ("flannel-conf", "the overlay has no configuration file; use --flannel-backend"),
    ("flannel-cni-conf", "the CNI configuration is built in"),
    ("flannel-external-ip", "external addresses are not there yet"),
    ("flannel-ipv6-masq", "packets of pods to the outside are always masqueraded"),
    ("kine-tls", "there is no kine in between"),
    ("kube-controller-manager-arg", "the controllers are no process of their own"),
    ("kube-scheduler-arg", "the scheduler is no process of its own"),
    ("kubelet-arg", "the node agent is no process of its own"),
    ("kube-proxy-arg", "the service proxy is no process of its own"),
    ("node-external-ip", "external addresses are not there yet"),
    ("pause-image", "the pause image is built in"),
    ("rootless", "running a node without root is not there yet; --disable-agent needs no root"),
    (
        "secrets-encryption",
        "secrets are encrypted at rest unless `kube-lite secrets-encrypt disable` says otherwise",
    ),
    (
        "secrets-encryption-provider",
        "use --kube-apiserver-arg=encryption-provider-config=FILE for another than AES-GCM",
    ),
    ("selinux", "SELinux labels are not there yet"),
    ("snapshotter", "containerd's overlayfs snapshotter is used"),
    ("system-default-registry", "a default registry is not there yet"),
    ("vpn-auth", "VPN integration is not there yet"),
    ("vpn-auth-file", "VPN integration is not there yet"),
    ("with-node-id", "use --node-name"),
    ("write-kubeconfig-group", "use --write-kubeconfig-mode and chgrp"),
];

/// What to tell about a flag, with or without its dashes and value.
pub(super) fn reason(flag: &str) -> Option<&'static str> {
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
    FLAGS.iter().find(|(known, _)| *known == name).map(|(_, why)| *why)
}
