//! Feature gates. kube-lite has the features of Kubernetes that are on by default, and no others: a
//! gate that is set to its default changes nothing, any other value is refused.

/// The name of the argument of all components.
pub(super) const ARGUMENT: &str = "feature-gates";

/// `NAME true` or `NAME false` per line: the gates and their defaults.
const GATES: &str = include_str!("feature_gates.txt");

/// Gates that are on by default and whose feature kube-lite does not have; their names begin so.
const ABSENT: [&str; 4] = [
    // On with a compatibility version of 1.37 only, which upstream does not have by default.
    "DRAFractionalCapacityRange",
    "KubeletEnsureSecretPulledImages",
    "NodeLogQuery",
    "UnknownVersionInterop",
];

/// Why feature gates cannot be set so.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The text is not `NAME=true` or `NAME=false`.
    #[error("{0}: must be NAME=true or NAME=false")]
    Malformed(String),
    /// Kubernetes 1.37 has no such gate.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// kube-lite does otherwise.
    #[error("{name}={wanted} is not supported: in kube-lite this feature is always {}", on(*.is))]
    Differs {
        /// The gate.
        name: String,
        /// Its value.
        wanted: bool,
        /// What kube-lite does.
        is: bool,
    },
}

fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// Whether a feature is on here; `None` for an unknown gate.
fn state(name: &str) -> Option<bool> {
    // The whole stages: off by default, as in upstream.
    if name == "AllAlpha" || name == "AllBeta" {
        return Some(false);
    }
    let mut gates = GATES.lines().filter(|line| !line.starts_with('#'));
    let default = gates.find_map(|line| {
        line.split_once(' ').filter(|(gate, _)| *gate == name).map(|(_, default)| default)
    })?;
    Some(default == "true" && !ABSENT.iter().any(|absent| name.starts_with(absent)))
}

/// Checks `NAME=BOOL,…`.
///
/// # Errors
/// The first gate that is unknown or would change something.
pub(super) fn check(text: &str) -> Result<(), GateError> {
    for gate in text.split(',').map(str::trim).filter(|gate| !gate.is_empty()) {
        let malformed = || GateError::Malformed(gate.to_owned());
        let (name, value) = gate.split_once('=').ok_or_else(malformed)?;
        let (name, wanted) =
            (name.trim(), value.trim().to_lowercase().parse().map_err(|_| malformed())?);
        let is = state(name).ok_or_else(|| GateError::Unknown(name.to_owned()))?;
        if is != wanted {
            return Err(GateError::Differs { name: name.to_owned(), wanted, is });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_at_their_defaults_are_accepted_and_others_refused() {
        assert!(GATES.lines().count() > 200);
        assert_eq!(check("NodeSwap=true, AllAlpha=false,EventedPLEG=false"), Ok(()));
        for (text, want) in [
            (
                "EventedPLEG=true",
                "EventedPLEG=true is not supported: in kube-lite this feature is always off",
            ),
            (
                "ImageVolume=false",
                "ImageVolume=false is not supported: in kube-lite this feature is always on",
            ),
            (
                "DRAAdminAccess=false",
                "DRAAdminAccess=false is not supported: in kube-lite this feature is always on",
            ),
            (
                "NodeLogQuery=true",
                "NodeLogQuery=true is not supported: in kube-lite this feature is always off",
            ),
            ("Nope=true", "unrecognized feature gate: Nope"),
            ("NodeSwap", "NodeSwap: must be NAME=true or NAME=false"),
            ("NodeSwap=perhaps", "NodeSwap=perhaps: must be NAME=true or NAME=false"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), want);
        }
        assert_eq!(
            check("DynamicResourceAllocation=true,DRAFractionalCapacityRange=false"),
            Ok(())
        );
    }
}
