//! Ranges of sizes and costs.

/// A minimum and a maximum; arithmetic saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub(crate) fn fixed(value: u64) -> Range {
        Range { min: value, max: value }
    }

    pub(crate) fn add(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn multiply(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplies by a factor, rounded up.
    pub(crate) fn scale(self, factor: f64) -> Range {
        let scaled = |value: u64| crate::runtime_cost::ceil(value as f64 * factor);
        Range { min: scaled(self.min), max: scaled(self.max) }
    }

    /// Returns the smallest range that contains both.
    pub(crate) fn union(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}
