//! An informer's objects in a file, for a start while no server is reachable. The file has the form
//! of a list of the API. It is replaced whole, only its owner can read it, and it is used only until
//! the first list of the run; a file that cannot be read is ignored.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lifecycle::Context;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{
    AnyObject, Object, any,
    shared::Shared,
    slot::{Decoded, Slot},
};
use crate::ToJson;

/// The shortest time between two writes of the file.
const PAUSE: Duration = Duration::from_secs(10);
/// The average rate of writes, in bytes per second: a large file is written less often.
const RATE: u64 = 100_000;

type Encode = fn(&dyn AnyObject) -> Result<Vec<u8>, serde_json::Error>;

pub(super) struct Saved {
    path: PathBuf,
    encode: Encode,
    /// Whether the cache has the objects of a server, which are worth saving.
    listed: watch::Sender<bool>,
    /// Whether the file was read: it is read at most once.
    was_read: AtomicBool,
}

#[derive(Deserialize)]
struct File {
    items: Vec<Box<RawValue>>,
}

impl Saved {
    pub(super) fn new<K: Object + ToJson>(path: PathBuf) -> Self {
        Self {
            path,
            encode: |object| any::<K>(object).map_or(Ok(Vec::new()), K::to_json),
            listed: watch::Sender::new(false),
            was_read: AtomicBool::new(false),
        }
    }

    /// The cache has a list of the server from now on.
    pub(super) fn set_listed(&self) {
        self.listed.send_replace(true);
    }

    /// Fills the cache from the file, if there is one.
    pub(super) async fn load(&self, cache: &Shared) {
        if self.was_read.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = self.path.clone();
        // A failed task is an unreadable file.
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let bytes = match read.map_err(std::io::Error::other).flatten() {
            Ok(bytes) => bytes,
            Err(error) => {
                debug!(path = %self.path.display(), %error, "no saved objects");
                return;
            }
        };
        match parse(&bytes, &cache.decoded) {
            Ok(slots) => {
                let count = slots.len();
                warn!(path = %self.path.display(), count, "no server reachable, using saved objects");
                cache.replace(slots);
                cache.synced.send_replace(true);
            }
            Err(error) => {
                warn!(path = %self.path.display(), %error, "cannot read saved objects, ignoring them");
            }
        }
    }

    /// Writes the file after changes, not too often, and once more at the end of the run.
    pub(super) async fn keep(self: Arc<Self>, cache: Arc<Shared>, context: Context) {
        let mut listed = self.listed.subscribe();
        tokio::select! {
            biased;
            // The sender is in `self`.
            _ = listed.wait_for(|listed| *listed) => {}
            () = context.shutdown() => return,
        }
        let (mut written, mut size) = (None, 0);
        loop {
            let generation = cache.generation();
            if written != Some(generation) {
                written = Some(generation);
                size = self.clone().save(cache.clone()).await;
            }
            tokio::select! {
                () = tokio::time::sleep(pause(size)) => {}
                () = context.shutdown() => break,
            }
        }
        if written != Some(cache.generation()) {
            self.save(cache).await;
        }
    }

    /// Writes the file; returns its size.
    async fn save(self: Arc<Self>, cache: Arc<Shared>) -> u64 {
        let path = self.path.clone();
        let write = tokio::task::spawn_blocking(move || self.write(&cache)).await;
        match write.map_err(|error| error.to_string()).flatten() {
            Ok(size) => size,
            Err(error) => {
                warn!(path = %path.display(), error, "cannot save objects");
                0
            }
        }
    }

