//! The plugin's calls against real namespaces.

use super::*;
use crate::testing::{Pod, config, in_namespace, privileged, request, shell};

#[test]
fn add_is_idempotent_and_check_reports_differences() {
    if !privileged("add_is_idempotent_and_check_reports_differences") {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let (_keep, blocks) = watch::channel(config.pod_cidrs.clone());
        let (ports, _seen) = watch::channel(HostPorts::new());
        let server = Server::open(&config, blocks.clone(), ports.clone()).unwrap();
        let pod = Pod::new();
        let call = request("ADD", "one", &pod, serde_json::json!({}));
        let first = server.work(Command::Add, &call).unwrap();
        assert_eq!(first["ips"][0]["address"], "10.42.0.2/32");
        assert_eq!(first["ips"][1]["address"], "fd00:42::2/128");
        assert_eq!(server.work(Command::Add, &call).unwrap(), first);
        server.work(Command::Check, &call).unwrap();
        let mut wrong = request("CHECK", "one", &pod, serde_json::json!({}));
        wrong.config["prevResult"] = serde_json::json!({"ips": [{"address": "10.42.0.9/32"}]});
        let code = |r: Result<Value, Failure>| r.unwrap_err().code;
        assert_eq!(code(server.work(Command::Check, &wrong)), 7);
        wrong.config["prevResult"] = first.clone();
        server.work(Command::Check, &wrong).unwrap();
        let other_ports =
            serde_json::json!({"portMappings": [{"hostPort": 81, "containerPort": 80}]});
        assert_eq!(
            code(server.work(Command::Check, &request("CHECK", "one", &pod, other_ports))),
            7
        );
        assert_eq!(code(server.work(Command::Check, &request("CHECK", "x", &pod, Value::Null))), 3);
        pod.run(|| drop(shell("ip route del default")));
        assert_eq!(
            server.work(Command::Check, &call).unwrap_err().message,
            "eth0 has no default route of IPv4"
        );
        pod.run(|| drop(shell("ip addr del 10.42.0.2/32 dev eth0")));
        assert_eq!(
            server.work(Command::Check, &call).unwrap_err().message,
            "eth0 has not the address 10.42.0.2"
        );
        assert_eq!(server.work(Command::Add, &call).unwrap()["ips"], first["ips"], "repaired");
    });
}

#[test]
fn delete_is_idempotent_and_leases_of_lost_links_and_failed_calls_are_released() {
    if !privileged("delete_is_idempotent_and_leases_of_lost_links_and_failed_calls_are_released") {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let (_keep, blocks) = watch::channel(config.pod_cidrs.clone());
        let (ports, _seen) = watch::channel(HostPorts::new());
        let server = Server::open(&config, blocks.clone(), ports.clone()).unwrap();
        let pod = Pod::new();
        server.work(Command::Add, &request("ADD", "one", &pod, serde_json::json!({}))).unwrap();
        let code = |r: Result<Value, Failure>| r.unwrap_err().code;
        let other = Pod::new();
        let second = server
            .work(Command::Add, &request("ADD", "two", &other, serde_json::json!({})))
            .unwrap();
        assert_eq!(second["ips"][0]["address"], "10.42.0.3/32");
        for address in ["10.42.0.2:80", "[fd00:42::2]:80"] {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let _listener = pod.run(move || std::net::TcpListener::bind(address).unwrap());
            other.run(move || {
                std::net::TcpStream::connect_timeout(&address, READ_DEADLINE).unwrap()
            });
        }
        for _ in 0..2 {
            server
                .work(Command::Delete, &request("DEL", "one", &pod, serde_json::json!({})))
                .unwrap();
        }
        assert_eq!(server.ipam.lock().leases().count(), 1);
        drop(other);
        shell(&format!("ip link del {} 2>/dev/null || true", attach::host_link("two", "eth0")));
        let server = Server::open(&config, blocks, ports).unwrap();
        assert_eq!(server.ipam.lock().leases().count(), 0);
        let failed = request("ADD", "bad", &pod, serde_json::json!({"bandwidth":{"egressRate":1}}));
        assert_eq!(server.work(Command::Add, &failed).unwrap_err().code, 7);
        assert_eq!(server.ipam.lock().leases().count(), 0, "a failed ADD keeps no address");
        for name in ["kept", "leaked"] {
            let pod = Pod::new();
            let call = request("ADD", name, &pod, serde_json::json!({}));
            server.work(Command::Add, &call).unwrap();
        }
        let mut call = request("GC", "", &pod, Value::Null);
        assert_eq!(
            code(server.work(Command::Collect, &call)),
            7,
            "nothing said is not nothing valid"
        );
        call.config["cni.dev/valid-attachments"] =
            serde_json::json!([{"containerID": "kept", "ifname": "eth0"}]);
        server.work(Command::Collect, &call).unwrap();
        let left: Vec<String> = server.ipam.lock().leases().map(|l| l.container.clone()).collect();
        assert_eq!(left, ["kept"]);
    });
}

#[test]
fn the_loopback_plugin_sets_lo_up_and_checks_it() {
    if !privileged("the_loopback_plugin_sets_lo_up_and_checks_it") {
        return;
    }
    let pod = Pod::new();
    let call = |command: &str| attach::loopback(&request(command, "c", &pod, Value::Null)).failure;
    assert_eq!(call("CHECK").unwrap().message, "lo is missing or down");
    assert_eq!(call("ADD"), None);
    assert_eq!(call("CHECK"), None);
    assert_eq!(call("DEL"), None);
}

#[test]
fn a_pod_has_the_bandwidth_limits_of_the_request_until_its_link_is_gone() {
    if !privileged("a_pod_has_the_bandwidth_limits_of_the_request_until_its_link_is_gone") {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let (_keep, blocks) = watch::channel(config.pod_cidrs.clone());
        let (ports, _seen) = watch::channel(HostPorts::new());
        let server = Server::open(&config, blocks.clone(), ports.clone()).unwrap();
        let pod = Pod::new();
        let limits = |rate: u64| {
            serde_json::json!({"bandwidth": {"ingressRate": rate, "ingressBurst": u32::MAX,
                "egressRate": 2 * rate, "egressBurst": u32::MAX}})
        };
        let call = |command: &str, rate: u64| request(command, "one", &pod, limits(rate));
        let link = attach::host_link("one", "eth0");
        let shown = || (shell(&format!("tc qdisc show dev {link} root")), shell("tc qdisc show"));
        for rate in [8_000_000, 16_000_000] {
            server.work(Command::Add, &call("ADD", rate)).unwrap();
            server.work(Command::Check, &call("CHECK", rate)).unwrap();
            let (host, all) = shown();
            assert!(host.contains(&format!("rate {}Mbit", rate / 1_000_000)), "{host}");
            assert!(all.contains(&format!("rate {}Mbit", rate / 500_000)), "{all}");
        }
        assert_eq!(server.work(Command::Check, &call("CHECK", 8_000_000)).unwrap_err().code, 5);
        let none = request("ADD", "one", &pod, serde_json::json!({}));
        server.work(Command::Add, &none).unwrap();
        assert!(!shown().1.contains("tbf"), "an ADD without limits removes them");
        server.work(Command::Add, &call("ADD", 8_000_000)).unwrap();
        shell(&format!("ip link del {link}"));
        assert!(shell("ip -o link show type ifb").contains("ifb"));
        drop(Server::open(&config, blocks, ports).unwrap());
        assert_eq!(shell("ip -o link show type ifb"), "");
    });
}
