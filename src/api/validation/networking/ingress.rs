//! Validation of ingresses.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::net::{self, sloppy_ip};
use crate::validation::{checks, each, names, one_of};
use crate::value::{at, get, has, int_at, is_empty, items, str_at, str_in};

const CLASS: &str = "kubernetes.io/ingress.class";
const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
/// Parts that the path of an `Exact` or `Prefix` rule cannot contain.
const BAD_PARTS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
/// Parts that the path of an `Exact` or `Prefix` rule cannot end with.
const BAD_ENDS: [&str; 2] = ["/..", "/."];

/// Validates a new ingress (`ValidateIngressCreate`).
pub fn ingress(object: &Value) -> ErrorList {
    let mut errors = spec(object, true);
    let class = get(get(object, "spec"), "ingressClassName").as_str();
    let annotated = str_in(object, &["metadata", "annotations", CLASS]);
    let marked = at(object, &["metadata", "annotations"]).get(CLASS).is_some();
    if marked && class.is_some_and(|class| class != annotated) {
        let text = "must match `ingressClassName` when both are specified";
        let field = Path::new("annotations").child(CLASS);
        errors.push(Error::invalid(&field, annotated, text));
    }
    errors
}

/// Validates an update of an ingress (`ValidateIngressUpdate`). If the old ingress has an invalid
/// TLS secret name, secret names are not validated.
pub fn ingress_change(object: &Value, old: &Value) -> ErrorList {
    let known = items(get(old, "spec"), "tls");
    spec(object, known.iter().all(|tls| secret_name(str_at(tls, "secretName")).is_empty()))
}

/// Validates a status update (`ValidateIngressStatusUpdate`).
pub fn ingress_status(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let points = |object| items(at(object, &["status", "loadBalancer"]), "ingress");
    let known: Vec<&str> = points(old).iter().map(|point| str_at(point, "ip")).collect();
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let mut errors = ErrorList::new();
    for (index, point) in points(object).iter().enumerate() {
        let (field, ip, name) = (path.index(index), str_at(point, "ip"), str_at(point, "hostname"));
        if !ip.is_empty() {
            errors.extend(net::legacy_ip(&field.child("ip"), ip, &known));
        }
        if !name.is_empty() {
            let field = field.child("hostname");
            errors.extend(each(&field, name, names::dns1123_subdomain(name)));
            errors.extend(no_address(name, &field));
        }
    }
    errors
}

fn no_address(name: &str, field: &Path) -> Option<Error> {
    sloppy_ip(name).map(|_| Error::invalid(field, name, "must be a DNS name, not an IP address"))
}

fn secret_name(name: &str) -> names::Messages {
    if name.is_empty() { Vec::new() } else { names::dns1123_subdomain(name) }
}

fn host(name: &str, field: &Path) -> ErrorList {
    let texts = if name.contains('*') {
        names::wildcard_subdomain(name)
    } else {
        names::dns1123_subdomain(name)
    };
    each(field, name, texts).collect()
}

fn spec(object: &Value, secrets: bool) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    if is_empty(spec, "rules") && !has(spec, "defaultBackend") {
        let text = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, Value::Null, text));
    }
    if has(spec, "defaultBackend") {
        errors.extend(backend(get(spec, "defaultBackend"), &path.child("defaultBackend")));
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        let (path, name) = (path.child("rules").index(index), str_at(rule, "host"));
        if !name.is_empty() {
            errors.extend(no_address(name, &path.child("host")));
            errors.extend(host(name, &path.child("host")));
        }
        if has(rule, "http") {
            errors.extend(paths(get(rule, "http"), &path.child("http").child("paths")));
        }
    }
    for (index, tls) in items(spec, "tls").iter().enumerate() {
        let path = path.child("tls").index(index);
        for (index, name) in items(tls, "hosts").iter().enumerate() {
            let field = path.child("hosts").index(index);
            errors.extend(host(name.as_str().unwrap_or_default(), &field));
        }
        let secret = str_at(tls, "secretName");
        if secrets {
            errors.extend(each(&path.child("secretName"), secret, secret_name(secret)));
        }
    }
    if let Some(class) = get(spec, "ingressClassName").as_str() {
        let field = path.child("ingressClassName");
        errors.extend(each(&field, class, names::dns1123_subdomain(class)));
    }
    errors
}

fn paths(http: &Value, path: &Path) -> ErrorList {
    let list = items(http, "paths");
    if list.is_empty() {
        return vec![Error::required(path, "")];
    }
    list.iter().enumerate().flat_map(|(index, one)| http_path(one, &path.index(index))).collect()
}

