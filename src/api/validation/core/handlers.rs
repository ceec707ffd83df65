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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    /// `validateProbe`, `validateLivenessProbe` and `validateReadinessProbe` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn probe_thresholds_must_not_be_negative() {
        let check = |kind: &str, changes: Value, expected: &[&str]| {
            let probe = json!({"exec": {"command": ["a"]}, "successThreshold": 1});
            let container = json!({ kind: with(&probe, &changes) });
            same(&probes(&container, Some(30), &Path::new("c")), expected);
        };
        const NEGATIVE: &str = "must be greater than or equal to 0";
        for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
            check(kind, json!({}), &[]);
            for key in
                ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"]
            {
                let text = format!("c.{kind}.{key}: Invalid value: -1: {NEGATIVE}");
                check(kind, json!({ key: -1 }), &[&text]);
            }
        }
        check(
            "readinessProbe",
            json!({"successThreshold": -1}),
            &[&format!("c.readinessProbe.successThreshold: Invalid value: -1: {NEGATIVE}")],
        );
        check("readinessProbe", json!({"successThreshold": 2}), &[]);
        check(
            "livenessProbe",
            json!({"successThreshold": 2}),
            &["c.livenessProbe.successThreshold: Invalid value: 2: must be 1"],
        );
        const GRACE: &str = "terminationGracePeriodSeconds: Invalid value";
        check(
            "startupProbe",
            json!({"terminationGracePeriodSeconds": 0}),
            &[&format!("c.startupProbe.{GRACE}: 0: must be greater than 0")],
        );
        check(
            "readinessProbe",
            json!({"terminationGracePeriodSeconds": 5}),
            &[&format!("c.readinessProbe.{GRACE}: 5: must not be set for readinessProbes")],
        );
    }

    /// `validateHandler`, `validateHTTPGetAction` and `validateSleepAction` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn hooks_have_one_handler_that_is_complete() {
        let check = |hook: Value, expected: &[&str]| {
            let container = json!({"lifecycle": {"preStop": hook}});
            same(&lifecycle(&container, Some(30), &Path::new("c")), expected);
        };
        const AT: &str = "c.lifecycle.preStop";
        let get = |port: Value| json!({"path": "/", "port": port, "scheme": "HTTP"});
        check(json!({"httpGet": get(json!(80))}), &[]);
        check(json!({"httpGet": get(json!("web"))}), &[]);
        check(json!({"sleep": {"seconds": 30}}), &[]);
        check(json!({}), &[&format!("{AT}: Required value: must specify a handler type")]);
        check(
            json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
            &[&format!("{AT}.tcpSocket: Forbidden: may not specify more than 1 handler type")],
        );
        check(json!({"exec": {}}), &[&format!("{AT}.exec.command: Required value")]);
        check(
            json!({"httpGet": {"port": 0, "scheme": "FTP"}}),
            &[
                &format!("{AT}.httpGet.path: Required value"),
                &format!(
                    "{AT}.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"
                ),
                &format!(
                    "{AT}.httpGet.scheme: Unsupported value: \"FTP\": \
                     supported values: \"HTTP\", \"HTTPS\""
                ),
            ],
        );
        let header = json!({"httpHeaders": [{"name": "a b"}]});
        check(
            json!({"httpGet": with(&get(json!(80)), &header)}),
            &[&format!(
                "{AT}.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must..."
            )],
        );
        check(
            json!({"sleep": {"seconds": 31}}),
            &[&format!(
                "{AT}.sleep: Invalid value: 31: \
                 must be non-negative and less than terminationGracePeriodSeconds (30)"
            )],
        );
    }
}
