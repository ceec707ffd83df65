//! How fast and how far replicas may change, pure: recent recommendations, rates, bounds
//! (upstream's `normalizeDesiredReplicas…`, KEP 853).

use api::k8s::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerSpec,
};
use api::k8s::jiff::Timestamp;

use crate::framework::tuning::Autoscaling;

/// Without rules of its own an autoscaler at most doubles, or goes to four.
const UP_FACTOR: i32 = 2;
const UP_LEAST: i32 = 4;
/// Remembered per autoscaler: at a look each 15 s an hour of them, which is the longest window that
/// is allowed.
const REMEMBERED_MAX: usize = 512;

/// What was recommended and done before.
#[derive(Debug)]
pub(super) struct History {
    /// Seconds for which the highest recommendation applies instead of smaller ones
    /// (`--horizontal-pod-autoscaler-downscale-stabilization`).
    pub(super) stabilization: i32,
    recommendations: Vec<(Timestamp, i32)>,
    ups: Vec<(Timestamp, i32)>,
    downs: Vec<(Timestamp, i32)>,
}

/// What a condition says: whether, reason, message.
pub(super) type ConditionText = (bool, &'static str, &'static str);

/// What is decided: replicas, the conditions `AbleToScale` and `ScalingLimited`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) replicas: i32,
    pub(super) able: ConditionText,
    pub(super) limited: ConditionText,
}

const LOWEST: &str =
    "recent recommendations were lower than current one, applying the lowest recent recommendation";
const HIGHEST: &str = "recent recommendations were higher than current one, applying the highest \
    recent recommendation";
const IN_RANGE: (&str, &str) =
    ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

fn remember(all: &mut Vec<(Timestamp, i32)>, now: Timestamp, value: i32, keep: i64) {
    all.retain(|(at, _)| at.as_second() >= now.as_second().saturating_sub(keep));
    if all.len() >= REMEMBERED_MAX {
        all.remove(0);
    }
    all.push((now, value));
}

/// Sum of the changes in the last `period` seconds.
fn changed(events: &[(Timestamp, i32)], period: i32, now: Timestamp) -> i32 {
    let since = now.as_second() - i64::from(period);
    let recent = events.iter().filter(|(at, _)| at.as_second() > since);
    recent.fold(0_i32, |sum, (_, change)| sum.saturating_add(*change))
}

impl Default for History {
    fn default() -> Self {
        Self {
            stabilization: Autoscaling::default().downscale_stabilization,
            recommendations: Vec::new(),
            ups: Vec::new(),
            downs: Vec::new(),
        }
    }
}

