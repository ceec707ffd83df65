//! Validation of network policies, ingress classes, IP addresses and service CIDRs (upstream's
//! `pkg/apis/networking/validation`).

mod ingress;

use serde_json::Value;

use super::checks::{optional_as, pointer_as, required_as, segment, selector, texts};
use super::{IMMUTABLE, each, names, net};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, items, semantic_equal, str_at};

pub use ingress::{ingress, ingress_change, ingress_status};

/// Maximum length in bytes of the name of an ingress controller.
const CONTROLLER_MAX: usize = 250;

/// Validates a new network policy (`ValidateNetworkPolicy`).
pub fn policy(object: &Value) -> ErrorList {
    policy_spec(get(object, "spec"), &[])
}

/// Validates an update of a network policy (`ValidateNetworkPolicyUpdate`). CIDRs that the old
/// policy has are accepted.
pub fn policy_change(object: &Value, old: &Value) -> ErrorList {
    let spec = get(old, "spec");
    let known: Vec<&str> = [("ingress", "from"), ("egress", "to")]
        .iter()
        .flat_map(|(rules, peers)| items(spec, rules).iter().flat_map(|rule| items(rule, peers)))
        .flat_map(|peer| {
            let block = get(peer, "ipBlock");
            std::iter::once(str_at(block, "cidr")).chain(texts(block, "except"))
        })
        .filter(|cidr| !cidr.is_empty())
        .collect();
    policy_spec(get(object, "spec"), &known)
}

fn policy_spec(spec: &Value, known: &[&str]) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = selector(spec, "podSelector", &path);
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, rules).iter().enumerate() {
            let field = path.child(rules).index(index);
            for (at, port) in items(rule, "ports").iter().enumerate() {
                errors.extend(policy_port(port, &field.child("ports").index(at)));
            }
            for (at, one) in items(rule, peers).iter().enumerate() {
                errors.extend(peer(one, known, &field.child(peers).index(at)));
            }
        }
    }
    let (field, types) = (path.child("policyTypes"), texts(spec, "policyTypes"));
    if types.len() > 2 {
        let text = "may not specify more than two policyTypes";
        errors.push(Error::invalid(&field, get(spec, "policyTypes").clone(), text));
        return errors;
    }
    for (index, kind) in types.iter().enumerate() {
        errors.extend(super::one_of(kind, &["Ingress", "Egress"], &field.index(index)));
    }
    errors
}

fn policy_port(port: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let protocol = get(port, "protocol").as_str();
    let known = ["TCP", "UDP", "SCTP"];
    errors.extend(protocol.and_then(|p| super::one_of(p, &known, &path.child("protocol"))));
    let (field, last) = (path.child("endPort"), int_at(port, "endPort"));
    let mut refuse = |text: &str| errors.extend(last.map(|v| Error::invalid(&field, v, text)));
    match get(port, "port") {
        Value::String(name) => {
            refuse("may not be specified when `port` is non-numeric");
            errors.extend(each(&path.child("port"), name.as_str(), names::port_name(name)));
        }
        number => match number.as_i64() {
            None => refuse("may not be specified when `port` is not specified"),
            Some(first) => {
                errors.extend(each(&path.child("port"), first, names::port_number(first)));
                if let Some(last) = last {
                    if last < first {
                        let text = "must be greater than or equal to `port`";
                        errors.push(Error::invalid(&field, last, text));
                    }
                    errors.extend(each(&field, last, names::port_number(last)));
                }
            }
        },
    }
    errors
}

fn peer(peer: &Value, known: &[&str], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut others = false;
    for key in ["podSelector", "namespaceSelector"] {
        others |= has(peer, key);
        errors.extend(selector(peer, key, path));
    }
    if has(peer, "ipBlock") {
        errors.extend(block(get(peer, "ipBlock"), known, &path.child("ipBlock")));
        if others {
            let text = "may not specify both ipBlock and another peer";
            errors.push(Error::forbidden(path, text));
        }
    } else if !others {
        errors.push(Error::required(path, "must specify a peer"));
    }
    errors
}

