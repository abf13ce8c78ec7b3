//! `kubectl auth can-i|whoami|reconcile`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    error::Quiet,
    json::{entries, list, str_of},
    output::{PrintFlags, tabwriter::Tabwriter},
    session::Session,
};

use super::reconcile::Reconcile;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Auth {
    /// Check whether an action is allowed
    CanI(CanI),
    /// Reconciles rules for RBAC role, role binding, cluster role, and cluster role binding objects
    Reconcile(Reconcile),
    /// Experimental: Check self subject attributes
    Whoami(Whoami),
}

/// Flags of `auth can-i`.
#[derive(Debug, Args)]
pub(crate) struct CanI {
    /// VERB [TYPE | TYPE/NAME | NONRESOURCEURL] [NAME]
    words: Vec<String>,
    /// Check the specified action in all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Suppress output and just return the exit code
    #[arg(short, long)]
    quiet: bool,
    /// Subresource such as log or scale
    #[arg(long, default_value = "")]
    subresource: String,
    /// Print all allowed actions
    #[arg(long)]
    list: bool,
    /// Print allowed actions without headers
    #[arg(long)]
    no_headers: bool,
}

/// Flags of `auth whoami`.
#[derive(Debug, Args)]
pub(crate) struct Whoami {
    #[command(flatten)]
    print: PrintFlags,
}

impl Auth {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self {
            Self::CanI(command) => command.run(session).await,
            Self::Whoami(command) => command.run(session).await,
            Self::Reconcile(command) => command.run(session).await,
        }
    }
}

/// The verbs of resources.
const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "escalate",
    "approve",
    "sign",
    "attest",
    "*",
];

/// Verbs of paths that are not resources.
const URL_VERBS: &[&str] = &[
    "get", "put", "post", "head", "options", "delete", "patch", "*",
];

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

impl CanI {
    async fn run(self, session: &Session) -> Result<()> {
        if self.list {
            if !self.words.is_empty() {
                bail!("list option must be specified with no arguments");
            }
            if self.quiet || self.all_namespaces || !self.subresource.is_empty() {
                bail!(
                    "list option can't be specified with neither quiet, all-namespaces nor subresource options"
                );
            }
            return self.print_rules(session).await;
        }
        let spec = self.spec(session).await?;
        if self.no_headers {
            bail!("--no-headers cannot be set without --list specified");
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
        let answer = session
            .api
            .create(&format!("{REVIEWS}/selfsubjectaccessreviews"), &review, &[])
            .await?;
        let status = &answer["status"];
        let allowed = status["allowed"] == true;
        if !self.quiet {
            let mut line = if allowed {
                "yes".to_owned()
            } else {
                "no".to_owned()
            };
            for field in ["reason", "evaluationError"] {
                if !allowed && !str_of(&status[field]).is_empty() {
                    line.push_str(&format!(" - {}", str_of(&status[field])));
                }
            }
            println!("{line}");
        }
        match allowed {
            true => Ok(()),
            false => Err(Quiet(1).into()),
        }
    }

    async fn spec(&self, session: &Session) -> Result<Value> {
        let (verb, what) = match self.words.as_slice() {
            [verb, what] => (verb, what),
            _ => bail!(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples."
            ),
        };
        if what.starts_with('/') {
            if !self.subresource.is_empty() {
                bail!("--subresource can not be used with NonResourceURL");
            }
            if !URL_VERBS.contains(&verb.as_str()) {
                eprintln!("Warning: verb '{verb}' is not a known verb\n");
            }
            return Ok(json!({"nonResourceAttributes": {"verb": verb, "path": what}}));
        }
        let (word, name) = match what.split_once('/') {
            Some((word, name)) => (word, Some(name.to_owned())),
            None => (what.as_str(), None),
        };
        let mut attributes = json!({"verb": verb});
        match word {
            "*" => attributes["resource"] = json!("*"),
            word => match session.discovery.resolve(&word.to_lowercase()).await {
                Ok(resource) => {
                    attributes["group"] = json!(resource.group);
                    attributes["resource"] = json!(resource.plural);
                    if !resource.namespaced && !self.all_namespaces {
                        eprintln!(
                            "Warning: resource '{}' is not namespace scoped{}\n",
                            resource.plural,
                            group_suffix(&resource.group)
                        );
                    }
                }
                Err(_) => {
                    if !["users", "groups", "userextras"].contains(&word) {
                        let (name, group) = word.split_once('.').unwrap_or((word, ""));
                        eprintln!(
                            "Warning: the server doesn't have a resource type '{name}'{}\n",
                            group_suffix(group)
                        );
                    }
                    attributes["resource"] = json!(word);
                }
            },
        }
        if !self.all_namespaces {
            if !VERBS.contains(&verb.as_str()) {
                eprintln!("Warning: verb '{verb}' is not a known verb\n");
            }
            attributes["namespace"] = json!(session.namespace);
        }
        if !self.subresource.is_empty() {
            attributes["subresource"] = json!(self.subresource);
        }
        if let Some(name) = name {
            attributes["name"] = json!(name);
        }
        Ok(json!({"resourceAttributes": attributes}))
    }

    async fn print_rules(&self, session: &Session) -> Result<()> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": session.namespace}});
        let answer = session
            .api
            .create(&format!("{REVIEWS}/selfsubjectrulesreviews"), &review, &[])
            .await?;
        let status = &answer["status"];
        if status["incomplete"] == true {
            eprintln!(
                "Warning: the list may be incomplete: {}",
                str_of(&status["evaluationError"])
            );
        }
        let mut lines = String::new();
        if !self.no_headers {
            lines.push_str("Resources\tNon-Resource URLs\tResource Names\tVerbs\n");
        }
        let words = |value: &Value| {
            format!(
                "[{}]",
                list(value).map(str_of).collect::<Vec<_>>().join(" ")
            )
        };
        let mut rules = compacted(&status["resourceRules"]);
        for rule in list(&status["nonResourceRules"]) {
            rules.extend(
                list(&rule["nonResourceURLs"])
                    .map(|url| json!({"nonResourceURLs": [url], "verbs": rule["verbs"]})),
            );
        }
        rules.sort_by_key(sort_key);
        for rule in rules {
            lines.push_str(&format!(
                "{}\t{}\t{}\t{}\n",
                combined(&rule),
                words(&rule["nonResourceURLs"]),
                words(&rule["resourceNames"]),
                words(&rule["verbs"])
            ));
        }
        print!("{}", Tabwriter::for_tables().align(&lines));
        Ok(())
    }
}

