//! Helm charts in the process: reads charts, renders them, and installs, upgrades and removes
//! releases as Helm 4 does; the controller does so for HelmChart objects as k3s does.

pub mod action;
pub mod chart;
pub mod cluster;
pub mod controller;
pub mod fetch;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod manifest;
pub mod release;
pub mod render;
pub mod values;
pub mod version;
pub mod yaml;
