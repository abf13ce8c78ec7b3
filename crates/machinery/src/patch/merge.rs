//! JSON merge patch (RFC 7386): the patch's fields are merged in, null removes.

use crate::{Object, Value};

/// Merges a patch into an object.
pub fn apply(target: &mut Object, patch: Object) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.shift_remove(&key);
            }
            Value::Object(patch) => match target.get_mut(&key) {
                Some(Value::Object(below)) => apply(below, patch),
                _ => {
                    let mut below = Object::new();
                    apply(&mut below, patch);
                    target.insert(key, Value::Object(below));
                }
            },
            value => {
                target.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use proptest::prelude::*;

    fn merged(target: Value, patch: Value) -> Value {
        let (Value::Object(mut target), Value::Object(patch)) = (target, patch) else {
            panic!("objects only")
        };
        apply(&mut target, patch);
        Value::Object(target)
    }

    #[test]
    fn nulls_remove_and_objects_merge() {
        let cases = [
            (json!({"a": 1}), json!({"a": null}), json!({})),
            (
                json!({"a": {"b": 1}}),
                json!({"a": {"c": 2}}),
                json!({"a": {"b": 1, "c": 2}}),
            ),
            (
                json!({"a": [1]}),
                json!({"a": {"b": null, "c": 1}}),
                json!({"a": {"c": 1}}),
            ),
            (json!({"a": {"b": 1}}), json!({"a": [2]}), json!({"a": [2]})),
        ];
        for (target, patch, expected) in cases {
            assert_eq!(merged(target, patch), expected);
        }
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i8>().prop_map(Value::from),
            "[ab]".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("[abc]", inner), 0..3)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn merging_the_same_patch_twice_changes_nothing_more(target in tree(), patch in tree()) {
            if target.is_object() && patch.is_object() {
                let once = merged(target, patch.clone());
                prop_assert_eq!(merged(once.clone(), patch), once);
            }
        }
    }
}