    fn write(&self, cache: &Shared) -> Result<u64, String> {
        let slots = cache.cache.read().list();
        let mut text = br#"{"apiVersion":"v1","kind":"List","items":["#.to_vec();
        for (number, slot) in slots.iter().enumerate() {
            if number > 0 {
                text.extend_from_slice(b",\n");
            }
            let object = slot.peek(&cache.decoded);
            let encoded = (self.encode)(&*object).map_err(|error| error.to_string())?;
            text.extend_from_slice(&encoded);
        }
        text.extend_from_slice(b"]}\n");
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let mut private = DirBuilder::new();
        let made = private.recursive(true).mode(0o700).create(directory);
        made.map_err(|error| error.to_string())?;
        pki::write_private(&self.path, &text).map_err(|error| error.to_string())?;
        Ok(text.len() as u64)
    }
}

/// The time until the next write after one of this size.
fn pause(size: u64) -> Duration {
    PAUSE.max(Duration::from_secs(size / RATE))
}

/// The objects in a file. One that cannot be decoded makes the file unusable: it was written by this
/// program.
fn parse(bytes: &[u8], decoded: &Decoded) -> Result<Vec<Arc<Slot>>, serde_json::Error> {
    let file: File = serde_json::from_slice(bytes)?;
    let items = file.items.iter();
    items
        .map(|item| (decoded.decode)(item.get()).map(|object| Slot::typed(object, decoded)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{FromJson, Informer};

    /// A server whose lists contain `items`, or one that cannot be reached.
    fn server(items: Option<serde_json::Value>) -> kube::Client {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let items = items.clone();
            async move {
                let is_watch = request.uri().query().is_some_and(|q| q.contains("watch="));
                match items {
                    None => Err("connection refused".into()),
                    Some(_) if is_watch => {
                        std::future::pending::<Result<_, tower::BoxError>>().await
                    }
                    Some(items) => {
                        let list = json!({"metadata": {"resourceVersion": "7"}, "items": items});
                        let body = http_body_util::Full::from(list.to_string().into_bytes());
                        Ok(http::Response::new(body))
                    }
                }
            }
        });
        crate::in_process(service)
    }

    fn service(name: &str) -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "d", "resourceVersion": "3"},
            "spec": {"clusterIP": "10.43.0.9", "ports": [{"port": 80, "targetPort": "http"}]}})
    }

    /// An informer that ran until it had synced, and was stopped.
    async fn run(client: kube::Client, path: &Path) -> Informer<Service> {
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let informer = Informer::<Service>::builder(client)
            .saved_at(Some(path.to_owned()))
            .start(&context);
        informer.synced().await;
        context.end().await;
        informer
    }

    #[tokio::test]
    async fn objects_are_there_without_a_server_as_they_were_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent/services.json");
        let both = json!([service("a"), service("b")]);
        let before = run(server(Some(both)), &path).await;
        assert_eq!(before.count(), 2);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let after = run(server(None), &path).await;
        let wanted = Service::from_value(&service("a")).unwrap();
        assert_eq!(*after.get("d", "a").unwrap(), wanted);
        assert_eq!(after.list(), before.list());
        // What came from the file is not written again, and what a server has replaces it.
        run(server(Some(json!([service("c")]))), &path).await;
        let after = run(server(None), &path).await;
        let names = after.list();
        let names: Vec<_> = names.iter().map(|s| s.metadata.name.as_deref()).collect();
        assert_eq!(names, [Some("c")]);
    }

    #[tokio::test]
    async fn a_broken_file_is_ignored_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("services.json");
        let whole = {
            run(server(Some(json!([service("a")]))), &path).await;
            std::fs::read(&path).unwrap()
        };
        for broken in [&whole[..whole.len() / 2], b"", br#"{"items":[{"spec":7}]}"#] {
            std::fs::write(&path, broken).unwrap();
            let (saved, shared) = (
                Saved::new::<Service>(path.clone()),
                Shared::new(super::super::Cache::new::<Service>()),
            );
            saved.load(&shared).await;
            assert!(!shared.has_synced());
        }
        run(server(Some(json!([service("a")]))), &path).await;
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn large_files_are_written_less_often() {
        assert_eq!(pause(0), PAUSE);
        assert_eq!(pause(900_000), PAUSE);
        assert_eq!(pause(30_000_000), Duration::from_secs(300));
    }
}
