//! The configuration of the etcd backend, and connecting to it.

use std::{sync::Arc, time::Duration};

use imbl::OrdMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::{Backoff, Clock, SystemClock};
use tokio::sync::{mpsc, watch};

use super::{
    Etcd,
    client::{self, Client},
    connect::{self, Tls},
    leases::Leases,
    members::Members,
    migration,
    mirror::{self, Mirror, Position},
    version::Version,
};
use crate::{
    Codec, Error, Key, check,
    memory::{Hub, Limits, Published},
};

/// The configuration of the etcd backend.
#[derive(Clone)]
pub struct Config {
    /// `http://address:port` or `https://address:port`, one or several members of one cluster.
    pub endpoints: Vec<String>,
    /// For https.
    pub tls: Option<Tls>,
    /// The prefix of all keys; other keys in etcd are left alone.
    pub root: Key,
    /// How long to wait for a first answer of a member.
    pub patience: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The maximum size of a value.
    pub max_value: usize,
    /// How much history is kept for watches.
    pub history: Limits,
    /// How many past states that list pages refer to are kept.
    pub pages: usize,
    /// How many revisions a watcher may lag behind before it has to catch up from history.
    pub watch_queue: usize,
    /// The interval of progress notifications to watchers.
    pub progress: Duration,
    /// Whether etcd's progress notifications are reliable; `None` decides by its version.
    pub trust_progress: Option<bool>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            tls: None,
            root: Key::from_static(b"/registry/"),
            patience: Duration::from_secs(60),
            clock: Arc::new(SystemClock),
            max_value: check::MAX_VALUE,
            history: Limits::default(),
            pages: 64,
            watch_queue: 1024,
            progress: Duration::from_secs(5),
            trust_progress: None,
        }
    }
}

impl Config {
    /// Connects, checks the version, and lists everything once. Waits for members that do not
    /// answer yet, for example because they are starting. Calls run on the runtime that awaits
    /// this.
    pub async fn connect<C: Codec>(self, codec: C) -> Result<Arc<Etcd<C>>, Error> {
        let members = Members::new(connect::members(&self.endpoints, self.tls.as_ref())?);
        let mut client = Client::new(members.clone(), Arc::default());
        let codec = Arc::new(codec);
        self.first_answer(&client).await?;
        let mut patience = ConnectRetry::new(&self);
        let origin = loop {
            match migration::origin(&client).await {
                Ok(found) => break found,
                Err(error) => patience.after(error).await?,
            }
        };
        client.set_revisions(Arc::new(origin.revisions));
        let state = loop {
            match Mirror::load(&client, &self, &*codec).await {
                Ok(state) => break state,
                Err(error) => patience.after(error).await?,
            }
        };
        mirror::report_unreadable(&state.unreadable, &OrdMap::new());
        let position = Position {
            revision: state.revision,
            reliable: false,
        };
        let (position, follow) = watch::channel(position);
        let published = Arc::new(Published::new(state, self.pages));
        let hub = Arc::new(Hub::new(published.clone(), self.watch_queue));
        let (messages, receiver) = mpsc::channel(64);
        let mirror = Mirror {
            config: self.clone(),
            codec: codec.clone(),
            published: published.clone(),
            hub: hub.clone(),
            position,
            messages: receiver,
        };
        let (clock, progress, served) = (self.clock.clone(), self.progress, hub.clone());
        let revisions = client.revisions().clone();
        let run = async move {
            let client = Client::new(members, revisions);
            tokio::select! {
                () = mirror.run(&client) => {}
                () = client.members().watch_over(&client) => {}
                () = served.serve(&*clock, progress) => {}
            }
            served.close();
        };
        let thread = std::thread::Builder::new()
            .name("store-mirror".into())
            .spawn(move || block_on(run))
            .map_err(|error| Error::Unavailable(format!("cannot start a thread: {error}")))?;
        Ok(Arc::new(Etcd {
            codec,
            client,
            origin: origin.cluster,
            guard: origin.guard,
            published,
            hub,
            position: follow,
            leases: Leases::default(),
            messages: Mutex::new(Some(messages)),
            thread: Mutex::new(Some(thread)),
            config: self,
        }))
    }

    /// Waits for a member that answers.
    pub(super) async fn first_answer(&self, client: &Client) -> Result<(), Error> {
        let mut patience = ConnectRetry::new(self);
        loop {
            match first_version(client).await {
                Ok(_) => return Ok(()),
                Err(error) => patience.after(error).await?,
            }
        }
    }
}

/// How long to wait for members that do not answer.
pub(super) struct ConnectRetry<'a> {
    config: &'a Config,
    begin: Timestamp,
    backoff: Backoff,
}

impl<'a> ConnectRetry<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        Self {
            config,
            begin: config.clock.now(),
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(2)),
        }
    }

    /// Waits before the next attempt; returns the error if it is not about availability, or the
    /// time is over.
    pub(super) async fn after(&mut self, error: Error) -> Result<(), Error> {
        let Error::Unavailable(why) = error else {
            return Err(error);
        };
        let config = self.config;
        let waited = config.clock.now().duration_since(self.begin).unsigned_abs();
        let Some(left) = config.patience.checked_sub(waited) else {
            let endpoints = config.endpoints.join(", ");
            let waited = waited.as_secs();
            return Err(Error::Unavailable(format!(
                "no member of etcd at {endpoints} answered within {waited} s: {why}"
            )));
        };
        tracing::warn!(
            endpoints = ?config.endpoints,
            why,
            "etcd does not answer yet, trying again for {} s", left.as_secs()
        );
        config.clock.sleep(self.backoff.step().min(left)).await;
        Ok(())
    }
}

/// The version of the first member that answers, which must be supported.
async fn first_version(client: &Client) -> Result<Version, Error> {
    let mut last = Error::Unavailable("no etcd member answers".into());
    for (index, member) in client.members().all().iter().enumerate() {
        match client::version(member, client.channel(index)).await {
            Ok(version) => {
                tracing::info!(endpoint = member.endpoint, ?version, "connected to etcd");
                return Ok(version);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs the mirror on its own thread: it outlives any runtime, and no busy runtime delays it.
fn block_on(future: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => tracing::error!(%error, "cannot start a thread of the store"),
    }
}
