//! Estimates the work of a request.
//!
//! A seat is the work of a request for one object. A list takes one seat for every ten objects that
//! must be visited, and so does the start of a watch that sends existing objects. A write also
//! causes work at watchers: its seat is held a little longer, for the processor time of sending the
//! event to them.

use std::{sync::atomic::Ordering, time::Duration};

use store::{Freshness, ListRequest};

use registry::{Resource, Store};
use request::{Query, RequestInfo};

/// Objects of a list that equal the work of one other request.
const OBJECTS_PER_SEAT: usize = 10;
/// The processor time of sending one event to one watcher.
const PER_WATCHER: Duration = Duration::from_micros(10);
/// Shorter durations are not worth a timer.
const NOTABLE: Duration = Duration::from_millis(1);

/// The number of seats that a request needs, at most `widest`.
pub(super) async fn seats(
    store: &Store,
    info: &RequestInfo,
    query: &Query,
    resource: Option<&Resource>,
    widest: usize,
) -> usize {
    let (namespace, name) = info.place();
    let Some(resource) = resource.filter(|one| !one.kind.is_virtual()) else {
        return 1;
    };
    if widest <= 1 || !name.is_empty() || !sends_many(info.verb, query) {
        return 1;
    }
    let ask = ListRequest {
        prefix: resource.prefix(namespace),
        from: None,
        limit: Some(1),
        freshness: Freshness::AtLeast(0),
        skip_unreadable: false,
    };
    // A list that fails here is rejected later, with the reason.
    let Ok(listed) = store.list(ask).await else {
        return 1;
    };
    let stand = listed.entries.len() + listed.remaining;
    looked_at(stand, query)
        .div_ceil(OBJECTS_PER_SEAT)
        .clamp(1, widest)
}

/// Whether a request returns all existing objects.
fn sends_many(verb: &str, query: &Query) -> bool {
    let from_state = || matches!(query.get("resourceVersion"), None | Some("" | "0"));
    match verb {
        "list" => true,
        "watch" => match query.get("sendInitialEvents") {
            Some(_) => query.flag("sendInitialEvents"),
            None => from_state(),
        },
        _ => false,
    }
}

/// How many objects are visited: a limit reduces that only if nothing is filtered.
fn looked_at(stand: usize, query: &Query) -> usize {
    let selects = ["labelSelector", "fieldSelector"].map(|name| query.filled(name).is_some());
    let limit = query.filled("limit").and_then(|limit| limit.parse().ok());
    match limit.filter(|limit| *limit > 0) {
        Some(limit) if selects == [false; 2] => stand.min(limit),
        _ => stand,
    }
}

/// How long a request holds its seat after completion.
pub(super) fn lingers(info: &RequestInfo, resource: Option<&Resource>) -> Duration {
    let subresource = info.resource.as_ref().map(|what| what.subresource.as_str());
    if !matches!(info.verb, "create" | "update" | "patch" | "delete")
        || subresource == Some("token")
    {
        return Duration::ZERO;
    }
    let watchers = resource.map_or(0, |one| one.watchers.load(Ordering::Relaxed));
    let lasts = PER_WATCHER * u32::try_from(watchers).unwrap_or(u32::MAX);
    if lasts < NOTABLE {
        Duration::ZERO
    } else {
        lasts
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use machinery::json::json;

    use super::*;
    use registry_testing::World;

    #[tokio::test]
    async fn lists_take_seats_by_the_number_of_examined_objects() {
        let world = World::new();
        for number in 0..250 {
            let namespace = if number < 150 { "a" } else { "b" };
            let pod = json!({"metadata": {"name": format!("p{number}"), "namespace": namespace}});
            world.put("", "pods", pod).await;
        }
        for (uri, widest, seats) in [
            ("/api/v1/pods", 100, 25),
            ("/api/v1/pods", 2, 2),
            ("/api/v1/namespaces/a/pods", 100, 15),
            ("/api/v1/namespaces/c/pods", 100, 1),
            ("/api/v1/namespaces/a/pods/p1", 100, 1),
            ("/api/v1/pods?fieldSelector=metadata.name%3Dx", 100, 1),
            ("/api/v1/pods?limit=100", 100, 10),
            ("/api/v1/pods?limit=0", 100, 25),
            ("/api/v1/pods?limit=5&labelSelector=a%3Db", 100, 25),
            ("/api/v1/pods?watch=1", 100, 25),
            ("/api/v1/pods?watch=1&resourceVersion=0", 100, 25),
            ("/api/v1/pods?watch=1&resourceVersion=7", 100, 1),
            (
                "/api/v1/pods?watch=1&resourceVersion=7&sendInitialEvents=true",
                100,
                25,
            ),
            ("/api/v1/pods?watch=1&sendInitialEvents=false", 100, 1),
        ] {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let query = Query::parse(query);
            let info = RequestInfo::new(&Method::GET, path, &query);
            let resource = world.reader.resource("", "pods");
            let found = super::seats(world.store(), &info, &query, resource.as_deref(), widest);
            assert_eq!(found.await, seats, "{uri}");
        }
    }

    #[tokio::test]
    async fn a_write_with_many_watchers_keeps_its_seat_longer() {
        let world = World::new();
        let resource = world.reader.resource("", "pods").unwrap();
        let info = |method, path| RequestInfo::new(&method, path, &Query::parse(""));
        let create = info(Method::POST, "/api/v1/namespaces/a/pods");
        let read = info(Method::GET, "/api/v1/namespaces/a/pods");
        assert_eq!(lingers(&create, Some(&resource)), Duration::ZERO);
        resource.watchers.store(1000, Ordering::Relaxed);
        assert_eq!(lingers(&create, Some(&resource)), Duration::from_millis(10));
        assert_eq!(lingers(&read, Some(&resource)), Duration::ZERO);
    }
}
