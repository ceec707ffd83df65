//! Parses `--node-label`, `--node-taint`, `--device` and the shutdown grace periods.

use std::collections::BTreeMap;
use std::time::Duration;

use api::k8s::api::core::v1::Taint;
use api::node_labels::{Reserved, reserved};
use api::validation::names::{dns1123_subdomain, label_value, qualified_name};

use node::{DeviceSelection, ShutdownGracePeriod};

use crate::command_line::{NodeArgs, SHUTDOWN_CRITICAL_DEFAULT, SHUTDOWN_DEFAULT, duration};
use crate::error_catalogue::{CommandError, invalid_flag};

/// Labels that each node sets itself.
const FIXED: [&str; 5] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Why a flag may not set this label; `None` if it may.
fn forbidden_reason(key: &str) -> Option<&'static str> {
    if FIXED.contains(&key) {
        return Some("is set by the node itself");
    }
    Some(match reserved(key)? {
        Reserved::Administrators => {
            "node-restriction.kubernetes.io labels are for administrators: kubectl label node"
        }
        Reserved::Kubernetes => {
            "a node may not set labels of kubernetes.io and k8s.io, except those under \
             kubelet.kubernetes.io, node.kubernetes.io and topology.kubernetes.io/zone and region; \
             use another name, or kubectl label node"
        }
    })
}

/// The labels of `--node-label`.
pub(super) fn labels(given: &[String]) -> Result<BTreeMap<String, String>, CommandError> {
    let parse = |text: &String| {
        let error = |why: &str| invalid_flag("node-label", text, why);
        let (key, value) = text.split_once('=').ok_or_else(|| error("must be KEY=VALUE"))?;
        let reason = qualified_name(key).into_iter().chain(label_value(value)).next();
        match reason.as_deref().or_else(|| forbidden_reason(key)) {
            Some(why) => Err(error(why)),
            None => Ok((key.to_owned(), value.to_owned())),
        }
    };
    given.iter().map(parse).collect()
}

/// Checks names of a node in the DNS.
pub(super) fn dns_names(flag: &str, given: &[String]) -> Result<(), CommandError> {
    for name in given {
        if let Some(why) = dns1123_subdomain(name).into_iter().next() {
            return Err(invalid_flag(flag, name, why));
        }
    }
    Ok(())
}

/// The longest time by which pods may delay a shutdown of the machine.
pub(super) const SHUTDOWN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration of at most a day.
fn parse_duration(flag: &str, text: &str) -> Result<Duration, CommandError> {
    match duration(text) {
        Ok(time) if time > SHUTDOWN_MAX => Err(invalid_flag(flag, text, "must be at most a day")),
        Ok(time) => Ok(time),
        Err(error) => Err(invalid_flag(flag, text, error)),
    }
}

/// How long pods may take to terminate when the machine shuts down. `of_files` replaces the
/// defaults of the flags.
pub(super) fn shutdown_grace(
    args: &NodeArgs,
    of_files: Option<ShutdownGracePeriod>,
) -> Result<ShutdownGracePeriod, CommandError> {
    if let Some(of_files) = of_files
        && args.shutdown_grace_period == SHUTDOWN_DEFAULT
        && args.shutdown_grace_period_critical_pods == SHUTDOWN_CRITICAL_DEFAULT
    {
        return Ok(of_files);
    }
    let total = parse_duration("shutdown-grace-period", &args.shutdown_grace_period)?;
    let flag = "shutdown-grace-period-critical-pods";
    let given = &args.shutdown_grace_period_critical_pods;
    let critical = parse_duration(flag, given)?;
    if critical > total && !total.is_zero() {
        return Err(invalid_flag(flag, given, "must not be longer than --shutdown-grace-period"));
    }
    Ok(ShutdownGracePeriod::Total { total, critical })
}

/// The devices of `--device`.
pub(super) fn devices(given: &[String]) -> Result<Vec<DeviceSelection>, CommandError> {
    DeviceSelection::parse_all(given).map_err(|(text, why)| invalid_flag("device", text, why))
}

