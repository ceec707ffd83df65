//! The fields of KubeletConfiguration about memory beside its limits: swap, protection of requests,
//! and throttling.

use node::{MemoryConfig, MemoryReservation, SwapBehavior};

use crate::command_line::components::Arguments;
use crate::command_line::components::kubelet_config::{
    MEMORY_RESERVATION, MEMORY_THROTTLING, SWAP_BEHAVIOR,
};
use crate::error_catalogue::CommandError;

/// Reads the fields (the kubelet's validation).
///
/// # Errors
/// The first field that is invalid.
pub(super) fn parse(own: &Arguments) -> Result<MemoryConfig, CommandError> {
    let swap = own.value(SWAP_BEHAVIOR).map_or(Some(SwapBehavior::default()), SwapBehavior::parse);
    let swap = swap.ok_or_else(|| {
        own.invalid(SWAP_BEHAVIOR, "must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"")
    })?;
    let policy = own.value(MEMORY_RESERVATION);
    let reservation = policy.map_or(Some(MemoryReservation::None), MemoryReservation::parse);
    let reservation = reservation.ok_or_else(|| {
        own.invalid(MEMORY_RESERVATION, "valid options are \"None\" or \"TieredReservation\"")
    })?;
    let throttling_factor = match own.value(MEMORY_THROTTLING) {
        None => None,
        Some(text) => {
            let factor = text.parse::<f64>().ok().filter(|factor| *factor > 0.0 && *factor <= 1.0);
            let why = "must be greater than 0 and less than or equal to 1.0";
            Some(factor.ok_or_else(|| own.invalid(MEMORY_THROTTLING, why))?)
        }
    };
    Ok(MemoryConfig { swap, reservation, throttling_factor })
}
