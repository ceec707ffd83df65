//! How many seats each priority level gets of those there are, within its bounds (upstream's
//! `conc_alloc.go`).

/// What one level wants and may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Want {
    pub(crate) target: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// A smaller target counts as this, so that it can be divided by.
const TARGET_MIN: f64 = 0.001;
const EPSILON: f64 = 0.000_000_1;

/// Shares that add up to `sum`, each the same proportion of its target unless a bound says
/// otherwise, and that proportion.
///
/// # Errors
/// Why there are none.
pub(crate) fn allocate(sum: usize, wants: &[Want]) -> Result<(Vec<f64>, f64), String> {
    let sum = sum as f64;
    let (mut low, mut high, mut targets) = (0.0, 0.0, 0.0);
    let (mut lowest_lower, mut highest_lower) = (f64::from(f32::MAX), 0.0_f64);
    let (mut lowest_upper, mut highest_upper) = (f64::from(f32::MAX), 0.0_f64);
    for (at, want) in wants.iter().enumerate() {
        if want.lower < 0.0 || want.target < want.lower || want.upper < want.lower {
            return Err(format!("the bounds of level {at} contradict each other: {want:?}"));
        }
        let target = want.target.max(TARGET_MIN);
        low += want.lower;
        high += want.upper;
        targets += target;
        lowest_lower = lowest_lower.min(want.lower / target);
        highest_lower = highest_lower.max(want.lower / target);
        lowest_upper = lowest_upper.min(want.upper / target);
        highest_upper = highest_upper.max(want.upper / target);
    }
    if low - sum > EPSILON {
        return Err(format!(
            "lower bounds sum to {low}, which is higher than the required sum of {sum}"
        ));
    }
    if sum - high > EPSILON {
        return Err(format!(
            "upper bounds sum to {high}, which is lower than the required sum of {sum}"
        ));
    }
    if sum == 0.0 {
        return Ok((vec![0.0; wants.len()], 0.0));
    }
    if low - sum > -EPSILON {
        return Ok((wants.iter().map(|want| want.lower).collect(), lowest_lower));
    }
    if sum - high > -EPSILON {
        return Ok((wants.iter().map(|want| want.upper).collect(), highest_upper));
    }
    let fair = sum / targets;
    if highest_lower <= fair && fair <= lowest_upper {
        return Ok((wants.iter().map(|want| want.target.max(TARGET_MIN) * fair).collect(), fair));
    }
    let fair = bounded(sum, low, lowest_lower, wants);
    let shares = wants.iter().map(|want| {
        let share = fair * want.target.max(TARGET_MIN);
        share.min(want.upper).max(want.lower)
    });
    Ok((shares.collect(), fair))
}

/// The proportion when bounds matter: it grows from one bound to the next until the shares add up.
fn bounded(sum: f64, low: f64, lowest: f64, wants: &[Want]) -> f64 {
    // Where the share of a level begins to grow with the proportion, and where it ends.
    let mut bounds: Vec<(f64, f64)> = wants
        .iter()
        .flat_map(|want| {
            let target = want.target.max(TARGET_MIN);
            [(want.lower / target, target), (want.upper / target, -target)]
        })
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
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
            let mut wants: Vec<Want> = (0..count)
                .map(|_| {
                    let lower = (random() * 5.0 - 1.0).max(0.0);
                    Want { lower, target: lower + 2.0 * random(), upper: lower + 3.0 * random() }
                })
                .collect();
            if random() < 0.25 {
                wants.push(Want { lower: 0.0, target: 0.0, upper: random() + 0.00001 });
            }
            let low: f64 = wants.iter().map(|w| w.lower).sum();
            let high: f64 = wants.iter().map(|w| w.upper).sum();
            let sum = (low + (high - low) * random()).round();
            let answer = allocate(sum as usize, &wants);
            if low - sum > 1e-7 || sum - high > 1e-7 {
                assert!(answer.is_err());
                continue;
            }
            let (shares, fair) = answer.unwrap();
            let total: f64 = shares.iter().sum();
            assert!((total - sum).abs() <= 1e-9 * sum.max(1.0), "{wants:?} {sum} {shares:?}");
            for (want, share) in wants.iter().zip(&shares) {
                let wish = fair * want.target.max(TARGET_MIN);
                let expected = wish.min(want.upper).max(want.lower);
                assert!((share - expected).abs() <= 1e-7, "{wants:?} {sum} {shares:?} {fair}");
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let want = |lower, target, upper| Want { lower, target, upper };
        assert!(allocate(1, &[want(2.0, 1.0, 3.0)]).is_err());
        assert!(allocate(1, &[want(2.0, 2.0, 3.0)]).is_err());
        assert!(allocate(4, &[want(2.0, 2.0, 3.0)]).is_err());
        assert_eq!(allocate(0, &[]), Ok((Vec::new(), 0.0)));
    }
}
