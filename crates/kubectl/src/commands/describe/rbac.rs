//! Roles and bindings.

use serde_json::{Value, json};

use crate::json::{list, str_of};

use super::{
    super::auth::{combined, sort_key},
    text::{Text, bracketed},
};

pub(super) fn role(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    text.line(0, "PolicyRule:");
    text.line(1, "Resources\tNon-Resource URLs\tResource Names\tVerbs");
    text.line(1, "---------\t-----------------\t--------------\t-----");
    for rule in compact(&object["rules"]) {
        text.line(
            1,
            &format!(
                "{}\t{}\t{}\t{}",
                combined(&rule),
                bracketed(&rule["nonResourceURLs"]),
                bracketed(&rule["resourceNames"]),
                bracketed(&rule["verbs"])
            ),
        );
    }
}

/// One rule for each resource, name and URL, with all verbs.
fn compact(rules: &Value) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let mut add = |key: Value, verbs: &Value| {
        let same = |known: &&mut Value| {
            ["apiGroups", "resources", "resourceNames", "nonResourceURLs"]
                .iter()
                .all(|field| known[*field] == key[*field])
        };
        match out
            .iter_mut()
            .find(same)
            .and_then(|known| known.pointer_mut("/verbs").and_then(Value::as_array_mut))
        {
            Some(known) => {
                for verb in list(verbs) {
                    if !known.contains(verb) {
                        known.push(verb.clone());
                    }
                }
            }
            None => {
                let mut rule = key;
                rule["verbs"] = verbs.clone();
                out.push(rule);
            }
        }
    };
    for rule in list(rules) {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                let base = json!({"apiGroups": [group], "resources": [resource], "resourceNames": [], "nonResourceURLs": []});
                if list(&rule["resourceNames"]).len() == 0 {
                    add(base.clone(), &rule["verbs"]);
                }
                for name in list(&rule["resourceNames"]) {
                    let mut one = base.clone();
                    one["resourceNames"] = json!([name]);
                    add(one, &rule["verbs"]);
                }
            }
        }
        for url in list(&rule["nonResourceURLs"]) {
            add(
                json!({"apiGroups": [], "resources": [], "resourceNames": [], "nonResourceURLs": [url]}),
                &rule["verbs"],
            );
        }
    }
    out.sort_by_key(sort_key);
    out
}

pub(super) fn binding(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    text.line(0, "Role:");
    text.field(1, "Kind", str_of(&object["roleRef"]["kind"]));
    text.field(1, "Name", str_of(&object["roleRef"]["name"]));
    text.line(0, "Subjects:");
    text.line(1, "Kind\tName\tNamespace");
    text.line(1, "----\t----\t---------");
    for subject in list(&object["subjects"]) {
        let field = |field: &str| str_of(&subject[field]);
        text.line(
            1,
            &format!(
                "{}\t{}\t{}",
                field("kind"),
                field("name"),
                field("namespace")
            ),
        );
    }
}
