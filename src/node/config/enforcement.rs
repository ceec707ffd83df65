//! Which groups of processes the node limits to what is allocatable or reserved (the kubelet's
//! `enforceNodeAllocatable`).

/// The groups whose limits the node sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAllocatableEnforcement {
    /// All pods together are limited to the allocatable resources, else to those of the machine.
    pub pods: bool,
    /// The cgroup of the system, limited to what is reserved for it.
    pub system_reserved: Option<ReservedCgroup>,
    /// The cgroup of Kubernetes, limited to what is reserved for it.
    pub kube_reserved: Option<ReservedCgroup>,
}

/// A cgroup with a limit of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// Its path below the root of each hierarchy, such as `/system.slice`.
    pub path: String,
    /// Whether only CPU is limited (`system-reserved-compressible`).
    pub only_compressible: bool,
}

impl Default for NodeAllocatableEnforcement {
    /// The default of the kubelet: `pods`.
    fn default() -> Self {
        Self { pods: true, system_reserved: None, kube_reserved: None }
    }
}

/// Why the levels cannot be enforced. The texts are upstream's (`ValidateKubeletConfiguration`),
/// except that of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnforcementError {
    /// All resources and only the compressible ones of the same group.
    #[error(
        "invalid configuration: both {0:?} and \"{0}-compressible\" cannot be specified together \
         in enforceNodeAllocatable (--enforce-node-allocatable)"
    )]
    Both(&'static str),
    /// A level occurs twice.
    #[error(
        "invalid configuration: duplicated enforcements {0:?} in enforceNodeAllocatable \
         (--enforce-node-allocatable)"
    )]
    Duplicated(String),
    /// The group of the system is not named.
    #[error(
        "invalid configuration: systemReservedCgroup (--system-reserved-cgroup) must be specified \
         when \"system-reserved\" or \"system-reserved-compressible\" included in \
         enforceNodeAllocatable (--enforce-node-allocatable)"
    )]
    NoSystemCgroup,
    /// The group of Kubernetes is not named.
    #[error(
        "invalid configuration: kubeReservedCgroup (--kube-reserved-cgroup) must be specified \
         when \"kube-reserved\" or \"kube-reserved-compressible\" included in \
         enforceNodeAllocatable (--enforce-node-allocatable)"
    )]
    NoKubeCgroup,
    /// `none` beside other levels.
    #[error(
        "invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may not \
         contain additional enforcements when \"none\" is specified"
    )]
    NotAlone,
    /// There is no such level.
    #[error(
        "invalid configuration: option {0:?} specified for enforceNodeAllocatable \
         (--enforce-node-allocatable). Valid options are \"pods\", \"system-reserved\", \
         \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \
         \"none\""
    )]
    Unknown(String),
    /// A path is that of no cgroup below the root.
    #[error("{0:?} is no cgroup below the root, such as /system.slice")]
    Path(String),
}

const SYSTEM: &str = "system-reserved";
const SYSTEM_COMPRESSIBLE: &str = "system-reserved-compressible";
const KUBE: &str = "kube-reserved";
const KUBE_COMPRESSIBLE: &str = "kube-reserved-compressible";

impl NodeAllocatableEnforcement {
    /// Parses the levels, with the cgroups of the system and of Kubernetes if they are named.
    ///
    /// # Errors
    /// The first level that is invalid.
    pub fn parse(
        levels: &[String],
        system_cgroup: Option<&str>,
        kube_cgroup: Option<&str>,
    ) -> Result<Self, EnforcementError> {
        let has = |level: &str| levels.iter().any(|given| given == level);
        if has(SYSTEM) && has(SYSTEM_COMPRESSIBLE) {
            return Err(EnforcementError::Both(SYSTEM));
        }
        if has(KUBE) && has(KUBE_COMPRESSIBLE) {
            return Err(EnforcementError::Both(KUBE));
        }
        let mut enforcement = Self { pods: false, ..Self::default() };
        for (index, level) in levels.iter().enumerate() {
            if levels.iter().take(index).any(|before| before == level) {
                return Err(EnforcementError::Duplicated(level.clone()));
            }
            match level.as_str() {
                "pods" => enforcement.pods = true,
                SYSTEM | SYSTEM_COMPRESSIBLE => {
                    let path = system_cgroup.ok_or(EnforcementError::NoSystemCgroup)?;
                    let only_compressible = level == SYSTEM_COMPRESSIBLE;
                    enforcement.system_reserved = Some(reserved(path, only_compressible)?);
                }
                KUBE | KUBE_COMPRESSIBLE => {
                    let path = kube_cgroup.ok_or(EnforcementError::NoKubeCgroup)?;
                    let only_compressible = level == KUBE_COMPRESSIBLE;
                    enforcement.kube_reserved = Some(reserved(path, only_compressible)?);
                }
                "none" if levels.iter().any(|other| other != level) => {
                    return Err(EnforcementError::NotAlone);
                }
                "none" => {}
                _ => return Err(EnforcementError::Unknown(level.clone())),
            }
        }
        Ok(enforcement)
    }
}

