//! Reinvocation in mutating admission: if a policy or a webhook changed the object, a second pass
//! repeats the built-in plugins and reinvokes policies and webhooks with `reinvocationPolicy:
//! IfNeeded` (upstream's `reinvocation.go` and both `reinvocationcontext.go`).

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::Value;

/// The state of both passes over one request.
#[derive(Debug, Default)]
pub struct Rounds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether this is the second pass.
    second: bool,
    /// Whether a second pass is requested.
    wanted: bool,
    policies: Memory,
    webhooks: Memory,
}

/// The plugin that the state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Mutating policies, keyed by policy, binding and parameter.
    Policies,
    /// Mutating webhooks, keyed by ID.
    Webhooks,
}

/// The reinvocation state of one plugin.
#[derive(Debug, Default)]
struct Memory {
    /// The object after the first pass of the plugin.
    left: Option<Value>,
    /// Invoked, and reinvoked if the object changes later.
    asked: BTreeSet<String>,
    /// To be reinvoked in the second pass.
    due: BTreeSet<String>,
}

impl Memory {
    fn repeat_all(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        self.due.extend(asked);
    }
}

impl State {
    fn memory(&mut self, part: Part) -> &mut Memory {
        match part {
            Part::Policies => &mut self.policies,
            Part::Webhooks => &mut self.webhooks,
        }
    }
}

impl Rounds {
    /// Begins the second pass if it is requested; returns whether it does.
    pub fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        state.second = state.wanted && !state.second;
        state.second
    }

    /// The context of one plugin.
    pub(crate) fn of(&self, part: Part) -> Round<'_> {
        Round { rounds: self, part }
    }
}

/// The reinvocation context of one plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    part: Part,
}

impl Round<'_> {
    /// Whether this is the second pass.
    pub(crate) fn is_second(&self) -> bool {
        self.rounds.0.lock().second
    }

    /// The plugin begins; in the second pass, built-in plugins may have changed the object since.
    pub(crate) fn enter(&self, object: Option<&Value>) {
        let mut state = self.rounds.0.lock();
        if !state.second {
            return;
        }
        let memory = state.memory(self.part);
        if memory.left.as_ref() != object {
            memory.repeat_all();
        }
    }

    /// Whether to invoke this hook in this pass. A hook that was skipped in the first pass is
    /// skipped in the second one, too.
    pub(crate) fn is_due(&self, id: &str) -> bool {
        let mut state = self.rounds.0.lock();
        !state.second || state.memory(self.part).due.contains(id)
    }

    /// A hook of this plugin changed the object.
    pub(crate) fn changed(&self) {
        let mut state = self.rounds.0.lock();
        state.wanted = true;
        state.memory(self.part).repeat_all();
    }

    /// The hook was invoked and can be reinvoked.
    pub(crate) fn may_repeat(&self, id: &str) {
        self.rounds.0.lock().memory(self.part).asked.insert(id.to_owned());
    }

    /// The plugin ends. Records the object for comparison in a second pass; webhooks are last, so
    /// they already know whether there is one.
    pub(crate) fn leave(&self, object: Option<&Value>) {
        let mut state = self.rounds.0.lock();
        if !state.second && (state.wanted || self.part == Part::Policies) {
            state.memory(self.part).left = object.cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_those_before_a_change_are_asked_again() {
        let rounds = Rounds::default();
        let round = rounds.of(Part::Webhooks);
        let (first, last) = (json!(1), json!(3));
        round.enter(Some(&first));
        for (id, changes) in [("a", false), ("b", true), ("c", false)] {
            assert!(round.is_due(id));
            if changes {
                round.changed();
            }
            round.may_repeat(id);
        }
        round.leave(Some(&last));
        assert!(rounds.begin_second());
        round.enter(Some(&last));
        assert_eq!(["a", "b", "c"].map(|id| round.is_due(id)), [true, false, false]);
        assert!(!rounds.begin_second());
    }

    #[test]
    fn a_change_of_built_in_steps_between_the_rounds_asks_all_again() {
        let rounds = Rounds::default();
        let round = rounds.of(Part::Webhooks);
        round.enter(None);
        round.changed();
        round.may_repeat("a");
        round.leave(Some(&json!(1)));
        assert!(rounds.begin_second());
        round.enter(Some(&json!(2)));
        assert!(round.is_due("a"));
        assert!(!round.is_due("never asked"));
    }

    #[test]
    fn webhooks_that_change_the_object_repeat_policies() {
        let rounds = Rounds::default();
        let (policies, webhooks) = (rounds.of(Part::Policies), rounds.of(Part::Webhooks));
        policies.enter(Some(&json!(1)));
        policies.may_repeat("a");
        policies.leave(Some(&json!(1)));
        webhooks.enter(Some(&json!(1)));
        webhooks.changed();
        webhooks.leave(Some(&json!(2)));
        assert!(rounds.begin_second());
        policies.enter(Some(&json!(2)));
        assert!(policies.is_due("a"));
        assert!(!webhooks.is_due("a"));
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let rounds = Rounds::default();
        let round = rounds.of(Part::Webhooks);
        round.enter(None);
        round.may_repeat("a");
        round.leave(None);
        assert!(!rounds.begin_second());
    }
}
