//! The health of the devices of drivers, and the file `dra_health_state` that keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use proto::dra_health as api;
use serde::{Deserialize, Serialize, Serializer};

use super::claim::null_as_default;

/// Name of the file, in the root directory of the kubelet.
const FILE: &str = "dra_health_state";
/// How long a report is valid if the plugin does not say (`DefaultHealthTimeout`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of devices of a driver (`maxDevicesPerDriver`).
const DEVICES_MAX: usize = 16_384;
/// Maximum length of a message in bytes (`ResourceHealthMessageMaxLength`).
const MESSAGE_MAX: usize = 1024;
/// Ends a message that was cut.
const ELLIPSIS: &str = "...";
/// Maximum size of the file in bytes: messages of all devices of a few drivers.
const SIZE_MAX: u64 = 128 << 20;

/// The health of a device; the names are those of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Health {
    Healthy,
    Unhealthy,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Health {
    /// The name in the API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }

    fn of_report(value: i32) -> Self {
        match api::HealthStatus::try_from(value) {
            Ok(api::HealthStatus::Healthy) => Self::Healthy,
            Ok(api::HealthStatus::Unhealthy) => Self::Unhealthy,
            Ok(api::HealthStatus::Unknown) | Err(_) => Self::Unknown,
        }
    }
}

/// What a plugin reported about a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DeviceHealth {
    pool_name: String,
    device_name: String,
    pub(super) health: Health,
    /// When it was reported.
    #[serde(serialize_with = "as_text", deserialize_with = "of_text")]
    last_updated: Timestamp,
    /// How long the report is valid, in nanoseconds; zero for the default.
    health_check_timeout: i64,
    pub(super) message: String,
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

fn of_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

impl DeviceHealth {
    /// Converts a report about one device.
    pub(super) fn of_report(report: api::DeviceHealth) -> Self {
        let device = report.device.unwrap_or_default();
        let seconds = u64::try_from(report.health_check_timeout_seconds).unwrap_or_default();
        let timeout = if seconds > 0 { Duration::from_secs(seconds) } else { DEFAULT_TIMEOUT };
        Self {
            pool_name: device.pool_name,
            device_name: device.device_name,
            health: Health::of_report(report.health),
            last_updated: Timestamp::UNIX_EPOCH,
            health_check_timeout: i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX),
            message: truncated(report.message),
        }
    }

    fn is_stale(&self, now: Timestamp) -> bool {
        let default = i64::try_from(DEFAULT_TIMEOUT.as_nanos()).unwrap_or(i64::MAX);
        let timeout = match self.health_check_timeout {
            0 => default,
            own => own,
        };
        now.as_nanosecond() - self.last_updated.as_nanosecond() > i128::from(timeout)
    }

    fn key(&self) -> String {
        format!("{}/{}", self.pool_name, self.device_name)
    }
}

/// Cuts a message that is too long, at the end of a character.
fn truncated(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end = message.floor_char_boundary(MESSAGE_MAX - ELLIPSIS.len());
        message.truncate(end);
        message.push_str(ELLIPSIS);
    }
    message
}

/// The health of the devices of one driver, by pool and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DriverHealth {
    #[serde(deserialize_with = "null_as_default")]
    devices: BTreeMap<String, DeviceHealth>,
}

/// Pool and name of a device.
pub(super) type DeviceName = (String, String);

impl DriverHealth {
    /// Applies a report. Returns the devices whose health changed, and whether the file has to be
    /// written.
    fn update(
        &mut self,
        driver: &str,
        report: Vec<DeviceHealth>,
        now: Timestamp,
    ) -> (BTreeSet<DeviceName>, bool) {
        let (mut changed, mut reported, mut ignored) = (BTreeSet::new(), BTreeSet::new(), 0_usize);
        for device in report {
            let key = device.key();
            reported.insert(key.clone());
            let known = self.devices.get(&key);
            if known.is_none() && self.devices.len() >= DEVICES_MAX {
                ignored += 1;
                continue;
            }
            let device = DeviceHealth { last_updated: now, ..device };
            let is_same = known.is_some_and(|known| {
                let known = DeviceHealth { last_updated: now, ..known.clone() };
                known == device
            });
            if !is_same {
                changed.insert((device.pool_name.clone(), device.device_name.clone()));
            }
            self.devices.insert(key, device);
        }
        if ignored > 0 {
            tracing::error!(
                driver,
                ignored,
                limit = DEVICES_MAX,
                "health report contains more devices than are kept, ignoring new devices"
            );
        }
        let before = self.devices.len();
        self.devices.retain(|key, device| {
            let is_gone = !reported.contains(key) && device.is_stale(now);
            if is_gone && device.health != Health::Unknown {
                changed.insert((device.pool_name.clone(), device.device_name.clone()));
            }
            !is_gone
        });
        let is_written = !changed.is_empty() || self.devices.len() != before;
        (changed, is_written)
    }
}

