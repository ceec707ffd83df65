//! Amounts in proportion to others (`pkg/utils/vpa/limit_and_request_scaling.go`).

use api::Quantity;

use super::amounts::{Amounts, CPU, MEMORY, amount};

/// A scaled amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scaled {
    pub(super) amount: Quantity,
    /// Whether the result was greater than an `int64`.
    pub(super) is_capped: bool,
}

/// `quantity * result / base`: for CPU in thousandths, which are rounded up on request, and for
/// other resources in units. A base of zero leaves the quantity as it is.
pub(super) fn scale(
    name: &str,
    quantity: Quantity,
    base: Quantity,
    result: Quantity,
    rounds_up: bool,
) -> Scaled {
    let is_cpu = name == CPU;
    let number = |q: Quantity| i128::from(if is_cpu { q.milli_value() } else { q.value() });
    let base = number(base);
    if base == 0 {
        return Scaled { amount: quantity, is_capped: false };
    }
    let product = number(quantity) * number(result);
    let (quotient, remainder) = (product.div_euclid(base), product.rem_euclid(base));
    let is_capped = i64::try_from(quotient).is_err();
    let up = i128::from(is_cpu && rounds_up && remainder != 0);
    let quotient = i64::try_from(quotient + up).unwrap_or(i64::MAX);
    let amount = if is_cpu { Quantity::millis(quotient) } else { Quantity::units(quotient) };
    Scaled { amount: amount.with_format(quantity.format()), is_capped }
}

/// The limit that has the same proportion to the recommended request as the limit had to the
/// request (`getProportionalResourceLimit`), and upstream's annotation text if the proportion is
/// not kept.
pub(super) fn proportional_limit_of(
    name: &str,
    limit: Quantity,
    request: Quantity,
    recommended: Quantity,
    default_limit: Quantity,
) -> (Option<Quantity>, Option<String>) {
    let limit = if limit.value() == 0 { default_limit } else { limit };
    let unset =
        |what: &str| (None, Some(format!("{name}: limit NOT set since {what} is nil or 0")));
    if limit.value() == 0 {
        return unset("originalLimit");
    }
    if recommended.value() == 0 {
        return unset("recommendedRequest");
    }
    // Without a request, Kubernetes sets it to the limit.
    if request.value() == 0 || request.milli_value() == limit.milli_value() {
        return (Some(recommended), None);
    }
    let Scaled { amount, is_capped } = scale(name, limit, request, recommended, false);
    let note = is_capped
        .then(|| format!("{name}: failed to keep limit to request ratio; capping limit to int64"));
    (Some(amount), note)
}

/// The proportional limits of CPU and memory with annotation texts (`GetProportionalLimit`);
/// `None` if neither has a limit.
pub(crate) fn proportional_limits(
    limits: Option<&Amounts>,
    requests: Option<&Amounts>,
    recommended: &Amounts,
    default_limits: Option<&Amounts>,
) -> Option<(Amounts, Vec<String>)> {
    let (mut result, mut notes) = (Amounts::new(), Vec::new());
    for name in [CPU, MEMORY] {
        let (limit, note) = proportional_limit_of(
            name,
            amount(limits, name),
            amount(requests, name),
            amount(Some(recommended), name),
            amount(default_limits, name),
        );
        notes.extend(note);
        if let Some(limit) = limit {
            result.insert(name.to_owned(), limit);
        }
    }
    (!result.is_empty()).then_some((result, notes))
}

/// The request for which the proportional limit is `boundary`; zero without a limit
/// (`GetBoundaryRequest`).
pub(super) fn boundary_request(
    name: &str,
    request: Quantity,
    limit: Quantity,
    boundary: Quantity,
    default_limit: Quantity,
) -> Quantity {
    let limit = if limit.value() == 0 { default_limit } else { limit };
    if limit.value() == 0 {
        return Quantity::ZERO;
    }
    if request.value() == 0 {
        return boundary;
    }
    scale(name, request, limit, boundary, false).amount
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        if text.is_empty() { Quantity::ZERO } else { text.parse().unwrap() }
    }

    /// One case: limit, request, recommendation, default limit, expected limit.
    type Case<'a> = (&'a str, &'a str, &'a str, &'a str, Option<Quantity>);

    fn check(name: &str, cases: &[Case<'_>]) {
        for (limit, request, recommended, default, expected) in cases {
            let (found, note) =
                proportional_limit_of(name, q(limit), q(request), q(recommended), q(default));
            let case = format!("{name} {limit} {request} {recommended} {default}");
            assert_eq!(found.map(|f| f.milli_value()), expected.map(|e| e.milli_value()), "{case}");
            let is_exact =
                expected.is_some_and(|e| e.value() != i64::MAX && e.milli_value() != i64::MAX);
            assert_eq!(note.is_none(), is_exact, "{case}: {note:?}");
        }
    }

    /// `TestGetProportionalResourceLimitCPU`.
    #[test]
    fn limits_of_cpu_keep_their_proportion() {
        check(
            CPU,
            &[
                ("2", "1", "10", "", Some(q("20"))),
                ("", "1", "10", "2", Some(q("20"))),
                ("", "1", "10", "", None),
                ("2", "", "10", "", Some(q("10"))),
                ("", "1", "0", "2", None),
                ("1", "1", "10", "", Some(q("10"))),
                ("2", "1.50", "1", "", Some(q("1.333"))),
                ("10G", "1m", "10G", "", Some(Quantity::millis(i64::MAX))),
            ],
        );
    }

    /// `TestGetProportionalResourceLimitMem`.
    #[test]
    fn limits_of_memory_keep_their_proportion() {
        check(
            MEMORY,
            &[
                ("2", "1", "10", "", Some(q("20"))),
                ("", "1", "10", "2", Some(q("20"))),
                ("", "1", "10", "", None),
                ("2", "", "10", "", Some(q("10"))),
                ("", "1", "0", "2", None),
                ("1", "1", "10", "", Some(q("10"))),
                ("200", "150", "100", "", Some(q("133"))),
                ("10G", "1m", "10G", "", Some(Quantity::units(i64::MAX))),
            ],
        );
    }

    #[test]
    fn notes_are_upstreams() {
        let note = |limit, request, recommended| {
            proportional_limit_of(CPU, q(limit), q(request), q(recommended), q("")).1.unwrap()
        };
        assert_eq!(note("", "1", "1"), "cpu: limit NOT set since originalLimit is nil or 0");
        assert_eq!(note("1", "1", ""), "cpu: limit NOT set since recommendedRequest is nil or 0");
        assert_eq!(
            note("10G", "1m", "10G"),
            "cpu: failed to keep limit to request ratio; capping limit to int64"
        );
    }

    /// `TestScaleQuantityProportionallyCPU`.
    #[test]
    fn a_base_of_zero_leaves_the_quantity() {
        let scaled = scale(CPU, q("1"), q("0"), q("20"), true);
        assert_eq!(scaled, Scaled { amount: q("1"), is_capped: false });
    }

    #[test]
    fn the_boundary_of_a_request_follows_that_of_the_limit() {
        let boundary = |request, limit, boundary, default| {
            boundary_request(MEMORY, q(request), q(limit), q(boundary), q(default))
        };
        assert_eq!(boundary("50M", "600M", "600M", ""), q("50M"));
        assert_eq!(boundary("1G", "", "600M", ""), Quantity::ZERO);
        assert_eq!(boundary("", "1G", "600M", ""), q("600M"));
        assert_eq!(boundary("1G", "", "600M", "2G"), q("300M"));
    }
}
