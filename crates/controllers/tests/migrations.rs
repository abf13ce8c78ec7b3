//! StorageVersionMigrations on a real API server.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::{
    api::storagemigration::v1beta1::StorageVersionMigration,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use world::{DEADLINE, World};

/// Waits until `check` has a value.
async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = check().await {
                return value;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, wait).await;
    waited.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn versions(storage: &str) -> Value {
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    json!([version("v1"), version("v2")])
}

struct Widgets {
    world: World,
    definitions: Api<CustomResourceDefinition>,
    widgets: Api<DynamicObject>,
    migrations: Api<StorageVersionMigration>,
}

impl Widgets {
    /// A definition that stores v1.
    async fn new() -> Self {
        let world = World::new().await;
        let client = world.client.clone();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let definition = serde_json::from_value(json!({
            "metadata": {"name": "widgets.a.example"},
            "spec": {
                "group": "a.example", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": versions("v1"),
            },
        }));
        definitions
            .create(&PostParams::default(), &definition.unwrap())
            .await
            .unwrap();
        let kind = GroupVersionKind::gvk("a.example", "v2", "Widget");
        let kind = ApiResource::from_gvk_with_plural(&kind, "widgets");
        let this = Self {
            definitions,
            widgets: Api::namespaced_with(client.clone(), "default", &kind),
            migrations: Api::all(client),
            world,
        };
        eventually("widgets are served", async || this.create("first").await).await;
        this
    }

    /// A new widget; its resource version.
    async fn create(&self, name: &str) -> Option<String> {
        let widget = serde_json::from_value(json!({
            "apiVersion": "a.example/v2", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1},
        }));
        let params = PostParams::default();
        let created = self.widgets.create(&params, &widget.unwrap()).await.ok()?;
        created.metadata.resource_version
    }

    async fn resource_version(&self, name: &str) -> String {
        let widget = self.widgets.get(name).await.unwrap();
        assert_eq!(widget.data["spec"], json!({"size": 1}));
        widget.metadata.resource_version.unwrap()
    }

    /// The definition's status.
    async fn status(&self) -> Value {
        let definition = self.definitions.get("widgets.a.example").await.unwrap();
        serde_json::to_value(definition.status).unwrap()
    }

    /// Migrates a resource; the conditions of the migration when it no longer runs.
    async fn migrate(
        &self,
        name: &str,
        group: &str,
        plural: &str,
    ) -> Vec<(String, String, String)> {
        let migration = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"resource": {"group": group, "resource": plural}},
        }));
        self.migrations
            .create(&PostParams::default(), &migration.unwrap())
            .await
            .unwrap();
        eventually("the migration ends", async || {
            let status = self.migrations.get(name).await.unwrap().status?;
            let conditions = status.conditions?;
            let ended = conditions
                .iter()
                .any(|condition| condition.type_ == "Running" && condition.status == "False");
            ended.then(|| {
                let all = conditions.into_iter();
                all.map(|c| (c.type_, c.status, c.message)).collect()
            })
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_stored_in_the_new_version_and_the_definition_forgets_the_old_one() {
    let widgets = Widgets::new().await;
    let old = widgets.resource_version("first").await;
    let patch = json!({"spec": {"versions": versions("v2")}});
    let params = PatchParams::default();
    let name = "widgets.a.example";
    let definitions = &widgets.definitions;
    definitions
        .patch(name, &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    eventually("both versions are stored versions", async || {
        (widgets.status().await["storedVersions"] == json!(["v1", "v2"])).then_some(())
    })
    .await;
    widgets.create("second").await.unwrap();

    let ended = widgets.migrate("to-v2", "a.example", "widgets").await;
    let expected = [
        ("Running", "False", "Migration completed"),
        ("Succeeded", "True", ""),
    ];
    let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(ended, expected);
    let migrated = widgets.resource_version("first").await;
    assert_ne!(migrated, old, "the first widget was not written");
    let second = widgets.resource_version("second").await;
    let status = widgets.status().await;
    assert_eq!(status["storedVersions"], json!(["v2"]));
    let conditions = status["conditions"].as_array().unwrap();
    let migrating = conditions.iter().find(|c| c["type"] == "StorageMigrating");
    assert_eq!(
        migrating.unwrap()["reason"],
        "MigrationSucceeded",
        "{migrating:?}"
    );

    // Nothing is left to write.
    let again = widgets.migrate("again", "a.example", "widgets").await;
    assert_eq!(again, expected);
    assert_eq!(widgets.resource_version("first").await, migrated);
    assert_eq!(widgets.resource_version("second").await, second);
    widgets.world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_that_cannot_be_listed_is_not_migrated() {
    let widgets = Widgets::new().await;
    let ended = widgets
        .migrate("reviews", "authentication.k8s.io", "tokenreviews")
        .await;
    let failed = ended.iter().find(|(kind, ..)| kind == "Failed").unwrap();
    assert!(
        failed
            .2
            .ends_with("does not support discovery operations: [update patch list]"),
        "{failed:?}"
    );
    widgets.world.stop.cancel();
}
