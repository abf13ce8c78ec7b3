//! The watch cache: a mirror of everything under the root, fed by one watch. It serves all
//! watchers, so that etcd has only one, and all reads that need not be the newest.
//!
//! When the watch is closed, it continues at the next member. When etcd has compacted that
//! revision, the mirror is rebuilt from a list, and watchers that lag behind get an error.
//!
//! Other programs can write to etcd. A value that the codec cannot read is recorded as unreadable: reads of its key and
//! lists that contain it fail, everything else is served.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use imbl::OrdMap;
use stdx::Backoff;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, metadata::MetadataValue, transport::Channel};

use super::{
    Config,
    client::{self, Client, translate},
    proto::{
        etcdserverpb::{
            RangeRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
            watch_client::WatchClient, watch_request::RequestUnion,
        },
        mvccpb::{Event, KeyValue, event::EventType},
    },
    revisions::Revisions,
};
use crate::{
    Codec, Error, Key, Revision, Unreadable,
    memory::{Fresh, Hub, OneOrMany, Published, Saved, State, Write, prefix_end},
};

/// Keys per page of the list.
const PAGE: i64 = 1000;
/// How often a progress notification is requested, if it is reliable.
const PROGRESS: Duration = Duration::from_secs(5);
/// A message to the mirror.
pub(super) enum Message {
    /// Compact history up to this revision.
    Forget(Revision, oneshot::Sender<()>),
    /// Request a progress notification now.
    Progress,
}

/// The mirror's revision, for readers that wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Everything up to this revision is contained.
    pub revision: Revision,
    /// Whether etcd's progress notifications are reliable.
    pub reliable: bool,
}

/// The state of the mirror's task.
pub(super) struct Mirror<C: Codec> {
    pub config: Config,
    pub codec: Arc<C>,
    pub published: Arc<Published<C::Object>>,
    pub hub: Arc<Hub<C::Object>>,
    pub position: watch::Sender<Position>,
    pub messages: mpsc::Receiver<Message>,
}

/// Why a watch ended.
enum End {
    /// Continue from the same revision.
    Cut(Error),
    /// Rebuild from a list.
    Compacted,
    /// All handles are gone.
    Closed,
}

impl<C: Codec> Mirror<C> {
    /// Lists everything.
    pub(super) async fn load(
        client: &Client,
        config: &Config,
        codec: &C,
    ) -> Result<State<C::Object>, Error> {
        let mut state = State::default();
        let end = prefix_end(&config.root).unwrap_or_else(|| Key::from_static(&[0]));
        let mut request = RangeRequest {
            key: non_empty(&config.root),
            range_end: end,
            limit: PAGE,
            ..RangeRequest::default()
        };
        loop {
            let page = client.range(request.clone()).await?;
            if request.revision == 0 {
                request.revision = page.header.map_or(0, |header| header.revision);
                state.revision = request.revision as Revision;
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            for kv in page.kvs {
                let saved = saved(kv);
                let (key, revision) = (saved.key.clone(), saved.mod_revision);
                if let Err(why) = state.restore(codec, saved) {
                    state.mark_unreadable(Unreadable { key, revision, why });
                }
            }
            match last {
                Some(key) if page.more => request.key = [&key[..], &[0]].concat().into(),
                _ => break,
            }
        }
        state.history.forget(state.revision);
        Ok(state)
    }

    /// Follows etcd until all handles are dropped.
    pub(super) async fn run(mut self, client: &Client) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        let members = client.members();
        loop {
            let index = members.current();
            let member = &members.all()[index];
            let before = self.revision();
            let end = match client::version(member, client.channel(index)).await {
                Ok(version) => {
                    let reliable = version.has_reliable_progress();
                    let reliable = self.config.trust_progress.unwrap_or(reliable);
                    tokio::select! {
                        end = self.follow(client.channel(index), client.revisions(), reliable) => end,
                        () = members.silence(index) => {
                            End::Cut(Error::Unavailable("the member no longer answers".into()))
                        }
                    }
                }
                Err(error) => End::Cut(error),
            };
            if self.revision() > before {
                backoff.reset();
            }
            self.position
                .send_modify(|position| position.reliable = false);
            match end {
                End::Closed => return,
                End::Compacted => self.start_over(client).await,
                End::Cut(error) => {
                    tracing::warn!(endpoint = member.endpoint, %error, "etcd watch ended");
                    members.leave(index);
                }
            }
            tokio::select! {
                () = self.config.clock.sleep(backoff.step()) => {}
                () = self.answer_until_closed() => return,
            }
        }
    }

