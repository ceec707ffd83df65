//! The levels of enforcement and the reserved cgroups in `--kubelet-arg` and in files of
//! KubeletConfiguration.

use node::{EnforcementError, NodeAllocatableEnforcement};

use crate::command_line::components::Arguments;
use crate::command_line::components::kubelet::ENFORCE;
use crate::error_catalogue::CommandError;

const SYSTEM_CGROUP: &str = "system-reserved-cgroup";
const KUBE_CGROUP: &str = "kube-reserved-cgroup";

/// Parses the settings.
///
/// # Errors
/// The first argument that is invalid, by name.
pub(super) fn parse(arguments: &mut Arguments) -> Result<NodeAllocatableEnforcement, CommandError> {
    let cgroups = [SYSTEM_CGROUP, KUBE_CGROUP];
    if arguments.value("reserved-cpus").is_some()
        && cgroups.iter().any(|name| arguments.value(name).is_some())
    {
        let why = "invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with \
                   systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup \
                   (--kube-reserved-cgroup)";
        return Err(arguments.invalid("reserved-cpus", why));
    }
    let levels = super::kubelet_args::list(arguments, ENFORCE);
    let enforcement = if levels.is_empty() {
        NodeAllocatableEnforcement::default()
    } else {
        let [system, kube] = cgroups.map(|name| arguments.value(name));
        NodeAllocatableEnforcement::parse(&levels, system, kube).map_err(|error| {
            let name = match &error {
                EnforcementError::Path(path) if system == Some(path) => SYSTEM_CGROUP,
                EnforcementError::Path(_) => KUBE_CGROUP,
                _ => ENFORCE,
            };
            arguments.invalid(name, error)
        })?
    };
    for (name, level, is_limited) in [
        (SYSTEM_CGROUP, "system-reserved", enforcement.system_reserved.is_some()),
        (KUBE_CGROUP, "kube-reserved", enforcement.kube_reserved.is_some()),
    ] {
        if arguments.value(name).is_some() && !is_limited {
            let place = arguments.place(name);
            let note = format!("{place}: {ENFORCE} contains no {level}");
            arguments.without_effect.push(note);
        }
    }
    Ok(enforcement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::components::kubelet::KUBELET;

    fn run(given: &[&str]) -> Result<(NodeAllocatableEnforcement, Vec<String>), String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let mut arguments = KUBELET.parse(&given).map_err(|error| error.to_string())?;
        let enforcement = parse(&mut arguments).map_err(|error| error.to_string())?;
        Ok((enforcement, arguments.without_effect))
    }

    #[test]
    fn pods_are_limited_by_default_and_cgroups_by_name() {
        assert_eq!(run(&[]), Ok((NodeAllocatableEnforcement::default(), Vec::new())));
        let (enforcement, notes) = run(&[
            "enforce-node-allocatable=pods,system-reserved",
            "enforce-node-allocatable=kube-reserved-compressible",
            "system-reserved-cgroup=/system.slice",
            "kube-reserved-cgroup=/kube.slice",
        ])
        .unwrap();
        let (system, kube) =
            (enforcement.system_reserved.unwrap(), enforcement.kube_reserved.unwrap());
        assert_eq!((system.path.as_str(), system.only_compressible), ("/system.slice", false));
        assert_eq!((kube.path.as_str(), kube.only_compressible), ("/kube.slice", true));
        assert!(enforcement.pods && notes.is_empty());
        let (enforcement, notes) =
            run(&["enforce-node-allocatable=none", "kube-reserved-cgroup=/k"]).unwrap();
        assert!(!enforcement.pods);
        let note = "--kubelet-arg=kube-reserved-cgroup: enforce-node-allocatable contains no \
                    kube-reserved";
        assert_eq!(notes, [note]);
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        for (given, want) in [
            (
                &["enforce-node-allocatable=kube-reserved"][..],
                "enforce-node-allocatable=kube-reserved: invalid configuration: kubeReservedCgroup \
                 (--kube-reserved-cgroup) must be specified when",
            ),
            (
                &["enforce-node-allocatable=system-reserved", "system-reserved-cgroup=/"],
                "system-reserved-cgroup=/: \"/\" is no cgroup below the root",
            ),
            (
                &["reserved-cpus=0", "system-reserved-cgroup=/system.slice"],
                "reserved-cpus=0: invalid configuration: can't use reservedSystemCPUs \
                 (--reserved-cpus) with systemReservedCgroup",
            ),
        ] {
            let error = run(given).unwrap_err();
            assert!(error.contains(&format!("--kubelet-arg={want}")), "{error}");
        }
    }
}
