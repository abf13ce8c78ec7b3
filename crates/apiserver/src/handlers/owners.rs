//! An owner that is named twice is kept once, and whoever named it so is told.

use machinery::{Object, Value};

/// Drops owner references that were there before; `after` tells when it was seen. What is told
/// names the owners' uids.
pub(super) fn dedup(object: &mut Object, after: &str) -> Option<String> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut)?;
    let references = metadata.get_mut("ownerReferences")?.as_array_mut()?;
    let mut twice = Vec::new();
    let mut kept: Vec<Value> = Vec::with_capacity(references.len());
    for reference in references.drain(..) {
        if kept.contains(&reference) {
            let uid = reference.get("uid").and_then(Value::as_str);
            twice.push(uid.unwrap_or_default().to_owned());
        } else {
            kept.push(reference);
        }
    }
    *references = kept;
    (!twice.is_empty()).then(|| {
        let uids = twice.join(", ");
        format!(
            ".metadata.ownerReferences contains duplicate entries{after}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"
        )
    })
}

/// Seen when a patch has been applied.
pub(super) const AFTER_PATCH: &str = " after mutating admission happens";

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn only_what_is_wholly_the_same_is_dropped() {
        let owner = |uid: &str, controller: bool| json!({"uid": uid, "controller": controller});
        let references = json!([
            owner("a", true),
            owner("b", false),
            owner("a", true),
            owner("a", false)
        ]);
        let object = json!({"metadata": {"ownerReferences": references}});
        let mut object = object.as_object().unwrap().clone();
        let told = dedup(&mut object, "").unwrap();
        assert!(told.ends_with("duplicate UID(s) observed: a"), "{told}");
        let kept = json!([owner("a", true), owner("b", false), owner("a", false)]);
        assert_eq!(object["metadata"]["ownerReferences"], kept);
        assert_eq!(dedup(&mut object, ""), None);
        assert_eq!(dedup(&mut Object::new(), ""), None);
    }
}
