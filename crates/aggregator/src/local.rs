//! Local APIServices: one object for each group and version that this server serves itself.
//! APIServices of built-in groups are created at startup and not corrected afterwards; those of
//! custom resources follow their definitions. Objects without the automanaged label are left alone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use http::Method;
use kinds::tree;
use machinery::{
    Object, Value,
    json::{Map, json},
};
use registry::{Reader, Readings, Stored, Table};
use request::Client;
use stdx::Backoff;
use tokio::sync::Notify;

use crate::{GROUP, PLURAL, Priorities, priorities};

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// The group that another server may take over, and its APIService.
const METRICS: (&str, &str) = ("metrics.k8s.io", "v1beta1.metrics.k8s.io");
/// The field manager of these objects.
const MANAGER: &str = "kube-apiserver";
/// The label of objects that this server manages; its value says when they are corrected.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Corrected when the server starts.
const ON_START: &str = "onstart";
/// Corrected at any time.
const ALWAYS: &str = "true";
/// Group and version priority of custom resources: behind all built-in groups.
const CUSTOM: (i64, i64) = (1000, 100);

const RETRY_INITIAL: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Keeps the APIServices up to date for as long as the server runs. `synced` is called after each
/// time they were.
pub async fn keep_local(reader: Reader, api: Arc<dyn Client>, synced: impl Fn() + Send + Sync) {
    if reader.resource(GROUP, PLURAL).is_none() {
        return synced();
    }
    let changed = Notify::new();
    let (group, plural) = DEFINITIONS;
    let watches = [(GROUP, PLURAL), (group, plural)]
        .map(|(group, plural)| reader.tell_of_changes(group, plural, &changed));
    let work = async {
        let mut backoff = Backoff::new(RETRY_INITIAL, RETRY_MAX);
        let mut starts = true;
        let mut known = ParsedApiServices::default();
        loop {
            changed.notified().await;
            match known.reconcile(&reader, &*api, starts).await {
                Ok(()) => {
                    synced();
                    starts = false;
                    backoff.reset();
                }
                Err(why) => {
                    tracing::warn!(why, "cannot maintain local APIServices");
                    tokio::time::sleep(backoff.step()).await;
                    changed.notify_one();
                }
            }
        }
    };
    tokio::join!(futures::future::join_all(watches), work);
}

/// Parsed objects by revision: an object is parsed again only after it changed.
#[derive(Default)]
struct ParsedApiServices {
    /// The served groups and versions of each definition.
    definitions: Readings<Vec<(String, String)>>,
    services: Readings<StoredApiService>,
}

impl ParsedApiServices {
    async fn reconcile(
        &mut self,
        reader: &Reader,
        api: &dyn Client,
        starts: bool,
    ) -> Result<(), String> {
        let list = async |group: &str, plural: &str| {
            let listed = reader.list_readable(group, plural).await;
            listed.map_err(|status| status.to_string())
        };
        let (group, plural) = DEFINITIONS;
        let definitions = list(group, plural).await?;
        let unreadable_definitions = definitions.unreadable.len();
        let definitions = self
            .definitions
            .update(&definitions.objects(), served_versions);
        let readable = list(GROUP, PLURAL).await?;
        let unreadable = readable.unreadable.clone();
        let stored = readable.objects();
        let services = self.services.update(&stored, StoredApiService::read);
        let mut wanted = custom(definitions.iter().flat_map(|one| one.iter()));
        wanted.extend(own(&reader.table()));
        // An APIService that cannot be read exists.
        wanted.retain(|name, _| !unreadable.contains(name));
        let mut changes = changes(&services, wanted, starts);
        if unreadable_definitions > 0 {
            // Their groups and versions are unknown.
            changes.retain(|change| !matches!(change, ApiServiceChange::Delete(_)));
        }
        let changes = changes.into_iter();
        let changes = changes.map(|change| write(api, change, &stored));
        futures::future::try_join_all(changes).await?;
        Ok(())
    }
}

/// The parts of a stored APIService that are needed here.
struct StoredApiService {
    name: String,
    /// The value of the automanaged label, if this server manages the object.
    managed: Option<&'static str>,
    is_taken_over: bool,
    spec: Value,
}

impl StoredApiService {
    fn read(object: &Object) -> Self {
        let managed = tree::text(&tree::get(object, "metadata")["labels"][MANAGED]);
        Self {
            name: tree::name(object).to_owned(),
            managed: [ON_START, ALWAYS].into_iter().find(|one| *one == managed),
            is_taken_over: is_taken_over(object),
            spec: tree::get(object, "spec").clone(),
        }
    }
}