fn group_suffix(group: &str) -> String {
    match group {
        "" => String::new(),
        group => format!(" in group '{group}'"),
    }
}

/// One rule for each resource of each group; verbs of the same resource are merged.
fn compacted(rules: &Value) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for rule in list(rules) {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                let names = rule
                    .get("resourceNames")
                    .cloned()
                    .unwrap_or_else(|| json!([]));
                let same = |known: &&mut Value| {
                    known["apiGroups"][0] == *group
                        && known["resources"][0] == *resource
                        && known["resourceNames"] == names
                };
                match out.iter_mut().find(same).and_then(|known| known.pointer_mut("/verbs").and_then(Value::as_array_mut)) {
                    Some(verbs) => {
                        for verb in list(&rule["verbs"]) {
                            if !verbs.contains(verb) {
                                verbs.push(verb.clone());
                            }
                        }
                    }
                    None => out.push(json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": rule["verbs"]})),
                }
            }
        }
    }
    out.sort_by_key(sort_key);
    out
}

/// The sort key of rules: verbs, groups, resources and names.
pub(super) fn sort_key(rule: &Value) -> String {
    let words = |field: &str| {
        let words: Vec<&str> = list(&rule[field]).map(str_of).collect();
        format!("[{}]", words.join(" "))
    };
    format!(
        "Verbs:{},APIGroups:{},Resources:{},ResourceNames:{},NonResourceURLs:{}",
        words("verbs"),
        words("apiGroups"),
        words("resources"),
        words("resourceNames"),
        words("nonResourceURLs")
    )
}

/// `deployments.apps/scale`
pub(super) fn combined(rule: &Value) -> String {
    let resource = str_of(&rule["resources"][0]);
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, format!("/{subresource}")),
        None => (resource, String::new()),
    };
    match str_of(&rule["apiGroups"][0]) {
        "" => format!("{resource}{subresource}"),
        group => format!("{resource}.{group}{subresource}"),
    }
}

impl Whoami {
    async fn run(self, session: &Session) -> Result<()> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}});
        let answer = session
            .api
            .create(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                &review,
                &[],
            )
            .await?;
        if let Some(printer) = self.print.printer()? {
            return printer.print_typed(&crate::merge::typed(&answer));
        }
        let user = &answer["status"]["userInfo"];
        let words = |value: &Value| {
            format!(
                "[{}]",
                list(value).map(str_of).collect::<Vec<_>>().join(" ")
            )
        };
        let mut lines = String::from("ATTRIBUTE\tVALUE\n");
        for (name, field) in [("Username", "username"), ("UID", "uid")] {
            if !str_of(&user[field]).is_empty() {
                lines.push_str(&format!("{name}\t{}\n", str_of(&user[field])));
            }
        }
        if list(&user["groups"]).len() > 0 {
            lines.push_str(&format!("Groups\t{}\n", words(&user["groups"])));
        }
        for (key, values) in entries(&user["extra"]) {
            lines.push_str(&format!("Extra: {key}\t{}\n", words(values)));
        }
        print!("{}", Tabwriter::for_tables().align(&lines));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_one_resource_are_put_together() {
        let rules = json!([
            {"apiGroups": ["apps"], "resources": ["deployments/scale", "deployments"], "verbs": ["get"]},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "get"]}]);
        let found = compacted(&rules);
        let names: Vec<String> = found.iter().map(combined).collect();
        assert_eq!(names, ["deployments.apps", "deployments.apps/scale"]);
        assert_eq!(found[0]["verbs"], json!(["get", "list"]));
    }
}
