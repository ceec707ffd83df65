//! Eviction thresholds: how much of a resource must be left on the node (the kubelet's
//! `evictionHard`, `evictionSoft` and what belongs to them).

mod parse;

use std::collections::BTreeMap;
use std::time::Duration;

use api::Quantity;
use sorting::CollectOrdered as _;

pub use parse::ThresholdError;

/// The thresholds that are watched by default. Memory and the share of inodes are upstream's; the
/// share of bytes is that of k3s (5 %), as upstream's 10 and 15 % of a large disk are no shortage.
const DEFAULTS: [(Signal, &str); 5] = [
    (Signal::MemoryAvailable, "100Mi"),
    (Signal::NodeFsAvailable, "5%"),
    (Signal::NodeFsInodesFree, "5%"),
    (Signal::ImageFsAvailable, "5%"),
    (Signal::ImageFsInodesFree, "5%"),
];

/// What is measured (upstream's `signalToResource`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// Memory of the node.
    MemoryAvailable,
    /// Memory that pods may use together.
    AllocatableMemoryAvailable,
    /// Bytes of the file system of pods.
    NodeFsAvailable,
    /// Inodes of the file system of pods.
    NodeFsInodesFree,
    /// Bytes of the file system of images.
    ImageFsAvailable,
    /// Inodes of the file system of images.
    ImageFsInodesFree,
    /// Bytes of the file system of the writable layers of containers.
    ContainerFsAvailable,
    /// Inodes of the file system of the writable layers of containers.
    ContainerFsInodesFree,
    /// Processes and threads of the node.
    PidAvailable,
}

/// A resource that the node can be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScarceResource {
    /// Bytes of memory.
    Memory,
    /// Bytes on disk.
    Storage,
    /// Inodes of a file system.
    Inodes,
    /// Processes and threads.
    Pids,
}

impl ScarceResource {
    /// The name of the resource in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Storage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl Signal {
    /// Every signal, memory first.
    pub(crate) const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// The name of the signal in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The resource that is short.
    pub(crate) fn resource(self) -> ScarceResource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => ScarceResource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                ScarceResource::Storage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                ScarceResource::Inodes
            }
            Self::PidAvailable => ScarceResource::Pids,
        }
    }
}

/// An amount of a resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ThresholdValue {
    /// Bytes, inodes or processes.
    Amount(Quantity),
    /// A share of the capacity, from 0 to 1, in upstream's precision.
    Share(f32),
}

impl ThresholdValue {
    /// The amount for a resource with this capacity (`GetThresholdQuantity`).
    pub(crate) fn of(self, capacity: i64) -> Quantity {
        match self {
            Self::Amount(amount) => amount,
            // Both factors are exact enough for a threshold; the result is at most the capacity.
            Self::Share(share) => Quantity::bytes((capacity as f64 * f64::from(share)) as i64),
        }
    }
}

/// The least amount of a resource that must be available.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EvictionThreshold {
    /// What is measured.
    pub(crate) signal: Signal,
    /// Pods are evicted while less than this is available.
    pub(crate) value: ThresholdValue,
    /// How long the threshold must be met before pods are evicted; zero for a hard threshold.
    pub(crate) grace: Duration,
    /// A threshold that was met stays met until this much more is available.
    pub(crate) min_reclaim: Option<ThresholdValue>,
}

impl EvictionThreshold {
    /// Whether pods are evicted at once, with a grace period of one second.
    pub(crate) fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// A value as it is configured, and as it is parsed.
type Setting<T> = (String, T);

/// The configured thresholds, by signal.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionThresholds {
    /// `evictionHard`; `None` switches the threshold of a signal off.
    hard: BTreeMap<Signal, Setting<Option<ThresholdValue>>>,
    /// `evictionSoft`.
    soft: BTreeMap<Signal, Setting<Option<ThresholdValue>>>,
    /// `evictionSoftGracePeriod`.
    soft_grace: BTreeMap<Signal, Setting<Duration>>,
    /// `evictionMinimumReclaim`.
    min_reclaim: BTreeMap<Signal, Setting<ThresholdValue>>,
    /// Whether pods may use what the hard thresholds keep.
    is_allocatable: bool,
}

impl Default for EvictionThresholds {
    fn default() -> Self {
        let mut out = Self::none();
        for (signal, text) in DEFAULTS {
            if let Ok(value) = parse::value(signal, text) {
                out.hard.insert(signal, (text.to_owned(), value));
            }
        }
        out
    }
}

