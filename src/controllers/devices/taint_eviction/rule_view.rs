//! A DeviceTaintRule as the controller needs it.

use std::sync::Arc;

use api::Object;
use api::k8s::api::resource::v1::{DeviceTaintRule, DeviceTaintRuleSpec};
use client::informer::decode;

use super::eviction::{NO_EXECUTE, Reason};
use super::pools::PoolId;
use super::state::RuleRef;

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RuleView {
    pub(super) rule: RuleRef,
    pub(super) spec: DeviceTaintRuleSpec,
}

impl RuleView {
    /// The rule of an object; `None` if it cannot be decoded, which is logged.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let rule: DeviceTaintRule = decode(object)?;
        let (name, uid) = (Arc::clone(&object.key.name), Arc::clone(&object.uid));
        Some(Self { rule: RuleRef { name, uid }, spec: rule.spec })
    }

    /// The taint evicts.
    pub(super) fn evicts(&self) -> bool {
        self.spec.taint.effect == NO_EXECUTE
    }

    /// Whether the rule selects a device: no selector selects none, an empty one all.
    pub(super) fn selects(&self, pool: &PoolId, device: &str) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        self.spec.device_selector.as_ref().is_some_and(|selector| {
            is(&selector.driver, &pool.driver)
                && is(&selector.pool, &pool.pool)
                && is(&selector.device, device)
        })
    }

    /// The rule as a reason.
    pub(super) fn reason(&self) -> Reason {
        Reason::Rule { name: Arc::clone(&self.rule.name), uid: Arc::clone(&self.rule.uid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_given_part_of_a_selector_must_match() {
        let selects = |selector: Value| {
            let object = json!({"kind": "DeviceTaintRule", "metadata": {"name": "r", "uid": "u"},
                "spec": {"deviceSelector": selector,
                    "taint": {"key": "k", "effect": "NoExecute"}}});
            let rule = RuleView::of(&Object::from_value(object).unwrap()).unwrap();
            rule.selects(&PoolId { driver: "d".into(), pool: "p".into() }, "a")
        };
        assert!(!selects(Value::Null));
        assert!(selects(json!({})));
        assert!(selects(json!({"driver": "d", "pool": "p", "device": "a"})));
        assert!(!selects(json!({"driver": "e", "pool": "p", "device": "a"})));
        assert!(!selects(json!({"pool": "q"})));
        assert!(!selects(json!({"device": "b"})));
    }
}
