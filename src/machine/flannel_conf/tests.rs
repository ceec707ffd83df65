//! Which network configurations of flannel are acted on, and which fields are refused.

use super::*;

fn parse(text: &str) -> Result<FlannelConf, String> {
    FlannelConf::parse(Path::new("/net-conf.json"), text).map_err(|e| e.to_string())
}

fn cluster(cidrs: &[&str]) -> ClusterSettings {
    let cluster_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    ClusterSettings { cluster_cidrs, ..ClusterSettings::default() }
}

/// What k3s writes for a dual-stack cluster (pkg/agent/flannel/setup.go).
const OF_K3S: &str = r#"{"Network": "10.42.0.0/16", "EnableIPv6": true, "EnableIPv4": true,
    "IPv6Network": "fd00:42::/56",
    "Backend": {"Type": "wireguard", "PersistentKeepaliveInterval": 25}}"#;

#[test]
fn the_file_that_k3s_writes_is_acted_on() {
    let conf = parse(OF_K3S).unwrap();
    assert_eq!(conf.backend, Backend::WireGuard);
    assert_eq!(conf.overlay.wireguard_keepalive, Some(25));
    let both = cluster(&["10.42.0.0/16", "fd00:42::/56"]);
    assert!(conf.check(&both, None).is_ok());
    // k3s's file for IPv4 alone.
    let four = r#"{"Network": "10.42.0.0/16", "EnableIPv6": false, "EnableIPv4": true,
        "IPv6Network": "::/0", "Backend": {"Type": "vxlan"}}"#;
    let conf = parse(four).unwrap();
    assert!(conf.check(&cluster(&["10.42.0.0/16"]), None).is_ok());
    assert_eq!((conf.backend, conf.overlay.is_default()), (Backend::Vxlan, true));
}

