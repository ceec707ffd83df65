//! The two rounds of mutating admission: when a webhook changed the object, everything before it is run once more, and those webhooks
//! are asked again that want to be (upstream's `reinvocation.go` and `reinvocationcontext.go`).

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
    /// The object as the webhooks of the first round left it.
    left: Option<Value>,
    /// Asked, and to be asked again when somebody changes the object.
    asked: BTreeSet<String>,
    /// To be asked in the second round.
    due: BTreeSet<String>,
}

impl State {
    fn repeat_all(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        self.due.extend(asked);
    }
}

impl Rounds {
    /// Begins the second round, when it is wanted.
    pub fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        state.second = state.wanted && !state.second;
        state.second
    }

    /// This is the second round.
    pub(crate) fn is_second(&self) -> bool {
        self.0.lock().second
    }

    /// The webhooks begin; in the second round, built-in steps may have changed the object since.
    pub(crate) fn enter(&self, object: Option<&Value>) {
        let mut state = self.0.lock();
        if state.second && state.left.as_ref() != object {
            state.repeat_all();
        }
    }

    /// The webhook is asked in this round. One that was passed over in the first is not asked for the first time in the second.
    pub(crate) fn is_due(&self, id: &str) -> bool {
        let state = self.0.lock();
        !state.second || state.due.contains(id)
    }

    /// A webhook changed the object.
    pub(crate) fn changed(&self) {
        let mut state = self.0.lock();
        state.repeat_all();
        state.wanted = true;
    }

    /// The webhook was asked, and may be asked again.
    pub(crate) fn may_repeat(&self, id: &str) {
        self.0.lock().asked.insert(id.to_owned());
    }

    /// The webhooks are through; only a second round wants to know how they left the object.
    pub(crate) fn leave(&self, object: Option<&Value>) {
        let mut state = self.0.lock();
        if state.wanted && !state.second {
            state.left = object.cloned();
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
        let (first, last) = (json!(1), json!(3));
        rounds.enter(Some(&first));
        for (id, changes) in [("a", false), ("b", true), ("c", false)] {
            assert!(rounds.is_due(id));
            if changes {
                rounds.changed();
            }
            rounds.may_repeat(id);
        }
        rounds.leave(Some(&last));
        assert!(rounds.begin_second());
        rounds.enter(Some(&last));
        assert_eq!(["a", "b", "c"].map(|id| rounds.is_due(id)), [true, false, false]);
        assert!(!rounds.begin_second());
    }

    #[test]
    fn a_change_of_built_in_steps_between_the_rounds_asks_all_again() {
        let rounds = Rounds::default();
        rounds.enter(None);
        rounds.changed();
        rounds.may_repeat("a");
        rounds.leave(Some(&json!(1)));
        assert!(rounds.begin_second());
        rounds.enter(Some(&json!(2)));
        assert!(rounds.is_due("a"));
        assert!(!rounds.is_due("never asked"));
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let rounds = Rounds::default();
        rounds.enter(None);
        rounds.may_repeat("a");
        rounds.leave(None);
        assert!(!rounds.begin_second());
    }
}
