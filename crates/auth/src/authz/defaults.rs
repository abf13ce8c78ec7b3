//! Writes the default roles and bindings at startup: missing objects are created, removed rules and
//! subjects of defaults are restored, additions are kept. An object with the autoupdate annotation
//! `false` is left alone.

use std::{collections::HashSet, iter};

use futures::{TryStreamExt, stream};
use http::{Method, StatusCode};
use kinds::tree;
use machinery::{Object, Value, json::Key};
use stdx::Backoff;

use super::{
    Rbac,
    policy::{DEFAULTS, OPTIONAL, Policy},
    rbac::{FIRST, GROUP, KINDS, LONGEST},
    rules::{Rule, uncovered},
};
use request::Client;

const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Concurrent writes: they share disk syncs.
const CONCURRENT_WRITES: usize = 32;

/// Retries until all defaults exist; returns at once if roles are not served.
pub async fn write(api: impl Client, rbac: Rbac) {
    let mut backoff = Backoff::new(FIRST, LONGEST);
    loop {
        match write_all(&api, &rbac).await {
            Ok(false) => return,
            Ok(true) => match rbac.defaults_written().await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "cannot read roles and bindings"),
            },
            Err(error) => tracing::warn!(error, "cannot write default roles and bindings"),
        }
        tokio::time::sleep(backoff.step()).await;
    }
}

async fn write_all(api: &impl Client, rbac: &Rbac) -> Result<bool, String> {
    if rbac.reader().resource(GROUP, "clusterroles").is_none() {
        return Ok(false);
    }
    let mut unreadable = HashSet::new();
    for kind in KINDS {
        let listed = rbac.reader().list_readable(GROUP, kind).await;
        let names = listed.map_err(|status| status.message)?.unreadable;
        unreadable.extend(names.into_iter().map(|name| (kind, name)));
    }
    let is_served = |group: &str, plural: &str| rbac.reader().resource(group, plural).is_some();
    let optional = OPTIONAL.iter();
    let optional = optional.filter(|(group, plural, _)| is_served(group, plural));
    let policies: Vec<&Policy> = iter::once(&*DEFAULTS)
        .chain(optional.map(|(_, _, policy)| policy))
        .collect();
    let roles = policies.iter().flat_map(|policy| &policy.roles);
    let roles = roles.map(|role| (role.resource(), role.to_object()));
    let bindings = policies.iter().flat_map(|policy| &policy.bindings);
    let bindings = bindings.map(|binding| (binding.resource(), binding.to_object()));
    // An object that cannot be read exists.
    let is_readable = |(resource, object): &(&'static str, Object)| {
        let name = match tree::namespace(object) {
            "" => tree::name(object).to_owned(),
            namespace => format!("{namespace}/{}", tree::name(object)),
        };
        !unreadable.contains(&(*resource, name))
    };
    let all = roles.chain(bindings).filter(is_readable);
    stream::iter(all.map(Ok))
        .try_for_each_concurrent(CONCURRENT_WRITES, async |(resource, object)| {
            ensure_default(api, resource, object).await
        })
        .await?;
    Ok(true)
}

fn path(resource: &str, namespace: &str, name: &str) -> String {
    let place = match namespace {
        "" => String::new(),
        namespace => format!("namespaces/{namespace}/"),
    };
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("/{name}")
    };
    format!("/apis/{GROUP}/v1/{place}{resource}{name}")
}

async fn ensure_default(api: &impl Client, resource: &str, default: Object) -> Result<(), String> {
    let (namespace, name) = (tree::namespace(&default), tree::name(&default));
    let (collection, single) = (
        path(resource, namespace, ""),
        path(resource, namespace, name),
    );
    let (status, stored) = api.ask(Method::GET, &single, None).await?;
    let (status, answer) = match status {
        StatusCode::NOT_FOUND => api.ask(Method::POST, &collection, Some(default)).await?,
        StatusCode::OK => match merged(&stored, &default) {
            DefaultChange::None => return Ok(()),
            DefaultChange::Update(object) => api.ask(Method::PUT, &single, Some(object)).await?,
            DefaultChange::Replace => {
                api.ask(Method::DELETE, &single, None).await?;
                api.ask(Method::POST, &collection, Some(default)).await?
            }
        },
        _ => (status, stored),
    };
    if status.is_success() {
        return Ok(());
    }
    Err(format!(
        "{single}: {}",
        tree::text(tree::get(&answer, "message"))
    ))
}

