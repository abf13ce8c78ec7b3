//! `kubectl set subject`

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    json::str_of,
    session::Session,
};

use super::{Common, Words};

/// Flags of `set subject`.
#[derive(Debug, Args)]
pub(super) struct Subject {
    /// TYPE NAME or TYPE/NAME
    words: Vec<String>,
    /// Usernames to bind to the role
    #[arg(long = "subject-user", value_name = "USER")]
    subject_user: Vec<String>,
    /// Groups to bind to the role
    #[arg(long)]
    group: Vec<String>,
    /// Service accounts to bind to the role, as NAMESPACE:NAME
    #[arg(long, value_name = "NAMESPACE:NAME")]
    serviceaccount: Vec<String>,
    #[command(flatten)]
    selection: FilesOrSelector,
    #[command(flatten)]
    common: Common,
}

const GROUP: &str = "rbac.authorization.k8s.io";

impl Subject {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        self.common.check_flags()?;
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&self.words)?;
        let objects = self
            .common
            .objects(session, &selection, &self.words)
            .await?;
        self.common.check_local()?;
        self.common.check_all(&selection)?;
        let is_cluster_wide = objects
            .iter()
            .any(|(_, object)| object["kind"] == "ClusterRoleBinding");
        let subjects = self.subjects(&session.namespace, is_cluster_wide)?;
        let change = |object: &mut Value, _: &mut Vec<anyhow::Error>| {
            if !["RoleBinding", "ClusterRoleBinding"].contains(&str_of(&object["kind"])) {
                bail!("setting subjects is only supported for RoleBinding/ClusterRoleBinding");
            }
            if !object["subjects"].is_array() {
                object["subjects"] = json!([]);
            }
            let Some(list) = object["subjects"].as_array_mut() else {
                return Ok(false);
            };
            let before = list.len();
            for subject in &subjects {
                if !list.contains(subject) {
                    list.push(subject.clone());
                }
            }
            Ok(list.len() > before)
        };
        let words = Words {
            deed: "subjects updated",
            failure: "failed to patch subjects to rolebinding:",
            skips_unchanged: true,
        };
        self.common.change(session, objects, &words, change).await
    }

    /// The subjects to add, sorted, each once.
    fn subjects(&self, namespace: &str, is_cluster_wide: bool) -> Result<Vec<Value>> {
        let mut subjects = Vec::new();
        for (kind, names) in [("User", &self.subject_user), ("Group", &self.group)] {
            let names: BTreeSet<&String> = names.iter().collect();
            let subject = |name| json!({"kind": kind, "apiGroup": GROUP, "name": name});
            subjects.extend(names.into_iter().map(subject));
        }
        for account in BTreeSet::from_iter(&self.serviceaccount) {
            let parts: Vec<&str> = account.split(':').collect();
            let (given, name) = match parts[..] {
                [given, name] if !name.is_empty() => (given, name),
                _ => bail!("serviceaccount must be <namespace>:<name>"),
            };
            if given.is_empty() && is_cluster_wide {
                bail!("serviceaccount must be <namespace>:<name>, namespace must be specified");
            }
            let namespace = if given.is_empty() { namespace } else { given };
            subjects.push(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}));
        }
        match subjects.is_empty() {
            true => bail!("you must specify at least one value of user, group or serviceaccount"),
            false => Ok(subjects),
        }
    }
}
