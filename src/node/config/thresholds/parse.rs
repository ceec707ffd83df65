//! Parses the settings of eviction, with the texts of the kubelet's errors.

use std::collections::BTreeMap;
use std::time::Duration;

use api::Quantity;
use api::codec::time::{DurationError, parse_duration};

use super::{Signal, ThresholdValue};

/// Why a setting of eviction is invalid. The first part of each text is the kubelet's.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ThresholdError {
    /// The form is wrong.
    #[error("{text:?} must be SIGNAL{between}VALUE, such as memory.available{between}{example}")]
    Form {
        /// The part of the list.
        text: String,
        /// What stands between signal and value.
        between: char,
        /// A valid value.
        example: &'static str,
    },
    /// There is no such signal.
    #[error("unsupported eviction signal {0}; supported are {names}", names = signal_names())]
    Signal(String),
    /// The signal is given twice.
    #[error("the eviction signal {0} is given twice; remove one of them")]
    Duplicate(&'static str),
    /// The value is negative.
    #[error("eviction percentage threshold {signal} must be >= 0%: {value}")]
    NegativeShare {
        /// The signal.
        signal: &'static str,
        /// Its value.
        value: String,
    },
    /// The value is more than the capacity.
    #[error("eviction percentage threshold {signal} must be <= 100%: {value}")]
    LargeShare {
        /// The signal.
        signal: &'static str,
        /// Its value.
        value: String,
    },
    /// The value is zero or negative.
    #[error("eviction threshold {signal} must be positive: {value}")]
    NotPositive {
        /// The signal.
        signal: &'static str,
        /// Its value.
        value: String,
    },
    /// The value is no amount and no percentage.
    #[error("the value {value:?} of {signal} must be a quantity or a percentage")]
    Value {
        /// The signal.
        signal: &'static str,
        /// Its value.
        value: String,
    },
    /// A soft threshold has no grace period.
    #[error(
        "grace period must be specified for the soft eviction threshold {0}; set \
         eviction-soft-grace-period={0}=1m30s"
    )]
    NoGrace(&'static str),
    /// A grace period is negative.
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    NegativeGrace(String),
    /// A grace period is no duration.
    #[error("the grace period of {signal}: {source}")]
    Grace {
        /// The signal.
        signal: &'static str,
        /// Why not.
        source: DurationError,
    },
    /// A share to reclaim is zero or negative.
    #[error("eviction percentage minimum reclaim {signal} must be positive: {value}")]
    ReclaimShare {
        /// The signal.
        signal: &'static str,
        /// Its value.
        value: String,
    },
    /// An amount to reclaim is negative.
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(&'static str),
}

fn signal_names() -> String {
    Signal::ALL.map(Signal::name).join(", ")
}

/// Parses `SIGNAL<VALUE,…`, with another separator in place of `<` for other settings.
///
/// # Errors
/// The first invalid part.
pub(super) fn settings<T>(
    text: &str,
    between: char,
    parse: fn(Signal, &str) -> Result<T, ThresholdError>,
) -> Result<BTreeMap<Signal, (String, T)>, ThresholdError> {
    let mut out = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let example = if between == '<' { "100Mi" } else { "1m30s or 500Mi" };
        let form = || ThresholdError::Form { text: part.to_owned(), between, example };
        let (name, value) = part.split_once(between).ok_or_else(form)?;
        let (name, value) = (name.trim(), value.trim());
        let signal = Signal::ALL.into_iter().find(|signal| signal.name() == name);
        let signal = signal.ok_or_else(|| ThresholdError::Signal(name.to_owned()))?;
        let parsed = parse(signal, value)?;
        if out.insert(signal, (value.to_owned(), parsed)).is_some() {
            return Err(ThresholdError::Duplicate(signal.name()));
        }
    }
    Ok(out)
}

/// The share of a text such as `10.5%`; `None` if it is no number (`parsePercentage`).
fn share(text: &str) -> Option<f32> {
    let percent: f32 = text.trim_end_matches('%').parse().ok()?;
    percent.is_finite().then_some(percent / 100.0)
}

fn quantity(signal: Signal, text: &str) -> Result<Quantity, ThresholdError> {
    let signal = signal.name();
    Quantity::parse(text).map_err(|_| ThresholdError::Value { signal, value: text.to_owned() })
}