    fn revision(&self) -> Revision {
        self.published.revision()
    }

    /// Answers messages while there is no watch. Ends when all handles are dropped.
    async fn answer_until_closed(&mut self) {
        while let Some(message) = self.messages.recv().await {
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        if let Message::Forget(revision, reply) = message {
            let mut state = self.published.moment();
            state.history.forget(revision.min(state.revision));
            self.publish(state);
            let _ = reply.send(());
        }
    }

    async fn start_over(&mut self, client: &Client) {
        match Self::load(client, &self.config, &self.codec).await {
            Ok(state) => {
                let before = self.published.read(|state| state.unreadable.clone());
                report_unreadable(&state.unreadable, &before);
                self.publish(state);
            }
            Err(error) => tracing::warn!(%error, "cannot list etcd"),
        }
    }

    fn publish(&self, state: State<C::Object>) {
        let revision = state.revision;
        self.published.replace(state);
        self.hub.wake();
        self.position
            .send_modify(|position| position.revision = revision);
    }

    async fn follow(&mut self, channel: Channel, revisions: &Revisions, reliable: bool) -> End {
        // Revisions from before the migration to this etcd cannot be watched.
        let Some(start) = revisions.moment(self.revision() as i64 + 1) else {
            return End::Compacted;
        };
        let (requests, receiver) = mpsc::channel(16);
        let create = WatchCreateRequest {
            key: non_empty(&self.config.root),
            range_end: prefix_end(&self.config.root).unwrap_or_else(|| Key::from_static(&[0])),
            start_revision: start,
            progress_notify: reliable,
            prev_kv: false,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let _ = requests
            .send(watch_request(RequestUnion::CreateRequest(create)))
            .await;
        let mut request = Request::new(ReceiverStream::new(receiver));
        // A member that has lost its leader closes the watch instead of stalling.
        request
            .metadata_mut()
            .insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let mut answers = match client.watch(request).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return End::Cut(translate(&status, 0)),
        };
        let mut pieces = Vec::new();
        let mut tick = self.config.clock.sleep(PROGRESS);
        loop {
            let ask = tokio::select! {
                answer = next(&mut answers) => match answer {
                    Ok(mut answer) => {
                        revisions.translate_watch(&mut answer);
                        match self.answer(answer, &mut pieces, reliable) {
                            None => false,
                            Some(end) => return end,
                        }
                    }
                    Err(error) => return End::Cut(error),
                },
                message = self.messages.recv() => match message {
                    None => return End::Closed,
                    Some(Message::Progress) => true,
                    Some(message) => {
                        self.take(message);
                        false
                    }
                },
                () = &mut tick => {
                    tick = self.config.clock.sleep(PROGRESS);
                    true
                }
            };
            if ask && reliable {
                let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                // A full queue: the answer to an earlier request is pending.
                let _ = requests.try_send(watch_request(progress));
            }
        }
    }

    /// Handles one message of the watch. Returns how the watch ended, if it did.
    fn answer(
        &self,
        answer: WatchResponse,
        pieces: &mut Vec<Event>,
        reliable: bool,
    ) -> Option<End> {
        if answer.canceled || answer.compact_revision != 0 {
            return Some(match answer.compact_revision {
                0 => End::Cut(Error::Unavailable(format!(
                    "etcd: {}",
                    answer.cancel_reason
                ))),
                _ => End::Compacted,
            });
        }
        if answer.created {
            self.position
                .send_modify(|position| position.reliable = reliable);
            return None;
        }
        pieces.extend(answer.events);
        if answer.fragment {
            return None;
        }
        let mut state = self.published.moment();
        if pieces.is_empty() {
            let progress = answer
                .header
                .map_or(0, |header| header.revision as Revision);
            if reliable && progress > state.revision {
                state.revision = progress;
                self.publish(state);
            }
            return None;
        }
        let before = state.unreadable.clone();
        self.apply(&mut state, std::mem::take(pieces));
        report_unreadable(&state.unreadable, &before);
        self.publish(state);
        None
    }

    /// Events of one revision are adjacent and become one commit.
    fn apply(&self, state: &mut State<C::Object>, events: Vec<Event>) {
        let now = self.config.clock.now().as_millisecond();
        let mut events = events
            .into_iter()
            .filter_map(|event| Some((event.r#type(), event.kv?)));
        let (mut changes, mut news) = (Vec::new(), Vec::new());
        let mut revision = state.revision;
        // The last revision with a value that cannot be read.
        let mut unreadable = 0;
        let mut next = events.next();
        while let Some((kind, kv)) = next {
            revision = revision.max(kv.mod_revision as Revision);
            changes.push(match kind {
                EventType::Delete => {
                    state.unreadable.remove(&kv.key);
                    Some(Write::Delete(kv.key))
                }
                EventType::Put => {
                    let Saved { key, value, .. } = saved(kv);
                    match self.codec.load(&key, value) {
                        Ok(draft) => {
                            state.unreadable.remove(&key);
                            let fresh = Fresh::new(&*self.codec, &key, draft, revision, 0);
                            Some(Write::Put(key, fresh))
                        }
                        Err(why) => {
                            state.mark_unreadable(Unreadable { key, revision, why });
                            unreadable = revision;
                            None
                        }
                    }
                }
            });
            next = events.next();
            if next
                .as_ref()
                .is_none_or(|(_, kv)| kv.mod_revision as Revision != revision)
            {
                let changes = OneOrMany::from(std::mem::take(&mut changes));
                state.apply(revision, now, changes, &mut news);
                state.revision = revision;
            }
        }
        state.history.push(news);
        // Watchers cannot be sent a value that cannot be read: they have to list again, which tells them.
        if unreadable > 0 {
            state.history.forget(unreadable);
        }
        state.history.prune(&self.config.history, now);
    }
}

/// Logs keys that became unreadable.
pub(super) fn report_unreadable(
    now: &OrdMap<Key, Arc<Unreadable>>,
    before: &OrdMap<Key, Arc<Unreadable>>,
) {
    for (key, one) in now {
        if before
            .get(key)
            .is_none_or(|known| known.revision != one.revision)
        {
            let key = String::from_utf8_lossy(key);
            tracing::error!(%key, revision = one.revision, error = one.why, "cannot read a stored object");
        }
    }
}

async fn next(answers: &mut Streaming<WatchResponse>) -> Result<WatchResponse, Error> {
    match answers.next().await {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(status)) => Err(translate(&status, 0)),
        None => Err(Error::Unavailable("etcd ended the watch".into())),
    }
}

fn watch_request(request: RequestUnion) -> WatchRequest {
    WatchRequest {
        request_union: Some(request),
    }
}

/// etcd has no empty key; the smallest one stands for the start.
pub(super) fn non_empty(prefix: &Key) -> Key {
    if prefix.is_empty() {
        Key::from_static(&[0])
    } else {
        prefix.clone()
    }
}

/// An etcd key as the mirror stores it. etcd handles expiry. Values are copied, since a slice would
/// keep the whole response in memory.
pub(super) fn saved(kv: KeyValue) -> Saved {
    Saved {
        key: Key::copy_from_slice(&kv.key),
        create_revision: kv.create_revision as Revision,
        mod_revision: kv.mod_revision as Revision,
        expires: 0,
        value: Key::copy_from_slice(&kv.value),
    }
}
