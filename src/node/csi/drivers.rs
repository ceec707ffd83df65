//! The CSI drivers that are registered on this node.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::local_driver::DRIVER;
use base::Shutdown;
use parking_lot::RwLock;

use super::driver_client::CsiClient;
use super::metrics::CsiMetrics;
use super::paths;
use crate::local_driver::LocalDriver;

/// Why a driver is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverRefused {
    #[error(
        "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Plugin returned an empty list \
         for supported versions"
    )]
    NoVersions { caller: &'static str, name: String },
    #[error(
        "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. None of the versions \
         specified {versions} are supported. err={source}",
        versions = go_list(versions)
    )]
    Versions { caller: &'static str, name: String, versions: Vec<String>, source: BadVersions },
    #[error(
        "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Another driver with the same \
         name is already registered with a higher supported version: \"{version}\""
    )]
    Registered { caller: &'static str, name: String, version: DriverVersion },
    #[error("kubernetes.io/csi: {caller} for CSI driver {DRIVER:?} failed. It is built in")]
    BuiltIn { caller: &'static str },
    #[error("kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Invalid name: {why}")]
    Name { caller: &'static str, name: String, why: String },
}

/// Why none of the versions of a driver is supported (`HighestSupportedVersion`).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadVersions {
    #[error(
        "could not find a highest supported version from versions ([{}]) reported: {}",
        versions.join(" "),
        last_error.as_ref().map_or_else(|| "<nil>".to_owned(), ToString::to_string)
    )]
    None { versions: Vec<String>, last_error: Option<BadVersion> },
    #[error("highest supported version reported is {0}, must be v1.x")]
    TooOld(DriverVersion),
}

/// Formats texts as Go does with `%q`.
fn go_list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|t| format!("{t:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

/// The numbers of a version of the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverVersion(Vec<u64>);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// Why a text is no version; upstream's texts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadVersion {
    #[error("could not parse {0:?} as version")]
    NoNumber(String),
    #[error("illegal version string {0:?}")]
    OneNumber(String),
    #[error("illegal zero-prefixed version component {part:?} in {text:?}")]
    ZeroPrefix { part: String, text: String },
    #[error("illegal non-numeric version component {part:?} in {text:?}: {source}")]
    NotNumeric { part: String, text: String, source: std::num::ParseIntError },
}

impl DriverVersion {
    /// Parses two or more numbers, which other text may follow (`ParseGeneric`).
    fn parse(text: &str) -> Result<Self, BadVersion> {
        let trimmed = text.trim_start();
        let numbers = trimmed.strip_prefix('v').unwrap_or(trimmed);
        let mut end = 0;
        for (at, character) in numbers.char_indices() {
            let is_dot = character == '.'
                && at > 0
                && numbers
                    .get(at + 1..)
                    .is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
            if !character.is_ascii_digit() && !is_dot {
                break;
            }
            end = at + 1;
        }
        let parts: Vec<&str> = numbers.get(..end).unwrap_or_default().split('.').collect();
        let [first, _, ..] = parts.as_slice() else {
            let text = text.to_owned();
            return Err(if end == 0 {
                BadVersion::NoNumber(text)
            } else {
                BadVersion::OneNumber(text)
            });
        };
        if first.starts_with('0') && *first != "0" {
            let (part, text) = ((*first).to_owned(), text.to_owned());
            return Err(BadVersion::ZeroPrefix { part, text });
        }
        let numbers = parts.iter().map(|part| {
            part.parse().map_err(|source| {
                let (part, text) = ((*part).to_owned(), text.to_owned());
                BadVersion::NotNumeric { part, text, source }
            })
        });
        numbers.collect::<Result<_, _>>().map(Self)
    }

    fn major(&self) -> u64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// Whether this version is older; missing numbers count as zero.
    fn is_less_than(&self, other: &Self) -> bool {
        let length = self.0.len().max(other.0.len());
        let padded = |version: &Self| {
            let zeros = std::iter::repeat_n(0, length.saturating_sub(version.0.len()));
            version.0.iter().copied().chain(zeros).collect::<Vec<u64>>()
        };
        padded(self) < padded(other)
    }

