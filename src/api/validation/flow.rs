//! Validation of the priority levels and flow schemas of API Priority and Fairness.

mod schema;

use serde_json::Value;

use super::checks::repeated;
use super::names::range_text;
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, items, str_at};

pub use schema::schema;

/// Validates a PriorityLevelConfiguration.
pub fn priority_level(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let (kind, field) = (str_at(spec, "type"), path.child("type"));
    let (limited, exempt) = (has(spec, "limited"), has(spec, "exempt"));
    match kind {
        // Upstream's declarative validation (`+k8s:unionMember`) forbids the field without a detail
        // and replaces the handwritten rules.
        "Exempt" if limited => {
            errors.push(Error::forbidden(&path.child("limited"), ""));
        }
        "Exempt" => {
            let (part, field) = (get(spec, "exempt"), path.child("exempt"));
            errors.extend(shares(part, &field));
        }
        "Limited" => {
            if exempt {
                errors.push(Error::forbidden(&path.child("exempt"), ""));
            }
            if limited {
                errors.extend(limits(get(spec, "limited"), &path.child("limited")));
            } else {
                errors.push(Error::required(&path.child("limited"), ""));
            }
        }
        other => {
            if limited {
                errors.push(Error::forbidden(&path.child("limited"), ""));
                let response = get(get(spec, "limited"), "limitResponse");
                let queuing = path.child("limited").child("limitResponse").child("queuing");
                match (str_at(response, "type") == "Queue", has(response, "queuing")) {
                    (false, true) => errors.push(Error::forbidden(&queuing, "")),
                    (true, false) => errors.push(Error::required(&queuing, "")),
                    _ => {}
                }
                if str_at(response, "type").is_empty() {
                    let field = path.child("limited").child("limitResponse").child("type");
                    errors.push(Error::required(&field, ""));
                }
            }
            if other.is_empty() {
                errors.push(Error::required(&field, ""));
            } else {
                errors.push(Error::not_supported(&field, other, &["Exempt", "Limited"]));
            }
        }
    }
    errors
}

/// Validates an update of the status of a flow schema or priority level: the types of the
/// conditions are unique.
pub fn status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let list = items(get(object, "status"), "conditions");
    let path = Path::new("status").child("conditions");
    let mut errors = ErrorList::new();
    let again = repeated(list.iter().map(|condition| str_at(condition, "type")));
    for (index, condition) in list.iter().enumerate() {
        let (field, kind) = (path.index(index).child("type"), str_at(condition, "type"));
        if again.at(index) {
            errors.push(Error::duplicate(&field, kind));
        }
        if kind.is_empty() {
            errors.push(Error::required(&field, ""));
        }
    }
    errors
}

fn shares(part: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(value) = int_at(part, "nominalConcurrencyShares").filter(|v| *v < 0) {
        let text = "must be a non-negative integer";
        errors.push(Error::invalid(&path.child("nominalConcurrencyShares"), value, text));
    }
    if let Some(value) = int_at(part, "lendablePercent").filter(|v| !(0..=100).contains(v)) {
        errors.push(Error::invalid(&path.child("lendablePercent"), value, range_text(0, 100)));
    }
    errors
}

fn limits(limited: &Value, path: &Path) -> ErrorList {
    let mut errors = shares(limited, path);
    if let Some(value) = int_at(limited, "borrowingLimitPercent").filter(|v| *v < 0) {
        let text = "if specified, must be a non-negative integer";
        errors.push(Error::invalid(&path.child("borrowingLimitPercent"), value, text));
    }
    let (response, path) = (get(limited, "limitResponse"), path.child("limitResponse"));
    let (queuing, field) = (get(response, "queuing"), path.child("queuing"));
    match (str_at(response, "type"), queuing.is_object()) {
        ("Reject", true) => {
            let text = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(Error::forbidden(&field, text));
        }
        ("Reject", false) => {}
        ("Queue", false) => errors.push(Error::required(&field, "")),
        ("Queue", true) => errors.extend(queues(queuing, &field)),
        (other, set) => {
            if set {
                errors.push(Error::forbidden(&field, ""));
            }
            let field = path.child("type");
            errors.push(if other.is_empty() {
                Error::required(&field, "")
            } else {
                Error::not_supported(&field, other, &["Queue", "Reject"])
            });
        }
    }
    errors
}