#[derive(Debug, PartialEq)]
enum DefaultChange {
    None,
    Update(Object),
    /// The role of a binding is immutable, so the binding is replaced.
    Replace,
}

fn merged(stored: &Object, default: &Object) -> DefaultChange {
    let annotations = &tree::get(stored, "metadata")["annotations"];
    if annotations[AUTOUPDATE] == "false" {
        return DefaultChange::None;
    }
    if !tree::same(tree::get(stored, "roleRef"), tree::get(default, "roleRef")) {
        return DefaultChange::Replace;
    }
    let mut object = stored.clone();
    let metadata = tree::child_or_new(&mut object, "metadata");
    for map in ["labels", "annotations"] {
        let wanted = tree::entries(&tree::get(default, "metadata")[map]);
        tree::child_or_new(metadata, map).extend(wanted.map(|(k, v)| (k.clone(), v.clone())));
    }
    if let Some(rule) = default.get("aggregationRule") {
        object.insert("aggregationRule".to_owned(), rule.clone());
    } else if default.contains_key("rules") {
        let of = |role: &Object| -> Vec<Rule> {
            tree::list(tree::get(role, "rules"))
                .iter()
                .map(Rule::from_json)
                .collect()
        };
        let missing = uncovered(&of(stored), &of(default));
        append(&mut object, "rules", missing.iter().map(Rule::to_json));
    }
    let known = tree::list(tree::get(stored, "subjects")).to_vec();
    let wanted = tree::list(tree::get(default, "subjects")).iter();
    let missing = wanted.filter(|wanted| !known.iter().any(|known| tree::same(known, wanted)));
    append(&mut object, "subjects", missing.cloned());
    if object == *stored {
        DefaultChange::None
    } else {
        DefaultChange::Update(object)
    }
}

fn append(object: &mut Object, field: &str, items: impl Iterator<Item = Value>) {
    let items: Vec<Value> = items.collect();
    if items.is_empty() {
        return;
    }
    let slot = object.entry(Key::new(field)).or_insert(Value::Null);
    match slot {
        Value::Array(list) => list.extend(items),
        _ => *slot = Value::Array(items),
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use registry_testing::object;

    #[test]
    fn removed_default_rules_are_restored_and_added_rules_are_kept() {
        let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
        let default = object(json!({"metadata": {"name": "r", "labels": {"a": "1"}},
                                    "rules": [rule("get"), rule("list")]}));
        let stored =
            object(json!({"metadata": {"name": "r"}, "rules": [rule("list"), rule("watch")]}));
        let DefaultChange::Update(object) = merged(&stored, &default) else {
            panic!()
        };
        assert_eq!(
            object["rules"],
            json!([rule("list"), rule("watch"), rule("get")])
        );
        assert_eq!(object["metadata"]["labels"]["a"], "1");
        assert_eq!(merged(&object, &default), DefaultChange::None);
    }

    #[test]
    fn an_operators_choice_is_respected() {
        let default = object(json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"]}]}));
        let own = json!({"metadata": {"annotations": {AUTOUPDATE: "false"}}, "rules": []});
        assert_eq!(merged(&object(own), &default), DefaultChange::None);
    }

    #[test]
    fn a_binding_of_another_role_is_replaced_and_missing_subjects_return() {
        let binding = |role: &str, subjects: Value| {
            object(
                json!({"metadata": {"name": "b", "labels": {}, "annotations": {}},
                          "roleRef": {"name": role}, "subjects": subjects}),
            )
        };
        let default = binding("r", json!([{"kind": "Group", "name": "g"}]));
        assert_eq!(
            merged(&binding("other", json!([])), &default),
            DefaultChange::Replace
        );
        let mine = json!([{"kind": "User", "name": "eve"}]);
        let DefaultChange::Update(object) = merged(&binding("r", mine), &default) else {
            panic!()
        };
        assert_eq!(object["subjects"].as_array().unwrap().len(), 2);
    }
}