    /// Returns the highest version with the major number 1.
    fn highest(versions: &[String]) -> Result<Self, BadVersions> {
        let mut highest: Option<Self> = None;
        let mut last_error = None;
        for text in versions.iter().rev() {
            match Self::parse(text) {
                Err(error) => last_error = Some(error),
                Ok(version) if version.major() > 1 => {}
                Ok(version) if highest.as_ref().is_none_or(|h| h.is_less_than(&version)) => {
                    highest = Some(version);
                }
                Ok(_) => {}
            }
        }
        match highest {
            None => Err(BadVersions::None { versions: versions.to_vec(), last_error }),
            Some(version) if version.major() != 1 => Err(BadVersions::TooOld(version)),
            Some(version) => Ok(version),
        }
    }
}

#[derive(Debug, Clone)]
struct RegisteredDriver {
    endpoint: PathBuf,
    version: DriverVersion,
    /// Requested when the driver is gone or replaced.
    end: Shutdown,
}

/// A driver that is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver name {0} not found in the list of registered CSI drivers")]
pub(crate) struct DriverNotRegistered(pub(crate) String);

/// The registered drivers by name.
#[derive(Debug, Default)]
pub(crate) struct CsiDrivers {
    drivers: RwLock<BTreeMap<String, RegisteredDriver>>,
    built_in: OnceLock<Arc<LocalDriver>>,
    metrics: Arc<CsiMetrics>,
}

impl CsiDrivers {
    /// Checks name and versions of a driver, and returns its highest supported version. `caller`
    /// is the step in the text of the error.
    pub(crate) fn check(
        &self,
        caller: &'static str,
        name: &str,
        versions: &[String],
    ) -> Result<DriverVersion, DriverRefused> {
        let owned = || name.to_owned();
        if name == DRIVER {
            return Err(DriverRefused::BuiltIn { caller });
        }
        if versions.is_empty() {
            return Err(DriverRefused::NoVersions { caller, name: owned() });
        }
        let field = api::field::Path::new("name");
        let invalid = api::validation::core::volumes::csi_driver_name(name, &field);
        if let Some(why) = invalid.first() {
            return Err(DriverRefused::Name { caller, name: owned(), why: why.to_string() });
        }
        if !paths::is_path_safe(name) {
            let why = "it is used as the name of a directory".to_owned();
            return Err(DriverRefused::Name { caller, name: owned(), why });
        }
        let version = DriverVersion::highest(versions).map_err(|source| {
            DriverRefused::Versions { caller, name: owned(), versions: versions.to_vec(), source }
        })?;
        if let Some(known) = self.drivers.read().get(name)
            && !known.version.is_less_than(&version)
        {
            let version = known.version.clone();
            return Err(DriverRefused::Registered { caller, name: owned(), version });
        }
        Ok(version)
    }

    /// Adds a driver, or replaces one. `end` is requested once it is gone or replaced.
    pub(crate) fn insert(
        &self,
        name: &str,
        endpoint: &Path,
        version: DriverVersion,
        end: Shutdown,
    ) {
        let driver = RegisteredDriver { endpoint: endpoint.to_owned(), version, end };
        if let Some(replaced) = self.drivers.write().insert(name.to_owned(), driver) {
            replaced.end.request();
        }
    }

    /// Removes a driver if it serves at this endpoint; returns whether it did.
    pub(crate) fn remove(&self, name: &str, endpoint: &Path) -> bool {
        let mut drivers = self.drivers.write();
        let is_same = drivers.get(name).is_some_and(|d| d.endpoint == endpoint);
        if is_same && let Some(driver) = drivers.remove(name) {
            driver.end.request();
        }
        is_same
    }

    /// Adds the driver of this process.
    pub(crate) fn set_built_in(&self, driver: Arc<LocalDriver>) {
        let _ = self.built_in.set(driver);
    }

    /// The driver of this process.
    pub(crate) fn built_in(&self) -> Option<&Arc<LocalDriver>> {
        self.built_in.get()
    }

    /// Returns a client of a registered driver.
    pub(crate) fn client(&self, name: &str) -> Result<CsiClient, DriverNotRegistered> {
        if name == DRIVER
            && let Some(driver) = self.built_in()
        {
            return Ok(CsiClient::built_in(name, driver, &self.metrics));
        }
        let drivers = self.drivers.read();
        let driver = drivers.get(name).ok_or_else(|| DriverNotRegistered(name.to_owned()))?;
        Ok(CsiClient::new(name, &driver.endpoint, &self.metrics))
    }

