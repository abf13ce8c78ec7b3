//! Duplicate owner references: one is kept, and the client gets a warning.

use std::collections::HashSet;

use machinery::{Object, Value};

use crate::{admission::Effects, meta};

/// When duplicates are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// From the body as received.
    Request,
    /// After mutating admission; patches are checked only here.
    AfterAdmission,
}

/// Keeps the first of equal owner references.
pub(crate) fn without_duplicates(object: &mut Object, stage: Stage, effects: &Effects) {
    let owners = meta::metadata(object)
        .and_then(|metadata| metadata.get("ownerReferences"))
        .and_then(Value::as_array);
    let Some(owners) = owners.filter(|owners| owners.len() > 1) else {
        return;
    };
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    let mut twice: Vec<&str> = Vec::new();
    let mut seen: HashSet<&Value> = HashSet::with_capacity(owners.len());
    for owner in owners {
        if !seen.insert(owner) {
            twice.push(owner["uid"].as_str().unwrap_or_default());
        } else {
            kept.push(owner.clone());
        }
    }
    if twice.is_empty() {
        return;
    }
    let when = match stage {
        Stage::Request => "",
        Stage::AfterAdmission => " after mutating admission happens",
    };
    effects.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        twice.join(", ")
    ));
    meta::set(object, "ownerReferences", Value::Array(kept));
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn only_identical_owner_references_are_deduplicated() {
        let owner = |uid: &str, controller: bool| json!({"uid": uid, "controller": controller});
        let references = json!([
            owner("a", true),
            owner("b", false),
            owner("a", true),
            owner("a", false)
        ]);
        let object = json!({"metadata": {"ownerReferences": references}});
        let mut object = object.as_object().unwrap().clone();
        let effects = Effects::default();
        without_duplicates(&mut object, Stage::AfterAdmission, &effects);
        let warnings = effects.take_warnings();
        assert!(warnings[0].contains("entries after mutating admission happens;"));
        assert!(warnings[0].ends_with("duplicate UID(s) observed: a"));
        let kept = json!([owner("a", true), owner("b", false), owner("a", false)]);
        assert_eq!(object["metadata"]["ownerReferences"], kept);
        without_duplicates(&mut object, Stage::Request, &effects);
        assert!(effects.take_warnings().is_empty());
    }
}
