//! Clients of several servers that record their calls for the history checker, and a writer that
//! records how long writes paused.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use client::kube::core::WatchEvent;
use futures::{StreamExt, future::join_all};
use http::Method;
use rand::{Rng, SeedableRng, rngs::StdRng};
use reference::history::{self, Answer, Call, Change, Revision};
use serde_json::{Value, json};

use crate::{Api, api::Failure};

/// The number of contended objects.
const OBJECTS: u32 = 3;
const CLIENTS: u64 = 3;
const WATCHERS: u64 = 3;
/// How long a client waits for a response, and a watcher for a change, before it uses another
/// server.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after each response: the purpose is to find failures, not throughput.
const REST: Duration = Duration::from_millis(40);
/// How long the servers may take to finish.
const END: Duration = Duration::from_secs(120);
/// The object that is written last.
const LAST: &str = "last";
const HISTORY: &str = "/api/v1/namespaces/history/configmaps";
const LOAD: &str = "/api/v1/namespaces/default/configmaps";

/// Shared by the test and the recording threads.
#[derive(Default)]
pub struct Progress {
    stop: AtomicBool,
    moment: AtomicU64,
    acknowledged: AtomicUsize,
    /// The longest time without an acknowledged write since it was last taken.
    longest: Mutex<Duration>,
}

impl Progress {
    /// The longest time without an acknowledged write since the last call.
    pub fn take_longest_pause(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().expect("a duration"))
    }

    fn acknowledge(&self, pause: Duration) {
        let mut longest = self.longest.lock().expect("a duration");
        *longest = pause.max(*longest);
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of the writer's acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Ends the recording and the threads.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}

/// Runs clients and watchers until they are stopped, then checks the history. Returns the numbers
/// of calls and changes. Runs on a thread inside a machine.
pub fn record_history(
    kubeconfig: &str,
    urls: &[String],
    seed: u64,
    progress: &Arc<Progress>,
) -> (usize, usize) {
    block_on(async {
        let api = |url: &String| Api::of_server(kubeconfig, url, PATIENCE);
        let servers: Arc<Vec<Api>> = Arc::new(urls.iter().map(api).collect());
        let start = prepare(&servers).await;
        let recorder = Arc::new(Recorder {
            servers,
            progress: progress.clone(),
            calls: Mutex::default(),
        });
        let watchers: Vec<_> = (0..WATCHERS)
            .map(|number| tokio::spawn(recorder.clone().watcher(start, seed + 100 + number)))
            .collect();
        let clients = (0..CLIENTS).map(|number| recorder.client(number, seed + number));
        join_all(clients).await;
        recorder.write_last().await;
        let seen = join_all(watchers).await;
        let seen: Vec<Vec<Change>> = seen
            .into_iter()
            .map(|seen| seen.expect("a record"))
            .collect();
        for other in &seen[1..] {
            let differs = seen[0].iter().zip(other).find(|(one, two)| one != two);
            assert_eq!(differs, None, "two watchers saw different things");
            assert_eq!(seen[0].len(), other.len(), "a watcher missed the end");
        }
        let calls = std::mem::take(&mut *recorder.calls.lock().expect("a record"));
        history::check(&seen[0], &calls);
        (calls.len(), seen[0].len())
    })
}

/// Creates the namespace through any server that answers, since faults may have begun. Returns the
/// revision at which watchers start.
async fn prepare(servers: &[Api]) -> Revision {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "history"}});
    let deadline = Instant::now() + END;
    for api in servers.iter().cycle() {
        assert!(Instant::now() < deadline, "no server makes a namespace");
        let made = api.send(Method::POST, "/api/v1/namespaces", Some(&namespace));
        if let Ok(_) | Err(Failure::Refused(409)) = made.await
            && let Ok(listed) = api.send(Method::GET, HISTORY, None).await
        {
            return revision(&listed);
        }
    }
    0
}

struct Recorder {
    servers: Arc<Vec<Api>>,
    progress: Arc<Progress>,
    /// Guards the record.
    calls: Mutex<Vec<Call>>,
}

impl Recorder {
    async fn client(&self, number: u64, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut known: BTreeMap<String, Revision> = BTreeMap::new();
        let mut count = 0;
        while !self.progress.is_stopped() {
            count += 1;
            let key = format!("object-{}", random.random_range(0..OBJECTS));
            let api = &self.servers[random.random_range(0..self.servers.len())];
            let (choice, value) = (random.random_range(0..10), format!("{number}-{count}"));
            let asked = self.progress.now();
            let answer = match choice {
                0..4 => read(api, &key).await,
                4 => delete(api, &key).await,
                5..7 if known.contains_key(&key) => write(api, &key, &value, None).await,
                _ => write(api, &key, &value, Some(known.get(&key).copied())).await,
            };
            let heard = self.progress.now();
            match &answer {
                Answer::Read(_, Some((at, _))) | Answer::Wrote(at, Some(_)) => {
                    known.insert(key.clone(), *at);
                }
                _ => {
                    known.remove(&key);
                }
            }
            let call = Call {
                key,
                asked,
                heard,
                answer,
            };
            self.calls.lock().expect("a record").push(call);
            tokio::time::sleep(REST).await;
        }
    }

