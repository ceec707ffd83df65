//! Names of pools and devices.

use std::fmt;
use std::sync::Arc;

/// A pool of devices: its driver and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PoolId {
    pub(crate) driver: Arc<str>,
    pub(crate) pool: Arc<str>,
}

/// A device: its pool and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId {
    pub(crate) pool: PoolId,
    pub(crate) device: Arc<str>,
}

impl PoolId {
    /// The pool of a driver.
    pub(crate) fn new(driver: &str, pool: &str) -> Self {
        Self { driver: driver.into(), pool: pool.into() }
    }
}

impl DeviceId {
    /// The device of a pool of a driver.
    pub(crate) fn new(driver: &str, pool: &str, device: &str) -> Self {
        Self { pool: PoolId::new(driver, pool), device: device.into() }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.device)
    }
}
