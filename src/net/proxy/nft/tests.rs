//! The table in a kernel: replaced, changed and emptied.

use super::*;
use crate::proxy::rules::{Groups, plan};
use crate::proxy::services::{Endpoint, Port};
use crate::testing::{in_namespace, privileged, shell};
use std::collections::BTreeMap;
use std::sync::Arc;

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        port: 8080,
        ready: true,
        serving: true,
        terminating: false,
        local: true,
        zones: Vec::new(),
        nodes: Vec::new(),
    }
}

fn port(seconds: u32) -> Port {
    let list = |a: &[&str]| a.iter().map(|a| a.parse().unwrap()).collect();
    Port {
        name: "n/s:".into(),
        port_name: String::new(),
        protocol: 6,
        number: 80,
        node_port: 30080,
        cluster_ips: list(&["10.43.0.9", "fd00:43::9"]),
        external_ips: list(&["192.0.2.1"]),
        load_balancer_ips: list(&["192.0.2.7", "2001:db8::7"]),
        balanced_by_nodes: false,
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "10.1.0.0/16".parse().unwrap()],
        affinity_seconds: seconds,
        external_local: seconds > 0,
        internal_local: false,
    }
}

fn layout(family: Family) -> Layout {
    let (cluster, service) = match family {
        Family::V4 => ("10.42.0.0/16", "10.43.0.0/16"),
        Family::V6 => ("fd00:42::/56", "fd00:43::/112"),
    };
    Layout {
        tunnel: Some(8472),
        family,
        table: "kl".into(),
        bridge: "br0".into(),
        cluster: vec![cluster.parse().unwrap()],
        service: vec![service.parse().unwrap()],
        localhost: true,
    }
}

/// Commands with which an administrator lists the rules; nft 1.0.6 used to abort on them.
const LIST: &str = "nft list tables; nft list ruleset";

#[test]
fn every_transition_is_taken_by_the_kernel() {
    if !privileged("every_transition_is_taken_by_the_kernel") {
        return;
    }
    in_namespace(|| {
        for family in Family::ALL {
            let layout = layout(family);
            let pods: &[&str] = match family {
                Family::V4 => &["10.42.0.2", "10.42.0.3", "10.42.0.4"],
                Family::V6 => &["fd00:42::2", "fd00:42::3", "fd00:42::4"],
            };
            let mut socket = Socket::netfilter().unwrap();
            let mut state = State::default();
            let mut groups = Groups::default();
            let node_context = NodeContext {
                node: "me".into(),
                own_ips: vec!["10.43.0.10".parse().unwrap()],
                ..NodeContext::default()
            };
            layout.replace(&mut socket, &state, &node_context).unwrap();
            for seconds in [0, 10_800, 60] {
                for count in [0, 1, 3, 2, 0] {
                    let list: Vec<Endpoint> = pods[..count].iter().map(|a| endpoint(a)).collect();
                    let all = BTreeMap::from([((String::new(), 6), list)]);
                    let wanted = plan(&mut groups, &[port(seconds)], &all, &node_context, family);
                    state.replace("n/s", wanted);
                    let difference = state.take_difference();
                    layout.apply(&mut socket, &state, &difference).unwrap();
                    let incremental = shell(LIST);
                    layout.replace(&mut socket, &state, &node_context).unwrap();
                    let sorted = |text: &str| {
                        let mut lines: Vec<String> = text
                            .replace("elements = { ", "\n")
                            .split([',', '\n'])
                            .map(|l| l.trim().trim_end_matches(" }").to_owned())
                            .collect();
                        lines.sort();
                        lines
                    };
                    assert_eq!(sorted(&incremental), sorted(&shell(LIST)));
                }
            }
            state.replace("n/s", crate::proxy::rules::DesiredElements::default());
            let difference = state.take_difference();
            layout.apply(&mut socket, &state, &difference).unwrap();
            remove(&mut socket, family, "kl").unwrap();
        }
        assert_eq!(shell("nft list ruleset"), "");
    });
}

