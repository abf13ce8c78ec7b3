//! `apply --server-side`: the server merges; fields owned by client-side applies are transferred.

use anyhow::Result;
use serde_json::Value;

use crate::{
    api::{PatchType, Query},
    error,
    resources::Target,
    session::Session,
};

use super::{Apply, LAST_APPLIED, MAX_RETRIES, migrate};

impl Apply {
    pub(super) async fn on_the_server(
        &self,
        session: &Session,
        target: &Target,
    ) -> Result<(Value, &'static str)> {
        let manager = self.field_manager.as_deref().unwrap_or("kubectl");
        let mut query = self.query(manager)?;
        query.push(("force", self.force_conflicts.to_string()));
        let mut object = target.manifest.clone().unwrap_or_default();
        session.record(&mut object);
        let path = match self.subresource.as_str() {
            "" => target.path(),
            subresource => format!("{}/{subresource}", target.path()),
        };
        let apply = |object: Value, query: Query| {
            let path = path.clone();
            async move {
                session
                    .api
                    .patch(&path, PatchType::Apply, &object, &query)
                    .await
            }
        };
        let mut applied = apply(object.clone(), query.clone())
            .await
            .map_err(conflict)?;
        if self.subresource.is_empty() {
            match self.migrate(session, target, &applied, manager).await {
                Ok(false) => {}
                Ok(true) => match apply(object, query).await {
                    Ok(again) => applied = again,
                    Err(why) => eprintln!(
                        "Warning: failed to re-apply configuration after performing Server-Side Apply migration. This is non-fatal and will be retried next time you apply. Error: {}",
                        error::message(&why)
                    ),
                },
                Err(why) => eprintln!(
                    "Warning: server rejected managed fields migration to Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {}",
                    error::message(&why)
                ),
            }
        }
        Ok((applied, "serverside-applied"))
    }

    /// Transfers the fields of client-side applies. Returns whether the object must be applied
    /// again.
    async fn migrate(
        &self,
        session: &Session,
        target: &Target,
        applied: &Value,
        manager: &str,
    ) -> Result<bool> {
        let (path, mut object) = (target.path(), applied.clone());
        if manager == "kubectl"
            && let Some(kept) = migrate::annotation_to_keep(&object)
        {
            let mut query: Query = vec![
                ("fieldManager", migrate::ANNOTATION_MANAGER.to_owned()),
                self.validate.parameter()?,
            ];
            query.extend(self.dry_run.mode()?.parameter());
            let answer = session
                .api
                .patch(&path, PatchType::Apply, &kept, &query)
                .await;
            object = match answer {
                Ok(object) => object,
                Err(why) => {
                    eprintln!(
                        "Warning: failed to migrate {LAST_APPLIED} for Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {}",
                        error::message(&why)
                    );
                    return Ok(false);
                }
            };
        }
        for attempt in 0.. {
            let Some(patch) = migrate::patch(&object, manager) else {
                return Ok(false);
            };
            let query = self.query(manager)?;
            match session
                .api
                .patch(&path, PatchType::Json, &patch, &query)
                .await
            {
                Ok(_) => return Ok(true),
                Err(error) if error::code_is(&error, 409) && attempt < MAX_RETRIES => {
                    object = session.api.get(&path).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Advice on conflicts with other managers.
fn conflict(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<error::ServerError>() {
        Ok(error::ServerError(status)) if status.code == 409 => anyhow::anyhow!(
            "{}\nThe fields above have other managers. Leave them out of the file, give them the values that they \
             have, or take them over with --force-conflicts.",
            status.message
        ),
        Ok(error) => error.into(),
        Err(error) => error,
    }
}
