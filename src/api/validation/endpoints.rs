//! Validation of Endpoints and EndpointSlices.

use serde_json::Value;

use super::checks::{optional_as, pointer_as, texts};
use super::{IMMUTABLE, each, labels, names, net, one_of};
use crate::field::{Error, ErrorList, Path};
use crate::value::{entries, get, has, int_at, is_empty, items, semantic_equal, str_at};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Maximum numbers of list elements of an EndpointSlice (`pkg/apis/discovery/validation`).
const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;
const HINTS_MAX: usize = 8;
const TOPOLOGY_MAX: usize = 16;

fn usable_address(value: &str, field: &Path) -> ErrorList {
    match net::sloppy_ip(value) {
        Some(address) => net::special_address(field, value, &address),
        None => vec![Error::invalid(field, value, "must be a valid IP address")],
    }
}

/// Validates new Endpoints.
pub fn validate(object: &Value) -> ErrorList {
    let path = Path::new("subsets");
    let mut errors = ErrorList::new();
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let field = path.index(index);
        if is_empty(subset, "addresses") && is_empty(subset, "notReadyAddresses") {
            let text = "must specify `addresses` or `notReadyAddresses`";
            errors.push(Error::required(&field, text));
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (at, one) in items(subset, key).iter().enumerate() {
                errors.extend(address(one, &field.child(key).index(at)));
            }
        }
        let ports = items(subset, "ports");
        for (at, one) in ports.iter().enumerate() {
            errors.extend(port(one, ports.len() > 1, &field.child("ports").index(at)));
        }
    }
    errors
}

fn address(address: &Value, path: &Path) -> ErrorList {
    let (ip, field) = (str_at(address, "ip"), path.child("ip"));
    let mut errors = net::legacy_ip(&field, ip, &[]);
    errors.extend(optional_as(address, "hostname", path, names::dns1123_label));
    errors.extend(pointer_as(address, "nodeName", path, names::dns1123_subdomain));
    errors.extend(usable_address(ip, &field));
    errors
}

fn port(port: &Value, named: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if named && is_empty(port, "name") {
        errors.push(Error::required(&path.child("name"), ""));
    }
    errors.extend(optional_as(port, "name", path, names::dns1123_label));
    let number = int_at(port, "port").unwrap_or_default();
    errors.extend(each(&path.child("port"), number, names::port_number(number)));
    let protocol = str_at(port, "protocol");
    if protocol.is_empty() {
        errors.push(Error::required(&path.child("protocol"), ""));
    } else {
        errors.extend(one_of(protocol, &PROTOCOLS, &path.child("protocol")));
    }
    errors.extend(pointer_as(port, "appProtocol", path, names::qualified_name));
    errors
}

/// Validates an update of Endpoints; unchanged subsets are not validated again.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    if semantic_equal(get(object, "subsets"), get(old, "subsets")) {
        return ErrorList::new();
    }
    validate(object)
}

/// Validates a new EndpointSlice.
pub fn slice(object: &Value) -> ErrorList {
    let mut errors = slice_frame(object);
    errors.extend(slice_endpoints(object));
    errors
}

/// Validates an update of an EndpointSlice: `addressType` is immutable, and unchanged endpoints are
/// not validated again.
pub fn slice_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = slice_frame(object);
    if !semantic_equal(get(object, "endpoints"), get(old, "endpoints")) {
        errors.extend(slice_endpoints(object));
    }
    if str_at(object, "addressType") != str_at(old, "addressType") {
        // Upstream's declarative validation omits the value of an immutable field.
        errors.push(Error::invalid(&Path::new("addressType"), Value::Null, IMMUTABLE));
    }
    errors
}