/// One service of five endpoints, by number.
fn numbered(index: u16, endpoints: std::ops::Range<u8>) -> (Port, Vec<Endpoint>) {
    let [high, low] = index.to_be_bytes();
    let port = Port {
        name: format!("n/s{index}:"),
        node_port: 0,
        cluster_ips: vec![[10, 43, high, low].into()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        balanced_by_nodes: false,
        source_ranges: Vec::new(),
        ..port(0)
    };
    let (block, net) = (128 + index / 250, index % 250);
    let at = |n: u8| endpoint(&format!("10.{block}.{net}.{n}"));
    (port, endpoints.map(at).collect())
}

fn a_change_costs_what_it_changes(services: u16) {
    let layout = layout(Family::V4);
    let mut socket = Socket::netfilter().unwrap();
    let (mut state, mut groups) = (State::default(), Groups::default());
    let node_context = NodeContext::default();
    let set = |state: &mut State, groups: &mut Groups, index, endpoints| {
        let (port, list) = numbered(index, endpoints);
        let all = BTreeMap::from([((String::new(), 6), list)]);
        let wanted = plan(groups, &[port], &all, &node_context, Family::V4);
        state.replace(&format!("n/s{index}"), wanted.clone());
        wanted
    };
    let begin = std::time::Instant::now();
    for index in 0..services {
        set(&mut state, &mut groups, index, 1..6);
    }
    let planned = begin.elapsed();
    layout.replace(&mut socket, &state, &node_context).unwrap();
    let _ = state.take_difference();
    let whole = begin.elapsed() - planned;
    let mut took = Vec::new();
    for index in (services - 50)..services {
        let mut before = set(&mut state, &mut groups, index, 1..6);
        // An endpoint goes and another comes, then one goes for good.
        for endpoints in [2..7, 2..6] {
            let begin = std::time::Instant::now();
            let after = set(&mut state, &mut groups, index, endpoints);
            let difference = state.take_difference();
            layout.apply(&mut socket, &state, &difference).unwrap();
            took.push(begin.elapsed());
            assert!(!difference.add.is_empty() && difference.new_sets.len() <= 1);
            for (changed, all) in [(&difference.delete, &before), (&difference.add, &after)] {
                for (name, elements) in changed {
                    for element in elements {
                        assert!(
                            all.elements.contains(&(*name, Arc::clone(element))),
                            "{name:?} {element:?} is not of service {index}"
                        );
                    }
                }
            }
            before = after;
        }
    }
    took.sort();
    #[expect(clippy::print_stderr, reason = "a measurement, seen with --nocapture")]
    {
        eprintln!(
            "{services} services, {} endpoints: planned in {planned:?}, table made in {whole:?}, a change {:?} (median), {:?} (slowest of {})",
            u32::from(services) * 5,
            took[took.len() / 2],
            took[took.len() - 1],
            took.len()
        );
    }
    remove(&mut socket, Family::V4, "kl").unwrap();
}

#[test]
fn a_change_among_a_thousand_services_costs_what_it_changes() {
    if privileged("a_change_among_a_thousand_services_costs_what_it_changes") {
        in_namespace(|| a_change_costs_what_it_changes(1000));
    }
}

#[test]
fn a_change_among_thirty_thousand_services_costs_what_it_changes() {
    if privileged("a_change_among_thirty_thousand_services_costs_what_it_changes") {
        in_namespace(|| a_change_costs_what_it_changes(30_000));
    }
}

/// The first full plan must not compare every Service with every other one.
#[test]
fn thirty_thousand_udp_services_and_headless_ones_are_planned_in_linear_time() {
    let (mut state, mut groups) = (State::default(), Groups::default());
    let begin = std::time::Instant::now();
    for index in 0..30_000 {
        let (port, list) = numbered(index, 1..2);
        let port = Port { protocol: 17, ..port };
        let all = BTreeMap::from([((String::new(), 17), list)]);
        let wanted = plan(&mut groups, &[port], &all, &NodeContext::default(), Family::V4);
        state.replace(&format!("n/s{index}"), wanted);
        groups.release(&format!("n/headless{index}"));
    }
    assert_eq!(state.take_difference().udp.len(), 30_000);
    let took = begin.elapsed();
    assert!(took < std::time::Duration::from_secs(30), "quadratic: {took:?}");
}
