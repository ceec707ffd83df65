//! The request of the CNI plugin to the agent, and the reply.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ipam::Owner;
use crate::proxy::rules::HostPort;
use crate::proxy::services::protocol_number;

/// One CNI call, as the plugin sends it to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    /// `CNI_COMMAND`.
    pub(crate) command: String,
    /// `CNI_CONTAINERID`: the id of the sandbox.
    pub(crate) container: String,
    /// `CNI_NETNS`: the path of the sandbox's network namespace.
    pub(crate) netns: String,
    /// `CNI_IFNAME`: the name of the link in the sandbox.
    pub(crate) interface: String,
    /// `CNI_ARGS`: what the runtime passes about the pod, as `K8S_POD_UID=…;…`.
    #[serde(default)]
    pub(crate) args: String,
    /// The network configuration from standard input.
    pub(crate) config: Value,
}

/// The calls of the CNI specification that reach the agent; the plugin answers `VERSION` itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Delete,
    Check,
    Status,
    /// `GC`: removes what belongs to none of the listed sandboxes.
    Collect,
}

/// A CNI error: codes 1 to 99 are the specification's (4 bad environment, 5 I/O, 6 decoding, 7 bad
/// configuration, 11 try again later, 50 plugin not available).
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn environment(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }

    pub(crate) fn io(message: impl Into<String>) -> Self {
        Self { code: 5, message: message.into() }
    }

    pub(crate) fn decode(message: impl Into<String>) -> Self {
        Self { code: 6, message: message.into() }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { code: 7, message: message.into() }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: 50, message: message.into() }
    }

    pub(crate) fn again(message: impl Into<String>) -> Self {
        Self { code: 11, message: message.into() }
    }
}

/// The reply of the agent: a result, or the failure that the plugin prints.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The CNI result without `cniVersion`; null if the call has no result.
    pub(crate) result: Value,
    pub(crate) failure: Option<Failure>,
}

impl Reply {
    pub(crate) fn done(result: Value) -> Self {
        Self { result, failure: None }
    }

    pub(crate) fn failed(failure: Failure) -> Self {
        Self { result: Value::Null, failure: Some(failure) }
    }
}

impl Request {
    /// Parses `CNI_COMMAND`; fails if an argument that the call requires is missing.
    pub(crate) fn command(&self) -> Result<Command, Failure> {
        let command = match self.command.as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Delete,
            "CHECK" => Command::Check,
            "STATUS" => Command::Status,
            "GC" => Command::Collect,
            other => return Err(Failure::environment(format!("unknown CNI_COMMAND {other:?}"))),
        };
        let of_sandbox = matches!(command, Command::Add | Command::Delete | Command::Check);
        if of_sandbox && (self.container.is_empty() || self.interface.is_empty()) {
            return Err(Failure::environment("CNI_CONTAINERID and CNI_IFNAME must be set"));
        }
        if matches!(command, Command::Add | Command::Check) && self.netns.is_empty() {
            return Err(Failure::environment("CNI_NETNS must be set"));
        }
        Ok(command)
    }

    /// The pod of the sandbox; fields that the runtime does not pass are empty.
    pub(crate) fn pod(&self) -> Owner<'_> {
        let argument = |wanted: &str| {
            let mut pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == wanted).map_or("", |(_, value)| value)
        };
        Owner {
            uid: argument("K8S_POD_UID"),
            namespace: argument("K8S_POD_NAMESPACE"),
            name: argument("K8S_POD_NAME"),
        }
    }

    /// The host ports that the runtime requests, for each of the pod's addresses.
    pub(crate) fn host_ports(
        &self,
        addresses: &[std::net::IpAddr],
    ) -> Result<Vec<HostPort>, Failure> {
        let runtime = &self.config["runtimeConfig"];
        let mut out = Vec::new();
        for mapping in runtime["portMappings"].as_array().into_iter().flatten() {
            let field = |name: &str| member(mapping, name);
            let number = |name: &str| field(name)?.as_u64().and_then(|p| u16::try_from(p).ok());
            let invalid = || Failure::config(format!("bad port mapping {mapping}"));
            let (Some(host_port), Some(port)) = (number("hostPort"), number("containerPort"))
            else {
                return Err(invalid());
            };
            // A port without a host port.
            if host_port == 0 {
                continue;
            }
            let name =
                field("protocol").and_then(Value::as_str).unwrap_or("tcp").to_ascii_uppercase();
            let protocol = protocol_number(Some(&name)).ok_or_else(invalid)?;
            let host_ip = match field("hostIP").and_then(Value::as_str).unwrap_or_default() {
                "" => None,
                ip => Some(ip.parse::<std::net::IpAddr>().map_err(|_| invalid())?),
            };
            for address in addresses {
                // An unspecified host IP of either family means all addresses of both.
                let any = settings::Family::of(*address).unspecified();
                let host_ip = host_ip.filter(|ip| !ip.is_unspecified()).unwrap_or(any);
                if host_ip.is_ipv4() == address.is_ipv4() {
                    out.push(HostPort { host_ip, host_port, protocol, address: *address, port });
                }
            }
        }
        Ok(out)
    }
}

/// Returns a member of an object by its name, ignoring case: containerd writes `HostPort` where the
/// CNI conventions have `hostPort`, and `IngressRate` for `ingressRate`.
pub(super) fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An `ADD` with this `runtimeConfig`.
    fn request(runtime: Value) -> Request {
        Request {
            command: "ADD".into(),
            container: "c".into(),
            netns: "/n".into(),
            interface: "eth0".into(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=u-1".into(),
            config: json!({"runtimeConfig": runtime}),
        }
    }

    #[test]
    fn port_mappings_apply_per_family() {
        let both = ["10.42.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let ports = |mapping: Value| -> Vec<String> {
            let list = request(json!({"portMappings":[mapping]})).host_ports(&both).unwrap();
            list.iter()
                .map(|p| format!("{} {} {} {}", p.host_ip, p.host_port, p.protocol, p.address))
                .collect()
        };
        assert_eq!(
            ports(json!({"hostPort":80,"containerPort":8080,"protocol":"tcp"})),
            ["0.0.0.0 80 6 10.42.0.2", ":: 80 6 fd00::2"]
        );
        assert_eq!(
            ports(
                json!({"hostPort":80,"containerPort":8080,"protocol":"UDP","hostIP":"127.0.0.1"})
            ),
            ["127.0.0.1 80 17 10.42.0.2"]
        );
        assert_eq!(
            ports(json!({"HostPort":81,"ContainerPort":8080,"Protocol":"tcp","HostIP":""})),
            ["0.0.0.0 81 6 10.42.0.2", ":: 81 6 fd00::2"]
        );
        assert!(ports(json!({"hostPort":0,"containerPort":8080})).is_empty());
        let bad = request(json!({"portMappings":[{"hostPort":70000,"containerPort":1}]}));
        assert_eq!(bad.host_ports(&both).unwrap_err().code, 7);
    }

    #[test]
    fn command_refuses_unknown_calls_and_missing_arguments() {
        let mut call = request(json!({}));
        assert_eq!(call.command(), Ok(Command::Add));
        let pod = call.pod();
        assert_eq!((pod.uid, pod.namespace, pod.name), ("u-1", "n", "p"));
        call.netns.clear();
        assert_eq!(call.command().unwrap_err().code, 4);
        call.command = "DEL".into();
        assert_eq!(call.command(), Ok(Command::Delete));
        call.command = "FORMAT".into();
        assert_eq!(call.command().unwrap_err().message, "unknown CNI_COMMAND \"FORMAT\"");
    }
}
