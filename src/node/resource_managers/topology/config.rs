//! Configuration of the topology manager: policy, scope and options.

use std::collections::BTreeMap;

use super::super::cpu::options::parse_bool;

/// Nodes that the topology manager supports without the option `max-allowable-numa-nodes`.
pub(crate) const NODES_DEFAULT: usize = 8;
/// The highest value of the option: the number of hints doubles with each node.
const NODES_LIMIT: usize = 12;

/// `topologyManagerPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Resources are not aligned.
    #[default]
    None,
    /// Resources are aligned if that is possible.
    BestEffort,
    /// Pods whose resources cannot be aligned as well as on an empty machine are rejected.
    Restricted,
    /// Pods whose resources do not fit one NUMA node are rejected.
    SingleNumaNode,
}

impl TopologyPolicy {
    const ALL: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("best-effort", Self::BestEffort),
        ("restricted", Self::Restricted),
        ("single-numa-node", Self::SingleNumaNode),
    ];

    /// Parses the name of a policy.
    ///
    /// # Errors
    ///
    /// There is no such policy.
    pub fn parse(text: &str) -> Result<Self, InvalidTopologyConfig> {
        let policy = Self::ALL.iter().find(|(name, _)| *name == text);
        policy.map(|(_, policy)| *policy).ok_or_else(|| {
            let names: Vec<String> =
                Self::ALL.iter().map(|(name, _)| format!("{name:?}")).collect();
            InvalidTopologyConfig::Policy { given: text.to_owned(), names: names.join(" ") }
        })
    }
}

/// `topologyManagerScope`: what is aligned as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyScope {
    /// Each container.
    #[default]
    Container,
    /// Each pod.
    Pod,
}

impl TopologyScope {
    /// Parses the name of a scope.
    ///
    /// # Errors
    ///
    /// There is no such scope.
    pub fn parse(text: &str) -> Result<Self, InvalidTopologyConfig> {
        match text {
            "container" => Ok(Self::Container),
            "pod" => Ok(Self::Pod),
            other => Err(InvalidTopologyConfig::Scope(other.to_owned())),
        }
    }
}

/// `topologyManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `prefer-closest-numa-nodes`: distances decide between equally many nodes.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`.
    pub nodes_max: usize,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self { prefer_closest: false, nodes_max: NODES_DEFAULT }
    }
}

impl TopologyOptions {
    /// Parses the options.
    ///
    /// # Errors
    ///
    /// An unknown option, or a value outside of its range.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, InvalidTopologyConfig> {
        let mut out = Self::default();
        for (option, value) in options {
            let named = (option.clone(), value.clone());
            match option.as_str() {
                "prefer-closest-numa-nodes" => {
                    let parsed = parse_bool(value);
                    out.prefer_closest =
                        parsed.ok_or(InvalidTopologyConfig::Bool(named.0, named.1))?;
                }
                "max-allowable-numa-nodes" => {
                    let parsed = value.parse::<i64>();
                    let number =
                        parsed.map_err(|_| InvalidTopologyConfig::Number(named.0, named.1))?;
                    let number = usize::try_from(number).unwrap_or_default();
                    if number < NODES_DEFAULT {
                        return Err(InvalidTopologyConfig::TooFewNodes(option.clone()));
                    }
                    if number > NODES_LIMIT {
                        return Err(InvalidTopologyConfig::TooManyNodes);
                    }
                    out.nodes_max = number;
                }
                _ => return Err(InvalidTopologyConfig::Unknown(named.0)),
            }
        }
        Ok(out)
    }
}

/// Why the configuration is invalid; texts as upstream unless the bound is of this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTopologyConfig {
    /// No such policy.
    #[error(
        "invalid configuration: topologyManagerPolicy (--topology-manager-policy) {given:?} must \
         be one of: [{names}]"
    )]
    Policy {
        /// The value.
        given: String,
        /// The names of all policies.
        names: String,
    },
    /// No such scope.
    #[error(
        "invalid configuration: topologyManagerScope (--topology-manager-scope) {0:?} must be one \
         of: \"container\", or \"pod\""
    )]
    Scope(String),
    /// No such option.
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Unknown(String),
    /// The value of an option is no boolean.
    #[error("bad value for option {0:?}: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Bool(String, String),
    /// The value of an option is no number.
    #[error(
        "unable to convert policy option to integer {0:?}: strconv.Atoi: parsing {1:?}: invalid \
         syntax"
    )]
    Number(String, String),
    /// The number of nodes is below the default.
    #[error("the minimum value of {0:?} should not be less than 8")]
    TooFewNodes(String),
    /// The number of nodes is above the limit of this program.
    #[error("max-allowable-numa-nodes must be at most 12: the number of hints doubles with each")]
    TooManyNodes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Result<TopologyOptions, String> {
        let map = list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        TopologyOptions::parse(&map).map_err(|error| error.to_string())
    }

    #[test]
    fn policies_scopes_and_options_are_parsed() {
        assert_eq!(TopologyPolicy::parse("restricted"), Ok(TopologyPolicy::Restricted));
        assert_eq!(TopologyScope::parse("pod"), Ok(TopologyScope::Pod));
        let error = TopologyPolicy::parse("x").unwrap_err().to_string();
        let want = "invalid configuration: topologyManagerPolicy (--topology-manager-policy) \"x\" \
                    must be one of: [\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]";
        assert_eq!(error, want);
        let error = TopologyScope::parse("x").unwrap_err().to_string();
        assert!(error.ends_with("\"x\" must be one of: \"container\", or \"pod\""), "{error}");
        assert_eq!(options(&[]).unwrap().nodes_max, 8);
        let both = [("prefer-closest-numa-nodes", "true"), ("max-allowable-numa-nodes", "12")];
        assert_eq!(options(&both), Ok(TopologyOptions { prefer_closest: true, nodes_max: 12 }));
        for (name, value, want) in [
            ("x", "1", "unknown Topology Manager Policy option: \"x\""),
            ("prefer-closest-numa-nodes", "yes", "bad value for option"),
            ("max-allowable-numa-nodes", "x", "unable to convert policy option to integer"),
            ("max-allowable-numa-nodes", "7", "should not be less than 8"),
            ("max-allowable-numa-nodes", "13", "must be at most 12"),
        ] {
            let error = options(&[(name, value)]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
