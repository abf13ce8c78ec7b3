//! Background work: watches the objects, maintains the default ones, writes the schemas' status,
//! and adjusts the limits periodically.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use machinery::{Object, Status, Value, json::json};
use tokio::sync::Notify;

use super::{Fairness, GROUP, LEVELS, SCHEMAS, status, upkeep};
use registry::{Reader, meta};
use request::Client;
use stdx::Clock;

/// The field manager of status.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// The adjustment interval.
const ADJUST_EVERY: Duration = Duration::from_secs(10);
/// How often the default objects are checked.
const UPKEEP_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// Maximum status writes of a schema per minute: another server may disagree about the status.
const STATUS_WRITES: usize = 6;

/// The dependencies of the background work.
pub struct Upkeep {
    pub fairness: Arc<Fairness>,
    pub reader: Reader,
    pub clock: Arc<dyn Clock>,
    /// Writes as `system:apiserver`.
    pub api: Box<dyn Client>,
}

impl Upkeep {
    /// Ensures the default objects and loads the existing ones.
    pub async fn begin(&self) -> Result<(), Status> {
        match upkeep::ensure(&self.reader, &*self.api).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(why) => tracing::warn!(why, "cannot create flow control objects"),
        }
        let (levels, schemas) = read(&self.reader).await?;
        self.fairness.digest(&levels, &schemas);
        Ok(())
    }

    /// Runs for as long as the server runs.
    pub async fn keep(self) {
        let Some(_) = self.reader.resource(GROUP, SCHEMAS) else {
            return self.adjust_for_ever().await;
        };
        let changed = Notify::new();
        let watches =
            [LEVELS, SCHEMAS].map(|kind| self.reader.tell_of_changes(GROUP, kind, &changed));
        let work = async {
            let mut keeper = Keeper::new(&self);
            let mut tick = self.clock.sleep(ADJUST_EVERY);
            loop {
                tokio::select! {
                    () = changed.notified() => keeper.follow().await,
                    () = &mut tick => {
                        tick = self.clock.sleep(ADJUST_EVERY);
                        keeper.tick().await;
                    }
                }
            }
        };
        tokio::join!(futures::future::join_all(watches), work);
    }

    async fn adjust_for_ever(&self) {
        loop {
            self.clock.sleep(ADJUST_EVERY).await;
            self.fairness.adjust();
        }
    }
}

async fn read(reader: &Reader) -> Result<(Vec<Object>, Vec<Object>), Status> {
    // Without an object that cannot be read, requests match another FlowSchema.
    let list = async |kind| {
        let readable = reader.list_readable(GROUP, kind).await?;
        Ok::<Vec<Object>, Status>(readable.parsed())
    };
    Ok((list(LEVELS).await?, list(SCHEMAS).await?))
}

struct Keeper<'a> {
    parts: &'a Upkeep,
    looked: Timestamp,
    /// Recent status writes of each schema.
    written: HashMap<String, Vec<Timestamp>>,
}

impl<'a> Keeper<'a> {
    fn new(parts: &'a Upkeep) -> Self {
        Self {
            parts,
            looked: parts.clock.now(),
            written: HashMap::new(),
        }
    }

    /// Loads the stored objects, then writes statuses.
    async fn follow(&mut self) {
        let (levels, schemas) = match read(&self.parts.reader).await {
            Ok(objects) => objects,
            Err(status) => {
                // The next tick retries.
                tracing::warn!(%status, "cannot read flow control objects");
                return;
            }
        };
        self.parts.fairness.digest(&levels, &schemas);
        let now = self.parts.clock.now();
        for (name, status) in status::wrong(&levels, &schemas, &meta::time(now)) {
            if self.may_write(&name, now) {
                self.write(&name, status).await;
            }
        }
    }

    fn may_write(&mut self, name: &str, now: Timestamp) -> bool {
        let lately = |at: &Timestamp| now.duration_since(*at) < UPKEEP_EVERY;
        self.written.retain(|_, times| times.iter().any(lately));
        let times = self.written.entry(name.to_owned()).or_default();
        times.retain(lately);
        let may = times.len() < STATUS_WRITES;
        if may {
            times.push(now);
        }
        may
    }

    async fn write(&self, name: &str, status: Value) {
        let object = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": name},
            "status": status,
        });
        let path = super::path(SCHEMAS, name);
        let path = format!("{path}/status?fieldManager={MANAGER}&force=true");
        let object = object.as_object().cloned();
        let why = match self.parts.api.ask(Method::PATCH, &path, object).await {
            Ok((status, _)) if status.is_success() || status == http::StatusCode::NOT_FOUND => {
                return;
            }
            Ok((_, answer)) => kinds::tree::text(kinds::tree::get(&answer, "message")).to_owned(),
            Err(why) => why,
        };
        tracing::warn!(name, why, "cannot update the status of a FlowSchema");
    }

    /// Periodic work.
    async fn tick(&mut self) {
        self.parts.fairness.adjust();
        let now = self.parts.clock.now();
        if now.duration_since(self.looked) < UPKEEP_EVERY {
            return;
        }
        self.looked = now;
        if let Err(why) = upkeep::ensure(&self.parts.reader, &*self.parts.api).await {
            tracing::warn!(why, "cannot maintain flow control objects");
        }
        self.follow().await;
    }
}
