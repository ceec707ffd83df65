//! The two rounds of mutating admission: when a policy or a webhook changed the object, everything before it is run once more, and those
//! are asked again that want to be (upstream's `reinvocation.go` and both `reinvocationcontext.go`).

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::Value;

/// What is remembered over both rounds of one request.
#[derive(Debug, Default)]
pub struct Rounds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// This is the second round.
    second: bool,
    /// A second round is wanted.
    wanted: bool,
    policies: Memory,
    webhooks: Memory,
}

/// Who remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Mutating policies, by policy, binding and parameter.
    Policies,
    /// Mutating webhooks.
    Webhooks,
}

/// What one part remembers.
#[derive(Debug, Default)]
struct Memory {
    /// The object as the first round left it.
    left: Option<Value>,
    /// Asked, and to be asked again when somebody changes the object.
    asked: BTreeSet<String>,
    /// To be asked in the second round.
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
    /// Begins the second round, when it is wanted.
    pub fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        state.second = state.wanted && !state.second;
        state.second
    }

    /// What one part sees of the rounds.
    pub(crate) fn of(&self, part: Part) -> Round<'_> {
        Round { rounds: self, part }
    }
}

/// The rounds for one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    part: Part,
}

impl Round<'_> {
    /// This is the second round.
    pub(crate) fn is_second(&self) -> bool {
        self.rounds.0.lock().second
    }

    /// It begins; in the second round, built-in steps may have changed the object since.
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

    /// This one is asked in this round. One that was passed over in the first is not asked for the first time in the second.
    pub(crate) fn is_due(&self, id: &str) -> bool {
        let mut state = self.rounds.0.lock();
        !state.second || state.memory(self.part).due.contains(id)
    }

    /// One of this part changed the object.
    pub(crate) fn changed(&self) {
        let mut state = self.rounds.0.lock();
        state.wanted = true;
        state.memory(self.part).repeat_all();
    }

    /// This one was asked, and may be asked again.
    pub(crate) fn may_repeat(&self, id: &str) {
        self.rounds.0.lock().memory(self.part).asked.insert(id.to_owned());
    }

    /// It is through; how it left the object counts in a second round, which webhooks, as the last, know of by now.
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
