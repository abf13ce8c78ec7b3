//! Reinvocation: if a webhook or a policy changes an object, all mutating plugins run once more,
//! and webhooks and policies with `reinvocationPolicy: IfNeeded` that ran before the change are
//! invoked again.

use std::collections::{HashMap, HashSet};

use machinery::Object;
use parking_lot::Mutex;

/// The state of one admission pass.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Guards the state; `None` until something is reinvocable.
    state: Mutex<Option<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether this is the second round.
    is_reinvoke: bool,
    /// Whether a second round is needed.
    wanted: bool,
    plugins: HashMap<&'static str, Plugin>,
}

/// The state of one plugin.
#[derive(Debug, Default)]
struct Plugin {
    /// The object as the plugin left it.
    output: Option<Object>,
    /// Invoked, and invoked again if the object changes later.
    invoked: HashSet<String>,
    /// To be invoked again.
    again: HashSet<String>,
}

impl Plugin {
    fn require(&mut self) {
        self.again.extend(self.invoked.drain());
    }
}

impl Reinvocation {
    /// Resets the state for a new admission pass.
    pub(super) fn reset(&self) {
        *self.state.lock() = None;
    }

    /// Begins the second round, if needed.
    pub(super) fn begin(&self) -> bool {
        match &mut *self.state.lock() {
            Some(state) if state.wanted && !state.is_reinvoke => {
                state.is_reinvoke = true;
                true
            }
            _ => false,
        }
    }

    /// Whether this is the second round.
    pub fn is_reinvoke(&self) -> bool {
        matches!(&*self.state.lock(), Some(state) if state.is_reinvoke)
    }

    /// A plugin begins: in the second round, if the object changed since its first, all reinvocable
    /// ones are invoked again.
    pub fn enter(&self, plugin: &'static str, object: &Object) {
        if let Some(state) = &mut *self.state.lock()
            && state.is_reinvoke
        {
            let own = state.plugins.entry(plugin).or_default();
            if own.output.as_ref() != Some(object) {
                own.require();
            }
        }
    }

    /// Whether a webhook or policy of the plugin is invoked in this round.
    pub fn runs(&self, plugin: &'static str, id: &str) -> bool {
        match &*self.state.lock() {
            Some(state) if state.is_reinvoke => {
                let own = state.plugins.get(plugin);
                own.is_some_and(|own| own.again.contains(id))
            }
            _ => true,
        }
    }

    /// Records an invocation. If it changed the object, the previous ones are invoked again;
    /// `reinvocable` says whether this one may be.
    pub fn ran(&self, plugin: &'static str, id: &str, changed: bool, reinvocable: bool) {
        if !changed && !reinvocable {
            return;
        }
        let mut state = self.state.lock();
        let state = state.get_or_insert_default();
        let own = state.plugins.entry(plugin).or_default();
        if changed {
            own.require();
            state.wanted = true;
        }
        if reinvocable {
            own.invoked.insert(id.to_owned());
        }
    }

    /// A plugin ends.
    pub fn leave(&self, plugin: &'static str, object: &Object) {
        if let Some(state) = &mut *self.state.lock()
            && let Some(own) = state.plugins.get_mut(plugin)
        {
            own.output = Some(object.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn webhooks_before_a_change_are_reinvoked_and_later_ones_are_not() {
        let reinvocation = Reinvocation::default();
        let unchanged = object(json!({"a": 1}));
        reinvocation.enter("P", &unchanged);
        reinvocation.ran("P", "first", false, true);
        reinvocation.ran("P", "never", false, false);
        reinvocation.ran("P", "second", true, true);
        reinvocation.leave("P", &unchanged);
        assert!(reinvocation.begin());
        assert!(reinvocation.is_reinvoke());
        reinvocation.enter("P", &unchanged);
        assert!(reinvocation.runs("P", "first"));
        assert!(!reinvocation.runs("P", "second"));
        assert!(!reinvocation.runs("P", "never"));
        assert!(!reinvocation.begin(), "there are two rounds at most");
    }

    #[test]
    fn a_change_by_other_plugins_lets_everything_run_again_that_may() {
        let reinvocation = Reinvocation::default();
        reinvocation.ran("P", "changes", true, true);
        reinvocation.leave("P", &object(json!({"a": 1})));
        assert!(reinvocation.begin());
        reinvocation.enter("P", &object(json!({"a": 2})));
        assert!(reinvocation.runs("P", "changes"));
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let reinvocation = Reinvocation::default();
        reinvocation.ran("P", "first", false, true);
        assert!(!reinvocation.begin());
        reinvocation.reset();
        assert!(!reinvocation.begin());
    }
}