#[derive(Debug, PartialEq)]
enum ApiServiceChange {
    Create(Object),
    /// The name and the desired spec.
    Update(String, Value),
    Delete(String),
}

async fn write(
    api: &dyn Client,
    change: ApiServiceChange,
    stored: &[Arc<Stored>],
) -> Result<(), String> {
    let (method, path, body) = match change {
        ApiServiceChange::Create(object) => (Method::POST, PATH.to_owned(), Some(object)),
        ApiServiceChange::Update(name, spec) => {
            let Some(current) = stored.iter().find(|one| one.header.name() == name) else {
                return Ok(());
            };
            let mut object = current.parse();
            object.insert("spec".to_owned(), spec);
            (Method::PUT, format!("{PATH}/{name}"), Some(object))
        }
        ApiServiceChange::Delete(name) => (Method::DELETE, format!("{PATH}/{name}"), None),
    };
    let path = format!("{path}?fieldManager={MANAGER}");
    api.write(method, &path, body).await
}

/// The default priorities of groups that this server serves itself; an APIService may override
/// them.
pub fn local_priorities(group: &str, version: &str) -> Priorities {
    let (group, version) = priorities::group_and_version_priority(group, version).unwrap_or(CUSTOM);
    Priorities { group, version }
}

/// The desired state of an APIService.
#[derive(Clone)]
struct DesiredApiService {
    group: String,
    version: String,
    priorities: (i64, i64),
    managed: &'static str,
}

impl DesiredApiService {
    fn spec(&self) -> Value {
        let (minimum, priority) = self.priorities;
        let mut spec = json!({
            "version": self.version, "groupPriorityMinimum": minimum, "versionPriority": priority,
        });
        if !self.group.is_empty() {
            spec["group"] = self.group.as_str().into();
        }
        spec
    }

    fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    fn object(&self) -> Object {
        let object = json!({
            "metadata": {"name": self.name(), "labels": {MANAGED: self.managed}},
            "spec": self.spec(),
        });
        object.as_object().cloned().unwrap_or_else(Map::new)
    }
}

type ByName = BTreeMap<String, DesiredApiService>;

fn by_name(all: impl Iterator<Item = DesiredApiService>) -> ByName {
    all.map(|one| (one.name(), one)).collect()
}

/// The desired APIServices of built-in groups.
fn own(table: &Table) -> ByName {
    let built_in = table.all().filter(|resource| !resource.custom);
    by_name(built_in.filter_map(|resource| {
        let (group, version) = (&resource.group, &resource.version);
        // This server serves metrics again as soon as no other server does.
        let managed = match group.as_str() {
            group if group == METRICS.0 => ALWAYS,
            _ => ON_START,
        };
        Some(DesiredApiService {
            group: group.clone(),
            version: version.clone(),
            priorities: priorities::group_and_version_priority(group, version)?,
            managed,
        })
    }))
}

/// The groups and versions that a definition serves.
fn served_versions(definition: &Object) -> Vec<(String, String)> {
    let spec = tree::get(definition, "spec");
    let served = tree::list(&spec["versions"]).iter();
    let served = served.filter(|version| tree::truth(&version["served"]));
    let text = |value: &Value| tree::text(value).to_owned();
    served
        .map(|version| (text(&spec["group"]), text(&version["name"])))
        .collect()
}

/// The desired APIServices of custom resources.
fn custom<'a>(versions: impl Iterator<Item = &'a (String, String)>) -> ByName {
    by_name(versions.map(|(group, version)| DesiredApiService {
        group: group.clone(),
        version: version.clone(),
        priorities: CUSTOM,
        managed: ALWAYS,
    }))
}

/// Whether an APIService hands a group that this server could serve to another server.
fn is_taken_over(object: &Object) -> bool {
    tree::name(object) == METRICS.1 && tree::get(object, "spec")["service"] != Value::Null
}