fn block(block: &Value, known: &[&str], path: &Path) -> ErrorList {
    let (cidr, field) = (str_at(block, "cidr"), path.child("cidr"));
    if cidr.is_empty() {
        return vec![Error::required(&field, "")];
    }
    let mut errors = net::legacy_cidr(&field, cidr, known);
    let Some((outer, length)) = net::sloppy_cidr(cidr) else { return errors };
    for (index, except) in texts(block, "except").into_iter().enumerate() {
        let field = path.child("except").index(index);
        errors.extend(net::legacy_cidr(&field, except, known));
        let Some((inner, inner_length)) = net::sloppy_cidr(except) else { continue };
        let inside = net::masked(inner, length.min(inner_length)) == net::masked(outer, length)
            && inner.is_ipv4() == outer.is_ipv4()
            && inner_length > length;
        if !inside {
            let text = format!("must be a strict subset of `cidr`: \"{cidr}\"");
            errors.push(Error::invalid(&field, except, text));
        }
    }
    errors
}

/// Validates a new ingress class (`ValidateIngressClass`).
pub fn ingress_class(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let (controller, field) = (str_at(spec, "controller"), path.child("controller"));
    if controller.len() > CONTROLLER_MAX {
        errors.push(Error::too_long(&field, CONTROLLER_MAX));
    }
    errors.extend(domain_prefixed(controller, &field));
    let parameters = get(spec, "parameters");
    if !parameters.is_object() {
        return errors;
    }
    let path = path.child("parameters");
    errors.extend(pointer_as(parameters, "apiGroup", &path, names::dns1123_subdomain));
    errors.extend(required_as(parameters, "kind", &path, segment));
    errors.extend(required_as(parameters, "name", &path, segment));
    let field = path.child("namespace");
    match get(parameters, "scope").as_str() {
        None => errors.push(Error::required(&path.child("scope"), "")),
        Some("Namespace") if !has(parameters, "namespace") => {
            errors.push(Error::required(&field, "`parameters.scope` is set to 'Namespace'"))
        }
        Some("Namespace") => {
            errors.extend(pointer_as(parameters, "namespace", &path, names::dns1123_label));
        }
        Some("Cluster") if has(parameters, "namespace") => {
            errors.push(Error::forbidden(&field, "`parameters.scope` is set to 'Cluster'"));
        }
        Some("Cluster") => {}
        Some(other) => errors.push(Error::not_supported(
            &path.child("scope"),
            other,
            &["Cluster", "Namespace"],
        )),
    }
    errors
}

fn domain_prefixed(value: &str, field: &Path) -> ErrorList {
    if value.is_empty() {
        return vec![Error::required(field, "")];
    }
    const TEXT: &str = "must be a domain-prefixed path (such as \"acme.io/foo\")";
    let Some((domain, rest)) =
        value.split_once('/').filter(|(d, r)| !d.is_empty() && !r.is_empty())
    else {
        return vec![Error::invalid(field, value, TEXT)];
    };
    let mut errors: ErrorList = each(field, domain, names::dns1123_subdomain(domain)).collect();
    let good =
        rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b));
    if !good {
        let text = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(Error::invalid(field, rest, text));
    }
    errors
}

/// Validates an update of an ingress class (`ValidateIngressClassUpdate`): the controller is
/// immutable.
pub fn ingress_class_change(object: &Value, old: &Value) -> ErrorList {
    let (new, was) =
        (str_at(get(object, "spec"), "controller"), str_at(get(old, "spec"), "controller"));
    let field = Path::new("spec").child("controller");
    let changed = (new != was).then(|| Error::invalid(&field, new, IMMUTABLE));
    changed.into_iter().chain(ingress_class(object)).collect()
}

/// Returns the errors of the name of an `IPAddress` object, which is an IP address in canonical
/// form (`ValidateIPAddressName`).
pub fn address_name(name: &str, _: bool) -> names::Messages {
    let bad = net::strict_ip(&Path::default(), name).into_iter();
    bad.map(|error| error.detail).collect()
}

