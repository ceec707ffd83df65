//! How much of a device's capacity a request consumes, and whether the device has that much
//! (`consumable_capacity.go` of upstream's allocator).

use std::collections::BTreeMap;

use api::quantity::Quantity;

use super::slice::{Capacity, RequestPolicy, ValidRequests};

/// Amounts by capacity.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// A request that no device can serve; it ends the allocation. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CapacityError {
    #[error("{NOT_REPRESENTABLE}: request {0} exceeds MaxInt64")]
    TooLarge(String),
    #[error("{NOT_REPRESENTABLE}: rounding request {0} up to the next step passes MaxInt64")]
    RoundingOverflow(String),
    #[error("capacity value is negative")]
    Negative,
}

const NOT_REPRESENTABLE: &str =
    "capacity request cannot be represented in the device's range arithmetic";

/// [`CapacityError`] with the name of the capacity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("capacity \"{name}\": {source}")]
pub(crate) struct NamedCapacityError {
    name: String,
    source: CapacityError,
}

/// What a request consumes of each capacity of a device.
///
/// # Errors
///
/// The request cannot be rounded to the steps of a capacity, or a value is negative.
pub(crate) fn consumed(
    requests: &Amounts,
    capacities: &BTreeMap<String, Capacity>,
) -> Result<Amounts, NamedCapacityError> {
    let convert = |(name, capacity): (&String, &Capacity)| {
        let amount = amount(requests.get(name), capacity);
        let amount = amount
            .and_then(|a| if a.sign() < 0 { Err(CapacityError::Negative) } else { Ok(a) })
            .map_err(|source| NamedCapacityError { name: name.clone(), source })?;
        Ok((name.clone(), amount))
    };
    capacities.iter().map(convert).collect()
}

/// Whether a device has what the request consumes besides what `in_use` returns for each capacity.
///
/// # Errors
///
/// As [`consumed`]; errors of one capacity are found before another one is too small.
pub(crate) fn fits(
    requests: &Amounts,
    capacities: &BTreeMap<String, Capacity>,
    in_use: &dyn Fn(&str) -> Quantity,
) -> Result<bool, NamedCapacityError> {
    if requests.keys().any(|name| !capacities.contains_key(name)) {
        return Ok(false);
    }
    let consumed = consumed(requests, capacities)?;
    Ok(capacities.iter().all(|(name, capacity)| {
        let amount = consumed.get(name).copied().unwrap_or_default();
        let is_valid = capacity.policy.as_ref().is_none_or(|policy| allows(policy, amount));
        is_valid && in_use(name) + amount <= capacity.value
    }))
}

fn amount(request: Option<&Quantity>, capacity: &Capacity) -> Result<Quantity, CapacityError> {
    let policy = capacity.policy.as_ref();
    let Some(request) = request.copied() else {
        return Ok(policy.and_then(|p| p.default).unwrap_or(capacity.value));
    };
    match policy.map(|p| &p.valid) {
        Some(ValidRequests::Range { min, step, .. }) => round_up(request, *min, *step),
        Some(ValidRequests::Values(values)) => {
            Ok(values.iter().copied().find(|value| request <= *value).unwrap_or(request))
        }
        Some(ValidRequests::Any) | None => Ok(request),
    }
}

/// Rounds up to the next step from the minimum, in whole units.
fn round_up(
    request: Quantity,
    min: Quantity,
    step: Option<Quantity>,
) -> Result<Quantity, CapacityError> {
    if request < min {
        return Ok(min);
    }
    let Some(step) = step else { return Ok(request) };
    if request > Quantity::units(i64::MAX) {
        return Err(CapacityError::TooLarge(request.to_string()));
    }
    let overflow = || CapacityError::RoundingOverflow(request.to_string());
    let (low, by) = (min.value(), step.value());
    let added = request.value().checked_sub(low).ok_or_else(overflow)?;
    let whole = added.checked_div(by).ok_or_else(overflow)?;
    let steps = whole + i64::from(added % by != 0);
    let value = steps.checked_mul(by).and_then(|up| up.checked_add(low)).ok_or_else(overflow)?;
    Ok(Quantity::units(value).with_format(step.format()))
}

