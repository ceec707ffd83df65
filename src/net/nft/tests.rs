//! What the encoder sends is what `nft` reads back from the kernel.

use super::expr::Verdict;
use super::set::{Field, Value};
use super::*;
use crate::testing::{in_namespace, privileged, shell};
use serde_json::{Value as Json, json};
use settings::addr::Cidr;

fn listed(family: Family, fill: impl FnOnce(&mut Batch) + Send + 'static) -> Vec<Json> {
    in_namespace(move || {
        let mut batch = Batch::new(family, "t");
        batch.add_table();
        fill(&mut batch);
        batch.commit(&mut Socket::netfilter().unwrap()).unwrap();
        let json: Json = serde_json::from_str(&shell("nft -j list ruleset")).unwrap();
        let list = json["nftables"].as_array().unwrap().iter();
        let mut out: Vec<Json> = list
            .filter(|o| o.get("metainfo").is_none() && o.get("table").is_none())
            .cloned()
            .collect();
        for object in &mut out {
            for (_, body) in object.as_object_mut().unwrap() {
                body.as_object_mut().unwrap().remove("handle");
            }
        }
        out
    })
}

#[test]
fn maps_sets_and_intervals_read_back() {
    if !privileged("maps_sets_and_intervals_read_back") {
        return;
    }
    let got = listed(Family::V4, |batch| {
        let a = Field::Address(Family::V4);
        batch.add_set(&Set::map("m", &[a, Field::Protocol, Field::Port], &[a, Field::Port]));
        let key = Value::default().address([10, 43, 0, 1].into()).protocol(6).port(443).0;
        let data = Value::default().address([10, 42, 0, 2].into()).port(6443).0;
        batch.add_elements("m", &[Element::pair(key, data)]);
        batch.add_set(&Set::of("i", &[Field::Port, a]).interval());
        let with = |last| Value::default().port(80).address([10, 0, 0, last].into()).0;
        let element = Element { end: Some(with(9)), ..Element::key(with(3)) };
        batch.add_elements("i", &[element]);
    });
    let head = |name, kind: Json| json!({"family":"ip","name":name,"table":"t","type":kind});
    let mut map = head("m", json!(["ipv4_addr", "inet_proto", "inet_service"]));
    map["map"] = json!("ipv4_addr . inet_service");
    map["elem"] = json!([[{"concat":["10.43.0.1","tcp",443]},{"concat":["10.42.0.2",6443]}]]);
    let mut set = head("i", json!(["inet_service", "ipv4_addr"]));
    set["flags"] = json!(["interval"]);
    set["elem"] = json!([{"concat":[80,{"range":["10.0.0.3","10.0.0.9"]}]}]);
    assert_eq!(got, [json!({"map":map}), json!({"set":set})]);
}

#[test]
fn chains_and_rules_read_back() {
    if !privileged("chains_and_rules_read_back") {
        return;
    }
    let got = listed(Family::V6, |batch| {
        batch.add_chain("c", Some(Hook { kind: "nat", number: 4, priority: 100 }));
        batch.add_chain("d", None);
        batch.add_chain("e", None);
        let block: Cidr = "fd00::/48".parse().unwrap();
        let rule = Rule::new().source(0, Family::V6).within(0, &block, true).masquerade();
        batch.add_rule("c", &rule);
        batch.add_rule("c", &Rule::new().take_mark(1 << 14).masquerade());
        batch.add_rule("d", &Rule::new().new_connection().fib_local(2).reject(Family::V6));
        batch.add_rule("d", &Rule::new().interface(6, "br0").verdict(Verdict::Drop));
        batch.add_rule("c", &Rule::new().verdict(Verdict::Jump("e")));
    });
    let rules = |chain: &str| -> Vec<Json> {
        let of = |o: &&Json| o["rule"]["chain"] == chain;
        got.iter().filter(of).map(|o| o["rule"]["expr"].clone()).collect()
    };
    assert_eq!(
        got[0],
        json!({"chain":{"family":"ip6","table":"t","name":"c","type":"nat","hook":"postrouting",
            "prio":100,"policy":"accept"}})
    );
    let payload = json!({"payload":{"protocol":"ip6","field":"saddr"}});
    let random = json!({"masquerade":{"flags":"fully-random"}});
    let mark = json!({"meta":{"key":"mark"}});
    assert_eq!(
        rules("c"),
        [
            json!([{"match":{"op":"==","left":payload,"right":{"prefix":{"addr":"fd00::","len":48}}}},random]),
            json!([{"match":{"op":"!=","left":{"&":[mark,0x4000]},"right":0}},
                {"mangle":{"key":mark,"value":{"&":[mark,0xffff_bfff_u32]}}},random]),
            json!([{"jump":{"target":"e"}}]),
        ]
    );
    assert_eq!(
        rules("d"),
        [
            json!([{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"new"}},
                {"match":{"op":"==","left":{"fib":{"result":"type","flags":["daddr"]}},"right":"local"}},
                {"reject":{"type":"icmpv6","expr":"port-unreachable"}}]),
            json!([{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"br0"}},{"drop":null}]),
        ]
    );
}

#[test]
fn a_refused_message_is_named_and_nothing_is_applied() {
    if !privileged("a_refused_message_is_named_and_nothing_is_applied") {
        return;
    }
    in_namespace(|| {
        let mut batch = Batch::new(Family::V4, "t");
        batch.add_table();
        batch.add_chain("c", None);
        batch.add_rule("c", &Rule::new().verdict(Verdict::Jump("missing")));
        batch.add_chain("e", None);
        let error = batch.commit(&mut Socket::netfilter().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("nftables refused rule in chain c in table t"), "{error}");
        assert_eq!(shell("nft list ruleset"), "");
    });
}
