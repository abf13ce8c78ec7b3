//! Any object: every field, named in words, nested by indentation.

use serde_json::Value;

use super::text::{Text, plain};

/// Everything but what the head and kubectl's readers know already.
pub fn body(text: &mut Text, object: &Value) {
    text.field("API Version", &object["apiVersion"]);
    text.field("Kind", &object["kind"]);
    for (key, value) in object.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
            put(text, 0, key, value);
        }
    }
}

fn put(text: &mut Text, depth: usize, key: &str, value: &Value) {
    let name = words(key);
    match value {
        Value::Object(map) => {
            text.line(depth, &format!("{name}:"));
            for (key, value) in map {
                put(text, depth + 1, key, value);
            }
        }
        Value::Array(items) => {
            text.line(depth, &format!("{name}:"));
            for item in items {
                match item {
                    Value::Object(map) => {
                        for (key, value) in map {
                            put(text, depth + 1, key, value);
                        }
                    }
                    scalar => text.line(depth + 1, &plain(scalar)),
                }
            }
        }
        scalar => text.at(depth, &name, &plain(scalar)),
    }
}

/// `clusterIP` becomes `Cluster IP`.
fn words(key: &str) -> String {
    let mut out = String::new();
    let mut before_is_lower = false;
    for (at, c) in key.chars().enumerate() {
        if at == 0 {
            out.extend(c.to_uppercase());
        } else {
            if c.is_uppercase() && before_is_lower {
                out.push(' ');
            }
            out.push(c);
        }
        before_is_lower = c.is_lowercase();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_words() {
        for (key, name) in [
            ("clusterIP", "Cluster IP"),
            ("type", "Type"),
            ("podCIDR", "Pod CIDR"),
        ] {
            assert_eq!(words(key), name);
        }
    }
}
