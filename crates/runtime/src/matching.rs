//! Filters of list requests.

use std::collections::BTreeMap;

/// Whether all wanted labels match.
pub(crate) fn labels(wanted: &BTreeMap<String, String>, have: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| have.get(key) == Some(value))
}
