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

/// One rule for each resource and name, with all verbs, and one for each URL and verb.
fn compact(rules: &Value) -> Vec<Value> {
    let (mut of_resources, mut of_urls): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for rule in list(rules) {
        for (group, resource, name, verb) in singles(rule) {
            let mut single = json!({"apiGroups": [group], "resources": [resource]});
            if let Some(name) = name {
                single["resourceNames"] = json!([name]);
            }
            let is_same = |known: &&mut Value| {
                ["apiGroups", "resources", "resourceNames"]
                    .iter()
                    .all(|field| known[*field] == single[*field])
            };
            let known = of_resources.iter_mut().find(is_same);
            match known.and_then(|known| known["verbs"].as_array_mut()) {
                Some(verbs) if verbs.contains(verb) => {}
                Some(verbs) => verbs.push(verb.clone()),
                None => {
                    single["verbs"] = json!([verb]);
                    of_resources.push(single);
                }
            }
        }
        for url in list(&rule["nonResourceURLs"]) {
            let verbs = list(&rule["verbs"]);
            of_urls.extend(verbs.map(|verb| json!({"nonResourceURLs": [url], "verbs": [verb]})));
        }
    }
    of_urls.append(&mut of_resources);
    of_urls.sort_by_key(sort_key);
    of_urls
}

/// Group, resource, name and verb of each single permission.
fn singles(rule: &Value) -> Vec<(&Value, &Value, Option<&Value>, &Value)> {
    let mut found = Vec::new();
    for group in list(&rule["apiGroups"]) {
        for resource in list(&rule["resources"]) {
            for verb in list(&rule["verbs"]) {
                let names: Vec<&Value> = list(&rule["resourceNames"]).collect();
                match names.is_empty() {
                    true => found.push((group, resource, None, verb)),
                    false => found.extend(
                        names
                            .into_iter()
                            .map(|name| (group, resource, Some(name), verb)),
                    ),
                }
            }
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_of_a_resource_share_a_line_and_those_of_a_url_do_not() {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"], "resourceNames": ["a"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]},
            {"nonResourceURLs": ["/a"], "verbs": ["get", "post"]}]);
        let mut text = Text::default();
        role(
            &mut text,
            &json!({"metadata": {"name": "r"}, "rules": rules}),
        );
        let shown = text.with_tabs();
        let expected = "pods\t[]\t[]\t[get list]\n  pods\t[]\t[a]\t[get list]\n  \t[/a]\t[]\t[get]\n  \t[/a]\t[]\t[post]\n";
        assert!(shown.ends_with(expected), "{shown}");
    }
}
