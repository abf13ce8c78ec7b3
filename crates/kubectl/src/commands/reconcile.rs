//! `kubectl auth reconcile`: creates RBAC objects, or adds what they lack.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    args::{DryRun, DryRunMode, Files},
    error,
    json::{entries, list, str_of},
    manifest, merge,
    output::PrintFlags,
    resources::{Target, target_of},
    session::Session,
};

use super::report::Report;

/// How often an object is tried that others change at the same time.
const TRIES: usize = 3;

/// Flags of `auth reconcile`.
#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    #[command(flatten)]
    files: Files,
    /// Remove extra permissions that the file lacks
    #[arg(long)]
    remove_extra_permissions: bool,
    /// Remove extra subjects that the file lacks
    #[arg(long)]
    remove_extra_subjects: bool,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    None,
    Create,
    Update,
    Recreate,
}

/// What has to be done, the object after it, and what it lacked and had beyond the file.
#[derive(Debug)]
struct Plan {
    operation: Operation,
    object: Value,
    missing: Vec<Value>,
    extra: Vec<Value>,
    /// The object opted out: nothing is done.
    is_protected: bool,
}

impl Reconcile {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        if self.files.is_empty() {
            bail!("must specify one of -f and -k");
        }
        let dry_run = self.dry_run.mode();
        let dry_run = dry_run.context("error accessing --dry-run flag for command reconcile")?;
        if dry_run == DryRunMode::Server {
            bail!("--dry-run=server for command reconcile is not supported yet");
        }
        let manifests = manifest::read(&self.files).await?;
        let report = Report::new(&self.print, dry_run)?;
        let mut errors = Vec::new();
        for manifest in manifests {
            let version = str_of(&manifest.object["apiVersion"]);
            if version != "rbac.authorization.k8s.io/v1" {
                if version.starts_with("rbac.authorization.k8s.io/") {
                    let given = error::go_type(&manifest.object);
                    errors.push(anyhow::anyhow!(
                        "only rbac.authorization.k8s.io/v1 is supported: not {given}"
                    ));
                }
                continue;
            }
            let reconciled = async {
                let target = target_of(session, manifest).await?;
                let plan = self.reconciled(session, &target, dry_run).await?;
                report.say_typed(&merge::typed(&plan.object), "reconciled")?;
                self.explain(&plan);
                Ok::<(), anyhow::Error>(())
            };
            errors.extend(reconciled.await.err());
        }
        error::aggregate(errors)
    }

    /// Plans, and does what was planned; again if the object was changed in between.
    async fn reconciled(
        &self,
        session: &Session,
        target: &Target,
        dry_run: DryRunMode,
    ) -> Result<Plan> {
        let wanted = merge::decoded(target.manifest.as_ref().unwrap_or(&Value::Null))?;
        let mut tries = 0;
        loop {
            tries += 1;
            let live = session.api.find(&target.path()).await?;
            let mut plan = self.plan(live.as_ref(), &wanted);
            if dry_run.is_client() || plan.is_protected {
                return Ok(plan);
            }
            match send(session, target, live.as_ref(), &plan).await {
                Ok(object) => {
                    plan.object = object;
                    return Ok(plan);
                }
                Err(error) if tries < TRIES && has_changed(&error, plan.operation) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn plan(&self, live: Option<&Value>, wanted: &Value) -> Plan {
        let field = entries_field(wanted);
        let Some(live) = live else {
            return Plan {
                operation: Operation::Create,
                object: wanted.clone(),
                missing: list(&wanted[field]).cloned().collect(),
                extra: Vec::new(),
                is_protected: false,
            };
        };
        const OPT_OUT: &str = "rbac.authorization.kubernetes.io/autoupdate";
        let is_protected = live["metadata"]["annotations"][OPT_OUT] == "false";
        if live["roleRef"] != wanted["roleRef"] {
            return Plan {
                operation: Operation::Recreate,
                object: wanted.clone(),
                missing: Vec::new(),
                extra: Vec::new(),
                is_protected,
            };
        }
        let mut object = with_metadata(live, wanted);
        let is_aggregated = |role: &Value| role["aggregationRule"].is_object();
        let removes = match field {
            "rules" => self.remove_extra_permissions,
            _ => self.remove_extra_subjects,
        };
        let uncovered = match field {
            "rules" => uncovered_rules,
            _ => uncovered_subjects,
        };
        let missing = uncovered(&live[field], &wanted[field]);
        let extra = match is_aggregated(live) && is_aggregated(wanted) {
            true => Vec::new(),
            false => uncovered(&wanted[field], &live[field]),
        };
        if removes && (!missing.is_empty() || !extra.is_empty()) {
            object[field] = wanted[field].clone();
        } else if !removes && !missing.is_empty() {
            object[field] = list(&live[field]).chain(&missing).cloned().collect();
        }
        self.aggregate(&mut object, live, wanted);
        let operation = match object == *live {
            true => Operation::None,
            false => Operation::Update,
        };
        Plan {
            operation,
            object,
            missing,
            extra,
            is_protected,
        }
    }

    /// Sets the aggregation rule.
    fn aggregate(&self, object: &mut Value, live: &Value, wanted: &Value) {
        let selectors = |role: &Value| -> Vec<Value> {
            list(&role["aggregationRule"]["clusterRoleSelectors"])
                .cloned()
                .collect()
        };
        let (had, wants) = (selectors(live), selectors(wanted));
        let missing: Vec<&Value> = wants.iter().filter(|one| !had.contains(one)).collect();
        let has_extra = had.iter().any(|one| !wants.contains(one));
        if wanted["aggregationRule"].is_null() {
            if let Some(object) = object.as_object_mut() {
                object.remove("aggregationRule");
            }
        } else if !self.remove_extra_permissions && !missing.is_empty() {
            let all: Vec<&Value> = had.iter().chain(missing).collect();
            object["aggregationRule"] = json!({"clusterRoleSelectors": all});
        } else if self.remove_extra_permissions && (!missing.is_empty() || has_extra) {
            object["aggregationRule"] = wanted["aggregationRule"].clone();
        }
    }

    /// Prints what had to be done.
    fn explain(&self, plan: &Plan) {
        let operation = match plan.operation {
            Operation::None => return,
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Recreate => "recreate",
        };
        let caveat = match plan.is_protected {
            true => ", but object opted out (rbac.authorization.kubernetes.io/autoupdate: false)",
            false => "",
        };
        eprintln!("\treconciliation required {operation}{caveat}");
        let (what, removes) = match entries_field(&plan.object) {
            "rules" => ("rules", self.remove_extra_permissions),
            _ => ("subjects", self.remove_extra_subjects),
        };
        if !plan.missing.is_empty() {
            eprintln!("\tmissing {what} added:");
            plan.missing
                .iter()
                .for_each(|one| eprintln!("\t\t{}", shown(one)));
        }
        if removes && !plan.extra.is_empty() {
            eprintln!("\textra {what} removed:");
            plan.extra
                .iter()
                .for_each(|one| eprintln!("\t\t{}", shown(one)));
        }
    }
}

/// Whether a write failed because another client has created, changed or deleted the object since it was read.
fn has_changed(error: &anyhow::Error, operation: Operation) -> bool {
    error::code_is(error, 409) || operation == Operation::Update && error::is_not_found(error)
}

async fn send(
    session: &Session,
    target: &Target,
    live: Option<&Value>,
    plan: &Plan,
) -> Result<Value> {
    let api = &session.api;
    match plan.operation {
        Operation::None => return Ok(plan.object.clone()),
        Operation::Update => return api.replace(&target.path(), &plan.object, &[]).await,
        Operation::Create => {}
        Operation::Recreate => {
            let uid = live.map(|live| &live["metadata"]["uid"]);
            let options = json!({"preconditions": {"uid": uid}});
            match api.delete(&target.path(), &options).await {
                Err(error) if !error::is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
    }
    if target.resource.namespaced {
        ensure_namespace(session, &target.namespace).await?;
    }
    api.create(&target.collection(), &plan.object, &[]).await
}

/// Creates a namespace that does not exist. What the user may not know or do is left to the write of the object.
async fn ensure_namespace(session: &Session, name: &str) -> Result<()> {
    let api = &session.api;
    let path = format!("/api/v1/namespaces/{}", crate::discovery::encode(name));
    match api.get(&path).await {
        Ok(_) => return Ok(()),
        Err(error) if error::is_not_found(&error) || error::code_is(&error, 403) => {}
        Err(error) => return Err(error),
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    match api.create("/api/v1/namespaces", &namespace, &[]).await {
        Err(error) if !error::code_is(&error, 409) && !error::code_is(&error, 403) => Err(error),
        _ => Ok(()),
    }
}

/// The list that is reconciled.
fn entries_field(object: &Value) -> &'static str {
    match str_of(&object["kind"]) {
        "Role" | "ClusterRole" => "rules",
        _ => "subjects",
    }
}

/// The live object with labels and annotations of the file, unless it has them already.
fn with_metadata(live: &Value, wanted: &Value) -> Value {
    let mut object = live.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in entries(&wanted["metadata"][field]) {
            if live["metadata"][field][key].is_null() {
                object["metadata"][field][key] = value.clone();
            }
        }
    }
    object
}

fn uncovered_subjects(owners: &Value, subjects: &Value) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for subject in list(subjects) {
        if !list(owners).any(|owner| owner == subject) && !found.contains(subject) {
            found.push(subject.clone());
        }
    }
    found
}

/// The single permissions of rules that none of the owners' rules includes.
fn uncovered_rules(owners: &Value, rules: &Value) -> Vec<Value> {
    let singles = list(rules).flat_map(break_down);
    singles
        .filter(|rule| !list(owners).any(|owner| covers(owner, rule)))
        .collect()
}

/// Rules with one verb, one resource and one name each.
fn break_down(rule: &Value) -> Vec<Value> {
    let mut rules = Vec::new();
    for group in list(&rule["apiGroups"]) {
        for resource in list(&rule["resources"]) {
            for verb in list(&rule["verbs"]) {
                let one = json!({"verbs": [verb], "apiGroups": [group], "resources": [resource]});
                let names = list(&rule["resourceNames"]);
                if names.len() == 0 {
                    rules.push(one);
                    continue;
                }
                rules.extend(names.map(|name| {
                    let mut named = one.clone();
                    named["resourceNames"] = json!([name]);
                    named
                }));
            }
        }
    }
    for url in list(&rule["nonResourceURLs"]) {
        let one = |verb: &Value| json!({"verbs": [verb], "nonResourceURLs": [url]});
        rules.extend(list(&rule["verbs"]).map(one));
    }
    rules
}

/// Whether a rule includes a single permission.
fn covers(owner: &Value, rule: &Value) -> bool {
    let has = |field: &str, word: &str| list(&owner[field]).any(|one| one == word);
    let has_all = |field: &str| list(&rule[field]).all(|one| has(field, str_of(one)));
    let has_resource = |resource: &str| {
        has("resources", resource)
            || resource
                .split_once('/')
                .is_some_and(|(_, sub)| has("resources", &format!("*/{sub}")))
    };
    let has_url = |url: &str| {
        list(&owner["nonResourceURLs"]).map(str_of).any(|one| {
            one == url || (one.ends_with('*') && url.starts_with(one.trim_end_matches('*')))
        })
    };
    let is_for_all_names = list(&owner["resourceNames"]).len() == 0;
    let is_named = list(&rule["resourceNames"]).len() > 0;
    (has("verbs", "*") || has_all("verbs"))
        && (has("apiGroups", "*") || has_all("apiGroups"))
        && (has("resources", "*") || list(&rule["resources"]).map(str_of).all(has_resource))
        && list(&rule["nonResourceURLs"]).map(str_of).all(has_url)
        && (is_for_all_names || (is_named && has_all("resourceNames")))
}

/// A rule or subject as Go prints the struct.
fn shown(one: &Value) -> String {
    let words = |field: &str| {
        let words: Vec<&str> = list(&one[field]).map(str_of).collect();
        format!("[{}]", words.join(" "))
    };
    match one["verbs"].is_array() {
        true => format!(
            "{{Verbs:{} APIGroups:{} Resources:{} ResourceNames:{} NonResourceURLs:{}}}",
            words("verbs"),
            words("apiGroups"),
            words("resources"),
            words("resourceNames"),
            words("nonResourceURLs")
        ),
        false => format!(
            "{{Kind:{} APIGroup:{} Name:{} Namespace:{}}}",
            str_of(&one["kind"]),
            str_of(&one["apiGroup"]),
            str_of(&one["name"]),
            str_of(&one["namespace"])
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_permissions_are_missing_unless_a_rule_includes_them() {
        let live = json!([{"apiGroups": [""], "resources": ["pods", "*/scale"], "verbs": ["get"]},
                          {"nonResourceURLs": ["/a*"], "verbs": ["*"]}]);
        let wanted = json!([
            {"apiGroups": [""], "resources": ["pods", "x/scale"], "verbs": ["get", "list"], "resourceNames": ["n"]},
            {"nonResourceURLs": ["/ab", "/b"], "verbs": ["get"]}]);
        let missing = uncovered_rules(&live, &wanted);
        let missing: Vec<String> = missing.iter().map(shown).collect();
        assert_eq!(
            missing,
            [
                "{Verbs:[list] APIGroups:[] Resources:[pods] ResourceNames:[n] NonResourceURLs:[]}",
                "{Verbs:[list] APIGroups:[] Resources:[x/scale] ResourceNames:[n] NonResourceURLs:[]}",
                "{Verbs:[get] APIGroups:[] Resources:[] ResourceNames:[] NonResourceURLs:[/b]}",
            ]
        );
    }
}