/// A threshold; `None` if it is switched off (`parseThresholdStatement`).
pub(super) fn value(signal: Signal, text: &str) -> Result<Option<ThresholdValue>, ThresholdError> {
    let (name, value) = (signal.name(), text.to_owned());
    if !text.ends_with('%') {
        let amount = quantity(signal, text)?;
        if amount.sign() <= 0 {
            return Err(ThresholdError::NotPositive { signal: name, value: amount.to_string() });
        }
        return Ok(Some(ThresholdValue::Amount(amount)));
    }
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    match share(text) {
        None => Err(ThresholdError::Value { signal: name, value }),
        Some(share) if share < 0.0 => Err(ThresholdError::NegativeShare { signal: name, value }),
        Some(share) if share > 1.0 => Err(ThresholdError::LargeShare { signal: name, value }),
        Some(share) => Ok(Some(ThresholdValue::Share(share))),
    }
}

/// A grace period (`parseGracePeriods`).
pub(super) fn grace(signal: Signal, text: &str) -> Result<Duration, ThresholdError> {
    let error = |source| ThresholdError::Grace { signal: signal.name(), source };
    let nanoseconds = parse_duration(text).map_err(error)?;
    let nanoseconds = u64::try_from(nanoseconds);
    nanoseconds
        .map(Duration::from_nanos)
        .map_err(|_| ThresholdError::NegativeGrace(text.to_owned()))
}

/// An amount to reclaim (`parseMinimumReclaims`).
pub(super) fn reclaim(signal: Signal, text: &str) -> Result<ThresholdValue, ThresholdError> {
    let (name, value) = (signal.name(), text.to_owned());
    if !text.ends_with('%') {
        let amount = quantity(signal, text)?;
        if amount.sign() < 0 {
            return Err(ThresholdError::NegativeReclaim(name));
        }
        return Ok(ThresholdValue::Amount(amount));
    }
    match share(text) {
        None => Err(ThresholdError::Value { signal: name, value }),
        Some(share) if share <= 0.0 => Err(ThresholdError::ReclaimShare { signal: name, value }),
        Some(share) => Ok(ThresholdValue::Share(share)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::EvictionThresholds;

    /// The invalid cases of upstream's `TestParseThresholdConfig`.
    #[test]
    fn invalid_settings_have_the_messages_of_the_kubelet() {
        let hard = |text: &str| EvictionThresholds::none().set_hard(text).unwrap_err().to_string();
        let grace = |text: &str| EvictionThresholds::none().set_soft_grace(text).unwrap_err();
        let reclaim = |text: &str| EvictionThresholds::none().set_min_reclaim(text).unwrap_err();
        for (text, want) in [
            ("mem.available<150Mi", "unsupported eviction signal mem.available; supported are mem"),
            ("memory.available<150Mi,invalid.foo<1", "unsupported eviction signal invalid.foo"),
            ("memory.available<-150Mi", "eviction threshold memory.available must be positive: -1"),
            ("memory.available<0", "eviction threshold memory.available must be positive: 0"),
            (
                "memory.available<-15%",
                "eviction percentage threshold memory.available must be >= 0%: -15%",
            ),
            (
                "memory.available<150%",
                "eviction percentage threshold memory.available must be <= 100%: 150%",
            ),
            ("memory.available<10..5%", "the value \"10..5%\" of memory.available must be a quan"),
            ("memory.available<", "the value \"\" of memory.available must be a quantity"),
            ("memory.available=1Gi", "\"memory.available=1Gi\" must be SIGNAL<VALUE"),
            ("pid.available<1,pid.available<2", "the eviction signal pid.available is given twice"),
        ] {
            assert!(hard(text).starts_with(want), "{}", hard(text));
        }
        for (text, want) in [
            ("memory.available=-30s", "invalid eviction grace period specified: -30s, must be a"),
            ("mem.available=30s", "unsupported eviction signal mem.available"),
            ("memory.available=30mins", "the grace period of memory.available: time: unknown unit"),
        ] {
            assert!(grace(text).to_string().starts_with(want), "{}", grace(text));
        }
        for (text, want) in [
            ("memory.available=-300Mi", "negative eviction minimum reclaim specified for memory.a"),
            ("mem.available=300Mi", "unsupported eviction signal mem.available"),
            ("memory.available=", "the value \"\" of memory.available must be a quantity"),
            (
                "memory.available=-15%",
                "eviction percentage minimum reclaim memory.available must be positive: -15%",
            ),
            ("memory.available=10..5%", "the value \"10..5%\" of memory.available must be"),
        ] {
            assert!(reclaim(text).to_string().starts_with(want), "{}", reclaim(text));
        }
        let mut soft = EvictionThresholds::none();
        soft.set_soft("memory.available<150Mi").unwrap();
        let want =
            "grace period must be specified for the soft eviction threshold memory.available";
        assert!(soft.check().unwrap_err().to_string().starts_with(want));
    }

    /// Upstream's `TestParsePercentage`.
    #[test]
    fn percentages_are_numbers() {
        assert_eq!(super::share("25.5%"), Some(0.255));
        assert_eq!((super::share("foo%"), super::share("12%345")), (None, None));
    }
}
