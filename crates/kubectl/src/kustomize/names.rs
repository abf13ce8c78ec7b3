//! Names of objects while a kustomization is built: earlier ones, hashes of content, and references that follow.

use serde_json::{Value, json};

use crate::{
    commands::{config_map_hash, secret_hash},
    json::{list, str_of},
};

/// Where an object's earlier names are kept while it is built.
pub const MARK: &str = "$names";

/// The name that an object had in its file.
pub fn original_name(object: &Value) -> &str {
    match object[MARK]["names"][0].as_str() {
        Some(name) => name,
        None => str_of(&object["metadata"]["name"]),
    }
}

pub fn remember(object: &mut Value, name: &str) {
    if !object[MARK]["names"].is_array() {
        object[MARK] = json!({"names": []});
    }
    if let Some(names) = object[MARK]["names"].as_array_mut()
        && !names.contains(&json!(name))
    {
        names.push(json!(name));
    }
}

/// A generated object's name without the hash at its end.
pub fn unhashed(object: &Value, name: &str) -> String {
    match object[MARK]["hash"].as_str() {
        Some(hash) => name
            .strip_suffix(&format!("-{hash}"))
            .unwrap_or(name)
            .to_owned(),
        None => name.to_owned(),
    }
}

/// Puts the hash of a generated object's content behind its name.
pub fn rehash(object: &mut Value) {
    if object[MARK]["hashed"] != true {
        return;
    }
    let name = str_of(&object["metadata"]["name"]).to_owned();
    let base = unhashed(object, &name);
    remember(object, &name);
    object["metadata"]["name"] = json!(base);
    let hash = match str_of(&object["kind"]) {
        "Secret" => secret_hash(object),
        _ => config_map_hash(object),
    };
    object["metadata"]["name"] = json!(format!("{base}-{hash}"));
    object[MARK]["hash"] = json!(hash);
}

/// Writes the new names of objects where others refer to them.
pub fn follow_names(objects: &mut [Value]) {
    let renames: Vec<(String, String, String)> = objects
        .iter()
        .flat_map(|object| {
            let kind = str_of(&object["kind"]).to_owned();
            let name = str_of(&object["metadata"]["name"]).to_owned();
            let earlier = list(&object[MARK]["names"])
                .map(str_of)
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>();
            earlier.into_iter().filter(move |old| *old != name).map({
                let name = str_of(&object["metadata"]["name"]).to_owned();
                move |old| (kind.clone(), old, name.clone())
            })
        })
        .collect();
    for object in objects {
        for (kind, old, new) in &renames {
            rename_in(object, kind, old, new);
        }
    }
}

/// The fields that refer to a kind by name.
fn rename_in(value: &mut Value, kind: &str, old: &str, new: &str) {
    let Value::Object(map) = value else {
        if let Value::Array(items) = value {
            items
                .iter_mut()
                .for_each(|item| rename_in(item, kind, old, new));
        }
        return;
    };
    let set = |field: Option<&mut Value>, key: &str| {
        if let Some(field) = field
            && field[key] == old
        {
            field[key] = json!(new);
        }
    };
    match kind {
        "ConfigMap" => {
            for field in ["configMapRef", "configMapKeyRef", "configMap"] {
                set(map.get_mut(field), "name");
            }
        }
        "Secret" => {
            for field in ["secretRef", "secretKeyRef"] {
                set(map.get_mut(field), "name");
            }
            set(map.get_mut("secret"), "secretName");
            set(map.get_mut("secret"), "name");
            for pull in map
                .get_mut("imagePullSecrets")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                set(Some(pull), "name");
            }
            if map.contains_key("hosts") && map.get("secretName").is_some_and(|name| name == old) {
                map.insert("secretName".into(), json!(new));
            }
        }
        "ServiceAccount" => {
            if map
                .get("serviceAccountName")
                .is_some_and(|name| name == old)
            {
                map.insert("serviceAccountName".into(), json!(new));
            }
            if map.get("kind").is_some_and(|kind| kind == "ServiceAccount")
                && map.contains_key("name")
                && map["name"] == old
            {
                map.insert("name".into(), json!(new));
            }
        }
        "Service" => {
            if map.get("serviceName").is_some_and(|name| name == old) {
                map.insert("serviceName".into(), json!(new));
            }
            set(map.get_mut("service"), "name");
        }
        "PersistentVolumeClaim" => set(map.get_mut("persistentVolumeClaim"), "claimName"),
        "Role" | "ClusterRole" => {
            if map.get("roleRef").is_some_and(|role| role["kind"] == kind) {
                set(map.get_mut("roleRef"), "name");
            }
        }
        kind => {
            if map
                .get("scaleTargetRef")
                .is_some_and(|target| target["kind"] == kind)
            {
                set(map.get_mut("scaleTargetRef"), "name");
            }
        }
    }
    for (key, inner) in map {
        if key != MARK && key != "metadata" {
            rename_in(inner, kind, old, new);
        }
    }
}