fn http_path(one: &Value, path: &Path) -> ErrorList {
    let Some(kind) = get(one, "pathType").as_str() else {
        return vec![Error::required(&path.child("pathType"), "pathType must be specified")];
    };
    let (text, field) = (str_at(one, "path"), path.child("path"));
    let mut errors: ErrorList =
        one_of(kind, &PATH_TYPES, &path.child("pathType")).into_iter().collect();
    let strict = matches!(kind, "Exact" | "Prefix");
    let lenient = kind == "ImplementationSpecific" && !text.is_empty();
    if (strict || lenient) && !text.starts_with('/') {
        errors.push(Error::invalid(&field, text, "must be an absolute path"));
    }
    if strict {
        for part in BAD_PARTS.into_iter().filter(|part| text.contains(part)) {
            errors.push(Error::invalid(&field, text, format!("must not contain '{part}'")));
        }
        for end in BAD_ENDS.into_iter().filter(|end| text.ends_with(end)) {
            errors.push(Error::invalid(&field, text, format!("cannot end with '{end}'")));
        }
    }
    errors.extend(backend(get(one, "backend"), &path.child("backend")));
    errors
}

fn backend(backend: &Value, path: &Path) -> ErrorList {
    match (has(backend, "resource"), has(backend, "service")) {
        (true, true) => {
            vec![Error::invalid(path, "", "cannot set both resource and service backends")]
        }
        (true, false) => reference(get(backend, "resource"), &path.child("resource")),
        (false, true) => service(get(backend, "service"), path),
        (false, false) => {
            vec![Error::invalid(path, "", "resource or service backend is required")]
        }
    }
}

fn service(service: &Value, path: &Path) -> ErrorList {
    let (name, at) = (str_at(service, "name"), path.child("service"));
    let field = at.child("name");
    let mut errors = if name.is_empty() {
        vec![Error::required(&field, "")]
    } else {
        each(&field, name, names::dns1123_label(name)).collect()
    };
    let port = get(service, "port");
    let (name, number) = (str_at(port, "name"), int_at(port, "number").unwrap_or_default());
    let at = at.child("port");
    match (name.is_empty(), number) {
        (true, 0) => errors.push(Error::required(path, "port name or number is required")),
        (true, number) => {
            errors.extend(each(&at.child("number"), number, names::port_number(number)));
        }
        (false, 0) => errors.extend(each(&at.child("name"), name, names::port_name(name))),
        (false, _) => {
            errors.push(Error::invalid(path, "", "cannot set both port name & port number"));
        }
    }
    errors
}

fn reference(reference: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(group) = get(reference, "apiGroup").as_str() {
        errors.extend(each(&path.child("apiGroup"), group, names::dns1123_subdomain(group)));
    }
    for key in ["kind", "name"] {
        let (text, field) = (str_at(reference, key), path.child(key));
        if text.is_empty() {
            errors.push(Error::required(&field, ""));
        } else {
            errors.extend(each(&field, text, checks::segment(text)));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bodies(spec: Value) -> Vec<String> {
        let object = json!({"spec": spec});
        ingress(&object).iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn something_is_served() {
        assert_eq!(
            bodies(json!({})),
            ["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"]
        );
        assert_eq!(
            bodies(json!({"defaultBackend": {"service": {}}})),
            [
                "spec.defaultBackend.service.name: Required value",
                "spec.defaultBackend: Required value: port name or number is required",
            ]
        );
        assert_eq!(
            bodies(
                json!({"rules": [{"http": {"paths": [{"pathType": "Exact", "path": "a//b", "backend": {}}]}}]})
            ),
            [
                "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must be an absolute path",
                "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must not contain '//'",
                "spec.rules[0].http.paths[0].backend: Invalid value: \"\": resource or service backend is required",
            ]
        );
        let good = json!({"rules": [{"host": "*.a.example", "http": {"paths": [
            {"pathType": "Prefix", "path": "/", "backend": {"service": {"name": "s", "port": {"number": 80}}}},
        ]}}]});
        assert!(bodies(good).is_empty());
    }

    #[test]
    fn path_types_are_known() {
        let path = json!({"pathType": "x", "backend": {"resource": {"kind": "K", "name": "n"}}});
        assert_eq!(
            bodies(json!({"rules": [{"http": {"paths": [path]}}]})),
            [
                "spec.rules[0].http.paths[0].pathType: Unsupported value: \"x\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\""
            ]
        );
    }
}
