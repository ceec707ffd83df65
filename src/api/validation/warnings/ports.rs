//! Warnings for duplicate and overlapping container ports of a pod.

use std::collections::HashMap;

use serde_json::Value;

use crate::field::{Path, go_quote};
use crate::value::{int_at, items, str_at};

struct Port<'a> {
    value: &'a Value,
    path: Path,
    /// Host port, read once because each port is compared with many others.
    host_port: i64,
    host_ip: &'a str,
}

impl Port<'_> {
    fn number(&self, key: &str) -> i64 {
        int_at(self.value, key).unwrap_or_default()
    }

    fn text(&self, key: &str) -> &str {
        str_at(self.value, key)
    }
}

/// Maximum number of warnings for the ports of a pod: a response does not hold more.
const WARNINGS_MAX: usize = 256;
/// Maximum number of earlier ports with the same number and protocol that a port is compared with.
const SAME_MAX: usize = 1024;

/// Returns the warnings for the ports of these containers.
pub(super) fn warnings(containers: &[(&Value, Path)]) -> Vec<String> {
    let mut all: Vec<Port<'_>> = Vec::new();
    let mut same: HashMap<(i64, &str), Vec<usize>> = HashMap::new();
    let mut list = Vec::new();
    for (container, path) in containers {
        for (index, value) in items(container, "ports").iter().enumerate() {
            let (host_port, host_ip) =
                (int_at(value, "hostPort").unwrap_or_default(), str_at(value, "hostIP"));
            let path = path.child("ports").index(index);
            let port = Port { value, path, host_port, host_ip };
            if !port.text("hostIP").is_empty() && port.number("hostPort") == 0 {
                list.push(format!(
                    "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{}}}",
                    port.path,
                    port.text("name"),
                    port.number("containerPort"),
                    port.text("protocol"),
                    port.text("hostIP")
                ));
            }
            let number = (port.number("containerPort"), str_at(value, "protocol"));
            let others = same.entry(number).or_default();
            let room = WARNINGS_MAX.saturating_sub(list.len());
            let clashes = others.iter().take(SAME_MAX).filter_map(|at| clash(&port, all.get(*at)?));
            list.extend(clashes.take(room));
            others.push(all.len());
            all.push(port);
        }
    }
    list.extend(names(&all));
    list
}

fn clash(port: &Port<'_>, other: &Port<'_>) -> Option<String> {
    let (host, other_host) = (port.host_port, other.host_port);
    let (ip, other_ip) = (port.host_ip, other.host_ip);
    let what = if ip == other_ip && host == other_host {
        "duplicate"
    } else if host == 0 || other_host == 0 {
        "overlapping"
    } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
        "dangerously ambiguous"
    } else {
        return None;
    };
    Some(format!("{}: {what} port definition with {}", port.path, other.path))
}

fn names(ports: &[Port<'_>]) -> Vec<String> {
    let mut first: HashMap<&str, &Path> = HashMap::new();
    let mut list = Vec::new();
    for port in ports.iter().filter(|port| !port.text("name").is_empty()) {
        let name = port.text("name");
        match first.get(name) {
            Some(other) if list.len() < WARNINGS_MAX => list.push(format!(
                "{}: duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                port.path,
                go_quote(name),
            )),
            Some(_) => {}
            None => drop(first.insert(name, &port.path)),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `TestWarnings` of `pkg/api/pod`.
    #[test]
    fn ports_that_overlap_are_named() {
        let check = |ports: &[Value], expected: &[&str]| {
            let container = json!({ "ports": ports });
            same(&warnings(&[(&container, Path::new("c"))]), expected);
        };
        let tcp = json!({"containerPort": 80, "protocol": "TCP"});
        let udp = json!({"containerPort": 80, "protocol": "UDP"});
        let at = |port: i64, ip: &str| {
            let mut at = json!({"containerPort": 80, "protocol": "TCP", "hostPort": port});
            at["hostIP"] = json!(ip);
            at
        };
        check(&[tcp.clone(), udp], &[]);
        check(
            &[tcp.clone(), tcp.clone()],
            &["c.ports[1]: duplicate port definition with c.ports[0]"],
        );
        check(&[tcp, at(80, "")], &["c.ports[1]: overlapping port definition with c.ports[0]"]);
        check(&[at(80, ""), at(81, "")], &[]);
        check(&[at(80, "1.1.1.1"), at(80, "2.2.2.2")], &[]);
        check(
            &[at(80, ""), at(80, "1.1.1.1")],
            &["c.ports[1]: dangerously ambiguous port definition with c.ports[0]"],
        );
        let named = |number: i64| json!({"name": "p", "containerPort": number, "protocol": "TCP"});
        check(
            &[named(80), named(81)],
            &["c.ports[1]: duplicate port name \"p\" with c.ports[0], services and probes that \
               select ports by name will use c.ports[0]"],
        );
        check(
            &[json!({"containerPort": 80, "protocol": "TCP", "hostIP": "1.1.1.1"})],
            &["c.ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 \
               Protocol:TCP HostIP:1.1.1.1}"],
        );
    }
}