/// The writes that bring the stored APIServices to the desired state.
fn changes(
    stored: &[Arc<StoredApiService>],
    wanted: ByName,
    starts: bool,
) -> Vec<ApiServiceChange> {
    let now = |managed: Option<&str>| match managed {
        Some(ON_START) => starts,
        managed => managed.is_some(),
    };
    let unwanted = stored.iter().filter(|one| !wanted.contains_key(&one.name));
    let unwanted = unwanted.filter(|one| now(one.managed));
    let mut changes: Vec<ApiServiceChange> = unwanted
        .map(|one| ApiServiceChange::Delete(one.name.clone()))
        .collect();
    let stored = stored.iter().map(|one| (one.name.as_str(), one));
    let stored: HashMap<&str, &Arc<StoredApiService>> = stored.collect();
    for (name, wanted) in wanted {
        if !now(Some(wanted.managed)) {
            continue;
        }
        match stored.get(name.as_str()) {
            None => changes.push(ApiServiceChange::Create(wanted.object())),
            Some(current) if current.is_taken_over => {}
            Some(current) => {
                let spec = wanted.spec();
                if now(current.managed) && current.spec != spec {
                    changes.push(ApiServiceChange::Update(name, spec));
                }
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use registry::Registry;

    use super::*;

    fn wanted(name: &str, managed: &'static str, priority: i64) -> DesiredApiService {
        let (version, group) = name.split_once('.').unwrap();
        DesiredApiService {
            group: group.to_owned(),
            version: version.to_owned(),
            priorities: (17_800, priority),
            managed,
        }
    }

    fn stored(object: &Object) -> Arc<StoredApiService> {
        Arc::new(StoredApiService::read(object))
    }

    #[test]
    fn built_in_api_services_are_repaired_at_startup_only() {
        let now = wanted("v1.apps", ON_START, 15);
        for (current, starts, expected) in [
            (None, true, "create"),
            (None, false, ""),
            (Some((ON_START, 15)), true, ""),
            (Some((ON_START, 9)), true, "update"),
            (Some((ON_START, 9)), false, ""),
            (Some(("false", 9)), true, ""),
        ] {
            let before: Vec<_> = current
                .map(|(managed, priority)| stored(&wanted("v1.apps", managed, priority).object()))
                .into_iter()
                .collect();
            let wanted = by_name([now.clone()].into_iter());
            let said = match changes(&before, wanted, starts).as_slice() {
                [] => "",
                [ApiServiceChange::Create(object)] if *object == now.object() => "create",
                [ApiServiceChange::Update(name, spec)]
                    if name == "v1.apps" && *spec == now.spec() =>
                {
                    "update"
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(said, expected, "{current:?} {starts}");
        }
    }

    #[test]
    fn api_services_of_custom_groups_follow_their_definitions() {
        let definition = json!({"spec": {"group": "a.example", "versions": [
            {"name": "v1", "served": true}, {"name": "v2", "served": false},
        ]}});
        let served = served_versions(definition.as_object().unwrap());
        let wanted = custom(served.iter());
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["v1.a.example"]);
        let object = wanted["v1.a.example"].object();
        let expected = json!({"group": "a.example", "version": "v1",
            "groupPriorityMinimum": 1000, "versionPriority": 100});
        assert_eq!(object["spec"], expected);
        let made = changes(&[], wanted, false);
        assert_eq!(made, [ApiServiceChange::Create(object.clone())]);
        let gone = changes(&[stored(&object)], ByName::new(), false);
        assert_eq!(gone, [ApiServiceChange::Delete("v1.a.example".to_owned())]);
    }

    #[test]
    fn another_server_may_take_over_metrics_and_nothing_else() {
        for (name, expected) in [("v1beta1.metrics.k8s.io", 0), ("v1.apps", 1)] {
            let own = wanted(name, ALWAYS, 1);
            let mut remote = own.object();
            remote["spec"]["service"] =
                json!({"namespace": "kube-system", "name": "metrics-server"});
            let wanted = by_name([own].into_iter());
            for starts in [true, false] {
                let changed = changes(&[stored(&remote)], wanted.clone(), starts);
                assert_eq!(changed.len(), expected, "{name}");
            }
            // After its deletion this server serves the group again.
            assert_eq!(changes(&[], wanted, false).len(), 1, "{name}");
        }
    }

    #[test]
    fn api_services_of_removed_versions_are_deleted_at_startup() {
        let old = stored(&wanted("v1beta1.apps", ON_START, 1).object());
        let mine = stored(&wanted("v1.mine", "", 1).object());
        assert!(changes(&[old.clone(), mine.clone()], ByName::new(), false).is_empty());
        let gone = changes(&[old, mine], ByName::new(), true);
        assert_eq!(gone, [ApiServiceChange::Delete("v1beta1.apps".to_owned())]);
    }

    #[test]
    fn every_group_that_is_built_in_has_its_object() {
        let registry = Registry::builtin();
        let table = registry.table();
        let own = own(&table);
        for resource in table.all() {
            let name = format!("{}.{}", resource.version, resource.group);
            let is_there = own.contains_key(&name);
            assert_eq!(is_there, resource.group != GROUP, "{name}");
        }
    }
}
