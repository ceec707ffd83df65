//! The arguments of the CPU, memory and topology managers.

use std::collections::BTreeMap;

use node::CpuSet;
use node::resource_manager_config::{
    CpuPolicy, CpuPolicyOptions, MemoryPolicy, ReservedMemory, ResourceManagersConfig,
    TopologyOptions, TopologyPolicy, TopologyScope,
};

use crate::command_line::components::Arguments;
use crate::error_catalogue::CommandError;

/// Parses the arguments. Errors have the kubelet's texts.
///
/// # Errors
/// The first argument that is invalid, by name.
pub(super) fn parse(arguments: &Arguments) -> Result<ResourceManagersConfig, CommandError> {
    let (topology, topology_scope, topology_options) = topology(arguments)?;
    Ok(ResourceManagersConfig {
        cpu: cpu(arguments)?,
        reserved_cpus: reserved_cpus(arguments)?,
        memory: memory(arguments)?,
        topology,
        topology_scope,
        topology_options,
    })
}

/// `NAME=VALUE,…`
fn pairs(arguments: &Arguments, name: &str) -> Result<BTreeMap<String, String>, CommandError> {
    let parts = arguments.value(name).unwrap_or_default().split(',');
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
        None => Err(arguments.invalid(name, format!("{part}: must be NAME=VALUE"))),
    };
    parts.filter(|part| !part.is_empty()).map(pair).collect()
}

fn cpu(arguments: &Arguments) -> Result<CpuPolicy, CommandError> {
    const POLICY: &str = "cpu-manager-policy";
    const OPTIONS: &str = "cpu-manager-policy-options";
    let options = pairs(arguments, OPTIONS)?;
    let invalid = |error| arguments.invalid(OPTIONS, error);
    match arguments.value(POLICY) {
        None | Some("none") => {
            CpuPolicyOptions::refuse(&options).map_err(invalid)?;
            Ok(CpuPolicy::None)
        }
        Some("static") => {
            Ok(CpuPolicy::Static(CpuPolicyOptions::parse(&options).map_err(invalid)?))
        }
        Some(other) => Err(arguments.invalid(POLICY, format!("unknown policy: {other:?}"))),
    }
}

fn reserved_cpus(arguments: &Arguments) -> Result<Option<CpuSet>, CommandError> {
    const NAME: &str = "reserved-cpus";
    let Some(text) = arguments.value(NAME).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let invalid = |error| {
        let what = "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus)";
        arguments.invalid(NAME, format!("{what} {text}, error: {error}"))
    };
    CpuSet::parse(text).map(Some).map_err(invalid)
}

fn memory(arguments: &Arguments) -> Result<MemoryPolicy, CommandError> {
    const POLICY: &str = "memory-manager-policy";
    const RESERVED: &str = "reserved-memory";
    let reserved = ReservedMemory::parse(&arguments.values(RESERVED).join(";"));
    let reserved = reserved.map_err(|error| arguments.invalid(RESERVED, error))?;
    match arguments.value(POLICY) {
        None | Some("None") => Ok(MemoryPolicy::None),
        Some("Static") => Ok(MemoryPolicy::Static(reserved)),
        Some("BestEffort") => {
            let why = "policy \"BestEffort\" is not available for platform \"linux\"";
            Err(arguments.invalid(POLICY, why))
        }
        Some(other) => Err(arguments.invalid(POLICY, format!("unknown policy: {other:?}"))),
    }
}

/// Options are only read for a policy that has an effect, as in the kubelet.
fn topology(
    arguments: &Arguments,
) -> Result<(TopologyPolicy, TopologyScope, TopologyOptions), CommandError> {
    const POLICY: &str = "topology-manager-policy";
    const SCOPE: &str = "topology-manager-scope";
    const OPTIONS: &str = "topology-manager-policy-options";
    let policy = arguments.value(POLICY).map(TopologyPolicy::parse).transpose();
    let policy = policy.map_err(|error| arguments.invalid(POLICY, error))?.unwrap_or_default();
    let scope = arguments.value(SCOPE).map(TopologyScope::parse).transpose();
    let scope = scope.map_err(|error| arguments.invalid(SCOPE, error))?.unwrap_or_default();
    let options = pairs(arguments, OPTIONS)?;
    let options = match policy {
        TopologyPolicy::None => TopologyOptions::default(),
        _ => TopologyOptions::parse(&options).map_err(|error| arguments.invalid(OPTIONS, error))?,
    };
    Ok((policy, scope, options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::components::kubelet::KUBELET;

    fn run(given: &[&str]) -> Result<ResourceManagersConfig, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let arguments = KUBELET.parse(&given).map_err(|error| error.to_string())?;
        parse(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_select_policies_and_options() {
        assert_eq!(run(&[]), Ok(ResourceManagersConfig::default()));
        let config = run(&[
            "cpu-manager-policy=static",
            "cpu-manager-policy-options=full-pcpus-only=true,strict-cpu-reservation=true",
            "reserved-cpus=0-1",
            "memory-manager-policy=Static",
            "reserved-memory=0:memory=1Gi",
            "reserved-memory=1:memory=2Gi",
            "topology-manager-policy=restricted",
            "topology-manager-scope=pod",
            "topology-manager-policy-options=prefer-closest-numa-nodes=true",
        ])
        .unwrap();
        let CpuPolicy::Static(options) = config.cpu else { unreachable!("the policy is static") };
        assert!(options.full_cores_only && options.strict_reservation);
        assert_eq!(config.reserved_cpus.unwrap().to_string(), "0-1");
        let reserved = ReservedMemory::parse("0:memory=1Gi;1:memory=2Gi").unwrap();
        assert_eq!(config.memory, MemoryPolicy::Static(reserved));
        assert_eq!(config.topology, TopologyPolicy::Restricted);
        assert_eq!(config.topology_scope, TopologyScope::Pod);
        assert!(config.topology_options.prefer_closest);
    }

    #[test]
    fn invalid_arguments_are_refused_with_the_texts_of_the_kubelet() {
        for (given, want) in [
            (&["cpu-manager-policy=x"][..], "cpu-manager-policy=x: unknown policy: \"x\""),
            (
                &["cpu-manager-policy-options=full-pcpus-only=true"],
                "None policy: received unsupported options=map[full-pcpus-only:true]",
            ),
            (
                &["cpu-manager-policy=static", "cpu-manager-policy-options=x=1"],
                "unknown CPU Manager Policy option: \"x\"",
            ),
            (
                &["reserved-cpus=a"],
                "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) a, \
                 error: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            (&["memory-manager-policy=static"], "unknown policy: \"static\""),
            (&["reserved-memory=x"], "the reserved memory has incorrect format"),
            (&["topology-manager-policy=x"], "must be one of: [\"none\" \"best-effort\""),
            (&["topology-manager-scope=x"], "must be one of: \"container\", or \"pod\""),
            (
                &["topology-manager-policy=restricted", "topology-manager-policy-options=x=1"],
                "unknown Topology Manager Policy option: \"x\"",
            ),
        ] {
            let error = run(given).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
