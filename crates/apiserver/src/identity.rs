//! The server's own Lease in kube-system: which API servers exist and how long each is considered
//! alive. A server deletes its Lease on orderly shutdown; Leases of servers that ended otherwise
//! are deleted when they expire.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kinds::tree;
use machinery::{Object, Value};
use sha2::{Digest, Sha256};
use stdx::Clock;
use tokio_util::sync::CancellationToken;

use crate::{
    LocalService, Reader, servers,
    started::{ServerState, StartupPart},
};
use request::Client;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// The field manager of the Lease.
const MANAGER: &str = "kube-apiserver";
/// The label of API server Leases.
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation with the address at which other servers reach the server.
pub const ADDRESS: &str = "kubernetes.io/peer-advertise-address";
/// The annotation with the server's version.
pub const VERSION_ANNOTATION: &str = "mainstay.dev/version";
/// The lease duration in seconds.
const LASTS: i64 = 3600;
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How often the Leases of other servers are checked.
const LOOK_EVERY: SignedDuration = SignedDuration::from_secs(3600);

/// What the server's Lease is kept with.
pub(crate) struct LeaseKeeper {
    pub(crate) reader: Reader,
    /// The client of the server's own tasks.
    pub(crate) api: LocalService,
    pub(crate) state: Arc<ServerState>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The name of this server if there may be others over the same store.
    pub(crate) server_name: Option<String>,
}

/// Keeps the lease until the server stops.
pub(crate) async fn keep(keeper: LeaseKeeper, stopping: CancellationToken) {
    let LeaseKeeper {
        reader,
        api,
        state,
        clock,
        server_name: name,
    } = keeper;
    if reader.resource("coordination.k8s.io", "leases").is_none() {
        return state.started.finish(StartupPart::Identity);
    }
    let every = match name {
        Some(_) => servers::RENEW_EVERY,
        None => RENEW_EVERY,
    };
    let name = name.unwrap_or_else(hostname);
    let mut mine = Identity::new(&name, state.advertise().to_string());
    let mut advertised = state.advertised.subscribe();
    // A Lease left by an earlier run says nothing about this one.
    report(mine.delete(&api).await);
    let mut looked: Option<Timestamp> = None;
    loop {
        let now = clock.now();
        let renewed = mine.renew(&api, now).await;
        if renewed.is_ok() {
            state.started.finish(StartupPart::Identity);
        }
        report(renewed);
        if looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            report(clear(&api, now).await);
            looked = Some(now);
        }
        tokio::select! {
            () = clock.sleep(every) => {}
            _ = advertised.changed() => {
                mine.address = advertised.borrow_and_update().to_string();
            }
            () = stopping.cancelled() => break,
        }
    }
    report(mine.delete(&api).await);
}