    /// Renders the metrics of the calls to all drivers.
    pub(crate) fn render_metrics(&self) -> String {
        self.metrics.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(versions: &[&str]) -> Vec<String> {
        versions.iter().map(|v| (*v).to_owned()).collect()
    }

    /// The cases of `TestHighestSupportedVersion`.
    #[test]
    fn the_highest_version_of_major_1_is_chosen() {
        let highest = |versions: &[&str]| DriverVersion::highest(&texts(versions));
        let is = |versions: &[&str], expected: &str| {
            assert_eq!(highest(versions).unwrap().to_string(), expected, "{versions:?}");
        };
        is(&["v1.0.0"], "1.0.0");
        is(&["1.0.0", "v1.2.0", "1.1.0"], "1.2.0");
        is(&["0.3.0", "1.0.0"], "1.0.0");
        is(&["1.0.0", "2.0.0", "9.9"], "1.0.0");
        is(&["  v1.4.0-rc1"], "1.4.0");
        is(&["rubbish", "1.1"], "1.1");
        assert_eq!(
            highest(&["0.2.0", "0.3.0"]).unwrap_err().to_string(),
            "highest supported version reported is 0.3.0, must be v1.x"
        );
        assert_eq!(
            highest(&["2.0.0"]).unwrap_err().to_string(),
            "could not find a highest supported version from versions ([2.0.0]) reported: <nil>"
        );
        assert_eq!(
            highest(&["x", "1"]).unwrap_err().to_string(),
            "could not find a highest supported version from versions ([x 1]) reported: could not \
             parse \"x\" as version"
        );
        assert!(highest(&["01.2"]).is_err());
        assert!(highest(&["1."]).is_err());
    }

    #[tokio::test]
    async fn a_registered_driver_is_replaced_by_a_newer_version_only() {
        let drivers = CsiDrivers::default();
        let check = |versions: &[&str]| drivers.check("ValidatePlugin", "d", &texts(versions));
        let (old, new) = (Path::new("/old.sock"), Path::new("/new.sock"));
        let (first, second) = (Shutdown::new(), Shutdown::new());
        drivers.insert("d", old, check(&["1.0.0"]).unwrap(), first.clone());
        assert_eq!(
            check(&["1.0"]).unwrap_err().to_string(),
            "kubernetes.io/csi: ValidatePlugin for CSI driver \"d\" failed. Another driver with \
             the same name is already registered with a higher supported version: \"1.0.0\""
        );
        drivers.insert("d", new, check(&["1.1.0"]).unwrap(), second.clone());
        assert!(first.is_requested() && !second.is_requested());
        assert!(!drivers.remove("d", old), "the older one is replaced already");
        assert!(drivers.client("d").is_ok());
        assert!(drivers.remove("d", new));
        assert!(second.is_requested());
        assert_eq!(
            drivers.client("d").unwrap_err().to_string(),
            "driver name d not found in the list of registered CSI drivers"
        );
    }

    /// No other process receives the calls for volumes of the driver of this process.
    #[test]
    fn the_name_of_the_built_in_driver_is_taken() {
        let refused = CsiDrivers::default().check("ValidatePlugin", DRIVER, &texts(&["1.9.0"]));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "kubernetes.io/csi: ValidatePlugin for CSI driver \"local.kube-lite.io\" failed. It \
             is built in"
        );
    }

    #[test]
    fn drivers_without_versions_or_with_a_bad_name_are_refused() {
        let drivers = CsiDrivers::default();
        let refused = |name: &str, versions: &[&str]| match drivers.check(
            "ValidatePlugin",
            name,
            &texts(versions),
        ) {
            Err(error) => error.to_string(),
            Ok(version) => version.to_string(),
        };
        assert_eq!(
            refused("d", &[]),
            "kubernetes.io/csi: ValidatePlugin for CSI driver \"d\" failed. Plugin returned an \
             empty list for supported versions"
        );
        assert_eq!(
            refused("d", &["2.0.0", "3.0"]),
            "kubernetes.io/csi: ValidatePlugin for CSI driver \"d\" failed. None of the versions \
             specified [\"2.0.0\" \"3.0\"] are supported. err=could not find a highest supported \
             version from versions ([2.0.0 3.0]) reported: <nil>"
        );
        for name in ["", "..", "a/b", &"a".repeat(64)] {
            assert!(refused(name, &["1.0.0"]).contains("Invalid name"), "{name}");
        }
    }
}
