//! `kubectl set subject`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{FilesOrSelector, Selection},
    session::Session,
};

use super::Common;

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

impl Subject {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let selection = Selection::from(&self.selection);
        self.common.refuse_local_names(&self.words)?;
        super::check_names(&self.words, &selection, &self.common)?;
        const GROUP: &str = "rbac.authorization.k8s.io";
        // What does not exist is said before what is wrong with the subjects.
        self.common
            .objects(session, &selection, &self.words)
            .await?;
        let mut subjects = Vec::new();
        for (kind, names) in [("User", &self.subject_user), ("Group", &self.group)] {
            subjects.extend(
                names
                    .iter()
                    .map(|name| json!({"apiGroup": GROUP, "kind": kind, "name": name})),
            );
        }
        for account in &self.serviceaccount {
            let Some((namespace, name)) = account.split_once(':') else {
                bail!("serviceaccount must be <namespace>:<name>");
            };
            subjects.push(json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}));
        }
        if subjects.is_empty() {
            bail!("you must specify at least one value of user, group or serviceaccount");
        }
        let change = |object: &mut Value| {
            if !["RoleBinding", "ClusterRoleBinding"]
                .contains(&crate::json::str_of(&object["kind"]))
            {
                let kind = crate::json::str_of(&object["kind"]).to_lowercase();
                let name = crate::json::str_of(&object["metadata"]["name"]);
                bail!(
                    "{kind}s/{name} setting subjects is only supported for RoleBinding/ClusterRoleBinding"
                );
            }
            if !object["subjects"].is_array() {
                object["subjects"] = json!([]);
            }
            if let Some(list) = object
                .pointer_mut("/subjects")
                .and_then(Value::as_array_mut)
            {
                for subject in &subjects {
                    if !list.contains(subject) {
                        list.push(subject.clone());
                    }
                }
            }
            Ok(true)
        };
        self.common
            .change(
                session,
                (&selection, &self.words),
                (
                    "subjects updated",
                    "failed to patch subjects to rolebinding:",
                ),
                change,
            )
            .await
    }
}
