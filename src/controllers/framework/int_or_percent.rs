//! Numbers that may be a share of a total: `maxSurge`, `maxUnavailable`, `minAvailable`.

use api::k8s::apimachinery::pkg::util::intstr::IntOrString;

/// The number itself, or the percentage of `total`, rounded up or down; `None` for text that is not
/// a percentage.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let product = percent.checked_mul(i64::from(total))?;
            let rounded = if round_up { product.checked_add(99)? } else { product };
            i32::try_from(rounded.div_euclid(100)).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked_and_other_text_is_refused() {
        let text = |t: &str| IntOrString::String(t.into());
        for (value, total, up, want) in [
            (IntOrString::Int(3), 10, true, Some(3)),
            (text("25%"), 10, true, Some(3)),
            (text("25%"), 10, false, Some(2)),
            (text("100%"), 7, false, Some(7)),
            (text("0%"), 7, true, Some(0)),
            (text("abc"), 7, true, None),
            (text("5"), 7, true, None),
        ] {
            assert_eq!(scaled(&value, total, up), want, "{value:?} of {total}");
        }
    }
}
