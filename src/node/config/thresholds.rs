//! Eviction thresholds: how much of a resource must be left (the kubelet's `evictionHard`).

use api::Quantity;

/// Minimum of available memory in upstream's `evictionHard`, in bytes.
const MEMORY_MIN: i64 = 100 << 20;
/// Minimum of free space and inodes of a file system, in percent. These are the values of k3s
/// (`nodefs` and `imagefs` 5 %), as upstream's 10 and 15 % of a large disk are no shortage; 5 % of
/// the inodes is upstream's.
const DISK_PERCENT_MIN: f64 = 5.0;

/// The least amount of a resource that must be available.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// Bytes, or a number of inodes.
    Amount(i64),
    /// Percent of the capacity, from 0 to 100.
    Percent(f64),
}

impl Threshold {
    /// The amount for a resource with this capacity.
    pub(crate) fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Amount(amount) => amount,
            // Both factors are exact enough for a threshold; the result is at most the capacity.
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as i64,
        }
    }
}

/// The thresholds; `None` is not watched.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionThresholds {
    /// `memory.available`
    pub memory: Option<Threshold>,
    /// `nodefs.available`: the file system of pods.
    pub nodefs: Option<Threshold>,
    /// `nodefs.inodesFree`
    pub nodefs_inodes: Option<Threshold>,
    /// `imagefs.available`: the file system of images.
    pub imagefs: Option<Threshold>,
    /// `imagefs.inodesFree`
    pub imagefs_inodes: Option<Threshold>,
}

impl Default for EvictionThresholds {
    fn default() -> Self {
        let disk = Some(Threshold::Percent(DISK_PERCENT_MIN));
        Self {
            memory: Some(Threshold::Amount(MEMORY_MIN)),
            nodefs: disk,
            nodefs_inodes: disk,
            imagefs: disk,
            imagefs_inodes: disk,
        }
    }
}

/// Why a list of thresholds is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// The form is wrong.
    #[error("{0:?} must be SIGNAL<VALUE, such as memory.available<100Mi")]
    Form(String),
    /// There is no such signal, or it is not measured.
    #[error(
        "the eviction signal {0} is not supported; supported are memory.available, \
         nodefs.available, nodefs.inodesFree, imagefs.available and imagefs.inodesFree"
    )]
    Signal(String),
    /// The signal is given twice.
    #[error("the eviction signal {0} is given twice")]
    Duplicate(String),
    /// The value is no amount and no percentage.
    #[error("the threshold {value} of {signal} must be a positive quantity or 0% to 100%")]
    Value {
        /// The signal.
        signal: String,
        /// Its value.
        value: String,
    },
}

/// A quantity or a percentage; zero percent switches a signal off.
fn threshold(text: &str) -> Option<Option<Threshold>> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().ok().filter(|p| (0.0..=100.0).contains(p))?;
        return Some((percent > 0.0).then_some(Threshold::Percent(percent)));
    }
    let amount = Quantity::parse(text).ok().map(|q| q.value()).filter(|amount| *amount > 0)?;
    Some(Some(Threshold::Amount(amount)))
}

impl EvictionThresholds {
    /// Parses `SIGNAL<VALUE,…`. As in the kubelet, signals that are not listed are not watched.
    ///
    /// # Errors
    /// The first invalid threshold.
    pub fn parse(text: &str) -> Result<Self, ThresholdError> {
        let mut out = Self {
            memory: None,
            nodefs: None,
            nodefs_inodes: None,
            imagefs: None,
            imagefs_inodes: None,
        };
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || ThresholdError::Form(part.to_owned());
            let (signal, value) = part.split_once('<').ok_or_else(form)?;
            let (signal, value) = (signal.trim(), value.trim());
            let field = match signal {
                "memory.available" => &mut out.memory,
                "nodefs.available" => &mut out.nodefs,
                "nodefs.inodesFree" => &mut out.nodefs_inodes,
                "imagefs.available" => &mut out.imagefs,
                "imagefs.inodesFree" => &mut out.imagefs_inodes,
                _ => return Err(ThresholdError::Signal(signal.to_owned())),
            };
            if seen.contains(&signal) {
                return Err(ThresholdError::Duplicate(signal.to_owned()));
            }
            seen.push(signal);
            *field = threshold(value).ok_or_else(|| ThresholdError::Value {
                signal: signal.to_owned(),
                value: value.to_owned(),
            })?;
        }
        Ok(out)
    }

    /// The thresholds by signal, as `/configz` shows them.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let text = |threshold: Threshold| match threshold {
            Threshold::Amount(amount) => Quantity::bytes(amount).to_string(),
            Threshold::Percent(percent) => format!("{percent}%"),
        };
        [
            ("memory.available", self.memory),
            ("nodefs.available", self.nodefs),
            ("nodefs.inodesFree", self.nodefs_inodes),
            ("imagefs.available", self.imagefs),
            ("imagefs.inodesFree", self.imagefs_inodes),
        ]
        .into_iter()
        .filter_map(|(signal, threshold)| Some((signal, text(threshold?))))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_quantities_or_percentages() {
        let parsed = EvictionThresholds::parse("memory.available<200Mi, nodefs.available<10%");
        let parsed = parsed.unwrap();
        assert_eq!(parsed.memory, Some(Threshold::Amount(200 << 20)));
        assert_eq!(parsed.nodefs.map(|t| t.of(1000)), Some(100));
        assert_eq!(parsed.imagefs, None, "a signal that is not listed is not watched");
        assert_eq!(EvictionThresholds::parse("nodefs.available<0%").unwrap().nodefs, None);
        let texts = EvictionThresholds::default().texts();
        assert_eq!(texts[0], ("memory.available", "100Mi".to_owned()));
        assert_eq!(texts[4], ("imagefs.inodesFree", "5%".to_owned()));
    }

    #[test]
    fn invalid_thresholds_are_rejected_by_name() {
        for (text, want) in [
            ("memory.available=1Gi", "\"memory.available=1Gi\" must be SIGNAL<VALUE"),
            ("pid.available<10%", "the eviction signal pid.available is not supported"),
            ("memory.available<0", "the threshold 0 of memory.available must be"),
            ("memory.available<101%", "the threshold 101% of memory.available must be"),
            ("memory.available<x", "the threshold x of memory.available must be"),
            ("nodefs.available<1%,nodefs.available<2%", "the eviction signal nodefs.available is"),
        ] {
            let error = EvictionThresholds::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
