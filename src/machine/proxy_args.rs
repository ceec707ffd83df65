//! The settings in `--kube-proxy-arg`.

use std::net::{IpAddr, SocketAddr};

use crate::command_line::components::Arguments;
use crate::command_line::components::proxy::PROXY;
use crate::error_catalogue::CommandError;

/// Port of kube-proxy's metrics (`ProxyStatusPort`).
const METRICS_PORT: u16 = 10249;

/// The settings of the service proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProxySettings {
    /// Address of `/healthz`; `None` within: it is off.
    pub(super) healthz: Option<Option<SocketAddr>>,
    /// Address of `/metrics` and `/proxyMode`, if they are served.
    pub(super) metrics: Option<SocketAddr>,
    /// Whether node ports are served at loopback addresses (`iptables-localhost-nodeports`).
    pub(super) localhost_node_ports: bool,
    /// Arguments without effect, each with the reason.
    pub(super) without_effect: Vec<String>,
}

/// Checks the arguments; `port` is `--proxy-healthz-port`.
///
/// # Errors
/// The first argument that is invalid or not supported, by name.
pub(super) fn parse(given: &[String], port: u16) -> Result<ProxySettings, CommandError> {
    let mut arguments = PROXY.parse(given)?;
    match arguments.value("proxy-mode") {
        None | Some("nftables" | "") => {}
        Some(mode @ ("iptables" | "ipvs")) => {
            let note =
                format!("--kube-proxy-arg=proxy-mode={mode}: the proxy always uses nftables");
            arguments.without_effect.push(note);
        }
        Some(_) => return Err(arguments.invalid("proxy-mode", "must be nftables")),
    }
    let port = arguments.number::<u16>("healthz-port", 0..=u16::MAX)?.unwrap_or(port);
    let healthz = match address(&arguments, "healthz-bind-address", port, "0.0.0.0:10256")? {
        None if arguments.value("healthz-port").is_none() => None,
        None => Some((port != 0).then(|| SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port))),
        Some(address) => Some((address.port() != 0).then_some(address)),
    };
    let given = arguments.number::<u16>("metrics-port", 0..=u16::MAX)?;
    let port = given.unwrap_or(METRICS_PORT);
    let metrics = address(&arguments, "metrics-bind-address", port, "127.0.0.1:10249")?
        .unwrap_or(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port));
    // As upstream, port 0 of the older argument disables them whatever the address says.
    let metrics = Some(metrics).filter(|m| given != Some(0) && m.port() != 0);
    let localhost_node_ports = arguments.boolean("iptables-localhost-nodeports")?.unwrap_or(true);
    let without_effect = arguments.without_effect;
    Ok(ProxySettings { healthz, metrics, localhost_node_ports, without_effect })
}

/// The address in an argument; upstream accepts it with and without a port.
fn address(
    arguments: &Arguments,
    name: &str,
    port: u16,
    example: &str,
) -> Result<Option<SocketAddr>, CommandError> {
    let Some(text) = arguments.value(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let address = text.parse().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, port)));
    let why = format!("must be an address, such as {example}");
    address.map(Some).map_err(|_: std::net::AddrParseError| arguments.invalid(name, &why))
}

#[cfg(test)]
mod tests {
    #[test]
    fn settings_of_the_proxy_are_applied_or_named() {
        let parse = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            super::parse(&given, 10256).map_err(|error| error.to_string())
        };
        let healthz = |given: &[&str]| parse(given).unwrap().healthz;
        let metrics = |given: &[&str]| parse(given).unwrap().metrics;
        let default = parse(&["proxy-mode=nftables"]).unwrap();
        assert_eq!((default.healthz, default.without_effect), (None, Vec::new()));
        assert_eq!(default.metrics, Some("127.0.0.1:10249".parse().unwrap()));
        let given = metrics(&["metrics-bind-address=0.0.0.0"]);
        assert_eq!(given, Some("0.0.0.0:10249".parse().unwrap()));
        let given = metrics(&["metrics-bind-address=[::1]:99", "metrics-port=1"]);
        assert_eq!(given, Some("[::1]:99".parse().unwrap()));
        assert_eq!(metrics(&["metrics-bind-address=127.0.0.1:0"]), None);
        assert_eq!(metrics(&["metrics-bind-address=127.0.0.1:9", "metrics-port=0"]), None);
        assert_eq!(metrics(&["metrics-port=98"]), Some("127.0.0.1:98".parse().unwrap()));
        let refused = parse(&["metrics-bind-address=here"]).unwrap_err();
        assert!(refused.contains("127.0.0.1:10249"), "{refused}");
        assert_eq!(healthz(&["healthz-port=0"]), Some(None));
        let at = |text: &str| Some(Some(text.parse().unwrap()));
        assert_eq!(healthz(&["healthz-port=1234"]), at("0.0.0.0:1234"));
        assert_eq!(healthz(&["healthz-bind-address=127.0.0.1"]), at("127.0.0.1:10256"));
        assert_eq!(healthz(&["healthz-bind-address=[::1]:99"]), at("[::1]:99"));
        let notes = parse(&["proxy-mode=ipvs", "ipvs-scheduler=rr"]).unwrap().without_effect;
        assert_eq!(
            notes,
            [
                "--kube-proxy-arg=ipvs-scheduler: the proxy always uses nftables",
                "--kube-proxy-arg=proxy-mode=ipvs: the proxy always uses nftables",
            ]
        );
        assert!(parse(&["proxy-mode=magic"]).unwrap_err().contains("must be nftables"));
        let refused = parse(&["conntrack-min=100000"]).unwrap_err();
        assert!(refused.contains("KL0102") && refused.contains("sysctl"), "{refused}");
    }
}
