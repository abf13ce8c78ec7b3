//! `kubectl apply`: three-way merge of what was applied last, what is there and what is wanted; or
//! server-side apply.

use anyhow::{Result, bail};
use clap::Args;
use machinery::schema;
use serde_json::{Value, json};

use crate::{
    api::PatchType,
    args::{DryRun, Output, Selection},
    discovery::Discovery,
    error, manifest, output,
    resources::{Target, target_of},
    session::Session,
    three_way,
};

use super::create::report;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Flags of `apply`.
#[derive(Debug, Args)]
pub struct Apply {
    #[command(flatten)]
    selection: Selection,
    /// Let the server merge
    #[arg(long)]
    server_side: bool,
    /// With --server-side: take fields from other managers
    #[arg(long)]
    force_conflicts: bool,
    /// With --server-side: the name of the manager
    #[arg(long, default_value = "kubectl")]
    field_manager: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Apply {
    pub async fn run(self, session: &Session) -> Result<()> {
        if self.selection.filename.is_empty() {
            bail!("must specify one of -f and -k");
        }
        let discovery = Discovery::load(&session.api).await?;
        let objects = manifest::read(&self.selection.filename, self.selection.recursive)?;
        let mut failure = None;
        for object in objects {
            let applied = match target_of(session, &discovery, object) {
                Ok(target) => self.apply(session, &target).await,
                Err(error) => Err(error),
            };
            if let Err(error) = applied
                && let Some(earlier) = failure.replace(error)
            {
                error::report(&earlier);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn apply(&self, session: &Session, target: &Target) -> Result<()> {
        if target.name.is_empty() {
            bail!("resource name may not be empty");
        }
        if self.server_side {
            return self.on_the_server(session, target).await;
        }
        let wanted = annotated(target.manifest.clone().unwrap_or_default())?;
        let live = match session.api.get(&target.path()).await {
            Ok(live) => live,
            Err(error) if error::is_not_found(&error) => {
                return self.create(session, target, &wanted).await;
            }
            Err(error) => return Err(error),
        };
        let original = last_applied(&live);
        let kind = &target.resource;
        let schema = schema::lookup_kind(&kind.group, &kind.version, &kind.kind);
        let patch = three_way::patch(&original, &wanted, &live, schema);
        if patch.as_object().is_none_or(|fields| fields.is_empty()) {
            return report(&live, "unchanged", &self.output, &self.dry_run);
        }
        if self.dry_run.is_client() {
            return report(&wanted, "configured", &self.output, &self.dry_run);
        }
        let how = if schema.is_some() {
            PatchType::Strategic
        } else {
            PatchType::Merge
        };
        let path = format!("{}{}", target.path(), self.dry_run.query());
        let patched = session.api.patch(&path, how, &patch).await?;
        let same = patched["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"];
        let deed = if same { "unchanged" } else { "configured" };
        report(&patched, deed, &self.output, &self.dry_run)
    }

    async fn create(&self, session: &Session, target: &Target, wanted: &Value) -> Result<()> {
        let created = if self.dry_run.is_client() {
            wanted.clone()
        } else {
            let collection = target.resource.collection(Some(&target.namespace));
            session
                .api
                .create(&format!("{collection}{}", self.dry_run.query()), wanted)
                .await?
        };
        report(&created, "created", &self.output, &self.dry_run)
    }

    async fn on_the_server(&self, session: &Session, target: &Target) -> Result<()> {
        let mut query = format!(
            "?fieldManager={}&force={}",
            self.field_manager, self.force_conflicts
        );
        if self.dry_run.dry_run == "server" {
            query.push_str("&dryRun=All");
        }
        let object = target.manifest.clone().unwrap_or_default();
        let path = format!("{}{query}", target.path());
        let applied = session.api.patch(&path, PatchType::Apply, &object).await?;
        report(&applied, "serverside-applied", &self.output, &self.dry_run)
    }
}

/// The manifest with a note of itself, so that the next apply knows what was given up.
fn annotated(mut object: Value) -> Result<Value> {
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    // The same letters as every other kubectl writes, so that they can take turns.
    let note = format!("{}\n", serde_json::to_string(&output::sorted(&object))?);
    object["metadata"]["annotations"][LAST_APPLIED] = Value::String(note);
    Ok(object)
}

fn last_applied(live: &Value) -> Value {
    let note = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    note.and_then(|note| serde_json::from_str(note).ok())
        .unwrap_or_default()
}
