//! Validation of probes and lifecycle hooks.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::numbers::all_non_negative;
use crate::validation::{each, names, one_of};
use crate::value::{get, has, int_at, items, str_at};

/// Validates `livenessProbe`, `readinessProbe` and `startupProbe` of a container.
pub(super) fn probes(container: &Value, grace: Option<i64>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get(kind).filter(|p| p.is_object()) else { continue };
        let field = path.child(kind);
        errors.extend(handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], grace, &field));
        let numbers = [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ];
        all_non_negative(probe, &numbers, &field, &mut errors);
        let seconds = int_at(probe, "terminationGracePeriodSeconds");
        let at = field.child("terminationGracePeriodSeconds");
        if let Some(value) = seconds.filter(|s| *s <= 0) {
            errors.push(Error::invalid(&at, value, "must be greater than 0"));
        }
        let successes = int_at(probe, "successThreshold").unwrap_or_default();
        match (kind, seconds) {
            ("readinessProbe", Some(value)) => {
                errors.push(Error::invalid(&at, value, "must not be set for readinessProbes"))
            }
            ("livenessProbe" | "startupProbe", _) if successes != 1 => {
                errors.push(Error::invalid(
                    &field.child("successThreshold"),
                    successes,
                    "must be 1",
                ));
            }
            _ => {}
        }
    }
    errors
}

/// Validates `lifecycle` of a container.
pub(super) fn lifecycle(container: &Value, grace: Option<i64>, path: &Path) -> ErrorList {
    let lifecycle = get(container, "lifecycle");
    let hooks = ["postStart", "preStop"].into_iter().filter(|hook| has(lifecycle, hook));
    hooks
        .flat_map(|hook| {
            let field = path.child("lifecycle").child(hook);
            handler(get(lifecycle, hook), &["exec", "httpGet", "tcpSocket", "sleep"], grace, &field)
        })
        .collect()
}

fn handler(holder: &Value, kinds: &[&str], grace: Option<i64>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut count = 0;
    for kind in kinds {
        let Some(action) = holder.get(kind).filter(|a| a.is_object()) else { continue };
        let field = path.child(kind);
        count += 1;
        if count > 1 {
            errors.push(Error::forbidden(&field, "may not specify more than 1 handler type"));
            continue;
        }
        match *kind {
            "exec" if items(action, "command").is_empty() => {
                errors.push(Error::required(&field.child("command"), ""))
            }
            "httpGet" => errors.extend(http_get(action, &field)),
            "tcpSocket" | "grpc" => errors.extend(port(get(action, "port"), &field.child("port"))),
            "sleep" => errors.extend(sleep(action, grace, &field)),
            _ => {}
        }
    }
    if count == 0 {
        errors.push(Error::required(path, "must specify a handler type"));
    }
    errors
}

fn sleep(action: &Value, grace: Option<i64>, path: &Path) -> Option<Error> {
    let (seconds, grace) = (int_at(action, "seconds").unwrap_or_default(), grace?);
    (!(0..=grace).contains(&seconds)).then(|| {
        Error::invalid(
            path,
            seconds,
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
        )
    })
}

fn http_get(action: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if str_at(action, "path").is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
    }
    errors.extend(port(get(action, "port"), &path.child("port")));
    errors.extend(one_of(str_at(action, "scheme"), &["HTTP", "HTTPS"], &path.child("scheme")));
    for header in items(action, "httpHeaders") {
        let name = str_at(header, "name");
        errors.extend(each(&path.child("httpHeaders"), name, names::http_header(name)));
    }
    errors
}

/// Validates a port number or a port name (`ValidatePortNumOrName`).
pub fn port(value: &Value, path: &Path) -> ErrorList {
    match value {
        Value::String(name) => each(path, name.as_str(), names::port_name(name)).collect(),
        other => {
            let number = other.as_i64().unwrap_or_default();
            each(path, number, names::port_number(number)).collect()
        }
    }
}
