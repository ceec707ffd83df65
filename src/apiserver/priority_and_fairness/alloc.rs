//! Divides seats among priority levels in proportion to their targets, within their bounds
//! (upstream's `conc_alloc.go`).

use sorting::CompactSort as _;

/// The target and bounds of one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SeatTarget {
    pub(crate) target: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// The minimum target, which prevents a division by zero.
const TARGET_MIN: f64 = 0.001;
const EPSILON: f64 = 0.000_000_1;

/// The bounds do not allow the sum.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum AllocationError {
    /// The bounds and the target of a level contradict each other.
    #[error("the bounds of level {index} contradict each other: {target:?}")]
    Contradiction {
        /// The index of the level.
        index: usize,
        target: SeatTarget,
    },
    /// The lower bounds exceed the sum.
    #[error("lower bounds sum to {low}, which is higher than the required sum of {sum}")]
    LowerBounds { low: f64, sum: f64 },
    /// The upper bounds do not reach the sum.
    #[error("upper bounds sum to {high}, which is lower than the required sum of {sum}")]
    UpperBounds { high: f64, sum: f64 },
}

/// Calculates shares that add up to `sum`. Each is the same proportion of its target, unless a
/// bound limits it. Returns the shares and the proportion.
///
/// # Errors
/// If the bounds do not allow the sum.
pub(crate) fn allocate(
    sum: usize,
    targets: &[SeatTarget],
) -> Result<(Vec<f64>, f64), AllocationError> {
    let sum = sum as f64;
    let (mut low, mut high, mut target_sum) = (0.0, 0.0, 0.0);
    let (mut lowest_lower, mut highest_lower) = (f64::from(f32::MAX), 0.0_f64);
    let (mut lowest_upper, mut highest_upper) = (f64::from(f32::MAX), 0.0_f64);
    for (at, want) in targets.iter().enumerate() {
        if want.lower < 0.0 || want.target < want.lower || want.upper < want.lower {
            return Err(AllocationError::Contradiction { index: at, target: *want });
        }
        let target = want.target.max(TARGET_MIN);
        low += want.lower;
        high += want.upper;
        target_sum += target;
        lowest_lower = lowest_lower.min(want.lower / target);
        highest_lower = highest_lower.max(want.lower / target);
        lowest_upper = lowest_upper.min(want.upper / target);
        highest_upper = highest_upper.max(want.upper / target);
    }
    if low - sum > EPSILON {
        return Err(AllocationError::LowerBounds { low, sum });
    }
    if sum - high > EPSILON {
        return Err(AllocationError::UpperBounds { high, sum });
    }
    if sum == 0.0 {
        return Ok((vec![0.0; targets.len()], 0.0));
    }
    if low - sum > -EPSILON {
        return Ok((targets.iter().map(|want| want.lower).collect(), lowest_lower));
    }
    if sum - high > -EPSILON {
        return Ok((targets.iter().map(|want| want.upper).collect(), highest_upper));
    }
    let fair = sum / target_sum;
    if highest_lower <= fair && fair <= lowest_upper {
        return Ok((targets.iter().map(|want| want.target.max(TARGET_MIN) * fair).collect(), fair));
    }
    let fair = bounded(sum, low, lowest_lower, targets);
    let shares = targets.iter().map(|want| {
        let share = fair * want.target.max(TARGET_MIN);
        share.min(want.upper).max(want.lower)
    });
    Ok((shares.collect(), fair))
}

/// Calculates the proportion if bounds apply: increases it from one bound to the next until the
/// shares add up to `sum`.
fn bounded(sum: f64, low: f64, lowest: f64, targets: &[SeatTarget]) -> f64 {
    // The proportions at which the share of a level starts and stops to grow.
    let mut bounds: Vec<(f64, f64)> = targets
        .iter()
        .flat_map(|want| {
            let target = want.target.max(TARGET_MIN);
            [(want.lower / target, target), (want.upper / target, -target)]
        })
        .collect();
    bounds.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut so_far, mut fair, mut growing) = (low, lowest, 0.0);
    for (bound, change) in bounds {
        if bound > fair {
            if growing > EPSILON * EPSILON {
                let needed = fair + (sum - so_far) / growing;
                if needed <= bound {
                    return needed;
                }
                so_far += (bound - fair) * growing;
            }
            fair = bound;
        }
        growing += change;
    }
    fair
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `TestConcAlloc`: the properties that define the answer, for random problems.
    #[test]
    fn shares_have_the_properties_that_define_them() {
        let mut state = 1_234_567_890_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64) / f64::from(1_u32 << 31)
        };
        for _ in 0..10_000 {
            let count = [1, 2, 3, 4, 6, 9][(random() * 6.0) as usize];
            let mut targets: Vec<SeatTarget> = (0..count)
                .map(|_| {
                    let lower = (random() * 5.0 - 1.0).max(0.0);
                    SeatTarget {
                        lower,
                        target: lower + 2.0 * random(),
                        upper: lower + 3.0 * random(),
                    }
                })
                .collect();
            if random() < 0.25 {
                targets.push(SeatTarget { lower: 0.0, target: 0.0, upper: random() + 0.00001 });
            }
            let low: f64 = targets.iter().map(|w| w.lower).sum();
            let high: f64 = targets.iter().map(|w| w.upper).sum();
            let sum = (low + (high - low) * random()).round();
            let answer = allocate(sum as usize, &targets);
            if low - sum > 1e-7 || sum - high > 1e-7 {
                assert!(answer.is_err());
                continue;
            }
            let (shares, fair) = answer.unwrap();
            let total: f64 = shares.iter().sum();
            assert!((total - sum).abs() <= 1e-9 * sum.max(1.0), "{targets:?} {sum} {shares:?}");
            for (want, share) in targets.iter().zip(&shares) {
                let wish = fair * want.target.max(TARGET_MIN);
                let expected = wish.min(want.upper).max(want.lower);
                assert!((share - expected).abs() <= 1e-7, "{targets:?} {sum} {shares:?} {fair}");
            }
        }
    }

    #[test]
    fn contradicting_bounds_are_rejected() {
        let want = |lower, target, upper| SeatTarget { lower, target, upper };
        assert!(allocate(1, &[want(2.0, 1.0, 3.0)]).is_err());
        assert!(allocate(1, &[want(2.0, 2.0, 3.0)]).is_err());
        assert!(allocate(4, &[want(2.0, 2.0, 3.0)]).is_err());
        assert_eq!(allocate(0, &[]), Ok((Vec::new(), 0.0)));
    }
}