impl History {
    /// The replicas that were found count as the first recommendation.
    pub(super) fn begin(&mut self, replicas: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, replicas));
        }
    }

    /// Notes that the target was scaled.
    pub(super) fn scaled(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        from: i32,
        to: i32,
        now: Timestamp,
    ) {
        let Some(behavior) = &spec.behavior else { return };
        let (rules, events, change) = if to > from {
            (&behavior.scale_up, &mut self.ups, to.saturating_sub(from))
        } else {
            (&behavior.scale_down, &mut self.downs, from.saturating_sub(to))
        };
        let policies = rules.iter().flat_map(|r| r.policies.iter().flatten());
        let longest = policies.map(|p| p.period_seconds).max().unwrap_or(0);
        remember(events, now, change, i64::from(longest));
    }

    /// What becomes of `desired`, given `current` and the lowest number that is allowed.
    pub(super) fn decide(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        desired: i32,
        least: i32,
        now: Timestamp,
    ) -> Decision {
        let (stable, able, (replicas, (reason, message))) = match &spec.behavior {
            None => {
                let stable = self.highest(desired, self.stabilization, now);
                remember(&mut self.recommendations, now, desired, self.stabilization.into());
                let limit = current.saturating_mul(UP_FACTOR).max(UP_LEAST);
                let most = spec.max_replicas.min(limit);
                let above = if spec.max_replicas > limit { UP_LIMIT } else { TOO_MANY };
                let end = match stable {
                    n if n < least => (least, TOO_FEW),
                    n if n > most => (most, above),
                    n => (n, IN_RANGE),
                };
                (stable, ("ScaleDownStabilized", HIGHEST), end)
            }
            Some(behavior) => {
                self.by_rules(behavior, spec.max_replicas, current, desired, least, now)
            }
        };
        let able = if stable == desired {
            (true, "ReadyForNewScale", "recommended size matches current size")
        } else {
            (true, able.0, able.1)
        };
        Decision { replicas, able, limited: (replicas != stable, reason, message) }
    }

    /// The highest recommendation of the last seconds.
    fn highest(&self, desired: i32, window: i32, now: Timestamp) -> i32 {
        let since = now.as_second() - i64::from(window);
        let recent = self.recommendations.iter().filter(|(at, _)| at.as_second() >= since);
        recent.map(|(_, n)| *n).fold(desired, i32::max)
    }

    #[allow(clippy::type_complexity, reason = "three parts of one decision")]
    fn by_rules(
        &mut self,
        behavior: &HorizontalPodAutoscalerBehavior,
        most: i32,
        current: i32,
        desired: i32,
        least: i32,
        now: Timestamp,
    ) -> (i32, (&'static str, &'static str), (i32, (&'static str, &'static str))) {
        let window = |rules: &Option<HPAScalingRules>, otherwise: i32| {
            rules.as_ref().and_then(|r| r.stabilization_window_seconds).unwrap_or(otherwise)
        };
        let (up, down) =
            (window(&behavior.scale_up, 0), window(&behavior.scale_down, self.stabilization));
        let since = |window: i32| now.as_second() - i64::from(window);
        let (mut low, mut high) = (desired, desired);
        for (at, recommended) in &self.recommendations {
            if at.as_second() > since(up) {
                low = low.min(*recommended);
            }
            if at.as_second() > since(down) {
                high = high.max(*recommended);
            }
        }
        remember(&mut self.recommendations, now, desired, up.max(down).into());
        let stable = current.max(low).min(high);
        let why = if desired >= current {
            ("ScaleUpStabilized", LOWEST)
        } else {
            ("ScaleDownStabilized", HIGHEST)
        };
        let end = if stable > current {
            let limit = self.limit(behavior.scale_up.as_ref(), true, current, now).max(current);
            let (end, above) = if most > limit { (limit, UP_LIMIT) } else { (most, TOO_MANY) };
            if stable > end { (end, above) } else { (stable, IN_RANGE) }
        } else if stable < current {
            let limit = self.limit(behavior.scale_down.as_ref(), false, current, now).min(current);
            let (end, below) = if least < limit { (limit, DOWN_LIMIT) } else { (least, TOO_FEW) };
            if stable < end { (end, below) } else { (stable, IN_RANGE) }
        } else {
            (stable, IN_RANGE)
        };
        (stable, why, end)
    }

    /// As far as the policies let it go now.
    fn limit(
        &self,
        rules: Option<&HPAScalingRules>,
        up: bool,
        current: i32,
        now: Timestamp,
    ) -> i32 {
        let select = rules.and_then(|r| r.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let proposals = rules.iter().flat_map(|r| r.policies.iter().flatten()).map(|policy| {
            let period = policy.period_seconds;
            let start = current
                .saturating_sub(changed(&self.ups, period, now))
                .saturating_add(changed(&self.downs, period, now));
            match (policy.type_.as_str(), up) {
                ("Percent", true) => share(start, 100 + i64::from(policy.value), true),
                ("Percent", false) => share(start, 100 - i64::from(policy.value), false),
                (_, true) => start.saturating_add(policy.value),
                (_, false) => start.saturating_sub(policy.value),
            }
        });
        // `Min` is the least change: the lowest bound upwards, the highest downwards.
        let found = if (select == "Min") == up { proposals.min() } else { proposals.max() };
        found.unwrap_or(current)
    }
}

/// A number of percent, rounded up or towards zero.
fn share(of: i32, percent: i64, up: bool) -> i32 {
    let whole = i64::from(of).saturating_mul(percent);
    let value = if up {
        whole.div_euclid(100) + i64::from(whole.rem_euclid(100) != 0)
    } else {
        whole / 100
    };
    i32::try_from(value).unwrap_or(if value < 0 { i32::MIN } else { i32::MAX })
}

#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;
