//! CSI volumes of pods: their drivers stage and publish them, as the kubelet's volume manager and
//! its plugin `kubernetes.io/csi` have it done.

mod block;
mod expand;
#[cfg(test)]
mod fake;
mod label;
mod mount;
mod resize;
mod set_up;
mod tear_down;
#[cfg(test)]
mod tests;
mod unstage;

pub(super) use expand::VolumeClaim;
pub(super) use set_up::set_up;
pub(super) use tear_down::{has_volumes, tear_down};
pub(super) use unstage::request as unstage;