/// The taints of `--node-taint`.
pub(super) fn taints(given: &[String]) -> Result<Vec<Taint>, CommandError> {
    let mut out: Vec<Taint> = Vec::with_capacity(given.len());
    for text in given {
        let error = |why: &str| invalid_flag("node-taint", text, why);
        let form = "must be KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute";
        let (left, effect) = text.rsplit_once(':').ok_or_else(|| error(form))?;
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            return Err(error(form));
        }
        let (key, value) = left.split_once('=').unwrap_or((left, ""));
        if let Some(why) = qualified_name(key).into_iter().chain(label_value(value)).next() {
            return Err(error(&why));
        }
        if out.iter().any(|t| t.key == key && t.effect == effect) {
            return Err(error("is given twice with this key and effect"));
        }
        let value = (!value.is_empty()).then(|| value.to_owned());
        out.push(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_a_node_may_not_set_are_rejected_by_name() {
        let run = |text: &str| labels(&[text.to_owned()]).map_err(|r| r.details);
        for good in [
            "rack=7",
            "example.com/rack=",
            "node.kubernetes.io/speed=fast",
            "topology.kubernetes.io/zone=a",
        ] {
            assert!(run(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("node-role.kubernetes.io/edge=", "a node may not set labels of kubernetes.io"),
            ("x.k8s.io/y=z", "a node may not set labels of kubernetes.io and k8s.io"),
            ("node-restriction.kubernetes.io/a=b", "are for administrators"),
            ("kubernetes.io/hostname=x", "is set by the node itself"),
            ("=x", "name part must be non-empty"),
            ("a=b c", "a valid label must be"),
            ("a", "must be KEY=VALUE"),
        ] {
            let text = run(bad).unwrap_err();
            assert!(
                text.contains(why) && text.starts_with(&format!("--node-label={bad}")),
                "{text}"
            );
        }
    }

    #[test]
    fn grace_periods_are_go_durations_of_at_most_a_day() {
        let run =
            |text: &str| parse_duration("f", text).map(|t| t.as_secs()).map_err(|r| r.details);
        assert_eq!(
            (run("90s"), run("1m30s"), run("1.5m"), run("0")),
            (Ok(90), Ok(90), Ok(90), Ok(0))
        );
        for (wrong, why) in [
            ("", "time: invalid duration \"\""),
            ("90", "time: missing unit in duration \"90\""),
            ("5x", "time: unknown unit \"x\" in duration \"5x\""),
            ("-1s", "must not be negative"),
            ("25h", "must be at most a day"),
        ] {
            assert_eq!(run(wrong), Err(format!("--f={wrong}: {why}")), "{wrong}");
        }
    }

    #[test]
    fn devices_that_are_not_valid_are_refused_by_the_flag() {
        let run = |text: &str| devices(&[text.to_owned()]).map(|d| d.len()).map_err(|r| r.details);
        assert_eq!(run("path:/dev/fuse=fuse,count=4"), Ok(1));
        assert_eq!(
            run("path:/dev/fuse=fuse,count=x"),
            Err("--device=path:/dev/fuse=fuse,count=x: count must be a number from 1 to 1000"
                .to_owned())
        );
    }

    #[test]
    fn taints_have_a_key_a_value_and_an_effect() {
        let run = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|t| (*t).to_owned()).collect();
            taints(&given).map_err(|r| r.details)
        };
        let two = run(&["a=b:NoSchedule", "a:NoExecute"]).unwrap();
        assert_eq!((two[0].value.as_deref(), two[1].value.as_deref()), (Some("b"), None));
        for bad in ["a=b", "a:Never", ":NoSchedule", "a b:NoSchedule"] {
            assert!(run(&[bad]).unwrap_err().starts_with(&format!("--node-taint={bad}")), "{bad}");
        }
        assert!(run(&["a:NoSchedule", "a=c:NoSchedule"]).unwrap_err().contains("given twice"));
    }
}
