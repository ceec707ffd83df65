//! Tests of the configuration that results from flags of `kube-lite server`, and of the errors of
//! invalid and contradictory flags.

use super::*;
use crate::command_line::{Cli, Command, parse};

/// The configuration of `kube-lite server` with these flags, without a configuration file and
/// environment variables, or the first line of the error.
pub(super) fn config(flags: &[&str]) -> Result<Config, String> {
    let argv =
        ["kube-lite", "server", "--config=/dev/null"].iter().chain(flags).map(Into::into).collect();
    let Ok(Cli { command: Command::Server(args) }) = parse(argv, |_| None) else {
        return Err("does not parse".into());
    };
    let locations = Locations { data: "/d".into(), config: "/c".into(), path: String::new() };
    Config::new(*args, &locations)
        .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[test]
fn defaults_are_those_of_k3s() {
    let config = config(&["--node-ip=10.0.0.5"]).unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:6443");
    assert_eq!(config.cluster.cluster_dns, ["10.43.0.10".parse::<IpAddr>().unwrap()]);
    assert_eq!(
        (config.advertise.to_string(), config.node_ports),
        ("10.0.0.5".into(), (30000, 32767))
    );
    assert_eq!(config.kubeconfig, ("/c/kube-lite.yaml".into(), 0o600));
}

#[test]
fn the_external_address_and_the_advertised_port_are_where_nodes_connect() {
    let external = "--node-external-ip=2001:db8::5,203.0.113.5";
    let of = |flags: &[&str]| {
        let config = config(&[&["--node-ip=10.0.0.5"][..], flags].concat()).unwrap();
        let settings = config.settings_for_nodes(6443);
        (settings.servers.join(" "), config.peer_address.to_string(), settings.listen_port)
    };
    let found = |server: &str, peer: &str, listen| (server.into(), peer.into(), listen);
    assert_eq!(of(&[]), found("10.0.0.5:6443", "10.0.0.5", None));
    assert_eq!(of(&[external]), found("203.0.113.5:6443", "10.0.0.5", None));
    let advertise = "--advertise-address=10.0.0.6";
    assert_eq!(of(&[external, advertise]), found("10.0.0.6:6443", "10.0.0.6", None));
    let port = of(&[external, "--advertise-port=443"]);
    assert_eq!(port, found("203.0.113.5:443", "10.0.0.5", Some(6443)));
    let six = of(&["--node-external-ip=2001:db8::5"]);
    assert_eq!(six, found("10.0.0.5:6443", "10.0.0.5", None), "Services have IPv4 addresses");
    assert_eq!(of(&["--advertise-port=0"]), found("10.0.0.5:6443", "10.0.0.5", None));
    assert!(config(&["--flannel-external-ip"]).unwrap().cluster.external_overlay);
}

#[test]
fn a_node_with_ipv6_listens_in_both_families() {
    let listen = |flags: &[&str]| config(flags).unwrap().listen.to_string();
    assert_eq!(listen(&["--node-ip=10.0.0.5,2001:db8::5"]), "[::]:6443");
    assert_eq!(listen(&["--node-ip=2001:db8::5", "--bind-address=127.0.0.1"]), "127.0.0.1:6443");
}

#[test]
fn disabled_components_do_not_run() {
    let config =
        config(&["--disable=gateway-api-crd,local-storage", "--disable=servicelb"]).unwrap();
    assert!(
        config.disabled_controllers
            == [
                "bootstrap-signer-controller",
                "service-lb-controller",
                "local-driver",
                "local-path-provisioner"
            ]
            && config.cluster.no_service_lb
            && !config.cluster.cluster_dns.is_empty()
            && config.disabled.contains("gateway-api-crd")
    );
}

#[test]
fn the_ingress_is_disabled_by_its_name_and_by_that_of_k3s() {
    for (flags, is_on) in
        [(&[][..], true), (&["--disable=traefik"], false), (&["--disable=ingress"], false)]
    {
        let config = config(flags).unwrap();
        assert_eq!(config.cluster.ingress, is_on, "{flags:?}");
        assert_eq!(!config.disabled.contains("ingress"), is_on, "{flags:?}");
    }
}

#[test]
fn invalid_node_names_are_rejected_with_the_reason() {
    let too_long = format!("--node-name={}", "a".repeat(64));
    for (flag, reason) in [
        (too_long.as_str(), "must be no more than 63 characters"),
        ("--node-name=A", "must be lower-case letters, digits, '-' and '.'"),
        ("--node-name=a-.b", "each part between dots must start and end with a letter or digit"),
    ] {
        assert_eq!(config(&[flag]).unwrap_err(), format!("error[KL0104]: {flag}: {reason}"));
    }
    assert!(config(&[&format!("--node-name={}", "a".repeat(63))]).is_ok());
}

/// Asserts that each set of flags is rejected with an error that has this first line.
fn check_errors(cases: &[(&[&str], &str)]) {
    for (flags, expected) in cases {
        assert_eq!(config(flags).unwrap_err(), *expected);
    }
}

#[test]
fn errors_of_address_ranges_name_the_flag() {
    check_errors(&[
        (
            &["--service-cidr=10.42.3.0/24"],
            "error[KL0104]: --service-cidr=10.42.3.0/24: overlaps with --cluster-cidr=10.42.0.0/16",
        ),
        (
            &["--service-cidr=10.43.0.1/16"],
            "error[KL0104]: --service-cidr=10.43.0.1/16: has host bits set, use 10.43.0.0/16",
        ),
        (
            &["--service-cidr=10.43.0.0/33"],
            "error[KL0104]: --service-cidr=10.43.0.0/33: \"10.43.0.0/33\" is not an address block such as 10.42.0.0/16",
        ),
        (
            &["--cluster-dns=1.1.1.1"],
            "error[KL0104]: --cluster-dns=1.1.1.1: must lie in --service-cidr",
        ),
        (
            &["--service-node-port-range=5"],
            "error[KL0104]: --service-node-port-range=5: must be FROM-TO, such as 30000-32767",
        ),
        (
            &["--service-cidr=10.1.0.0/16,10.2.0.0/16"],
            "error[KL0104]: --service-cidr=10.1.0.0/16,10.2.0.0/16: must be one range, or one per IP family",
        ),
    ]);
}

#[test]
fn errors_of_join_token_and_snapshot_flags_name_the_flag() {
    check_errors(&[
        (
            &["--token=short"],
            "error[KL0104]: --token: a secret needs at least 16 characters; `kube-lite token generate` makes one",
        ),
        (
            &["--server=https://a", "--cluster-init", "--token=abcdefghijklmnop"],
            "error[KL0104]: --server=https://a: contradicts --cluster-init: a server either joins a cluster or starts one",
        ),
        (
            &["--server=https://a"],
            "error[KL0104]: --server=https://a: needs --token or --token-file with the content of server/token of that server",
        ),
        (
            &["--server=https://a", "--token=abcdefghijklmnop"],
            "error[KL0422]: the token has no CA hash, and a joining server receives all keys of the cluster",
        ),
        (
            &["--etcd-snapshot-schedule-cron=often"],
            "error[KL0104]: --etcd-snapshot-schedule-cron=often: is not a cron schedule: expected exactly 5 fields, found 1: [often]",
        ),
        (
            &["--cluster-reset-restore-path=/x"],
            "error[KL0104]: invalid flag use; --cluster-reset required with --cluster-reset-restore-path",
        ),
    ]);
}

#[test]
fn errors_of_profile_node_and_component_flags_name_the_flag() {
    check_errors(&[
        (
            &["--profile=hardened", "--kube-apiserver-arg=anonymous-auth=true"],
            "error[KL0104]: --kube-apiserver-arg=anonymous-auth=true: contradicts --profile=hardened; list the anonymous paths in authentication-config=FILE",
        ),
        (
            &["--profile=hardened", "--kube-apiserver-arg=authorization-mode=Node,AlwaysAllow"],
            "error[KL0104]: --kube-apiserver-arg=authorization-mode=Node,AlwaysAllow: contradicts --profile=hardened; the default is Node,RBAC",
        ),
        (
            &["--node-name=A_b"],
            "error[KL0104]: --node-name=A_b: must be lower-case letters, digits, '-' and '.'",
        ),
        (
            &["--disable=traefic"],
            "error[KL0104]: --disable=traefic: unknown component; known components: coredns, gateway-api-crd, ingress, local-storage, metrics-server, runtimes, servicelb, traefik",
        ),
        (
            &["--enable=traefik"],
            "error[KL0104]: --enable=traefik: unknown component; known components: vertical-pod-autoscaler",
        ),
        (
            &["--enable=vertical-pod-autoscaler", "--disable=metrics-server"],
            "error[KL0104]: --enable=vertical-pod-autoscaler: needs the usage of pods, which --disable=metrics-server switches off; remove one of both flags",
        ),
        (
            &["--grouped-shims", "--container-runtime-endpoint=/run/c.sock"],
            "error[KL0104]: --grouped-shims=true: needs kube-lite's own containerd, but --container-runtime-endpoint names another runtime",
        ),
    ]);
}
