//! Whole ConfigMaps.

use super::*;

fn compile(data: &[(&str, &str)]) -> Result<Rules, CorefileError> {
    let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    Rules::compile(&data)
}

#[test]
fn overrides_go_to_the_default_block_and_servers_are_their_own() {
    let rules = compile(&[
        ("a.override", "forward corp.test 192.0.2.1\nrewrite name a.test b.test\nlog\nerrors"),
        ("b.override", "hosts {\n 192.0.2.9 h.test\n fallthrough\n}\ncache 20"),
        (
            "c.server",
            "example.org:53 deep.example.org {\n forward . 192.0.2.2\n cache\n}\n10.1.0.0/16 {\n \
             forward . /etc/resolv.conf\n}",
        ),
        ("ignored", "}{"),
    ])
    .unwrap();
    let shown: Vec<_> = rules
        .blocks
        .iter()
        .map(|b| (b.zones.join(","), b.is_default, b.forwards.len(), b.cache.is_some(), b.logs))
        .collect();
    assert_eq!(
        shown,
        [
            (String::new(), true, 2, true, true),
            ("example.org,deep.example.org".to_owned(), false, 1, true, false),
            ("1.10.in-addr.arpa".to_owned(), false, 1, false, false),
        ]
    );
    assert_eq!(rules.notices, ["errors: failures of upstream servers are logged with --debug"]);
    for (name, want) in [
        ("example.org", 1),
        ("a.deep.example.org", 1),
        ("example.com", 0),
        ("web.default.svc.cluster.local", 0),
        ("7.0.1.10.in-addr.arpa", 2),
        ("7.0.2.10.in-addr.arpa", 0),
    ] {
        assert_eq!(rules.select(name), want, "{name}");
    }
    let forwards = &rules.blocks[0].forwards;
    let fitting: Vec<bool> = forwards.iter().map(|f| f.is_for("x.corp.test")).collect();
    assert_eq!(fitting, [true, true], "the imported plugin is before the node's servers");
    let default = compile(&[]).unwrap();
    assert_eq!((default.blocks.len(), default.blocks[0].forwards.len()), (1, 1));
}

#[test]
fn every_plugin_without_effect_is_reported_and_every_other_refused_by_name() {
    for name in ["errors", "health", "ready", "loop", "reload", "prometheus"] {
        let rules = compile(&[("a.override", name)]).unwrap();
        assert!(rules.notices[0].starts_with(&format!("{name}: ")), "{:?}", rules.notices);
    }
    // CoreDNS's plugin.cfg, without those that are supported.
    for name in [
        "root",
        "metadata",
        "geoip",
        "cancel",
        "tls",
        "timeouts",
        "multisocket",
        "nsid",
        "bufsize",
        "bind",
        "debug",
        "trace",
        "pprof",
        "dnstap",
        "local",
        "dns64",
        "acl",
        "any",
        "chaos",
        "tsig",
        "header",
        "dnssec",
        "autopath",
        "minimal",
        "transfer",
        "route53",
        "azure",
        "clouddns",
        "k8s_external",
        "kubernetes",
        "file",
        "auto",
        "secondary",
        "etcd",
        "grpc",
        "erratic",
        "whoami",
        "on",
        "sign",
        "view",
        "nomad",
        "import",
    ] {
        let error = compile(&[("a.override", &format!("log\n{name} x"))]).unwrap_err().to_string();
        let want = format!("a.override, line 2: the plugin {name} is not supported; supported are");
        assert!(error.starts_with(&want), "{error}");
    }
}

