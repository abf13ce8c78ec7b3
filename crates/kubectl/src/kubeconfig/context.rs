//! A cluster's context in a user's kubeconfig: added, refreshed, and removed. Entries of other
//! clusters are never changed.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{entry, read_file, remove_entry, set_entry, write_file};
use crate::json::str_of;

/// Adds the cluster of the kubeconfig `text` to the file under one name for cluster, user and
/// context. It becomes the current context only if there is none. Returns whether it is the current
/// one.
pub fn add_context(file: &Path, text: &str, name: &str) -> Result<bool> {
    let cluster: Value = serde_saphyr::from_str(text).context("the cluster's kubeconfig")?;
    let before = read_file(file)?;
    let mut config = before.clone();
    add(&mut config, &cluster, name);
    if config != before {
        write_file(file, &config)?;
    }
    Ok(config["current-context"] == name)
}

/// Removes what [`add_context`] added, if it still is the cluster of the kubeconfig `text`.
pub fn remove_context(file: &Path, text: &str, name: &str) -> Result<bool> {
    let cluster: Value = serde_saphyr::from_str(text).context("the cluster's kubeconfig")?;
    let mut config = read_file(file)?;
    let removed = remove(&mut config, &cluster, name);
    if removed {
        write_file(file, &config)?;
    }
    Ok(removed)
}

fn add(config: &mut Value, cluster: &Value, name: &str) {
    let mut context = entry(config, "contexts", name)
        .cloned()
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({}));
    context["cluster"] = json!(name);
    context["user"] = json!(name);
    set_entry(config, "contexts", name, context);
    for (section, inner) in [("clusters", "cluster"), ("users", "user")] {
        set_entry(config, section, name, cluster[section][0][inner].clone());
    }
    if str_of(&config["current-context"]).is_empty() {
        config["current-context"] = json!(name);
    }
}

fn remove(config: &mut Value, cluster: &Value, name: &str) -> bool {
    let authority = |cluster: &Value| cluster["certificate-authority-data"].clone();
    let own = authority(&cluster["clusters"][0]["cluster"]);
    if entry(config, "clusters", name).map(authority) != Some(own) {
        return false;
    }
    for section in ["clusters", "users", "contexts"] {
        remove_entry(config, section, name);
    }
    if config["current-context"] == name {
        config["current-context"] = json!("");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "clusters: [{name: mainstay, cluster: {server: s, certificate-authority-data: QQ==}}]\n\
                        users: [{name: admin, user: {client-key-data: Sw==}}]\n";

    #[test]
    fn a_context_is_added_and_removed_and_others_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(".kube/config");
        assert!(add_context(&file, OURS, "mainstay").unwrap());
        let mut config = read_file(&file).unwrap();
        assert_eq!(config["current-context"], "mainstay");
        assert_eq!(
            entry(&config, "users", "mainstay").unwrap()["client-key-data"],
            "Sw=="
        );

        // Another cluster, which is the current one, and a namespace in our context.
        set_entry(&mut config, "contexts", "work", json!({"cluster": "work"}));
        set_entry(
            &mut config,
            "contexts",
            "mainstay",
            json!({"namespace": "shop"}),
        );
        config["current-context"] = json!("work");
        write_file(&file, &config).unwrap();
        let renewed = OURS.replace("Sw==", "TA==");
        assert!(!add_context(&file, &renewed, "mainstay").unwrap());
        let config = read_file(&file).unwrap();
        assert_eq!(config["current-context"], "work");
        assert_eq!(
            entry(&config, "contexts", "mainstay").unwrap()["namespace"],
            "shop"
        );
        assert_eq!(
            entry(&config, "users", "mainstay").unwrap()["client-key-data"],
            "TA=="
        );

        let another = OURS.replace("QQ==", "Qg==");
        assert!(!remove_context(&file, &another, "mainstay").unwrap());
        assert!(remove_context(&file, OURS, "mainstay").unwrap());
        let config = read_file(&file).unwrap();
        assert!(entry(&config, "contexts", "work").is_some());
        assert!(entry(&config, "contexts", "mainstay").is_none());
        assert_eq!(config["current-context"], "work");
    }
}
