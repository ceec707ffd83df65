//! Settings of the memory controller of cgroup v2: swap of containers, protected requests, and the
//! usage above which the kernel throttles a container.

/// How containers may use swap (`memorySwap.swapBehavior`, KEP 2400).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapBehavior {
    /// No container uses swap.
    #[default]
    NoSwap,
    /// Containers of burstable pods use swap in proportion to their requests of memory.
    LimitedSwap,
}

/// Which requests of memory the kernel protects from reclaim (`memoryReservationPolicy`, KEP 2570).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryReservation {
    /// None.
    #[default]
    None,
    /// Those of guaranteed pods by `memory.min`, those of burstable pods by `memory.low`.
    Tiered,
}

/// Settings of the memory controller. The defaults are the kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryConfig {
    /// The use of swap.
    pub swap: SwapBehavior,
    /// The protection of requests.
    pub reservation: MemoryReservation,
    /// The share of the range between request and limit from which on the kernel throttles a
    /// container (`memoryThrottlingFactor`), above 0 and at most 1; `None` sets no `memory.high`.
    pub throttling_factor: Option<f64>,
}

impl SwapBehavior {
    /// The behavior with a name in the API; the empty name is the default.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "NoSwap" => Some(Self::NoSwap),
            "LimitedSwap" => Some(Self::LimitedSwap),
            _ => None,
        }
    }
}

impl MemoryReservation {
    /// The policy with a name in the API.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "None" => Some(Self::None),
            "TieredReservation" => Some(Self::Tiered),
            _ => None,
        }
    }
}
