//! A cluster's context in a user's kubeconfig: added, refreshed, and removed. Entries of other
//! clusters are never changed.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{entry, read_regular_file, remove_entry, set_entry, write_file};
use crate::json::str_of;

/// Adds the cluster of the kubeconfig `text` to the file under one name for cluster, user and
/// context: the first of the names that no other cluster has. It becomes the current context only if
/// there is none. Returns the name, and whether it is the current one.
pub fn add_context(file: &Path, text: &str, names: &[String]) -> Result<(String, bool)> {
    let cluster: Value = serde_saphyr::from_str(text).context("the cluster's kubeconfig")?;
    let before = read_regular_file(file)?;
    let free = names
        .iter()
        .find(|name| !is_of_another(&before, &cluster, name));
    let name = free.with_context(|| {
        format!(
            "{} has other clusters named {}",
            file.display(),
            names.join(" and ")
        )
    })?;
    let mut config = before.clone();
    add(&mut config, &cluster, name);
    if str_of(&config["current-context"]).is_empty() {
        config["current-context"] = json!(name);
    }
    if config != before {
        write_file(file, &config)?;
    }
    Ok((name.clone(), config["current-context"] == name.as_str()))
}

/// Brings what [`add_context`] added up to date. A file from which the user removed it stays as it is.
pub fn refresh_context(file: &Path, text: &str, names: &[String]) -> Result<()> {
    let cluster: Value = serde_saphyr::from_str(text).context("the cluster's kubeconfig")?;
    let before = read_regular_file(file)?;
    let is_there = |name: &&String| {
        entry(&before, "contexts", name).is_some()
            && entry(&before, "clusters", name).is_some()
            && !is_of_another(&before, &cluster, name)
    };
    let mut config = before.clone();
    for name in names.iter().filter(is_there) {
        add(&mut config, &cluster, name);
    }
    if config != before {
        write_file(file, &config)?;
    }
    Ok(())
}

/// Removes what [`add_context`] added under one of the names, if it still is the cluster of the
/// kubeconfig `text`.
pub fn remove_context(file: &Path, text: &str, names: &[String]) -> Result<bool> {
    let cluster: Value = serde_saphyr::from_str(text).context("the cluster's kubeconfig")?;
    let mut config = read_regular_file(file)?;
    let removed = names
        .iter()
        .filter(|name| remove(&mut config, &cluster, name))
        .count();
    if removed > 0 {
        write_file(file, &config)?;
    }
    Ok(removed > 0)
}

/// Whether the name is that of a cluster elsewhere: with another server and another certificate
/// authority. A cluster that was made anew on this machine has the same server.
fn is_of_another(config: &Value, cluster: &Value, name: &str) -> bool {
    let own = &cluster["clusters"][0]["cluster"];
    entry(config, "clusters", name).is_some_and(|known| {
        let is_other = |field: &str| known[field] != own[field];
        is_other("server") && is_other("certificate-authority-data")
    })
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
    use super::{super::read_file, *};

    const OURS: &str = "clusters: [{name: mainstay, cluster: {server: s, certificate-authority-data: QQ==}}]\n\
                        users: [{name: admin, user: {client-key-data: Sw==}}]\n";

    fn names() -> Vec<String> {
        vec!["mainstay".to_owned(), "mainstay-1".to_owned()]
    }

    #[test]
    fn the_context_of_a_cluster_elsewhere_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        let elsewhere = OURS
            .replace("server: s", "server: far")
            .replace("QQ==", "Qg==");
        add_context(&file, &elsewhere, &names()).unwrap();
        let (name, is_current) = add_context(&file, OURS, &names()).unwrap();
        assert_eq!((name.as_str(), is_current), ("mainstay-1", false));
        let config = read_file(&file).unwrap();
        assert_eq!(
            entry(&config, "clusters", "mainstay").unwrap()["server"],
            "far"
        );
        // The same cluster again, and one made anew at the same address.
        for text in [OURS.to_owned(), OURS.replace("QQ==", "Qw==")] {
            let (name, _) = add_context(&file, &text, &names()).unwrap();
            assert_eq!(name, "mainstay-1");
        }
        assert!(add_context(&file, OURS, &names()[..1]).is_err());
        add_context(&file, OURS, &names()).unwrap();
        assert!(remove_context(&file, OURS, &names()).unwrap());
        let config = read_file(&file).unwrap();
        assert!(entry(&config, "clusters", "mainstay-1").is_none());
        assert!(entry(&config, "clusters", "mainstay").is_some());
        assert_eq!(config["current-context"], "mainstay");
    }

    #[test]
    fn a_context_is_added_and_removed_and_others_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(".kube/config");
        let added = |text: &str| add_context(&file, text, &names()).unwrap();
        assert_eq!(added(OURS), ("mainstay".to_owned(), true));
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
        assert_eq!(added(&renewed), ("mainstay".to_owned(), false));
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
        assert!(!remove_context(&file, &another, &names()).unwrap());
        assert!(remove_context(&file, OURS, &names()).unwrap());
        let config = read_file(&file).unwrap();
        assert!(entry(&config, "contexts", "work").is_some());
        assert!(entry(&config, "contexts", "mainstay").is_none());
        assert_eq!(config["current-context"], "work");
    }

    #[test]
    fn what_another_user_put_there_instead_of_a_file_is_not_read() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zeros")).unwrap();
        let large = std::fs::File::create(at("large")).unwrap();
        large.set_len(1 << 40).unwrap();
        for name in ["pipe", "zeros", "large"] {
            assert!(add_context(&at(name), OURS, &names()).is_err(), "{name}");
            assert!(remove_context(&at(name), OURS, &names()).is_err(), "{name}");
        }
    }
}
