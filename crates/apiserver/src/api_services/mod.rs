//! Local APIServices: an object for each group and version that this server serves itself. Those of its own groups are
//! made when it starts and are somebody else's affair afterwards; those of custom resources follow their definitions.
//! Objects without the label that says who keeps them are left alone.

mod priorities;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aggregator::Priorities;
use http::Method;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    json::{Map, json},
};
use stdx::Backoff;
use tokio::sync::Notify;

use registry::Table;
use request::Client;

use crate::{LocalService, User, pipeline::Core, started::Part, user};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Who writes them.
const MANAGER: &str = "kube-apiserver";
/// Says that the server keeps an object, and how.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// It is put right when the server starts.
const ON_START: &str = "onstart";
/// It is put right always.
const ALWAYS: &str = "true";
/// What custom resources have: they come behind everything else.
const CUSTOM: (i64, i64) = (1000, 100);

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// Keeps the objects for as long as the server runs.
pub(crate) async fn keep(core: Arc<Core>) {
    if core.reader.resource(GROUP, PLURAL).is_none() {
        return core.started.finish(Part::ApiServices);
    }
    let changed = Notify::new();
    let (group, plural) = DEFINITIONS;
    let reader = &core.reader;
    let watches = [(GROUP, PLURAL), (group, plural)]
        .map(|(group, plural)| reader.tell_of_changes(group, plural, &changed));
    let writer = User::new("system:apiserver", [user::MASTERS]);
    let api = LocalService::new(core.clone(), writer);
    let work = async {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let mut starts = true;
        loop {
            changed.notified().await;
            match settle(&core, &api, starts).await {
                Ok(()) => {
                    core.started.finish(Part::ApiServices);
                    starts = false;
                    backoff.reset();
                }
                Err(why) => {
                    tracing::warn!(why, "local APIServices cannot be kept");
                    tokio::time::sleep(backoff.step()).await;
                    changed.notify_one();
                }
            }
        }
    };
    tokio::join!(futures::future::join_all(watches), work);
}