/// Maximum number of queues of a level (upstream's `priorityLevelConfigurationQueuingMaxQueues`).
const QUEUES_MAX: i64 = 10_000_000;

/// Number of bits of a flow's hash, from which its hand of queues is dealt (upstream's
/// `shufflesharding.MaxHashBits`).
const HASH_BITS: f64 = 60.0;

/// Number of bits that dealing a hand of `hand` out of `queues` queues requires (upstream's
/// `RequiredEntropyBits`).
fn entropy(queues: i64, hand: i64) -> f64 {
    let float = |number: i64| i32::try_from(number).map_or(f64::from(i32::MAX), f64::from);
    (float(queues).log2() * float(hand)).ceil()
}

fn queues(queuing: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let number = |key: &str| int_at(queuing, key).unwrap_or_default();
    for key in ["queueLengthLimit", "queues"] {
        if number(key) <= 0 {
            errors.push(Error::invalid(&path.child(key), number(key), "must be positive"));
        }
    }
    if number("queues") > QUEUES_MAX {
        let text = format!("must not be greater than {QUEUES_MAX}");
        errors.push(Error::invalid(&path.child("queues"), number("queues"), text));
    }
    let (hand, field) = (number("handSize"), path.child("handSize"));
    if hand <= 0 {
        errors.push(Error::invalid(&field, hand, "must be positive"));
    } else if hand > number("queues") {
        let text = format!("should not be greater than queues ({})", number("queues"));
        errors.push(Error::invalid(&field, hand, text));
    } else if entropy(number("queues"), hand) > HASH_BITS {
        let text = format!(
            "required entropy bits of deckSize {} and handSize {hand} should not be greater than {HASH_BITS}",
            number("queues")
        );
        errors.push(Error::invalid(&field, hand, text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Error texts of kube-apiserver 1.37.1 and of upstream's declarative validation
    /// (`flowcontrol/v1/zz_generated.validations.go`).
    #[test]
    fn a_level_has_the_part_of_its_type_alone() {
        let both = |kind: &str| json!({"spec": {"type": kind, "limited": {"limitResponse": {"type": "Reject"}}, "exempt": {}}});
        let said = |kind: &str| -> Vec<String> {
            priority_level(&both(kind)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(said("Limited"), ["spec.exempt: Forbidden"]);
        assert_eq!(said("Exempt"), ["spec.limited: Forbidden"]);
        let queue = json!({"spec": {"type": "", "limited": {"limitResponse": {"type": "Queue"}}}});
        assert_eq!(
            priority_level(&queue).iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "spec.limited: Forbidden",
                "spec.limited.limitResponse.queuing: Required value",
                "spec.type: Required value"
            ]
        );
    }

    /// A response of kube-apiserver 1.37.1; a hand of 8 out of 512 queues requires 72 bits.
    #[test]
    fn hands_take_no_more_bits_than_a_hash_has() {
        let level = |queues: i64, hand: i64| json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 1}}}}});
        let said = |queues: i64, hand: i64| -> Vec<String> {
            priority_level(&level(queues, hand)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            said(2_147_483_647, 4),
            [
                "spec.limited.limitResponse.queuing.queues: Invalid value: 2147483647: must not be greater than 10000000",
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 4: required entropy bits of deckSize 2147483647 and handSize 4 should not be greater than 60",
            ]
        );
        assert_eq!(
            said(512, 8),
            [
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: required entropy bits of deckSize 512 and handSize 8 should not be greater than 60"
            ]
        );
        // The built-in levels of the server include one of 128 queues with a hand of 6: 42 bits.
        assert_eq!(said(128, 6), [""; 0]);
    }

    #[test]
    fn hands_fit_the_queues() {
        let level = |hand: i64| json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": hand, "queueLengthLimit": 1}}}}});
        assert!(priority_level(&level(4)).is_empty());
        assert_eq!(
            priority_level(&level(5))[0].to_string(),
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 5: should not be greater than queues (4)"
        );
    }
}