type HealthByDriver = BTreeMap<String, DriverHealth>;

/// The health of the devices of all drivers.
#[derive(Debug)]
pub(super) struct HealthCache {
    drivers: Mutex<HealthByDriver>,
    /// The file. It is written by one task at a time, with the state at that time.
    file: Arc<tokio::sync::Mutex<PathBuf>>,
}

fn now() -> Timestamp {
    let nanoseconds = i128::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    Timestamp::from_nanosecond(nanoseconds).unwrap_or_default()
}

fn read(path: &Path) -> std::io::Result<HealthByDriver> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(SIZE_MAX).read_to_end(&mut content)?;
    Ok(serde_json::from_slice(&content)?)
}

impl HealthCache {
    /// Reads the file in the directory `root`. A damaged file is ignored: reports replace it soon.
    /// Blocks.
    pub(super) fn open(root: &Path) -> Self {
        let file = root.join(FILE);
        let drivers = read(&file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "cannot read the health of devices");
            BTreeMap::new()
        });
        let file = Arc::new(tokio::sync::Mutex::new(file));
        Self { drivers: Mutex::new(drivers), file }
    }

    /// Applies a report of a driver. Returns the devices whose health changed.
    pub(super) async fn update(
        &self,
        driver: &str,
        report: Vec<DeviceHealth>,
    ) -> BTreeSet<DeviceName> {
        let (changed, is_written) = {
            let mut drivers = self.drivers.lock();
            drivers.entry(driver.to_owned()).or_default().update(driver, report, now())
        };
        if is_written {
            self.save().await;
        }
        changed
    }

    /// Drops what a driver reported.
    pub(super) async fn clear(&self, driver: &str) {
        if self.drivers.lock().remove(driver).is_some() {
            self.save().await;
        }
    }

    /// Returns health and message of a device; unknown if there is no report or an old one only.
    pub(super) fn of_device(&self, driver: &str, pool: &str, device: &str) -> (Health, String) {
        let drivers = self.drivers.lock();
        let devices = drivers.get(driver).map(|driver| &driver.devices);
        let known = devices.and_then(|devices| devices.get(&format!("{pool}/{device}")));
        let fresh = known.filter(|device| !device.is_stale(now()));
        fresh.map_or_else(Default::default, |device| (device.health, device.message.clone()))
    }

    /// Writes the file; a failure costs what was reported, after a restart, until the next report.
    async fn save(&self) {
        let path = Arc::clone(&self.file).lock_owned().await;
        let drivers = self.drivers.lock().clone();
        let write = move || {
            let content = serde_json::to_vec(&drivers)?;
            base::fs::write_atomic(&path, &content, 0o600)
        };
        if let Ok(Err(error)) = base::tasks::blocking(write).await {
            tracing::warn!(%error, "cannot save the health of devices");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn device(name: &str, health: Health) -> DeviceHealth {
        DeviceHealth {
            pool_name: "pool".to_owned(),
            device_name: name.to_owned(),
            health,
            health_check_timeout: 30 * SECOND,
            ..DeviceHealth::default()
        }
    }

    fn update(driver: &mut DriverHealth, report: &[DeviceHealth], at: Timestamp) -> Vec<String> {
        let (changed, _) = driver.update("d", report.to_vec(), at);
        changed.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn changes_of_health_message_or_timeout_are_changes() {
        let mut driver = DriverHealth::default();
        let healthy = device("a", Health::Healthy);
        let none: [&str; 0] = [];
        assert_eq!(update(&mut driver, std::slice::from_ref(&healthy), at(0)), ["a"]);
        assert_eq!(update(&mut driver, std::slice::from_ref(&healthy), at(1)), none);
        assert_eq!(update(&mut driver, &[device("a", Health::Unhealthy)], at(2)), ["a"]);
        let message = DeviceHealth { message: "m".to_owned(), ..healthy.clone() };
        assert_eq!(update(&mut driver, std::slice::from_ref(&message), at(3)), ["a"]);
        let timeout = DeviceHealth { health_check_timeout: SECOND, ..message };
        assert_eq!(update(&mut driver, &[timeout], at(4)), ["a"]);
    }

    #[test]
    fn a_device_that_is_not_reported_any_longer_becomes_unknown_after_its_timeout() {
        let mut driver = DriverHealth::default();
        let report = [device("a", Health::Healthy), device("b", Health::Unknown)];
        update(&mut driver, &report, at(0));
        let none: [&str; 0] = [];
        assert_eq!(update(&mut driver, &[], at(30)), none, "not older than the timeout");
        let (changed, is_written) = driver.update("d", Vec::new(), at(31));
        assert_eq!(changed.len(), 1, "b was unknown before");
        assert!(is_written && driver.devices.is_empty());
    }

    #[test]
    fn new_devices_beyond_the_limit_are_ignored() {
        let mut driver = DriverHealth::default();
        let all: Vec<DeviceHealth> =
            (0..DEVICES_MAX).map(|i| device(&i.to_string(), Health::Healthy)).collect();
        assert_eq!(update(&mut driver, &all, at(0)).len(), DEVICES_MAX);
        let more = [device("more", Health::Healthy), device("0", Health::Unhealthy)];
        assert_eq!(update(&mut driver, &more, at(1)), ["0"]);
        assert_eq!(driver.devices.len(), DEVICES_MAX);
    }

    #[test]
    fn reports_are_converted_with_limits() {
        let of = |health: i32, seconds: i64, message: &str| {
            DeviceHealth::of_report(api::DeviceHealth {
                device: None,
                health,
                last_updated_time: 7,
                health_check_timeout_seconds: seconds,
                message: message.to_owned(),
            })
        };
        assert_eq!(of(1, 12, "").health_check_timeout, 12 * SECOND);
        assert_eq!(of(1, 0, "").health_check_timeout, 30 * SECOND);
        assert_eq!(of(1, -1, "").health_check_timeout, 30 * SECOND);
        let health = |value| of(value, 0, "").health;
        assert_eq!([0, 1, 2].map(health), [Health::Unknown, Health::Healthy, Health::Unhealthy]);
        assert_eq!(health(99), Health::Unknown);
        for whole in [0, 7, 1024] {
            assert_eq!(of(0, 0, &"a".repeat(whole)).message.len(), whole);
        }
        for long in [1025, 2048] {
            let message = of(0, 0, &"a".repeat(long)).message;
            assert_eq!(message, format!("{}...", "a".repeat(1021)));
        }
        assert_eq!(of(0, 0, &"\u{20ac}".repeat(400)).message.len(), 1023, "whole characters");
    }

    #[tokio::test]
    async fn fresh_reports_survive_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let cache = HealthCache::open(home.path());
        let message = DeviceHealth { message: "m".to_owned(), ..device("a", Health::Unhealthy) };
        cache.update("d", vec![message]).await;
        let text = std::fs::read_to_string(home.path().join(FILE)).unwrap();
        let start = r#"{"d":{"Devices":{"pool/a":{"PoolName":"pool","DeviceName":"a","#;
        assert!(text.starts_with(start), "{text}");
        let again = HealthCache::open(home.path());
        assert_eq!(again.of_device("d", "pool", "a"), (Health::Unhealthy, "m".to_owned()));
        for (driver, pool, name) in [("x", "pool", "a"), ("d", "x", "a"), ("d", "pool", "x")] {
            assert_eq!(again.of_device(driver, pool, name), (Health::Unknown, String::new()));
        }
        again.clear("d").await;
        assert_eq!(again.of_device("d", "pool", "a").0, Health::Unknown);
        assert_eq!(std::fs::read_to_string(home.path().join(FILE)).unwrap(), "{}");
        std::fs::write(home.path().join(FILE), "").unwrap();
        assert_eq!(HealthCache::open(home.path()).of_device("d", "pool", "a").0, Health::Unknown);
    }

    #[test]
    fn files_of_upstream_are_read() {
        let text = r#"{"d":{"Devices":{"p/a":{"PoolName":"p","DeviceName":"a","Health":"Healthy",
            "LastUpdated":"2026-11-27T10:00:00.123456789+01:00","HealthCheckTimeout":0,
            "Message":""}}},"e":{"Devices":null}}"#;
        let drivers: HealthByDriver = serde_json::from_str(text).unwrap();
        let device = &drivers["d"].devices["p/a"];
        assert_eq!(device.health, Health::Healthy);
        assert_eq!(device.last_updated.to_string(), "2026-11-27T09:00:00.123456789Z");
        assert!(device.is_stale(at(0)) && drivers["e"].devices.is_empty());
    }
}
