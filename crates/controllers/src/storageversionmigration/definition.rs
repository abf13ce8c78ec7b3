//! The CustomResourceDefinition of a migrated resource: its condition StorageMigrating, and `storedVersions` after
//! the migration. Resources without a definition have none of this.

use client::Api;
use jiff::Timestamp;
use k8s_openapi::{
    api::storagemigration::v1beta1::StorageVersionMigration as Migration,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use reconcile::Error;
use serde_json::{Value, json};

use super::decide::resource_of;

const CONDITION: &str = "StorageMigrating";
/// The manager of the condition and of `storedVersions`.
const MANAGER: &str = "migration-runner-controller";

/// Says in the definition's status that its objects are migrated.
pub(super) async fn mark_migrating(
    client: &Client,
    migration: &Migration,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(definition) = definition_of(client, migration).await? else {
        return Ok(());
    };
    let name = migration.metadata.name.as_deref().unwrap_or_default();
    apply(client, &definition, begin(&definition, name, now)).await
}

/// Says in the definition's status how the migration ended. If the definition has not changed since the migration
/// began, objects exist only in the storage version.
pub(super) async fn mark_migrated(
    client: &Client,
    migration: &Migration,
    succeeded: bool,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(definition) = definition_of(client, migration).await? else {
        return Ok(());
    };
    apply(client, &definition, end(&definition, succeeded, now)).await
}

async fn definition_of(
    client: &Client,
    migration: &Migration,
) -> Result<Option<CustomResourceDefinition>, Error> {
    let (group, plural) = resource_of(migration);
    if group.is_empty() {
        return Ok(None);
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    Ok(api.get_opt(&format!("{plural}.{group}")).await?)
}

/// The resource version is a precondition: the condition names a generation of the definition.
async fn apply(
    client: &Client,
    definition: &CustomResourceDefinition,
    status: Value,
) -> Result<(), Error> {
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    let object = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "resourceVersion": definition.metadata.resource_version},
        "status": status,
    });
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    api.patch_status(name, &params, &Patch::Apply(&object))
        .await?;
    Ok(())
}

fn condition(
    definition: &CustomResourceDefinition,
    (status, reason, message): (&str, &str, &str),
    now: Timestamp,
) -> Value {
    json!({
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "observedGeneration": definition.metadata.generation,
    })
}

/// The status with a condition. It has the stored versions, too: after an earlier migration they belong to this manager,
/// and what it no longer applies is removed and becomes the storage version alone, although older objects exist.
fn status(definition: &CustomResourceDefinition, condition: &Value) -> Value {
    let mut status = json!({"conditions": [condition]});
    let known = definition.status.as_ref();
    if let Some(stored) = known.and_then(|status| status.stored_versions.as_ref()) {
        status["storedVersions"] = json!(stored);
    }
    status
}

/// The status while a migration of this name runs.
fn begin(definition: &CustomResourceDefinition, name: &str, now: Timestamp) -> Value {
    let message = format!("Migration {name} is running");
    let running = ("True", "MigrationRunning", &*message);
    status(definition, &condition(definition, running, now))
}

/// The status after a migration.
fn end(definition: &CustomResourceDefinition, succeeded: bool, now: Timestamp) -> Value {
    let conditions = definition
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    let began = conditions.find(|condition| condition.type_ == CONDITION);
    let is_unchanged = began
        .is_some_and(|condition| condition.observed_generation == definition.metadata.generation);
    let (reason, message) = match (succeeded, is_unchanged) {
        (true, true) => (
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated",
        ),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
        ),
        (false, _) => ("MigrationFailed", "The migration has failed"),
    };
    let condition = condition(definition, ("False", reason, message), now);
    let mut status = status(definition, &condition);
    let stored = definition
        .spec
        .versions
        .iter()
        .find(|version| version.storage);
    if let (true, true, Some(stored)) = (succeeded, is_unchanged, stored) {
        status["storedVersions"] = json!([stored.name]);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::at;

    fn definition(generation: i64, observed: Option<i64>) -> CustomResourceDefinition {
        let version =
            |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage});
        let conditions = observed.map(|observed| {
            json!([{"type": CONDITION, "status": "True", "observedGeneration": observed}])
        });
        serde_json::from_value(json!({
            "metadata": {"name": "widgets.a.example", "generation": generation},
            "spec": {
                "group": "a.example", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [version("v1", false), version("v2", true)],
            },
            "status": {"conditions": conditions, "storedVersions": ["v1", "v2"]},
        }))
        .unwrap()
    }

    #[test]
    fn stored_versions_shrink_only_after_a_success_with_an_unchanged_definition() {
        let cases = [
            (definition(2, Some(2)), true, json!(["v2"])),
            (definition(3, Some(2)), true, json!(["v1", "v2"])),
            (definition(2, None), true, json!(["v1", "v2"])),
            (definition(2, Some(2)), false, json!(["v1", "v2"])),
        ];
        for (definition, succeeded, expected) in cases {
            let status = end(&definition, succeeded, at(0));
            assert_eq!(status["storedVersions"], expected);
            let condition = &status["conditions"][0];
            assert_eq!(condition["status"], "False");
            assert_eq!(
                condition["observedGeneration"],
                json!(definition.metadata.generation)
            );
        }
    }

    #[test]
    fn stored_versions_stay_while_a_migration_runs() {
        let status = begin(&definition(2, None), "m", at(0));
        assert_eq!(status["storedVersions"], json!(["v1", "v2"]));
        let condition = &status["conditions"][0];
        assert_eq!(condition["status"], "True");
        assert_eq!(condition["message"], "Migration m is running");
    }
}
