//! SchedulingGates: a pod enters the scheduling queue only after all its scheduling gates are
//! removed.

use crate::devices::store::Devices;
use crate::framework::Plugin;
use crate::pod_info::PodInfo;

#[derive(Debug, Clone)]
pub(super) struct SchedulingGates;

impl Plugin for SchedulingGates {
    const NAME: &'static str = "SchedulingGates";

    fn pre_enqueue(pod: &PodInfo, _: &Devices) -> bool {
        pod.gates.is_empty()
    }
}
