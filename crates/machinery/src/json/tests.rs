//! Values round-trip, and maps keep their order.

use super::*;

fn long(entries: usize) -> Map {
    (0..entries)
        .map(|i| (format!("k{i}"), Value::from(i)))
        .collect()
}

#[test]
fn entries_keep_their_order_and_their_names_are_unique() {
    for size in [0, 1, 31, 32, 33, 34, 1000] {
        let mut map = long(size);
        assert_eq!(map.len(), size);
        assert!(
            map.keys()
                .enumerate()
                .all(|(i, key)| *key == format!("k{i}"))
        );
        for i in 0..size {
            assert_eq!(map.insert(format!("k{i}"), Value::Null), Some(i.into()));
        }
        assert_eq!((map.len(), map.get("k1000")), (size, None));
    }
}

#[test]
fn removal_keeps_the_order_on_both_sides_of_the_index() {
    let mut map = long(40);
    for i in (0..40).step_by(2) {
        assert_eq!(map.shift_remove(&format!("k{i}")), Some(i.into()));
        assert_eq!(map.shift_remove(&format!("k{i}")), None);
        for (key, value) in &map {
            assert_eq!(map.get(key), Some(value));
        }
    }
    let left: Vec<_> = map.values().filter_map(Value::as_u64).collect();
    assert_eq!(left, Vec::from_iter((1..40).step_by(2)));
}

#[test]
fn long_maps_stay_searchable_however_they_are_changed() {
    let mut map = long(100);
    map.retain(|_, value| value.as_u64().is_some_and(|n| n % 2 == 0));
    map.sort_keys();
    *map.entry("new").or_insert(Value::Null) = json!([1]);
    map.append(&mut long(3));
    assert_eq!(map.len(), 52);
    for (key, value) in &map {
        assert_eq!(map.get(key), Some(value));
    }
    assert_eq!(map["new"][0], 1);
    map.clear();
    assert!(map.is_empty() && map.get("new").is_none());
}

#[test]
fn maps_are_equal_in_any_order() {
    assert_eq!(
        json!({"a": 1, "b": {"c": 2}}),
        json!({"b": {"c": 2}, "a": 1})
    );
    assert_ne!(json!({"a": 1, "b": 2}), json!({"a": 1, "c": 2}));
    assert_ne!(json!({"a": 1}), json!({"a": 1, "b": 2}));
    let mut turned: Map = long(100).into_iter().rev().collect();
    assert_eq!(turned, long(100));
    turned.insert("k7", Value::Null);
    assert_ne!(turned, long(100));
}

#[test]
fn text_reads_and_writes_as_with_serde_json() {
    let text = r#"{"z":[1,-2,1.5,1e300,"ä\n\u0001",null,true,{}],"metadata":{"name":"n"},"a":18446744073709551615}"#;
    let ours: Value = from_str(text).unwrap();
    let theirs: serde_json::Value = from_str(text).unwrap();
    assert_eq!(ours.to_string(), theirs.to_string());
    let mut written = Vec::new();
    write::value(&mut written, &ours);
    assert_eq!(written, theirs.to_string().as_bytes());
    assert_eq!(format!("{ours:#}"), format!("{theirs:#}"));
    assert_eq!(Value::from(theirs.clone()), ours);
    assert_eq!(serde_json::Value::from(ours.clone()), theirs);
    assert_eq!(to_value(&theirs).unwrap(), ours);
    assert_eq!(from_value::<serde_json::Value>(ours).unwrap(), theirs);
    assert!(from_str::<Map>("[]").is_err());
}

#[test]
fn brackets_and_pointers_find_values() {
    let mut value = json!({"a/b": [{"x~y": 1}]});
    assert_eq!(value["a/b"][0]["x~y"], 1);
    assert_eq!(value["nothing"][7]["at all"], Value::Null);
    assert_eq!(value.pointer("/a~1b/0/x~0y"), Some(&1.into()));
    assert_eq!(value.pointer("/a~1b/00"), None);
    assert_eq!(value.pointer(""), Some(&value));
    *value.pointer_mut("/a~1b/0/x~0y").unwrap() = "new".into();
    value["made"]["below"] = 2.into();
    assert_eq!(
        value,
        json!({"a/b": [{"x~y": "new"}], "made": {"below": 2}})
    );
}

#[test]
fn names_of_fields_are_not_copied() {
    let fixed = |key: &Key| {
        let table = crate::schema::name(key).map(str::as_ptr);
        table == Some(key.as_ptr())
    };
    let value: Map = from_str(r#"{"metadata": 1, "no field of anything": 2}"#).unwrap();
    let found: Vec<_> = value.keys().map(fixed).collect();
    assert_eq!(found, [true, false]);
    assert!(size_of::<Value>() <= 32 && size_of::<Key>() <= 24);
}

#[test]
fn every_character_is_written_as_with_serde_json() {
    let all: String = (0..0x250)
        .filter_map(char::from_u32)
        .chain("💡".chars())
        .collect();
    let mut written = Vec::new();
    write::text(&mut written, &all);
    assert_eq!(written, serde_json::to_vec(&all).unwrap());
}

#[test]
fn json_in_code_is_as_with_serde_json() {
    let (name, some) = ("key".to_owned(), Some(1.5));
    let list = vec!["a", "b"];
    let ours = json!({"a": null, name: [1, null, [true], {"x": -1}, "t".len()], (&name[1..]): some,
        "list": list, "nested": {"empty": {}, "none": [], "sum": 1 + 2}, "f": 0.1_f32,});
    let theirs = serde_json::json!({"a": null, (name.as_str()): [1, null, [true], {"x": -1}, "t".len()],
        (&name[1..]): some, "list": list, "nested": {"empty": {}, "none": [], "sum": 1 + 2},
        "f": 0.1_f32,});
    assert_eq!(ours.to_string(), theirs.to_string());
    assert_eq!(json!("text"), "text");
    assert_eq!(json!([]).to_string(), "[]");
}
