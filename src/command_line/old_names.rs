//! Old names of flags that k3s accepts: replaced by the present ones, with a warning.

use std::ffi::OsString;

/// The old name, the present name, and the value that the present flag gets where the old one is a
/// boolean.
pub(super) const OLD_NAMES: &[(&str, &str, Option<&str>)] = &[
    ("no-deploy", "disable", None),
    ("no-flannel", "flannel-backend", Some("none")),
    ("cluster-secret", "token", None),
    ("kube-controller-arg", "kube-controller-manager-arg", None),
    ("kube-cloud-controller-arg", "kube-cloud-controller-manager-arg", None),
];

/// What the old name `name` with `value` means now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Renamed {
    /// The flag of this name with the same value.
    Same(&'static str),
    /// The flag of this name with this value.
    Value(&'static str, &'static str),
    /// A boolean that is false: nothing.
    Off,
}

/// The present meaning of an old name; `None` for other names.
pub(super) fn present(name: &str, value: Option<&str>) -> Option<Renamed> {
    let (_, new, set) = OLD_NAMES.iter().find(|(old, ..)| *old == name)?;
    Some(match (set, value) {
        (None, _) => Renamed::Same(new),
        (Some(_), Some("false")) => Renamed::Off,
        (Some(set), _) => Renamed::Value(new, set),
    })
}

/// The sentence about the use of an old name.
pub(super) fn warning(place: &str, new: &str) -> String {
    format!("{place} is an old name of --{new}, use that")
}

/// Replaces old names of flags in `argv`, and describes each replacement in `warnings`.
pub(super) fn replace(argv: Vec<OsString>, warnings: &mut Vec<String>) -> Vec<OsString> {
    let mut replaced = Vec::with_capacity(argv.len());
    for argument in argv {
        let Some(text) = argument.to_str().and_then(|text| text.strip_prefix("--")) else {
            replaced.push(argument);
            continue;
        };
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let new = match (present(name, value), value) {
            (None, _) => {
                replaced.push(argument);
                continue;
            }
            (Some(Renamed::Off), _) => continue,
            (Some(Renamed::Same(new)), Some(value)) => {
                replaced.push(format!("--{new}={value}").into());
                new
            }
            (Some(Renamed::Same(new)), None) => {
                replaced.push(format!("--{new}").into());
                new
            }
            (Some(Renamed::Value(new, value)), _) => {
                replaced.push(format!("--{new}={value}").into());
                new
            }
        };
        warnings.push(warning(&format!("--{name}"), new));
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_replaced_with_a_warning_each() {
        for (given, want, warned) in [
            (&["--no-deploy", "traefik"][..], &["--disable", "traefik"][..], 1),
            (&["--no-deploy=traefik"], &["--disable=traefik"], 1),
            (&["--no-flannel"], &["--flannel-backend=none"], 1),
            (&["--no-flannel=false"], &[], 0),
            (&["--cluster-secret=a=b"], &["--token=a=b"], 1),
            (&["--node-name=no-deploy", "x"], &["--node-name=no-deploy", "x"], 0),
        ] {
            let mut warnings = Vec::new();
            let replaced = replace(given.iter().map(OsString::from).collect(), &mut warnings);
            assert_eq!(replaced, want, "{given:?}");
            assert_eq!(warnings.len(), warned, "{warnings:?}");
            assert!(!warnings.iter().any(|warning| warning.contains("a=b")), "{warnings:?}");
        }
    }
}