/// The cgroup of a path. The root has no limits.
fn reserved(path: &str, only_compressible: bool) -> Result<ReservedCgroup, EnforcementError> {
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() || parts.any(|part| matches!(part, "." | "..")) {
        return Err(EnforcementError::Path(path.to_owned()));
    }
    Ok(ReservedCgroup { path: path.to_owned(), only_compressible })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> Option<&str> {
        Some(path).filter(|path| !path.is_empty())
    }

    fn parse(
        levels: &[&str],
        system: &str,
        kube: &str,
    ) -> Result<NodeAllocatableEnforcement, String> {
        let levels: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
        NodeAllocatableEnforcement::parse(&levels, named(system), named(kube))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn levels_select_the_groups() {
        let reserved = |path: &str, only_compressible| {
            Some(ReservedCgroup { path: path.to_owned(), only_compressible })
        };
        let all = parse(&["pods", "system-reserved", "kube-reserved-compressible"], "/s", "/k");
        assert_eq!(
            all,
            Ok(NodeAllocatableEnforcement {
                pods: true,
                system_reserved: reserved("/s", false),
                kube_reserved: reserved("/k", true),
            })
        );
        let none = NodeAllocatableEnforcement { pods: false, ..Default::default() };
        assert_eq!(parse(&["none"], "/s", "/k"), Ok(none));
        assert_eq!(parse(&["pods"], "/s", ""), Ok(NodeAllocatableEnforcement::default()));
    }

    /// The cases of upstream's `TestValidateKubeletConfiguration`.
    #[test]
    fn invalid_levels_have_the_texts_of_the_kubelet() {
        let no_system = "invalid configuration: systemReservedCgroup (--system-reserved-cgroup) \
            must be specified when \"system-reserved\" or \"system-reserved-compressible\" \
            included in enforceNodeAllocatable (--enforce-node-allocatable)";
        let no_kube = "invalid configuration: kubeReservedCgroup (--kube-reserved-cgroup) must be \
            specified when \"kube-reserved\" or \"kube-reserved-compressible\" included in \
            enforceNodeAllocatable (--enforce-node-allocatable)";
        for (levels, system, kube, want) in [
            (&["system-reserved"][..], "", "/k", no_system),
            (&["system-reserved-compressible"], "", "/k", no_system),
            (
                &["system-reserved-compressible", "system-reserved"],
                "/s",
                "/k",
                "invalid configuration: both \"system-reserved\" and \
                 \"system-reserved-compressible\" cannot be specified together in \
                 enforceNodeAllocatable (--enforce-node-allocatable)",
            ),
            (&["kube-reserved-compressible"], "/s", "", no_kube),
            (&["kube-reserved"], "/s", "", no_kube),
            (
                &["kube-reserved-compressible", "kube-reserved"],
                "/s",
                "/k",
                "invalid configuration: both \"kube-reserved\" and \"kube-reserved-compressible\" \
                 cannot be specified together in enforceNodeAllocatable \
                 (--enforce-node-allocatable)",
            ),
            (
                &["none", "kube-reserved"],
                "/s",
                "/k",
                "invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may \
                 not contain additional enforcements when \"none\" is specified",
            ),
            (
                &["none", "none"],
                "/s",
                "/k",
                "invalid configuration: duplicated enforcements \"none\" in \
                 enforceNodeAllocatable (--enforce-node-allocatable)",
            ),
            (
                &["invalid-enforce-node-allocatable"],
                "/s",
                "/k",
                "invalid configuration: option \"invalid-enforce-node-allocatable\" specified for \
                 enforceNodeAllocatable (--enforce-node-allocatable). Valid options are \"pods\", \
                 \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \
                 \"kube-reserved-compressible\" or \"none\"",
            ),
            (
                &["kube-reserved"],
                "",
                "/a/../..",
                "\"/a/../..\" is no cgroup below the root, such as /system.slice",
            ),
            (
                &["kube-reserved"],
                "",
                "//",
                "\"//\" is no cgroup below the root, such as /system.slice",
            ),
        ] {
            assert_eq!(parse(levels, system, kube), Err(want.to_owned()), "{levels:?}");
        }
    }
}