fn report(done: Result<(), String>) {
    if let Err(why) = done {
        tracing::warn!(why, "cannot renew the API server's lease");
    }
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The name of the Lease of a server with this name.
pub fn lease_name(server: &str) -> String {
    let mut hash = Sha256::new();
    for part in [server, MANAGER] {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        hash.update(length.to_be_bytes());
        hash.update(part);
    }
    format!("apiserver-{}", base32(&hash.finalize()[..16]))
}

/// The identity of this server.
struct Identity {
    name: String,
    holder: String,
    hostname: String,
    address: String,
}

impl Identity {
    /// `name` distinguishes this server from others.
    fn new(name: &str, address: String) -> Self {
        let name = lease_name(name);
        Self {
            holder: format!("{name}_{}", uuid::Uuid::new_v4()),
            name,
            hostname: hostname(),
            address,
        }
    }

    /// The desired Lease, based on the stored one.
    fn lease(&self, old: Option<Object>, now: Timestamp) -> Object {
        let mut lease = old.unwrap_or_default();
        let metadata = tree::child_or_new(&mut lease, "metadata");
        metadata.insert("name", self.name.as_str().into());
        let labels = tree::child_or_new(metadata, "labels");
        labels.insert(IDENTITY, MANAGER.into());
        labels.insert(HOSTNAME, self.hostname.as_str().into());
        let annotations = tree::child_or_new(metadata, "annotations");
        annotations.insert(ADDRESS, self.address.as_str().into());
        let version = stdx::Version::own().to_string();
        annotations.insert(VERSION_ANNOTATION, version.into());
        let spec = tree::child_or_new(&mut lease, "spec");
        spec.insert("holderIdentity", self.holder.as_str().into());
        spec.insert("leaseDurationSeconds", LASTS.into());
        let renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        spec.insert("renewTime", renewed.into());
        lease
    }

    async fn renew(&self, api: &LocalService, now: Timestamp) -> Result<(), String> {
        let single = format!("{PATH}/{}", self.name);
        let (status, stored) = api.ask(Method::GET, &single, None).await?;
        let (method, path, old) = match status {
            StatusCode::OK => (Method::PUT, single.as_str(), Some(stored)),
            _ => (Method::POST, PATH, None),
        };
        let path = format!("{path}?fieldManager={MANAGER}");
        let (status, answer) = api.ask(method, &path, Some(self.lease(old, now))).await?;
        check_answer(status, &answer)
    }

    async fn delete(&self, api: &LocalService) -> Result<(), String> {
        delete(api, &self.name).await
    }
}

async fn delete(api: &LocalService, name: &str) -> Result<(), String> {
    let path = format!("{PATH}/{name}");
    let (status, answer) = api.ask(Method::DELETE, &path, None).await?;
    check_answer(status, &answer)
}

/// Another writer that was first is not an error.
fn check_answer(status: StatusCode, answer: &Object) -> Result<(), String> {
    match status {
        StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(()),
        status if status.is_success() => Ok(()),
        _ => Err(tree::text(tree::get(answer, "message")).to_owned()),
    }
}

/// The leases of all API servers.
pub(crate) async fn leases(api: &LocalService) -> Result<Vec<Value>, String> {
    let list = format!("{PATH}?labelSelector={IDENTITY}%3D{MANAGER}");
    let (status, list) = api.ask(Method::GET, &list, None).await?;
    check_answer(status, &list)?;
    Ok(tree::list(tree::get(&list, "items")).to_vec())
}

/// Deletes expired Leases.
async fn clear(api: &LocalService, now: Timestamp) -> Result<(), String> {
    for lease in leases(api).await? {
        if is_over(&lease["spec"], now) {
            delete(api, tree::text(&lease["metadata"]["name"])).await?;
        }
    }
    Ok(())
}

fn is_over(spec: &Value, now: Timestamp) -> bool {
    let renewed: Option<Timestamp> = tree::text(&spec["renewTime"]).parse().ok();
    let lasts = spec["leaseDurationSeconds"].as_i64();
    let ends = renewed
        .zip(lasts)
        .and_then(|(renewed, lasts)| renewed.checked_add(SignedDuration::from_secs(lasts)).ok());
    ends.is_none_or(|ends| ends < now)
}

/// Base32 without padding.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |place: usize| {
        let byte = bytes.get(place / 8).copied().unwrap_or_default();
        usize::from(byte >> (7 - place % 8) & 1)
    };
    let letters = (0..bytes.len() * 8).step_by(5).map(|start| {
        let value = (start..start + 5).fold(0, |value, place| value << 1 | bit(place));
        char::from(LETTERS[value])
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn the_name_is_made_of_the_hosts_as_upstream_makes_it() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        let identity = Identity::new("vm", "192.0.2.1:6443".to_owned());
        assert_eq!(identity.name, "apiserver-wlv32tlttr4jl3gtroqexyxapa");
        let prefix = "apiserver-wlv32tlttr4jl3gtroqexyxapa_";
        assert!(identity.holder.starts_with(prefix), "{}", identity.holder);
    }

    #[test]
    fn a_lease_is_over_when_its_time_is_or_it_has_none() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        for (spec, over) in [
            (
                json!({"renewTime": "2026-01-01T00:30:00.000000Z", "leaseDurationSeconds": 3600}),
                false,
            ),
            (
                json!({"renewTime": "2026-01-01T00:30:00.000000Z", "leaseDurationSeconds": 60}),
                true,
            ),
            (json!({"leaseDurationSeconds": 3600}), true),
            (json!({"renewTime": "2026-01-01T00:30:00.000000Z"}), true),
        ] {
            assert_eq!(is_over(&spec, now), over, "{spec}");
        }
    }
}