    /// Writes the object at which watchers end.
    async fn write_last(&self) {
        let deadline = Instant::now() + END;
        for api in self.servers.iter().cycle() {
            assert!(Instant::now() < deadline, "no server takes the last write");
            match api
                .send(Method::POST, HISTORY, Some(&config_map(LAST, "")))
                .await
            {
                Ok(_) | Err(Failure::Refused(409)) => return,
                Err(_) => {}
            }
        }
    }

    /// Watches the objects, switching between servers at random, until it has seen the last one.
    async fn watcher(self: Arc<Self>, start: Revision, seed: u64) -> Vec<Change> {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut seen, mut cursor, mut deadline) = (Vec::new(), start, None);
        loop {
            if self.progress.is_stopped() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + END);
                assert!(
                    Instant::now() < deadline,
                    "the watch does not come to its end"
                );
            }
            let api = &self.servers[random.random_range(0..self.servers.len())];
            let path = format!("{HISTORY}?watch=true&resourceVersion={cursor}");
            let events = api.watch(&path).await.take(random.random_range(1..200));
            let mut events = Box::pin(events);
            while let Some(event) = events.next().await {
                let (object, is_deleted) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    // A server that has just started has no history: another one has.
                    WatchEvent::Error(_) => break,
                    WatchEvent::Bookmark(_) => continue,
                };
                let at = revision(&object);
                assert!(at > cursor, "{at} after {cursor}: {object}");
                cursor = at;
                let key = object["metadata"]["name"].as_str().unwrap_or_default();
                match key {
                    LAST => return seen,
                    "kube-root-ca.crt" => continue,
                    _ => {}
                }
                let value = object["data"]["value"].as_str().unwrap_or_default();
                seen.push(Change {
                    revision: at,
                    key: key.to_owned(),
                    value: (!is_deleted).then(|| value.to_owned()),
                });
            }
            tokio::time::sleep(REST).await;
        }
    }
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})
}

fn revision(object: &Value) -> Revision {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Lists one object, to get the revision, too.
async fn read(api: &Api, key: &str) -> Answer {
    let path = format!("{HISTORY}?fieldSelector=metadata.name%3D{key}");
    match api.send(Method::GET, &path, None).await {
        Ok(list) => {
            let found = list["items"].as_array().and_then(|items| items.first());
            let value = |object: &Value| {
                object["data"]["value"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            Answer::Read(
                revision(&list),
                found.map(|one| (revision(one), value(one))),
            )
        }
        Err(_) => Answer::Lost,
    }
}

/// Replaces an object (`None`), or does so if it has the revision, or creates it if it must be
/// absent.
async fn write(api: &Api, key: &str, value: &str, condition: Option<Option<Revision>>) -> Answer {
    let mut object = config_map(key, value);
    let named = format!("{HISTORY}/{key}");
    let written = match condition {
        None => api.send(Method::PUT, &named, Some(&object)).await,
        Some(None) => api.send(Method::POST, HISTORY, Some(&object)).await,
        Some(Some(at)) => {
            object["metadata"]["resourceVersion"] = json!(at.to_string());
            api.send(Method::PUT, &named, Some(&object)).await
        }
    };
    match written {
        Ok(object) => Answer::Wrote(revision(&object), Some(value.to_owned())),
        Err(Failure::Refused(404 | 409)) => Answer::Refused(None),
        Err(_) => Answer::Lost,
    }
}

/// A delete's response has no revision: watchers and readers see it.
async fn delete(api: &Api, key: &str) -> Answer {
    let path = format!("{HISTORY}/{key}");
    match api.send(Method::DELETE, &path, None).await {
        Err(Failure::Refused(404)) => Answer::Refused(None),
        _ => Answer::Lost,
    }
}

/// The writer's results.
#[derive(Debug)]
pub struct Written {
    /// The names of acknowledged objects.
    pub names: Vec<String>,
    /// The longest time without an acknowledged write.
    pub longest: Duration,
}

/// Creates objects one after the other until it is stopped, through any server that answers; in
/// between it gives the controllers work. Runs on a thread inside a machine.
pub fn write_load(kubeconfig: &str, deployment: &str, progress: &Progress) -> Written {
    block_on(async {
        let api = Api::new(kubeconfig, 2 * PATIENCE);
        let scale = format!("/apis/apps/v1/namespaces/default/deployments/{deployment}/scale");
        let (mut names, mut longest) = (Vec::new(), Duration::ZERO);
        let mut last = Instant::now();
        while !progress.is_stopped() {
            let name = format!("load-{}", names.len());
            // A write whose response was lost is found at the next attempt.
            match api
                .send(Method::POST, LOAD, Some(&config_map(&name, "")))
                .await
            {
                Ok(_) | Err(Failure::Refused(409)) => {
                    longest = longest.max(last.elapsed());
                    progress.acknowledge(last.elapsed());
                    last = Instant::now();
                    names.push(name);
                }
                Err(_) => {}
            }
            if names.len() % 40 == 0 {
                let replicas = names.len() / 40 % 2 * 3;
                let body = json!({"spec": {"replicas": replicas}});
                // Part of a pause, unless it is acknowledged: then it ends the pause.
                if api.send(Method::PATCH, &scale, Some(&body)).await.is_ok() {
                    longest = longest.max(last.elapsed());
                    progress.acknowledge(last.elapsed());
                    last = Instant::now();
                }
            }
            tokio::time::sleep(REST).await;
        }
        let longest = longest.max(last.elapsed());
        Written { names, longest }
    })
}