fn slice_frame(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let (kind, field) = (str_at(object, "addressType"), Path::new("addressType"));
    if kind.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        errors.extend(one_of(kind, &["FQDN", "IPv4", "IPv6"], &field));
    }
    let (ports, list) = (items(object, "ports"), Path::new("ports"));
    if ports.len() > PORTS_MAX {
        errors.push(Error::too_many(&list, ports.len(), PORTS_MAX));
        return errors;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let (path, name) = (list.index(index), str_at(port, "name"));
        errors.extend(optional_as(port, "name", &path, names::dns1123_label));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        match get(port, "protocol").as_str() {
            None => errors.push(Error::required(&path.child("protocol"), "")),
            Some(protocol) => {
                errors.extend(one_of(protocol, &PROTOCOLS, &path.child("protocol")));
            }
        }
        errors.extend(pointer_as(port, "appProtocol", &path, names::qualified_name));
    }
    errors
}

fn slice_endpoints(object: &Value) -> ErrorList {
    let (list, path) = (items(object, "endpoints"), Path::new("endpoints"));
    if list.len() > ENDPOINTS_MAX {
        return vec![Error::too_many(&path, list.len(), ENDPOINTS_MAX)];
    }
    let kind = str_at(object, "addressType");
    let each = list.iter().enumerate();
    each.flat_map(|(index, one)| endpoint(one, kind, &path.index(index))).collect()
}

fn endpoint(endpoint: &Value, kind: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (addresses, list) = (texts(endpoint, "addresses"), path.child("addresses"));
    if addresses.is_empty() {
        errors.push(Error::required(&list, ""));
    } else if addresses.len() > ADDRESSES_MAX {
        errors.push(Error::too_many(&list, addresses.len(), ADDRESSES_MAX));
    }
    for (index, address) in addresses.into_iter().enumerate() {
        let field = list.index(index);
        let (bad, wanted) = match kind {
            "IPv4" => (net::legacy_ip(&field, address, &[]), "IPv4"),
            "IPv6" => (net::strict_ip(&field, address), "IPv6"),
            "FQDN" => {
                errors.extend(names::fully_qualified(&field, address));
                continue;
            }
            _ => continue,
        };
        if !bad.is_empty() {
            errors.extend(bad);
            continue;
        }
        if net::sloppy_ip(address).is_some_and(|a| net::is_v6(&a) != (wanted == "IPv6")) {
            errors.push(Error::invalid(&list, address, format!("must be an {wanted} address")));
        }
        errors.extend(usable_address(address, &field));
    }
    errors.extend(pointer_as(endpoint, "nodeName", path, names::dns1123_subdomain));
    let topology = entries(endpoint, "deprecatedTopology").count();
    if topology > TOPOLOGY_MAX {
        errors.push(Error::too_many(&path.child("deprecatedTopology"), topology, TOPOLOGY_MAX));
    }
    errors.extend(labels::validate_labels(endpoint, "deprecatedTopology", path));
    errors.extend(pointer_as(endpoint, "hostname", path, names::dns1123_label));
    if has(endpoint, "hints") {
        errors.extend(hints(get(endpoint, "hints"), &path.child("hints")));
    }
    errors
}

fn hints(hints: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    type Rule = fn(&str) -> names::Messages;
    let rules: [(&str, Rule); 2] =
        [("forZones", names::label_value), ("forNodes", names::dns1123_subdomain)];
    for (key, rule) in rules {
        let (list, field) = (items(hints, key), path.child(key));
        if list.len() > HINTS_MAX {
            errors.push(Error::too_many(&field, list.len(), HINTS_MAX));
            return errors;
        }
        for (index, hint) in list.iter().enumerate() {
            let (name, place) = (str_at(hint, "name"), field.index(index).child("name"));
            if list.iter().take(index).any(|h| str_at(h, "name") == name) {
                errors.push(Error::duplicate(&place, name));
            }
            errors.extend(each(&place, name, rule(name)));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn addresses_fit_their_type() {
        let slice = |kind: &str, address: &str| json!({"addressType": kind, "endpoints": [{"addresses": [address]}]});
        assert!(super::slice(&slice("IPv4", "10.0.0.1")).is_empty());
        assert_eq!(
            super::slice(&slice("IPv4", "127.0.0.1"))[0].to_string(),
            "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)"
        );
        assert_eq!(
            super::slice(&slice("IPv6", "10.0.0.1"))[0].to_string(),
            "endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address"
        );
    }
}
