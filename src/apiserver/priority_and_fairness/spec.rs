//! Parses flow schemas and priority levels.

use api::value::{at, get, int_at, items, str_at, str_in};
use serde_json::Value;

use super::matching::{FlowAttributes, Rule};
use super::queues::Shape;
use super::shuffle_sharding::HandError;
use crate::priority_and_fairness::shuffle_sharding;
use crate::request::user::User;

/// The name of a mandatory level and schema.
pub(crate) const EXEMPT: &str = "exempt";
/// The name of the other mandatory level and schema.
pub(crate) const CATCH_ALL: &str = "catch-all";

/// `spec.distinguisherMethod` of a flow schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distinguisher {
    User,
    Namespace,
}

/// A flow schema.
#[derive(Debug)]
pub(crate) struct SchemaSpec {
    pub(crate) name: Box<str>,
    pub(crate) uid: String,
    pub(crate) level: String,
    precedence: i64,
    pub(crate) distinguisher: Option<Distinguisher>,
    rules: Vec<Rule>,
}

impl SchemaSpec {
    /// Parses the object.
    pub(crate) fn of(object: &Value) -> Self {
        let spec = get(object, "spec");
        let distinguisher = match str_in(spec, &["distinguisherMethod", "type"]) {
            "ByUser" => Some(Distinguisher::User),
            "ByNamespace" => Some(Distinguisher::Namespace),
            _ => None,
        };
        Self {
            name: str_in(object, &["metadata", "name"]).into(),
            uid: str_in(object, &["metadata", "uid"]).to_owned(),
            level: str_in(spec, &["priorityLevelConfiguration", "name"]).to_owned(),
            precedence: int_at(spec, "matchingPrecedence").unwrap_or_default(),
            distinguisher,
            rules: items(spec, "rules").iter().map(Rule::of).collect(),
        }
    }

    /// The sort key of the matching order.
    pub(crate) fn order(&self) -> (i64, &str) {
        (self.precedence, &self.name)
    }

    /// Whether the schema matches this request of this user.
    pub(crate) fn matches(&self, attributes: &FlowAttributes<'_>, user: &User) -> bool {
        self.rules.iter().any(|rule| rule.matches(attributes, user))
    }
}

/// A priority level.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LevelSpec {
    pub(crate) name: Box<str>,
    pub(crate) uid: String,
    pub(crate) shape: Shape,
    pub(crate) shares: i64,
    pub(crate) lendable: Option<i64>,
    pub(crate) borrowing: Option<i64>,
}

/// A priority level is invalid, with upstream's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LevelError {
    /// Only the level `exempt` has the type `Exempt`.
    #[error("non-alignment between name and type")]
    NameAndType,
    /// `spec.exempt` or `spec.limited` is absent.
    #[error("broken union structure at the top")]
    NoSpec,
    /// `queuing` does not match the type of `limitResponse`.
    #[error("broken union structure for limit response")]
    LimitResponse,
    /// The hand size is invalid.
    #[error(transparent)]
    Hand(#[from] HandError),
}

impl LevelSpec {
    /// Parses the object.
    ///
    /// # Errors
    /// If the object is invalid.
    pub(crate) fn of(object: &Value) -> Result<Self, LevelError> {
        let (spec, name) = (get(object, "spec"), str_in(object, &["metadata", "name"]));
        let exempt = str_at(spec, "type") == "Exempt";
        if exempt != (name == EXEMPT) {
            return Err(LevelError::NameAndType);
        }
        let part = get(spec, if exempt { "exempt" } else { "limited" });
        if part.is_null() {
            return Err(LevelError::NoSpec);
        }
        Ok(Self {
            name: name.into(),
            uid: str_in(object, &["metadata", "uid"]).to_owned(),
            shape: if exempt { Shape::Exempt } else { shape(get(part, "limitResponse"))? },
            shares: int_at(part, "nominalConcurrencyShares").unwrap_or_default().max(0),
            lendable: int_at(part, "lendablePercent"),
            borrowing: int_at(part, "borrowingLimitPercent").filter(|_| !exempt),
        })
    }
}

fn shape(response: &Value) -> Result<Shape, LevelError> {
    let queuing = get(response, "queuing");
    if (str_at(response, "type") == "Reject") != queuing.is_null() {
        return Err(LevelError::LimitResponse);
    }
    if queuing.is_null() {
        return Ok(Shape::Reject);
    }
    let number = |key| at(queuing, &[key]).as_i64().unwrap_or_default();
    let (queues, hand) = (number("queues"), number("handSize"));
    if queues <= 0 {
        return Ok(Shape::Reject);
    }
    shuffle_sharding::check(queues, hand)?;
    let bounded = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    Ok(Shape::Queue {
        queues: bounded(queues),
        hand: bounded(hand),
        length: bounded(number("queueLengthLimit")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_are_parsed_or_rejected() {
        let queuing = json!({"queues": 64, "handSize": 6, "queueLengthLimit": 50});
        let limited = json!({"nominalConcurrencyShares": 40, "lendablePercent": 50,
            "limitResponse": {"type": "Queue", "queuing": queuing}});
        let level = json!({"metadata": {"name": "a", "uid": "u"},
            "spec": {"type": "Limited", "limited": limited}});
        let error = |level: &Value| LevelSpec::of(level).unwrap_err().to_string();
        let read = LevelSpec::of(&level).unwrap();
        assert_eq!(read.shape, Shape::Queue { queues: 64, hand: 6, length: 50 });
        assert_eq!((read.shares, read.lendable, read.borrowing), (40, Some(50), None));
        let mut wrong = level.clone();
        wrong["spec"]["limited"]["limitResponse"]["queuing"]["handSize"] = json!(65);
        assert_eq!(error(&wrong), "handSize 65 is greater than deckSize 64");
        wrong["metadata"]["name"] = json!("exempt");
        assert_eq!(error(&wrong), "non-alignment between name and type");
        let exempt = json!({"metadata": {"name": "exempt"},
            "spec": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0}}});
        assert_eq!(LevelSpec::of(&exempt).unwrap().shape, Shape::Exempt);
    }

    #[test]
    fn schemas_are_ordered_by_precedence_then_name() {
        let schema = |name: &str, precedence: i64| {
            SchemaSpec::of(
                &json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": precedence}}),
            )
        };
        let mut all = [schema("b", 800), schema("z", 2), schema("a", 800)];
        all.sort_by(|a, b| a.order().cmp(&b.order()));
        let names: Vec<&str> = all.iter().map(|s| &*s.name).collect();
        assert_eq!(names, ["z", "a", "b"]);
    }
}