#[test]
fn options_of_the_backends_set_the_links() {
    let of = |backend: &str| {
        let conf = parse(&format!(r#"{{"Backend": {backend}}}"#)).unwrap();
        (conf.backend, conf.overlay)
    };
    let default = OverlaySettings::default;
    let vxlan = OverlaySettings { vni: 42, vxlan_port: 4789, link_mtu: Some(1400), ..default() };
    let text = r#"{"Type": "vxlan", "VNI": 42, "port": 4789, "MTU": 1400, "GBP": false}"#;
    assert_eq!(of(text), (Backend::Vxlan, vxlan), "Go matches names in any case");
    assert_eq!(
        of(r#"{"Type": "vxlan", "DirectRouting": true, "Port": 0}"#),
        (Backend::Auto, default())
    );
    let wireguard = OverlaySettings {
        wireguard_port_v4: 7000,
        wireguard_port_v6: 7001,
        wireguard_keepalive: Some(0),
        ..default()
    };
    let text = r#"{"Type": "wireguard", "ListenPort": 7000, "ListenPortV6": 7001,
        "PersistentKeepaliveInterval": 0, "Mode": "separate", "PSK": ""}"#;
    assert_eq!(of(text), (Backend::WireGuard, wireguard));
    assert_eq!(of(r#"{"Type": "host-gw"}"#), (Backend::HostGateway, default()));
    assert_eq!(of(r#"{"Type": "none"}"#), (Backend::None, default()));
}

#[test]
fn what_is_not_acted_on_is_refused_by_name() {
    for (text, why) in [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "Backend must be an object with the field Type"),
        (r#"{"Backend": {"Type": "udp"}}"#, "Backend.Type must be vxlan, host-gw, wireguard or"),
        (r#"{"Backend": {"Type": "vxlan", "VNI": 0}}"#, "Backend.VNI must be a number from 1 to"),
        (r#"{"Backend": {"Type": "vxlan", "VNI": "1"}}"#, "Backend.VNI must be a number from 1"),
        (r#"{"Backend": {"Type": "vxlan", "Port": 70000}}"#, "Backend.Port must be a number"),
        (r#"{"Backend": {"Type": "vxlan", "MTU": 900}}"#, "Backend.MTU must be a number from 1280"),
        (r#"{"Backend": {"Type": "vxlan", "GBP": true}}"#, "Backend.GBP is not supported"),
        (
            r#"{"Backend": {"Type": "vxlan", "Learning": true}}"#,
            "Backend.Learning is not supported",
        ),
        (r#"{"Backend": {"Type": "vxlan", "Mac": "x"}}"#, "Backend.Mac is not supported"),
        (r#"{"Backend": {"Type": "host-gw", "MTU": 1400}}"#, "Backend.MTU is not supported"),
        (r#"{"Backend": {"Type": "wireguard", "PSK": "x"}}"#, "Backend.PSK is not supported"),
        (r#"{"Backend": {"Type": "wireguard", "Mode": "auto"}}"#, "Backend.Mode is not supported"),
        (
            r#"{"Backend": {"Type": "wireguard", "ListenPort": 51821}}"#,
            "Backend.ListenPortV6 must be another port",
        ),
        (
            r#"{"SubnetMin": "10.42.1.0", "Backend": {"Type": "vxlan"}}"#,
            "SubnetMin is not supported",
        ),
        (r#"{"Netwrok": "x", "Backend": {"Type": "vxlan"}}"#, "Netwrok is not supported"),
        (r#"{"Network": "x", "Backend": {"Type": "vxlan"}}"#, "Network must be a range"),
        (r#"{"EnableIPv6": 1, "Backend": {"Type": "vxlan"}}"#, "EnableIPv6 must be true or false"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_file_that_differs_from_the_cluster_is_refused() {
    let check = |fields: &str, cidrs: &[&str], masks: Option<(u8, u8)>| {
        let conf = parse(&format!(r#"{{{fields} "Backend": {{"Type": "vxlan", "VNI": 10000}}}}"#));
        conf.unwrap().check(&cluster(cidrs), masks).map_err(|error| error.details)
    };
    let four = &["10.42.0.0/16"][..];
    assert_eq!(check(r#""SubnetLen": 24,"#, four, None), Ok(()));
    assert_eq!(check(r#""SubnetLen": 25,"#, four, Some((25, 64))), Ok(()));
    for (fields, cidrs, why) in [
        (r#""Network": "10.244.0.0/16","#, four, "--cluster-cidr of the servers is 10.42.0.0/16"),
        (r#""EnableIPv6": true,"#, four, "EnableIPv6 is true, but --cluster-cidr has no IPv6"),
        ("", &["10.42.0.0/16", "fd00:42::/56"], "EnableIPv6 is false, but --cluster-cidr has IPv6"),
        (r#""EnableIPv4": false,"#, four, "EnableIPv4 is false, but --cluster-cidr has IPv4"),
        (r#""SubnetLen": 26,"#, four, "SubnetLen is 26, but the ranges of nodes have 24 bits"),
        (
            r#""EnableIPv6": true,"#,
            &["10.42.0.0/16", "fd00:42::/56"],
            "Backend.VNI is 10000, but the name of the link has room for numbers up to 9999",
        ),
    ] {
        let error = check(fields, cidrs, None).unwrap_err();
        assert!(error.starts_with("--flannel-conf=/net-conf.json: "), "{error}");
        assert!(error.contains(why), "{fields}: {error}");
    }
}

#[test]
fn the_file_is_read_to_a_limit_and_a_missing_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net-conf.json");
    let load = |path: &Path| FlannelConf::load(path).map_err(|error| error.details);
    assert!(load(&path).unwrap_err().contains("net-conf.json: cannot read the file: No such file"));
    std::fs::write(&path, " ".repeat(70_000)).unwrap();
    assert!(load(&path).unwrap_err().contains("more than 65536 bytes"));
    std::fs::write(&path, OF_K3S).unwrap();
    assert_eq!(load(&path).unwrap().backend, Backend::WireGuard);
}