#[test]
fn invalid_configurations_are_refused_with_key_and_line() {
    for (key, text, want) in [
        ("a.server", ".:53 {\n log\n}", "line 1: cannot serve .:53: another server block"),
        ("a.server", "x.test {\n}\nX.Test {\n}", "line 3: cannot serve X.Test: another"),
        ("a.server", "x.test:5353 {\n}", "line 1: x.test:5353: port 5353 is not supported"),
        ("a.server", "tls://x.test {\n}", "line 1: tls:// is not supported"),
        ("a.server", "10.0.0.0/9 {\n}", "line 1: 10.0.0.0/9: the prefix length must be"),
        ("a.server", "(snippet) {\n}", "line 1: (snippet) is no zone"),
        ("a.override", "forward .", "line 1: forward: forward needs a zone and upstream"),
        ("a.override", "forward . dns.test", "line 1: forward: dns.test: an upstream is an IP"),
        ("a.override", "forward . https://1.1.1.1", "line 1: forward: https:// is not supported"),
        ("a.override", "forward . 1.1.1.1 {\n policy best\n}", "line 2: forward: unknown policy"),
        ("a.override", "forward . 1.1.1.1 {\n max_fails x\n}", "line 2: forward: max_fails: \"x\""),
        ("a.override", "forward . 1.1.1.1 {\n tls a b\n}", "line 2: forward: tls: certificates"),
        ("a.override", "forward . 1.1.1.1 {\n doh_method GET\n}", "line 2: forward: doh_method is"),
        ("a.override", "forward . tls://1.1.1.1%a..b", "line 1: forward: tls_servername is no"),
        (
            "a.override",
            "forward . tls://1.1.1.1%a {\n tls_servername b\n}",
            "line 1: forward: tls://1.1.1.1%a has a name, and tls_servername has another",
        ),
        ("a.override", "cache\ncache", "line 2: cache: this plugin can only be used once"),
        (
            "a.override",
            "hosts {\n}\nhosts {\n}",
            "line 3: hosts: this plugin can only be used once",
        ),
        ("a.override", "log . \"{remote}\"", "line 1: log: the format {remote} is not"),
        ("a.override", "log {\n class denial\n}", "line 2: log: class is not supported, except"),
        ("a.override", "loadbalance weighted f", "line 1: loadbalance: the only supported policy"),
        ("a.override", "prometheus :9999", "line 1: prometheus: metrics are served on port 9153"),
    ] {
        let error = compile(&[(key, text)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}, {want}")), "{error}, not {want}");
    }
}

#[test]
fn upstreams_have_addresses_ports_and_names() {
    use crate::dns::forward::To;
    let text = "forward . 192.0.2.1 192.0.2.2:5353 [fd00::1]:54 fd00::2 tls://192.0.2.3%dns.test \
                dns://192.0.2.4 /etc/resolv.conf {\n max_fails 0\n policy round_robin\n expire 10s\n}";
    let rules = compile(&[("a.override", text)]).unwrap();
    let shown = |to: &To| match to {
        To::NodeServers => "node".to_owned(),
        To::Server(s) => format!("{} {}", s.address, s.tls_name.as_deref().unwrap_or("-")),
    };
    let got: Vec<String> = rules.blocks[0].forwards[0].to.iter().map(shown).collect();
    assert_eq!(
        got,
        [
            "192.0.2.1:53 -",
            "192.0.2.2:5353 -",
            "[fd00::1]:54 -",
            "[fd00::2]:53 -",
            "192.0.2.3:853 dns.test",
            "192.0.2.4:53 -",
            "node",
        ]
    );
    assert_eq!(rules.notices, ["forward: expire: connections are not kept"]);
}

#[test]
fn blocks_of_addresses_have_reverse_zones() {
    for (block, want) in [
        ("10.0.0.0/8", Some("10.in-addr.arpa")),
        ("192.168.1.0/24", Some("1.168.192.in-addr.arpa")),
        ("fd00:10::/32", Some("0.1.0.0.0.0.d.f.ip6.arpa")),
        ("10.0.0.0/12", None),
    ] {
        assert_eq!(reverse_zone(block).unwrap().as_deref(), want, "{block}");
    }
    assert_eq!(reverse_zone("example.org"), None);
}
