//! The kinds of resource.k8s.io: devices, and claims to them. Only their defaults and validation are here; the API
//! server compiles their CEL selectors, and the scheduler interprets them.

mod claim_spec;
mod configuration;
mod device;
pub mod device_class;
mod names;
mod request_policy;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;

use machinery::Value;
use machinery::field::{Error, Errors, Path};
use std::collections::BTreeSet;

/// Validates each item, unless there are too many.
fn check_items(
    items: &[Value],
    max: usize,
    path: &Path,
    errors: &mut Errors,
    mut check: impl FnMut(&Value, &Path, &mut Errors),
) {
    if items.len() > max {
        return errors.push(Error::too_many(path, items.len(), max));
    }
    for (i, item) in items.iter().enumerate() {
        check(item, &path.index(i), errors);
    }
}

/// Validates each item, and that keys are unique.
fn check_set(
    items: &[Value],
    max: usize,
    key: impl Fn(&Value) -> Value,
    path: &Path,
    errors: &mut Errors,
    check: impl FnMut(&Value, &Path, &mut Errors),
) {
    check_items(items, max, path, errors, check);
    if items.len() > max {
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let key = key(item);
        if !seen.insert(key.to_string()) {
            errors.push(Error::duplicate(&path.index(i), key));
        }
    }
}