async fn settle(core: &Core, api: &LocalService, starts: bool) -> Result<(), String> {
    let list = async |group: &str, plural: &str| -> Result<Vec<Object>, Status> {
        let (_, objects) = core.reader.list(group, plural, "").await?;
        Ok(objects.iter().map(|stored| stored.parse()).collect())
    };
    let (group, plural) = DEFINITIONS;
    let definitions = list(group, plural).await.map_err(|s| s.to_string())?;
    let stored = list(GROUP, PLURAL).await.map_err(|s| s.to_string())?;
    let mut wanted = custom(&definitions);
    wanted.extend(own(&core.registry.table()));
    let changes = changes(&stored, wanted, starts).into_iter();
    futures::future::try_join_all(changes.map(|change| write(api, change))).await?;
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Change {
    Create(Object),
    Update(Object),
    Delete(String),
}

async fn write(api: &LocalService, change: Change) -> Result<(), String> {
    let (method, path, body) = match change {
        Change::Create(object) => (Method::POST, PATH.to_owned(), Some(object)),
        Change::Update(object) => {
            let path = format!("{PATH}/{}", tree::name(&object));
            (Method::PUT, path, Some(object))
        }
        Change::Delete(name) => (Method::DELETE, format!("{PATH}/{name}"), None),
    };
    let path = format!("{path}?fieldManager={MANAGER}");
    api.settle(method, &path, body).await
}

/// The priorities of what this server serves itself, unless its APIService says otherwise.
pub(crate) fn priorities(group: &str, version: &str) -> Priorities {
    let (group, version) = priorities::of(group, version).unwrap_or(CUSTOM);
    Priorities { group, version }
}

fn object(group: &str, version: &str, (minimum, priority): (i64, i64), managed: &str) -> Object {
    let name = format!("{version}.{group}");
    let mut spec = json!({
        "version": version, "groupPriorityMinimum": minimum, "versionPriority": priority,
    });
    if !group.is_empty() {
        spec["group"] = group.into();
    }
    let object = json!({
        "metadata": {"name": name, "labels": {MANAGED: managed}},
        "spec": spec,
    });
    object.as_object().cloned().unwrap_or_else(Map::new)
}

type Wanted = BTreeMap<String, Object>;

fn by_name(objects: impl Iterator<Item = Object>) -> Wanted {
    let named = objects.map(|object| (tree::name(&object).to_owned(), object));
    named.collect()
}

/// The objects of what is built in.
fn own(table: &Table) -> Wanted {
    let built_in = table.all().iter().filter(|resource| !resource.custom);
    by_name(built_in.filter_map(|resource| {
        let (group, version) = (&resource.group, &resource.version);
        let priorities = priorities::of(group, version)?;
        // Metrics are served here again as soon as nothing else serves them.
        let managed = match group.as_str() {
            metrics_api::GROUP => ALWAYS,
            _ => ON_START,
        };
        Some(object(group, version, priorities, managed))
    }))
}

/// The objects of what definitions say.
fn custom(definitions: &[Object]) -> Wanted {
    let versions = definitions.iter().flat_map(|definition| {
        let spec = tree::get(definition, "spec");
        let served = tree::list(&spec["versions"]).iter();
        let served = served.filter(|version| tree::truth(&version["served"]));
        served.map(|version| (tree::text(&spec["group"]), tree::text(&version["name"])))
    });
    by_name(versions.map(|(group, version)| object(group, version, CUSTOM, ALWAYS)))
}

/// How the server keeps an object, if it does.
fn managed(object: &Object) -> Option<&str> {
    let managed = tree::text(&tree::get(object, "metadata")["labels"][MANAGED]);
    [ON_START, ALWAYS].contains(&managed).then_some(managed)
}

/// Whether somebody has another server serve a group that is offered here.
fn is_taken_over(object: &Object) -> bool {
    tree::name(object) == metrics_api::API_SERVICE
        && tree::get(object, "spec")["service"] != Value::Null
}

/// What is to be done so that what is stored is right.
fn changes(stored: &[Object], wanted: Wanted, starts: bool) -> Vec<Change> {
    let now = |managed: Option<&str>| match managed {
        Some(ON_START) => starts,
        managed => managed.is_some(),
    };
    let is_unwanted = |object: &&Object| !wanted.contains_key(tree::name(object));
    let unwanted = stored.iter().filter(is_unwanted);
    let unwanted = unwanted.filter(|object| now(managed(object)));
    let mut changes: Vec<Change> = unwanted
        .map(|object| Change::Delete(tree::name(object).to_owned()))
        .collect();
    for (name, wanted) in wanted {
        if !now(managed(&wanted)) {
            continue;
        }
        match stored.iter().find(|object| tree::name(object) == name) {
            None => changes.push(Change::Create(wanted)),
            Some(current) if is_taken_over(current) => {}
            Some(current) => {
                let spec: &Value = tree::get(&wanted, "spec");
                if now(managed(current)) && tree::get(current, "spec") != spec {
                    let mut updated = current.clone();
                    updated.insert("spec".to_owned(), spec.clone());
                    changes.push(Change::Update(updated));
                }
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn stored(name: &str, managed: &str, priority: i64) -> Object {
        let (version, group) = name.split_once('.').unwrap();
        object(group, version, (17_800, priority), managed)
    }

    fn wanted(managed: &str) -> Wanted {
        by_name([stored("v1.apps", managed, 15)].into_iter())
    }

    #[test]
    fn what_is_built_in_is_put_right_at_the_start_and_left_alone_then() {
        for (current, starts, expected) in [
            (None, true, "create"),
            (None, false, ""),
            (Some((ON_START, 15)), true, ""),
            (Some((ON_START, 9)), true, "update"),
            (Some((ON_START, 9)), false, ""),
            (Some(("false", 9)), true, ""),
        ] {
            let current = current.map(|(managed, priority)| stored("v1.apps", managed, priority));
            let stored: Vec<Object> = current.into_iter().collect();
            let said = match changes(&stored, wanted(ON_START), starts).as_slice() {
                [] => "",
                [Change::Create(_)] => "create",
                [Change::Update(object)] if tree::int(&object["spec"]["versionPriority"]) == 15 => {
                    "update"
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(said, expected, "{stored:?} {starts}");
        }
    }

    #[test]
    fn what_is_custom_follows_its_definition() {
        let definition = json!({"spec": {"group": "a.example", "versions": [
            {"name": "v1", "served": true}, {"name": "v2", "served": false},
        ]}});
        let definition = definition.as_object().unwrap().clone();
        let wanted = custom(&[definition]);
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["v1.a.example"]);
        let object = wanted["v1.a.example"].clone();
        let expected = json!({"group": "a.example", "version": "v1",
            "groupPriorityMinimum": 1000, "versionPriority": 100});
        assert_eq!(object["spec"], expected);
        let made = changes(&[], wanted, false);
        assert_eq!(made, [Change::Create(object.clone())]);
        let gone = changes(&[object], Wanted::new(), false);
        assert_eq!(gone, [Change::Delete("v1.a.example".to_owned())]);
    }

    #[test]
    fn another_server_may_take_over_metrics_and_nothing_else() {
        for (name, expected) in [("v1beta1.metrics.k8s.io", 0), ("v1.apps", 1)] {
            let mut remote = stored(name, ALWAYS, 1);
            remote["spec"]["service"] =
                json!({"namespace": "kube-system", "name": "metrics-server"});
            let wanted = by_name([stored(name, ALWAYS, 1)].into_iter());
            for starts in [true, false] {
                let stored = [remote.clone()];
                let changed = changes(&stored, wanted.clone(), starts);
                assert_eq!(changed.len(), expected, "{name}");
            }
            // When it is deleted, the group is served here again.
            assert_eq!(changes(&[], wanted, false).len(), 1, "{name}");
        }
    }

    #[test]
    fn what_no_server_serves_any_more_goes_when_one_starts() {
        let old = stored("v1beta1.apps", ON_START, 1);
        let mine = stored("v1.mine", "", 1);
        assert!(changes(&[old.clone(), mine.clone()], Wanted::new(), false).is_empty());
        let gone = changes(&[old, mine], Wanted::new(), true);
        assert_eq!(gone, [Change::Delete("v1beta1.apps".to_owned())]);
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
