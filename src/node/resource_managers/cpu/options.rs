//! Options of the static CPU policy (`cpuManagerPolicyOptions`).

use std::collections::BTreeMap;

/// Why options are invalid; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCpuOptions {
    /// There is no such option.
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    /// The option belongs to a feature gate that is off.
    #[error("CPU Manager Policy Alpha-level Options not enabled, but option {0:?} provided")]
    Alpha(String),
    /// The value is no boolean.
    #[error(
        "bad value for option {option:?}: strconv.ParseBool: parsing {value:?}: invalid syntax"
    )]
    Value {
        /// Name of the option.
        option: String,
        /// Its value.
        value: String,
    },
    /// Two options contradict each other.
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Incompatible(&'static str, &'static str),
    /// The policy `none` has no options.
    #[error("None policy: received unsupported options={0}")]
    OfNone(String),
}

const FULL_CORES: &str = "full-pcpus-only";
const DISTRIBUTE: &str = "distribute-cpus-across-numa";
const STRICT: &str = "strict-cpu-reservation";
const ALIGN_UNCORE: &str = "prefer-align-cpus-by-uncorecache";
/// Options of the gate `CPUManagerPolicyAlphaOptions`, which is off.
const ALPHA: [&str; 2] = ["align-by-socket", "distribute-cpus-across-cores"];

/// Options of the static policy; all are off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuPolicyOptions {
    /// `full-pcpus-only`: containers get whole cores, or their pod is rejected.
    pub full_cores_only: bool,
    /// `distribute-cpus-across-numa`: equal shares from several NUMA nodes.
    pub distribute_across_numa: bool,
    /// `strict-cpu-reservation`: no pod uses the reserved CPUs.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: whole last-level caches before cores.
    pub align_by_uncore: bool,
}

impl CpuPolicyOptions {
    /// Parses the options of the static policy.
    ///
    /// # Errors
    ///
    /// An unknown option, one of a feature that is off, a value that is no boolean of Go, or two
    /// options that contradict each other.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, InvalidCpuOptions> {
        let mut out = Self::default();
        for (option, value) in options {
            if ALPHA.contains(&option.as_str()) {
                return Err(InvalidCpuOptions::Alpha(option.clone()));
            }
            let field = match option.as_str() {
                FULL_CORES => &mut out.full_cores_only,
                DISTRIBUTE => &mut out.distribute_across_numa,
                STRICT => &mut out.strict_reservation,
                ALIGN_UNCORE => &mut out.align_by_uncore,
                _ => return Err(InvalidCpuOptions::Unknown(option.clone())),
            };
            *field = parse_bool(value).ok_or_else(|| InvalidCpuOptions::Value {
                option: option.clone(),
                value: value.clone(),
            })?;
        }
        if out.align_by_uncore && out.distribute_across_numa {
            return Err(InvalidCpuOptions::Incompatible(ALIGN_UNCORE, DISTRIBUTE));
        }
        Ok(out)
    }

    /// Refuses options of the policy `none`.
    ///
    /// # Errors
    ///
    /// There is an option.
    pub fn refuse(options: &BTreeMap<String, String>) -> Result<(), InvalidCpuOptions> {
        if options.is_empty() {
            return Ok(());
        }
        let pairs: Vec<String> = options.iter().map(|(k, v)| format!("{k}:{v}")).collect();
        Err(InvalidCpuOptions::OfNone(format!("map[{}]", pairs.join(" "))))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool`.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<CpuPolicyOptions, String> {
        let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        CpuPolicyOptions::parse(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_parsed_and_refused_by_name() {
        assert_eq!(parse(&[]), Ok(CpuPolicyOptions::default()));
        let all = parse(&[(FULL_CORES, "true"), (DISTRIBUTE, "T"), (STRICT, "0")]).unwrap();
        assert!(all.full_cores_only && all.distribute_across_numa && !all.strict_reservation);
        for (options, want) in [
            (&[("x", "true")][..], "unknown CPU Manager Policy option: \"x\""),
            (
                &[("align-by-socket", "true")],
                "CPU Manager Policy Alpha-level Options not enabled, but option \
                 \"align-by-socket\" provided",
            ),
            (
                &[(FULL_CORES, "enabled!")],
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \
                 \"enabled!\": invalid syntax",
            ),
            (
                &[(ALIGN_UNCORE, "1"), (DISTRIBUTE, "1")],
                "static policy options prefer-align-cpus-by-uncorecache and \
                 distribute-cpus-across-numa can not be used at the same time",
            ),
        ] {
            assert_eq!(parse(options).unwrap_err(), want);
        }
        let options = BTreeMap::from([(STRICT.to_owned(), "true".to_owned())]);
        let error = CpuPolicyOptions::refuse(&options).unwrap_err().to_string();
        let want = "None policy: received unsupported options=map[strict-cpu-reservation:true]";
        assert_eq!(error, want);
    }
}
