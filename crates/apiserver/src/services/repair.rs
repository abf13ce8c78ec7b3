//! Puts right what others change behind the allocator's back: a held address whose IPAddress was
//! deleted gets it again at once, before it could be handed out twice; what nobody holds is freed.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use machinery::{Object, Status};
use store::{
    Action, Durability, Entry, Freshness, Key, ListRequest, Op, Precondition, Revision, WatchItem,
};

use super::{
    ALLOCATOR, Held, MANAGED_BY, PORTS, address_key, addresses::put_address, held, port_key,
    ports::put_port,
};
use crate::{Draft, Stored, failure, meta, pipeline::Core};

const AGAIN: Duration = Duration::from_secs(10);

/// Keeps addresses and ports in step with Services for as long as the server runs.
pub(crate) async fn keep(core: Arc<Core>) {
    loop {
        if let Err(status) = follow(&core).await {
            tracing::warn!(%status, "cannot follow the addresses of services");
        }
        core.config.clock.sleep(AGAIN).await;
    }
}

/// Looks at everything once, then at what is taken away.
async fn follow(core: &Arc<Core>) -> Result<(), Status> {
    let revision = everything(core).await?;
    let changes = core.store.watch(address_key(""), revision).await;
    let mut changes = changes.map_err(failure::of_store)?;
    while let Some(item) = changes.next().await {
        let WatchItem::Events { events, .. } = item.map_err(failure::of_store)? else {
            continue;
        };
        for event in events.iter().filter(|event| event.current.is_none()) {
            if let Some(lost) = &event.previous {
                give_back(core, &lost.object.parse()).await?;
            }
        }
    }
    Ok(())
}

/// Gives an address back to the Service that still holds it.
async fn give_back(core: &Arc<Core>, lost: &Object) -> Result<(), Status> {
    let address = meta::text(lost, "name");
    let parent = lost.get("spec").and_then(|spec| spec.get("parentRef"));
    let parent = |key: &str| {
        let value = parent.and_then(|parent| parent.get(key)?.as_str());
        value.unwrap_or_default().to_owned()
    };
    let (namespace, name) = (parent("namespace"), parent("name"));
    let key = service_key(&namespace, &name);
    let read = core.store.get(&key, Freshness::Newest).await;
    let Some(service) = read.map_err(failure::of_store)?.1 else {
        return Ok(());
    };
    if held(&service.object.parse())
        .addresses
        .iter()
        .any(|held| held == address)
    {
        let op = put_address(core, &namespace, &name, address)?;
        let what = "an address that its service still holds";
        commit(core, vec![still(&service), op], what).await?;
    }
    Ok(())
}

fn service_key(namespace: &str, name: &str) -> Key {
    Bytes::from(format!("/registry/core/services/{namespace}/{name}"))
}

async fn list(core: &Core, prefix: Key) -> Result<(Revision, Vec<Entry<Stored>>), Status> {
    let ask = ListRequest {
        prefix,
        from: None,
        limit: None,
        freshness: Freshness::Newest,
    };
    let listed = core.store.list(ask).await.map_err(failure::of_store)?;
    Ok((listed.revision, listed.entries))
}

/// Compares all Services with all that is held for them. Services are read last: what they hold was
/// written with them, so that a Service made meanwhile is never taken for a leak.
async fn everything(core: &Arc<Core>) -> Result<Revision, Status> {
    let (revision, addresses) = list(core, address_key("")).await?;
    let (_, ports) = list(core, Bytes::from_static(PORTS.as_bytes())).await?;
    let (_, services) = list(core, service_key("", "").slice(..SERVICES)).await?;
    let (mut kept, present): (HashSet<Key>, HashSet<Key>) = (
        HashSet::new(),
        addresses
            .iter()
            .chain(&ports)
            .map(|entry| entry.key.clone())
            .collect(),
    );
    for entry in services {
        let service = entry.object.parse();
        let (namespace, name) = (
            meta::text(&service, "namespace"),
            meta::text(&service, "name"),
        );
        let Held { addresses, ports } = held(&service);
        for address in addresses {
            let key = address_key(&address);
            if !present.contains(&key) {
                let op = put_address(core, namespace, name, &address)?;
                let what = "an address that its service holds";
                commit(core, vec![still(&entry), op], what).await?;
            }
            kept.insert(key);
        }
        for port in ports {
            let key = port_key(port);
            if !present.contains(&key) {
                let op = put_port(namespace, name, port)?;
                let what = "a port that its service holds";
                commit(core, vec![still(&entry), op], what).await?;
            }
            kept.insert(key);
        }
    }
    let ours = |entry: &Entry<Stored>| entry.object.label(MANAGED_BY) == Some(ALLOCATOR);
    let leaked = addresses.iter().filter(|entry| ours(entry)).chain(&ports);
    for entry in leaked.filter(|entry| !kept.contains(&entry.key)) {
        let op = Op {
            key: entry.key.clone(),
            precondition: Precondition::Revision(entry.object.revision),
            action: Action::Delete,
        };
        commit(core, vec![op], "what no service holds").await?;
    }
    Ok(revision)
}

/// Length of the prefix of all Services' keys.
const SERVICES: usize = "/registry/core/services/".len();

/// The Service is what it was when it was read: one that goes meanwhile gets nothing any more.
fn still(service: &Entry<Stored>) -> Op<Draft> {
    Op {
        key: service.key.clone(),
        precondition: Precondition::Revision(service.object.revision),
        action: Action::Check,
    }
}

/// Whoever was faster has put it right.
async fn commit(core: &Core, ops: Vec<Op<Draft>>, what: &str) -> Result<(), Status> {
    let key = ops.last().map(|op| op.key.clone()).unwrap_or_default();
    let key = String::from_utf8_lossy(&key).into_owned();
    match core.store.commit(ops, Durability::Synced).await {
        Ok(_) => {
            tracing::warn!(key, "repaired {what}");
            Ok(())
        }
        Err(store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(failure::of_store(error)),
    }
}
