//! Conversions in progress, and the last results that are not cached with their objects: an event for many watchers
//! of a version calls the webhook once.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use machinery::Status;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::Stored;

/// Bounds of the kept results.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 4 << 20;

/// Converted objects by the address of the stored one.
type Made = HashMap<usize, Arc<Stored>>;
/// The result of a call, once there is one.
type Progress = Option<Result<Arc<Made>, Status>>;

/// The conversions of one version.
#[derive(Default)]
pub(crate) struct Conversions {
    /// Guards the calls in progress and the kept results.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the address of the stored object, which its caller keeps alive.
    pending: HashMap<usize, watch::Receiver<Progress>>,
    /// Stored and converted objects by the address of the former.
    kept: HashMap<usize, (Arc<Stored>, Arc<Stored>)>,
    /// The addresses of the kept results, oldest first.
    order: VecDeque<usize>,
    bytes: usize,
}

impl State {
    fn insert(&mut self, stored: &Arc<Stored>, made: &Arc<Stored>) {
        let both = (stored.clone(), made.clone());
        if self.kept.insert(address(stored), both).is_some() {
            return;
        }
        self.order.push_back(address(stored));
        self.bytes += made.size();
        while self.order.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some((_, made)) = self.kept.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(made.size());
            }
        }
    }
}

fn address(object: &Arc<Stored>) -> usize {
    Arc::as_ptr(object).addr()
}

impl Conversions {
    /// Converts objects to a form, in order. `convert` gets those that no other caller converts at the moment.
    pub(crate) async fn share<F>(
        &self,
        form: &str,
        objects: &[Arc<Stored>],
        convert: impl Fn(Vec<Arc<Stored>>) -> F,
    ) -> Result<Vec<Arc<Stored>>, Status>
    where
        F: Future<Output = Result<Vec<Arc<Stored>>, Status>>,
    {
        let mut all = Made::new();
        loop {
            let (call, others) = self.divide(objects, &mut all);
            if let Some(call) = call {
                let made = convert(call.objects.clone()).await;
                let made = call.finish(form, made)?;
                all.extend(made.iter().map(|(at, made)| (*at, made.clone())));
            } else if others.is_empty() {
                let made = objects.iter().filter_map(|one| all.get(&address(one)));
                return Ok(made.cloned().collect());
            }
            for mut other in others {
                // A cancelled caller has no result: its objects are divided again.
                if let Ok(progress) = other.wait_for(Option::is_some).await
                    && let Some(made) = &*progress
                {
                    let made = made.as_ref().map_err(Clone::clone)?;
                    all.extend(made.iter().map(|(at, made)| (*at, made.clone())));
                }
            }
        }
    }

    /// Of the objects that are not in `all` yet: those that this caller has to convert, and the calls that convert the
    /// rest.
    fn divide(
        &self,
        objects: &[Arc<Stored>],
        all: &mut Made,
    ) -> (Option<Call<'_>>, Vec<watch::Receiver<Progress>>) {
        let (sender, receiver) = watch::channel(None);
        let mut own = Vec::new();
        let mut others: Vec<watch::Receiver<Progress>> = Vec::new();
        let mut state = self.state.lock();
        for object in objects {
            let at = address(object);
            if all.contains_key(&at) {
                continue;
            }
            if let Some((_, made)) = state.kept.get(&at) {
                all.insert(at, made.clone());
            } else if let Some(other) = state.pending.get(&at) {
                let is_own = other.same_channel(&receiver);
                if !is_own && !others.last().is_some_and(|last| last.same_channel(other)) {
                    others.push(other.clone());
                }
            } else {
                state.pending.insert(at, receiver.clone());
                own.push(object.clone());
            }
        }
        drop(state);
        let call = Call {
            conversions: self,
            objects: own,
            sender,
        };
        ((!call.objects.is_empty()).then_some(call), others)
    }
}

/// Objects that one caller converts. They are no longer pending when it is dropped.
struct Call<'a> {
    conversions: &'a Conversions,
    objects: Vec<Arc<Stored>>,
    sender: watch::Sender<Progress>,
}

impl Call<'_> {
    /// Passes the result to all who wait for it.
    fn finish(
        self,
        form: &str,
        made: Result<Vec<Arc<Stored>>, Status>,
    ) -> Result<Arc<Made>, Status> {
        let made = made.map(|made| {
            let mut state = self.conversions.state.lock();
            let pairs = self.objects.iter().zip(made);
            let all = pairs.map(|(stored, made)| {
                if stored.known_form(form).is_none() {
                    state.insert(stored, &made);
                }
                (address(stored), made)
            });
            Arc::new(all.collect::<Made>())
        });
        self.sender.send_replace(Some(made.clone()));
        made
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.conversions.state.lock();
        for object in &self.objects {
            state.pending.remove(&address(object));
        }
    }
}