/// Validates a new `IPAddress` object (`ValidateIPAddress`).
pub fn address(object: &Value) -> ErrorList {
    let (parent, path) =
        (get(get(object, "spec"), "parentRef"), Path::new("spec").child("parentRef"));
    if !parent.is_object() {
        return vec![Error::required(&path, "")];
    }
    let mut errors = optional_as(parent, "group", &path, names::dns1123_subdomain);
    errors.extend(required_as(parent, "resource", &path, segment));
    errors.extend(required_as(parent, "name", &path, segment));
    errors.extend(optional_as(parent, "namespace", &path, segment));
    errors
}

/// Validates an update of an `IPAddress` object (`ValidateIPAddressUpdate`): the parent reference
/// is immutable.
pub fn address_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = address(object);
    let parent = |object| get(get(object, "spec"), "parentRef");
    if !semantic_equal(parent(object), parent(old)) {
        let field = Path::new("spec").child("parentRef");
        errors.push(Error::invalid(&field, Value::Null, IMMUTABLE));
    }
    errors
}

/// Validates a new `ServiceCIDR` object (`ValidateServiceCIDR`).
pub fn service_cidr(object: &Value) -> ErrorList {
    let (spec, field) = (get(object, "spec"), Path::new("spec").child("cidrs"));
    let list = texts(spec, "cidrs");
    if list.is_empty() {
        return vec![Error::required(&field, "at least one CIDR required")];
    }
    if list.len() > 2 {
        return vec![Error::invalid(&field, spec.clone(), "may only hold up to 2 values")];
    }
    let mut errors = ErrorList::new();
    for (index, cidr) in list.iter().enumerate() {
        errors.extend(strict_cidr(cidr, &field.index(index)));
    }
    let families: Vec<Option<bool>> =
        list.iter().map(|cidr| net::sloppy_cidr(cidr).map(|(a, _)| a.is_ipv4())).collect();
    if matches!(families.as_slice(), [Some(a), Some(b)] if a == b) {
        let text = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(Error::invalid(&field, get(spec, "cidrs").clone(), text));
    }
    errors
}

fn strict_cidr(value: &str, field: &Path) -> ErrorList {
    let errors = net::legacy_cidr(field, value, &[]);
    match net::sloppy_cidr(value) {
        Some((address, length)) if errors.is_empty() && format!("{address}/{length}") != value => {
            let text = format!("must be in canonical form (\"{address}/{length}\")");
            vec![Error::invalid(field, value, text)]
        }
        _ => errors,
    }
}

/// Validates an update of a `ServiceCIDR` object (`ValidateServiceCIDRUpdate`): the CIDRs are
/// immutable, but a CIDR of the other IP family may be added.
pub fn service_cidr_change(object: &Value, old: &Value) -> ErrorList {
    let (new, was) = (texts(get(object, "spec"), "cidrs"), texts(get(old, "spec"), "cidrs"));
    let field = Path::new("spec").child("cidrs");
    let grown = was.len() == 1 && new.len() == 2;
    if new.len() != was.len() && !grown {
        let shown = get(get(object, "spec"), "cidrs");
        return vec![Error::invalid(&field, shown.clone(), IMMUTABLE)];
    }
    let pairs = new.iter().zip(&was).enumerate().filter(|(_, (a, b))| a != b);
    let mut errors: ErrorList =
        pairs.map(|(at, (a, _))| Error::invalid(&field.index(at), *a, IMMUTABLE)).collect();
    if grown {
        errors.extend(service_cidr(object));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exceptions_lie_inside() {
        let policy = |except: &str| json!({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/16", "except": [except]}}]}]}});
        assert!(super::policy(&policy("10.0.3.0/24")).is_empty());
        assert_eq!(
            super::policy(&policy("10.1.0.0/24"))[0].to_string(),
            "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.1.0.0/24\": must be a strict subset of `cidr`: \"10.0.0.0/16\""
        );
    }

    #[test]
    fn a_range_may_get_a_second_family() {
        let ranges = |list: &[&str]| json!({"spec": {"cidrs": list}});
        let one = ranges(&["10.0.0.0/24"]);
        assert!(service_cidr_change(&ranges(&["10.0.0.0/24", "fd00::/112"]), &one).is_empty());
        assert_eq!(
            service_cidr_change(&ranges(&[]), &one)[0].to_string(),
            "spec.cidrs: Invalid value: []: field is immutable"
        );
    }
}
