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