/// Whether a request policy allows this amount.
fn allows(policy: &RequestPolicy, amount: Quantity) -> bool {
    if policy.default == Some(amount) {
        return true;
    }
    match &policy.valid {
        ValidRequests::Any => true,
        ValidRequests::Values(values) => values.contains(&amount),
        ValidRequests::Range { min, max, step } => {
            let is_low = max.is_none_or(|max| amount <= max);
            let is_step = step.is_none_or(|step| {
                let above = amount.value().checked_sub(min.value());
                above.and_then(|above| above.checked_rem(step.value())) == Some(0)
            });
            is_low && is_step
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    fn range(min: &str, max: Option<&str>, step: Option<&str>) -> ValidRequests {
        ValidRequests::Range { min: q(min), max: max.map(q), step: step.map(q) }
    }

    fn capacity(value: &str, policy: Option<(Option<&str>, ValidRequests)>) -> Capacity {
        let policy =
            policy.map(|(default, valid)| RequestPolicy { default: default.map(q), valid });
        Capacity { value: q(value), text: value.to_owned(), policy }
    }

    /// Rows of `TestCalculateConsumedCapacity` of upstream's `consumable_capacity_test.go`.
    #[test]
    fn requests_are_rounded_up_to_what_the_policy_allows() {
        let values = || ValidRequests::Values(vec![q("1"), q("2"), q("4")]);
        let max = i64::MAX.to_string();
        for (request, policy, expected) in [
            (None, None, Ok("10")),
            (None, Some((Some("2"), range("1", None, None))), Ok("2")),
            (Some("3"), None, Ok("3")),
            (Some("1"), Some((None, range("2", None, None))), Ok("2")),
            (Some("3"), Some((None, range("2", None, None))), Ok("3")),
            (Some("2"), Some((None, range("1", None, Some("2")))), Ok("3")),
            (Some("3"), Some((None, range("1", None, Some("2")))), Ok("3")),
            (Some("2500m"), Some((None, range("1", None, Some("1")))), Ok("3")),
            (Some("2"), Some((None, values())), Ok("2")),
            (Some("3"), Some((None, values())), Ok("4")),
            (Some("5"), Some((None, values())), Ok("5")),
            (Some(max.as_str()), Some((None, range("0", None, Some("1")))), Ok(max.as_str())),
            (
                Some(max.as_str()),
                Some((None, range("0", None, Some("2")))),
                Err(CapacityError::RoundingOverflow(max.clone())),
            ),
            (
                Some("10E"),
                Some((None, range("0", None, Some("1")))),
                Err(CapacityError::TooLarge("10E".into())),
            ),
        ] {
            let request = request.map(q);
            let got = amount(request.as_ref(), &capacity("10", policy));
            assert_eq!(got, expected.map(q), "{request:?}");
        }
    }

    /// Rows of `TestViolatesPolicy` of upstream's `consumable_capacity_test.go`.
    #[test]
    fn amounts_violate_a_policy_above_the_maximum_off_the_steps_or_outside_of_the_set() {
        let policy = |valid| RequestPolicy { default: None, valid };
        for (amount, valid, expected) in [
            ("5", range("0", Some("4"), None), false),
            ("4", range("0", Some("4"), None), true),
            ("3", range("0", None, Some("2")), false),
            ("4", range("0", None, Some("2")), true),
            ("2", ValidRequests::Values(vec![q("1"), q("2")]), true),
            ("3", ValidRequests::Values(vec![q("1"), q("2")]), false),
            ("3", ValidRequests::Any, true),
        ] {
            assert_eq!(allows(&policy(valid), q(amount)), expected, "{amount}");
        }
        let with_default =
            RequestPolicy { default: Some(q("5")), valid: range("0", Some("4"), None) };
        assert!(allows(&with_default, q("5")), "the default is always valid");
    }

    #[test]
    fn an_error_of_one_capacity_comes_before_another_one_is_too_small() {
        let capacities = BTreeMap::from([
            ("a".to_owned(), capacity("1", None)),
            ("b".to_owned(), capacity("10", None)),
        ]);
        let requests = BTreeMap::from([("a".to_owned(), q("2")), ("b".to_owned(), q("-1"))]);
        let error = fits(&requests, &capacities, &|_| Quantity::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "capacity \"b\": capacity value is negative");
        let missing = BTreeMap::from([("c".to_owned(), q("1"))]);
        assert_eq!(fits(&missing, &capacities, &|_| Quantity::ZERO), Ok(false));
        let all = BTreeMap::from([("a".to_owned(), q("1")), ("b".to_owned(), q("4"))]);
        assert_eq!(fits(&all, &capacities, &|_| Quantity::ZERO), Ok(true));
        assert_eq!(fits(&all, &capacities, &|_| q("7")), Ok(false), "in use");
    }
}
