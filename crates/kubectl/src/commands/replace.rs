//! `kubectl replace`

use anyhow::{Result, bail};
use clap::Args;
use http::Method;

use crate::{
    api::Query,
    args::{DryRun, DryRunMode, Files, Validate},
    error, manifest,
    output::PrintFlags,
    resources::{Target, of_each},
    session::Session,
};

use super::{
    apply::{LAST_APPLIED, annotate},
    delete::{DeleteFlags, say_deleted},
    report::Report,
};

/// Flags of `replace`.
#[derive(Debug, Args)]
pub(crate) struct Replace {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    how: DeleteFlags,
    #[command(flatten)]
    validate: Validate,
    /// Save the configuration of the object in its annotation, for later applies
    #[arg(long)]
    save_config: bool,
    /// Replace a subresource such as status
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Raw URI to PUT the file to
    #[arg(long, value_name = "URI")]
    raw: Option<String>,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-replace", value_name = "NAME")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
    #[command(flatten)]
    dry_run: DryRun,
}

impl Replace {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let dry_run = self.dry_run.mode()?;
        let report = Report::new(&self.print, dry_run)?;
        self.how.propagation_policy()?;
        self.validate.parameter()?;
        if self.files.is_empty() {
            bail!("must specify one of -f and -k");
        }
        if let Some(path) = &self.raw {
            return super::raw::send(session, Method::PUT, path, &self.files, &self.print).await;
        }
        self.how.check_replacing()?;
        if self.how.force && dry_run != DryRunMode::None {
            bail!("--dry-run can not be used when --force is set");
        }
        let found = manifest::read_each(&self.files, self.validate.is_on()).await?;
        let (targets, left_out) = of_each(session, found).await;
        if self.how.force {
            error::aggregate(left_out)?;
            return self.recreate(session, targets, &report).await;
        }
        let mut errors = Vec::new();
        for target in targets {
            let replaced = self.replace(session, &target, dry_run, &report).await;
            errors.extend(
                replaced
                    .err()
                    .map(|error| error::with_source(error, "replacing", &target.source))
                    .map(|error| {
                        let object = target.manifest.clone().unwrap_or_default();
                        crate::hint::with_fields(error, &object, &target.source)
                    }),
            );
        }
        error::join(error::aggregate(errors), left_out)
    }

    fn query(&self, dry_run: DryRunMode) -> Result<Query> {
        let mut query = vec![
            self.validate.parameter()?,
            ("fieldManager", self.field_manager.clone()),
        ];
        query.extend(dry_run.parameter());
        Ok(query)
    }

    fn wanted(&self, session: &Session, target: &Target) -> serde_json::Value {
        let mut object = target.manifest.clone().unwrap_or_default();
        if self.save_config || !object["metadata"]["annotations"][LAST_APPLIED].is_null() {
            annotate(&mut object);
        }
        session.record(&mut object);
        object
    }

    async fn replace(
        &self,
        session: &Session,
        target: &Target,
        dry_run: DryRunMode,
        report: &Report,
    ) -> Result<()> {
        let mut object = self.wanted(session, target);
        if dry_run.is_client() {
            return report.print(&object, "replaced");
        }
        let subresource = self
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        let path = format!("{}{subresource}", target.path());
        if object["metadata"]["resourceVersion"].is_null() {
            // Kinds that require a resourceVersion get the current one.
            // The server answers about an object that does not exist.
            match session.api.get(&target.path()).await {
                Ok(live) => {
                    let version = live["metadata"]["resourceVersion"].clone();
                    object["metadata"]["resourceVersion"] = version;
                }
                Err(error) if error::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let replaced = session
            .api
            .replace(&path, &object, &self.query(dry_run)?)
            .await?;
        report.print(&replaced, "replaced")
    }

    /// Deletes and recreates the objects.
    async fn recreate(
        &self,
        session: &Session,
        targets: Vec<Target>,
        report: &Report,
    ) -> Result<()> {
        if targets.is_empty() {
            bail!("no objects passed to replace");
        }
        let options = self.how.options(DryRunMode::None)?;
        let mut deleted = Vec::new();
        for target in &targets {
            match session.api.delete(&target.path(), &options).await {
                Ok(answer) => {
                    say_deleted(target, false, false, DryRunMode::None);
                    deleted.push((target.clone(), answer));
                }
                Err(error) if error::is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.how.until_gone(session, &deleted).await?;
        for target in &targets {
            let mut object = self.wanted(session, target);
            if let Some(metadata) = object
                .pointer_mut("/metadata")
                .and_then(serde_json::Value::as_object_mut)
            {
                metadata.remove("resourceVersion");
            }
            let query = self.query(DryRunMode::None)?;
            let created = session
                .api
                .create(&target.collection(), &object, &query)
                .await?;
            report.print(&created, "replaced")?;
        }
        Ok(())
    }
}
