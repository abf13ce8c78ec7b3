//! Reinvocation: when a webhook or a policy changes an object, all mutating plugins run once more, and those webhooks and
//! policies that asked for it (`reinvocationPolicy: IfNeeded`) and had run before the change are asked again.

use std::collections::{HashMap, HashSet};

use machinery::Object;
use parking_lot::Mutex;

/// The state of one pass through admission.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Guards the state; `None` until something takes part.
    state: Mutex<Option<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the second round is under way.
    is_reinvoke: bool,
    /// Whether there has to be one.
    wanted: bool,
    plugins: HashMap<&'static str, Plugin>,
}

/// What one plugin remembers.
#[derive(Debug, Default)]
struct Plugin {
    /// The object as the plugin left it.
    output: Option<Object>,
    /// Ran, and may run again when something changes later.
    invoked: HashSet<String>,
    /// Runs again.
    again: HashSet<String>,
}

impl Plugin {
    fn require(&mut self) {
        self.again.extend(self.invoked.drain());
    }
}

impl Reinvocation {
    /// Forgets a pass that has to be made anew.
    pub(super) fn reset(&self) {
        *self.state.lock() = None;
    }

    /// Begins the second round, if there is to be one.
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

    /// A plugin begins its part: in the second round, what changed since its first lets everything run again that may.
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

    /// Whether a webhook or policy of the plugin runs in this round.
    pub fn runs(&self, plugin: &'static str, id: &str) -> bool {
        match &*self.state.lock() {
            Some(state) if state.is_reinvoke => {
                let own = state.plugins.get(plugin);
                own.is_some_and(|own| own.again.contains(id))
            }
            _ => true,
        }
    }

    /// A webhook or policy ran. Where it changed the object, those before it run again; it may itself run again where it
    /// is `reinvocable`.
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

    /// A plugin ends its part.
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
    fn those_before_a_change_run_again_and_those_after_it_do_not() {
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
