//! The settings in `--kube-proxy-arg`.

use std::net::{IpAddr, SocketAddr};

use crate::command_line::components::proxy::PROXY;
use crate::error_catalogue::CommandError;

/// The settings of the service proxy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProxySettings {
    /// Address of `/healthz`; `None` within: it is off.
    pub(super) healthz: Option<Option<SocketAddr>>,
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
    let healthz = match arguments.value("healthz-bind-address") {
        None if arguments.value("healthz-port").is_none() => None,
        None => Some((port != 0).then(|| SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port))),
        // Upstream accepts an address with and without a port.
        Some(text) => {
            let address = text.parse::<SocketAddr>().ok();
            let address = address.or_else(|| Some(SocketAddr::new(text.parse().ok()?, port)));
            let why = "must be an address, such as 0.0.0.0:10256";
            let address = address.ok_or_else(|| arguments.invalid("healthz-bind-address", why))?;
            Some((address.port() != 0).then_some(address))
        }
    };
    Ok(ProxySettings { healthz, without_effect: arguments.without_effect })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_proxy_are_applied_or_named() {
        let parse = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            super::parse(&given, 10256).map_err(|error| error.to_string())
        };
        let healthz = |given: &[&str]| parse(given).unwrap().healthz;
        assert_eq!(parse(&["proxy-mode=nftables"]).unwrap(), ProxySettings::default());
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
