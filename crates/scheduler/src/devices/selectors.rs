//! Compiled selectors of devices, shared by all claims and classes with the same text.

use std::{collections::HashMap, sync::Arc};

use cel::{DeviceSelector, SelectorError};
use parking_lot::Mutex;

/// The maximum number of selectors; above it all are compiled again.
const COMPILED: usize = 256;

type Compiled = Arc<Result<DeviceSelector, String>>;

/// The compiled selectors.
#[derive(Default)]
pub struct Selectors {
    /// Guards the selectors by their text.
    known: Mutex<HashMap<String, Compiled>>,
}

impl Selectors {
    /// The selector of a text, or why it is invalid.
    pub(super) fn get(&self, text: &str) -> Compiled {
        if let Some(known) = self.known.lock().get(text) {
            return known.clone();
        }
        let compiled = DeviceSelector::compile(text).map_err(|error| match error {
            SelectorError::Invalid(why) | SelectorError::Internal(why) => why,
        });
        let compiled = Arc::new(compiled);
        let mut known = self.known.lock();
        if known.len() >= COMPILED {
            known.clear();
        }
        known.insert(text.to_owned(), compiled.clone());
        compiled
    }
}
