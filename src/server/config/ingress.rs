//! `--ingress-trusted-proxies` and `--ingress-proxy-protocol`: the proxies in front of the ingress.

use settings::{Cidr, TrustedProxies};

use super::{INGRESS, disabled_components};
use crate::command_line::ServerArgs;
use crate::error_catalogue::{CommandError, invalid_flag};

/// Parses both flags.
///
/// # Errors
/// A text of another form, or a flag that would have no effect.
pub(super) fn proxies(args: &ServerArgs) -> Result<TrustedProxies, CommandError> {
    let flags = &args.ingress;
    let mut proxies = TrustedProxies {
        networks: Vec::with_capacity(flags.ingress_trusted_proxies.len()),
        proxy_protocol: flags.ingress_proxy_protocol,
    };
    for text in flags.ingress_trusted_proxies.iter().map(|text| text.trim()) {
        let Ok(network) = Cidr::of_block_or_address(text) else {
            let why = "is neither a block such as 192.0.2.0/24 nor an address";
            return Err(invalid_flag("ingress-trusted-proxies", text, why));
        };
        proxies.networks.push(network);
    }
    if proxies.proxy_protocol && proxies.is_empty() {
        let why = "needs --ingress-trusted-proxies=CIDR: from other addresses the header of the \
                   PROXY protocol is not accepted, because every client could forge it";
        return Err(invalid_flag("ingress-proxy-protocol", "true", why));
    }
    if !proxies.is_empty() && disabled_components(&args.disable).contains(INGRESS) {
        let value = flags.ingress_trusted_proxies.join(",");
        let why = "contradicts --disable=ingress: neither the ingress nor Gateways are served";
        return Err(invalid_flag("ingress-trusted-proxies", &value, why));
    }
    Ok(proxies)
}
