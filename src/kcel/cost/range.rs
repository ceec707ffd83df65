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

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u64, max: u64) -> Range {
        Range { min, max }
    }

    /// `CostEstimate` of cel-go's `checker/cost.go`: `Add`, `Multiply`, `MultiplyByCostFactor` and
    /// `Union`.
    #[test]
    fn arithmetic_saturates_and_factors_round_up() {
        const MAX: u64 = u64::MAX;
        for (got, expected) in [
            (range(1, 2).add(range(3, 4)), range(4, 6)),
            (range(1, MAX).add(range(3, 1)), range(4, MAX)),
            (range(2, 3).multiply(range(4, 5)), range(8, 15)),
            (range(2, MAX).multiply(range(0, 2)), range(0, MAX)),
            (range(1, 11).scale(0.1), range(1, 2)),
            (range(0, 10).scale(0.1), range(0, 1)),
            (range(0, MAX).scale(2.0), range(0, MAX)),
            (range(2, 3).union(range(1, 2)), range(1, 3)),
            (Range::fixed(7), range(7, 7)),
        ] {
            assert_eq!(got, expected);
        }
    }
}
