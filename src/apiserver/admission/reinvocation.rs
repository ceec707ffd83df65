//! Reinvocation in mutating admission: if a policy or a webhook changed the object, a second pass
//! repeats the built-in plugins and reinvokes policies and webhooks with `reinvocationPolicy:
//! IfNeeded` (upstream's `reinvocation.go` and both `reinvocationcontext.go`).

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::Value;

/// The state of both passes over one request.
#[derive(Debug, Default)]
pub struct ReinvocationContext(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether this is the second pass.
    is_second: bool,
    /// Whether a second pass is requested.
    is_second_requested: bool,
    policies: PluginState,
    webhooks: PluginState,
}

/// The plugin that the state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReinvokingPlugin {
    /// Mutating policies, keyed by policy, binding and parameter.
    Policies,
    /// Mutating webhooks, keyed by ID.
    Webhooks,
}

/// The reinvocation state of one plugin.
#[derive(Debug, Default)]
struct PluginState {
    /// The object after the first pass of the plugin.
    object_after: Option<Value>,
    /// Invoked, and reinvoked if the object changes later.
    invoked: BTreeSet<String>,
    /// To be reinvoked in the second pass.
    to_reinvoke: BTreeSet<String>,
}

impl PluginState {
    fn reinvoke_all(&mut self) {
        let invoked = std::mem::take(&mut self.invoked);
        self.to_reinvoke.extend(invoked);
    }
}

impl State {
    fn plugin_state(&mut self, plugin: ReinvokingPlugin) -> &mut PluginState {
        match plugin {
            ReinvokingPlugin::Policies => &mut self.policies,
            ReinvokingPlugin::Webhooks => &mut self.webhooks,
        }
    }
}

impl ReinvocationContext {
    /// Begins the second pass if it is requested; returns whether it does.
    pub fn begin_second_pass(&self) -> bool {
        let mut state = self.0.lock();
        state.is_second = state.is_second_requested && !state.is_second;
        state.is_second
    }

    /// The context of one plugin.
    pub(crate) fn of(&self, plugin: ReinvokingPlugin) -> PluginReinvocation<'_> {
        PluginReinvocation { context: self, plugin }
    }
}

/// The reinvocation context of one plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PluginReinvocation<'a> {
    context: &'a ReinvocationContext,
    plugin: ReinvokingPlugin,
}

impl PluginReinvocation<'_> {
    /// Whether this is the second pass.
    pub(crate) fn is_second_pass(&self) -> bool {
        self.context.0.lock().is_second
    }

    /// The plugin begins; in the second pass, built-in plugins may have changed the object since.
    pub(crate) fn begin(&self, object: Option<&Value>) {
        let mut state = self.context.0.lock();
        if !state.is_second {
            return;
        }
        let plugin_state = state.plugin_state(self.plugin);
        if plugin_state.object_after.as_ref() != object {
            plugin_state.reinvoke_all();
        }
    }

    /// Whether to invoke this hook in this pass. A hook that was skipped in the first pass is
    /// skipped in the second one, too.
    pub(crate) fn should_invoke(&self, id: &str) -> bool {
        let mut state = self.context.0.lock();
        !state.is_second || state.plugin_state(self.plugin).to_reinvoke.contains(id)
    }

    /// A hook of this plugin changed the object.
    pub(crate) fn require_reinvocation(&self) {
        let mut state = self.context.0.lock();
        state.is_second_requested = true;
        state.plugin_state(self.plugin).reinvoke_all();
    }

    /// The hook was invoked and can be reinvoked.
    pub(crate) fn add_reinvocable(&self, id: &str) {
        self.context.0.lock().plugin_state(self.plugin).invoked.insert(id.to_owned());
    }

    /// The plugin ends. Records the object for comparison in a second pass; webhooks are last, so
    /// they already know whether there is one.
    pub(crate) fn end(&self, object: Option<&Value>) {
        let mut state = self.context.0.lock();
        if !state.is_second
            && (state.is_second_requested || self.plugin == ReinvokingPlugin::Policies)
        {
            state.plugin_state(self.plugin).object_after = object.cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_hooks_before_a_change_are_reinvoked() {
        let context = ReinvocationContext::default();
        let reinvocation = context.of(ReinvokingPlugin::Webhooks);
        let (first, last) = (json!(1), json!(3));
        reinvocation.begin(Some(&first));
        for (id, changes) in [("a", false), ("b", true), ("c", false)] {
            assert!(reinvocation.should_invoke(id));
            if changes {
                reinvocation.require_reinvocation();
            }
            reinvocation.add_reinvocable(id);
        }
        reinvocation.end(Some(&last));
        assert!(context.begin_second_pass());
        reinvocation.begin(Some(&last));
        assert_eq!(["a", "b", "c"].map(|id| reinvocation.should_invoke(id)), [true, false, false]);
        assert!(!context.begin_second_pass());
    }

    #[test]
    fn a_change_by_built_in_plugins_between_passes_reinvokes_all() {
        let context = ReinvocationContext::default();
        let reinvocation = context.of(ReinvokingPlugin::Webhooks);
        reinvocation.begin(None);
        reinvocation.require_reinvocation();
        reinvocation.add_reinvocable("a");
        reinvocation.end(Some(&json!(1)));
        assert!(context.begin_second_pass());
        reinvocation.begin(Some(&json!(2)));
        assert!(reinvocation.should_invoke("a"));
        assert!(!reinvocation.should_invoke("never asked"));
    }

    #[test]
    fn webhooks_that_change_the_object_reinvoke_policies() {
        let context = ReinvocationContext::default();
        let (policies, webhooks) =
            (context.of(ReinvokingPlugin::Policies), context.of(ReinvokingPlugin::Webhooks));
        policies.begin(Some(&json!(1)));
        policies.add_reinvocable("a");
        policies.end(Some(&json!(1)));
        webhooks.begin(Some(&json!(1)));
        webhooks.require_reinvocation();
        webhooks.end(Some(&json!(2)));
        assert!(context.begin_second_pass());
        policies.begin(Some(&json!(2)));
        assert!(policies.should_invoke("a"));
        assert!(!webhooks.should_invoke("a"));
    }

    #[test]
    fn without_a_change_there_is_one_pass() {
        let context = ReinvocationContext::default();
        let reinvocation = context.of(ReinvokingPlugin::Webhooks);
        reinvocation.begin(None);
        reinvocation.add_reinvocable("a");
        reinvocation.end(None);
        assert!(!context.begin_second_pass());
    }
}
