//! StorageVersionMigrations: writes every object of a resource again, unchanged, so that it is stored in the current
//! storage version, and then removes the other versions from the definition's `storedVersions`.
//!
//! Of the migrations of one resource one runs at a time. Objects that were written after the migration began are
//! stored in the current version already and are left alone, and so is an object that changes meanwhile.

mod decide;
mod definition;
mod objects;

use std::{sync::Arc, time::Duration};

use client::Informer;
use k8s_openapi::{
    api::storagemigration::v1beta1::StorageVersionMigration as Migration,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::Client;
use reconcile::{Action, Controller, Error, Key, Writer};

use self::decide::{FAILED, RUNNING, SUCCEEDED, Step, resource_of};
use crate::{
    discovery::{Resource, discover},
    podcontrol,
    shared::Shared,
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "storageversionmigration";
const ACCOUNT: &str = "storage-version-migrator-controller";
/// The API group without which the controller does not run.
pub const GROUP_VERSION: &str = "storagemigration.k8s.io/v1beta1";
/// The verbs that a resource must have.
const VERBS: [&str; 3] = ["update", "patch", "list"];
/// How long a resource may be unknown after the migration was created, such as one of a new definition.
const GRACE: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_secs(1);

struct Migrations {
    shared: Arc<Shared>,
    client: Client,
    migrations: Writer<Migration>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Migrations {
        shared: shared.clone(),
        client: shared.client(ACCOUNT),
        migrations: shared.writer(ACCOUNT),
    });
    let cache = controller.migrations.cache().clone();
    shared
        .controller(&controller)
        // The end of one migration lets the next one of its resource begin.
        .watches_with(controller.migrations.cache(), move |event| {
            let changed = event.object();
            let others = of_same_resource(&cache, changed).into_iter();
            let others = others.map(|other| Key::from_object(&*other));
            others.chain([Key::from_object(&**changed)]).collect()
        })
        .workers(5)
        .start();
}

/// The migrations of this one's resource, itself included if it is in the cache.
fn of_same_resource(cache: &Informer<Migration>, migration: &Migration) -> Vec<Arc<Migration>> {
    let all = cache.list().into_iter();
    all.filter(|other| resource_of(other) == resource_of(migration))
        .collect()
}

impl Controller for Migrations {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(migration) = self.migrations.cache().get("", &key.name) else {
            return Ok(Action::Done);
        };
        let siblings = of_same_resource(self.migrations.cache(), &migration);
        match decide::next_step(&migration, &siblings) {
            Step::Nothing => Ok(Action::Done),
            Step::Begin => self.begin(&migration).await,
            Step::Migrate => self.migrate(&migration).await,
            Step::Finish { succeeded } => self.finish(&migration, succeeded).await,
        }
    }
}

impl Migrations {
    async fn begin(&self, migration: &Migration) -> Result<Action, Error> {
        let now = self.shared.now();
        definition::mark_migrating(&self.client, migration, now).await?;
        let running = (RUNNING, "MigrationRunning", "The migration is running");
        self.add_condition(migration, running).await
    }

    /// Records the resource version up to which objects are migrated, or migrates them.
    async fn migrate(&self, migration: &Migration) -> Result<Action, Error> {
        let resource = match self.resource(migration).await? {
            Found::Resource(resource) => resource,
            Found::Later => return Ok(Action::After(RETRY_DELAY)),
            Found::Never(reason) => return self.fail(migration, &reason).await,
        };
        let Some(until) = decide::resource_version(migration) else {
            let latest = objects::latest_resource_version(&self.client, &resource).await?;
            let mut migration = migration.clone();
            migration
                .status
                .get_or_insert_default()
                .resource_version
                .replace(latest);
            self.migrations.cluster_update_status(&migration).await?;
            return Ok(Action::Done);
        };
        match objects::migrate(&self.client, &resource, until).await {
            Ok(()) => {
                let succeeded = (SUCCEEDED, "StorageVersionMigrationSucceeded", "");
                self.add_condition(migration, succeeded).await
            }
            Err(error) if objects::is_final(&error) => {
                self.fail(migration, &podcontrol::message(&error)).await
            }
            Err(error) => Err(error),
        }
    }

    /// The resource in the version that discovery prefers.
    async fn resource(&self, migration: &Migration) -> Result<Found, Error> {
        let (group, plural) = resource_of(migration);
        let (resources, undiscovered) = discover(&self.client).await?;
        let found = resources
            .into_iter()
            .find(|resource| resource.api.group == group && resource.api.plural == plural);
        let prefix = format!("{group}/");
        Ok(match found {
            Some(resource) if resource.can(&VERBS) => Found::Resource(resource),
            Some(resource) => Found::Never(format!(
                "resource \"{}, Resource={}\" does not support discovery operations: [{}]",
                resource.api.api_version,
                resource.api.plural,
                VERBS.join(" "),
            )),
            None if decide::is_younger(migration, GRACE, self.shared.now()) => Found::Later,
            None if undiscovered.iter().any(|v| v.starts_with(&prefix)) => Found::Later,
            None => Found::Never("resource does not exist in discovery".to_owned()),
        })
    }

    async fn fail(&self, migration: &Migration, reason: &str) -> Result<Action, Error> {
        let message = format!("migration encountered unhandled error: {reason}");
        let failed = (FAILED, "StorageVersionMigrationFailed", &*message);
        self.add_condition(migration, failed).await
    }

    async fn finish(&self, migration: &Migration, succeeded: bool) -> Result<Action, Error> {
        let now = self.shared.now();
        definition::mark_migrated(&self.client, migration, succeeded, now).await?;
        let mut migration = migration.clone();
        let status = migration.status.get_or_insert_default();
        for condition in status.conditions.iter_mut().flatten() {
            if condition.type_ == RUNNING {
                condition.status = "False".to_owned();
                condition.reason = "MigrationCompleted".to_owned();
                condition.message = "Migration completed".to_owned();
                condition.last_transition_time = Time(now);
            }
        }
        self.migrations.cluster_update_status(&migration).await?;
        Ok(Action::Done)
    }

    /// Adds a condition that is true. A change of the object since it was read is a conflict, and the key is retried.
    async fn add_condition(
        &self,
        migration: &Migration,
        (kind, reason, message): (&str, &str, &str),
    ) -> Result<Action, Error> {
        let mut migration = migration.clone();
        let conditions = &mut migration.status.get_or_insert_default().conditions;
        conditions.get_or_insert_default().push(Condition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(self.shared.now()),
            observed_generation: None,
        });
        self.migrations.cluster_update_status(&migration).await?;
        Ok(Action::Done)
    }
}

/// What discovery says about the resource of a migration.
enum Found {
    Resource(Resource),
    /// It may still appear.
    Later,
    /// It cannot be migrated, for this reason.
    Never(String),
}