/// The texts of the settings, as `/configz` shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThresholdTexts {
    /// `evictionHard`.
    pub hard: BTreeMap<&'static str, String>,
    /// `evictionSoft`.
    pub soft: BTreeMap<&'static str, String>,
    /// `evictionSoftGracePeriod`.
    pub soft_grace: BTreeMap<&'static str, String>,
    /// `evictionMinimumReclaim`.
    pub min_reclaim: BTreeMap<&'static str, String>,
}

impl EvictionThresholds {
    /// No threshold at all.
    pub fn none() -> Self {
        Self {
            hard: BTreeMap::new(),
            soft: BTreeMap::new(),
            soft_grace: BTreeMap::new(),
            min_reclaim: BTreeMap::new(),
            is_allocatable: false,
        }
    }

    /// Replaces `evictionHard` by `SIGNAL<VALUE,…`. As in the kubelet, signals that are not listed
    /// are not watched.
    ///
    /// # Errors
    /// The first invalid threshold.
    pub fn set_hard(&mut self, text: &str) -> Result<(), ThresholdError> {
        self.hard = parse::settings(text, '<', parse::value)?;
        Ok(())
    }

    /// Sets `evictionSoft` to `SIGNAL<VALUE,…`.
    ///
    /// # Errors
    /// The first invalid threshold.
    pub fn set_soft(&mut self, text: &str) -> Result<(), ThresholdError> {
        self.soft = parse::settings(text, '<', parse::value)?;
        Ok(())
    }

    /// Sets `evictionSoftGracePeriod` to `SIGNAL=DURATION,…`.
    ///
    /// # Errors
    /// The first invalid grace period.
    pub fn set_soft_grace(&mut self, text: &str) -> Result<(), ThresholdError> {
        self.soft_grace = parse::settings(text, '=', parse::grace)?;
        Ok(())
    }

    /// Sets `evictionMinimumReclaim` to `SIGNAL=VALUE,…`.
    ///
    /// # Errors
    /// The first invalid amount.
    pub fn set_min_reclaim(&mut self, text: &str) -> Result<(), ThresholdError> {
        self.min_reclaim = parse::settings(text, '=', parse::reclaim)?;
        Ok(())
    }

    /// Sets whether pods may request what the hard thresholds keep
    /// (`--experimental-allocatable-ignore-eviction`).
    pub fn set_allocatable(&mut self, is_allocatable: bool) {
        self.is_allocatable = is_allocatable;
    }

    /// Checks that every soft threshold has a grace period.
    ///
    /// # Errors
    /// The first soft threshold without one.
    pub fn check(&self) -> Result<(), ThresholdError> {
        let mut active = self.soft.iter().filter(|(_, (_, value))| value.is_some());
        match active.find(|(signal, _)| !self.soft_grace.contains_key(signal)) {
            Some((signal, _)) => Err(ThresholdError::NoGrace(signal.name())),
            None => Ok(()),
        }
    }

