//! The numbers of claims for the metric `dynamic_resource_allocation_resource_claims`, kept up to
//! date by changes.

use std::collections::{BTreeMap, HashMap};

use api::ObjectKey;
use api::k8s::api::resource::v1::ResourceClaim;

use super::POD_CLAIM_ANNOTATION;
use super::new_claim::has_admin_access;
use crate::devices::metrics;

/// The annotation of a claim for extended resources.
const EXTENDED_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// The labels of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountLabels {
    pub(super) is_admin: bool,
    pub(super) is_allocated: bool,
    pub(super) source: &'static str,
}

impl CountLabels {
    pub(super) fn of(claim: &ResourceClaim) -> Self {
        let annotation =
            |key: &str| claim.metadata.annotations.as_ref()?.get(key).map(String::as_str);
        let source = if annotation(EXTENDED_ANNOTATION) == Some("true") {
            "extended_resource"
        } else if annotation(POD_CLAIM_ANNOTATION).is_some_and(|name| !name.is_empty()) {
            "resource_claim_template"
        } else {
            ""
        };
        let is_allocated = claim.status.as_ref().is_some_and(|s| s.allocation.is_some());
        Self { is_admin: has_admin_access(claim.spec.as_ref()), is_allocated, source }
    }
}

/// The labels of each claim and the number of claims per label set.
#[derive(Debug, Default)]
pub(super) struct ClaimCount {
    labels: HashMap<ObjectKey, CountLabels>,
    numbers: BTreeMap<CountLabels, usize>,
}

impl ClaimCount {
    /// Replaces the labels of a claim; `None` removes it. Publishes the numbers if they changed.
    pub(super) fn replace(&mut self, key: &ObjectKey, new: Option<CountLabels>) {
        if self.change(key, new) {
            self.publish();
        }
    }

    /// Returns whether a number changed.
    fn change(&mut self, key: &ObjectKey, new: Option<CountLabels>) -> bool {
        let old = match new {
            Some(new) => self.labels.insert(key.clone(), new),
            None => self.labels.remove(key),
        };
        if old == new {
            return false;
        }
        if let Some(number) = old.and_then(|old| self.numbers.get_mut(&old)) {
            *number = number.saturating_sub(1);
        }
        self.numbers.retain(|_, number| *number > 0);
        if let Some(new) = new {
            *self.numbers.entry(new).or_default() += 1;
        }
        true
    }

    fn publish(&self) {
        let text = |is: bool| if is { "true" } else { "false" };
        // Combinations without claims are not exported.
        metrics::CLAIMS.reset();
        for (labels, number) in &self.numbers {
            let values = [text(labels.is_admin), text(labels.is_allocated), labels.source];
            metrics::CLAIMS.set(&values, *number as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// From the cases of `TestResourceClaimEventHandler`.
    #[test]
    fn claims_are_counted_by_allocation_admin_access_and_source() {
        let claim = |value: serde_json::Value| -> CountLabels {
            CountLabels::of(&serde_json::from_value(value).unwrap())
        };
        let plain = claim(json!({"metadata": {}}));
        assert_eq!(plain, CountLabels { is_admin: false, is_allocated: false, source: "" });
        let extended = claim(json!({"metadata": {"annotations": {EXTENDED_ANNOTATION: "true"}}}));
        assert_eq!(extended, CountLabels { source: "extended_resource", ..plain });
        let other = claim(json!({"metadata": {"annotations": {
            EXTENDED_ANNOTATION: "false", POD_CLAIM_ANNOTATION: ""}}}));
        assert_eq!(other, plain);
        let admin = claim(json!({
            "metadata": {"annotations": {POD_CLAIM_ANNOTATION: "c"}},
            "spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}}]}},
            "status": {"allocation": {}}}));
        let want =
            CountLabels { is_admin: true, is_allocated: true, source: "resource_claim_template" };
        assert_eq!(admin, want);
    }

    #[test]
    fn only_combinations_that_exist_are_kept() {
        let mut count = ClaimCount::default();
        let plain = CountLabels { is_admin: false, is_allocated: false, source: "" };
        let allocated = CountLabels { is_allocated: true, ..plain };
        let (a, b) = (ObjectKey::new("n", "a"), ObjectKey::new("n", "b"));
        assert!(count.change(&a, Some(plain)));
        assert!(!count.change(&a, Some(plain)));
        assert!(count.change(&b, Some(plain)));
        assert_eq!(count.numbers, BTreeMap::from([(plain, 2)]));
        assert!(count.change(&b, Some(allocated)));
        assert_eq!(count.numbers, BTreeMap::from([(plain, 1), (allocated, 1)]));
        assert!(count.change(&a, None));
        assert_eq!(count.numbers, BTreeMap::from([(allocated, 1)]));
    }
}