    /// The thresholds that are watched: hard ones, soft ones, and those of the memory of all pods,
    /// which are the hard ones of memory (`ParseThresholdConfig`).
    pub(crate) fn list(&self) -> Vec<EvictionThreshold> {
        let of = |signal: &Signal, value: ThresholdValue, grace: Duration| {
            let min_reclaim = self.min_reclaim.get(signal).map(|(_, value)| *value);
            EvictionThreshold { signal: *signal, value, grace, min_reclaim }
        };
        let hard = self
            .hard
            .iter()
            .filter_map(|(signal, (_, value))| Some(of(signal, (*value)?, Duration::ZERO)));
        let soft = self.soft.iter().filter_map(|(signal, (_, value))| {
            let grace = self.soft_grace.get(signal).map(|(_, grace)| *grace)?;
            Some(of(signal, (*value)?, grace))
        });
        let mut out: Vec<EvictionThreshold> = hard.chain(soft).collect();
        let of_pods: Vec<EvictionThreshold> = out
            .iter()
            .filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard() && !self.is_allocatable)
            .map(|t| EvictionThreshold { signal: Signal::AllocatableMemoryAvailable, ..*t })
            .collect();
        out.extend(of_pods);
        out
    }

    /// The hard threshold of a signal for a resource with this capacity, which pods cannot request
    /// (`hardEvictionReservation`); zero if there is none.
    pub(crate) fn reservation(&self, signal: Signal, capacity: i64) -> i64 {
        if self.is_allocatable {
            return 0;
        }
        let list = self.list();
        let last = list.iter().rfind(|t| t.signal == signal && t.is_hard());
        last.map_or(0, |t| t.value.of(capacity).value())
    }

    /// The texts of the settings.
    pub fn texts(&self) -> ThresholdTexts {
        fn of<T>(settings: &BTreeMap<Signal, Setting<T>>) -> BTreeMap<&'static str, String> {
            settings.iter().map(|(signal, (text, _))| (signal.name(), text.clone())).collect_map()
        }
        ThresholdTexts {
            hard: of(&self.hard),
            soft: of(&self.soft),
            soft_grace: of(&self.soft_grace),
            min_reclaim: of(&self.min_reclaim),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(hard: &str, soft: &str, grace: &str, reclaim: &str) -> Vec<EvictionThreshold> {
        let mut out = EvictionThresholds::none();
        out.set_hard(hard).unwrap();
        out.set_soft(soft).unwrap();
        out.set_soft_grace(grace).unwrap();
        out.set_min_reclaim(reclaim).unwrap();
        out.check().unwrap();
        out.list()
    }

    fn amount(text: &str) -> ThresholdValue {
        ThresholdValue::Amount(Quantity::parse(text).unwrap())
    }

    #[test]
    fn hard_memory_thresholds_also_hold_for_the_memory_of_pods() {
        let list = parsed(
            "memory.available<150Mi",
            "memory.available<300Mi",
            "memory.available=30s",
            "memory.available=0",
        );
        let of = |signal, value: &str, grace| EvictionThreshold {
            signal,
            value: amount(value),
            grace: Duration::from_secs(grace),
            min_reclaim: Some(amount("0")),
        };
        assert_eq!(
            list,
            [
                of(Signal::MemoryAvailable, "150Mi", 0),
                of(Signal::MemoryAvailable, "300Mi", 30),
                of(Signal::AllocatableMemoryAvailable, "150Mi", 0),
            ]
        );
        let none =
            parsed("nodefs.available<1Gi", "memory.available<1Gi", "memory.available=1s", "");
        assert!(none.iter().all(|t| t.signal != Signal::AllocatableMemoryAvailable));
    }

    #[test]
    fn percentages_have_the_precision_of_upstream() {
        let list = parsed(
            "imagefs.available<10.5%,nodefs.available<15%",
            "imagefs.available<20.5%,nodefs.available<30%",
            "imagefs.available=30s,nodefs.available=30s,pid.available=1s",
            "imagefs.available=5%,nodefs.available=10%,pid.available=1",
        );
        assert_eq!(list.len(), 4);
        assert_eq!(list[0].signal, Signal::NodeFsAvailable);
        assert_eq!(list[0].value, ThresholdValue::Share(0.15));
        assert_eq!(list[1].min_reclaim, Some(ThresholdValue::Share(0.05)));
        assert_eq!(ThresholdValue::Share(0.05).of(10 << 30).value(), 536_870_920);
    }

    #[test]
    fn zero_and_hundred_percent_switch_a_threshold_off() {
        for off in ["0%", "100%"] {
            let text = format!("memory.available<{off}");
            assert!(parsed(&text, &text, "", "").is_empty());
        }
    }

    #[test]
    fn the_defaults_are_watched_and_reserved() {
        let defaults = EvictionThresholds::default();
        assert_eq!(defaults.list().len(), 6, "five, and memory of pods");
        assert_eq!(defaults.texts().hard["memory.available"], "100Mi");
        assert_eq!(defaults.texts().hard["imagefs.inodesFree"], "5%");
        assert_eq!(defaults.reservation(Signal::MemoryAvailable, 1 << 40), 100 << 20);
        assert_eq!(defaults.reservation(Signal::NodeFsAvailable, 10 << 30), 536_870_920);
        assert_eq!(defaults.reservation(Signal::PidAvailable, 1000), 0);
        let mut ignored = defaults;
        ignored.set_allocatable(true);
        assert_eq!(ignored.list().len(), 5);
        assert_eq!(ignored.reservation(Signal::MemoryAvailable, 1 << 40), 0);
    }
}
