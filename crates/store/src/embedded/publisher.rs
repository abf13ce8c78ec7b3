//! The second half of a commit: the frame goes to the log, is synced, and only then are readers,
//! watchers and callers told. It runs on the writer's own thread, or, when more is waiting, on a
//! thread beside it, so that the writer makes the next frame while this one is on its way.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    log::{Fault, Log},
    queue::Queue,
    request::Answer,
};
use crate::{
    Error,
    memory::{Hub, State},
};

/// Frames of this size and more do not keep their memory for the next.
const KEPT_FRAME: usize = 1 << 20;

/// What is to be made durable, and who hears of it then.
pub struct Work<T> {
    /// What goes to the log, if anything does.
    pub frame: Option<Vec<u8>>,
    /// Whether the disk is waited for.
    pub sync: bool,
    /// What readers see afterwards, if it is something new.
    pub state: Option<State<T>>,
    /// Who waits.
    pub answers: Vec<Answer<T>>,
}

/// Has the log and everything that others see.
pub struct Publisher<T> {
    pub log: Log,
    pub published: Arc<ArcSwap<State<T>>>,
    pub hub: Arc<Hub<T>>,
    /// Guards why the writer stopped, if it did.
    pub broken: Arc<Mutex<Option<String>>>,
    /// Memory for the next frame.
    pub buffer: Vec<u8>,
    /// What nobody sees any more. The writer's thread takes it apart, because it has made it: memory
    /// that goes from one thread to another is what allocators are slow at.
    pub past: Option<Arc<State<T>>>,
}

impl<T: Send + Sync + 'static> Publisher<T> {
    /// Makes it durable and shows it to readers. The work's space has been prepared.
    pub fn run(&mut self, mut work: Work<T>) -> Told<T> {
        let failure = self.write(&mut work).err().map(|fault| self.fail(fault));
        if let Some(frame) = work.frame
            && frame.capacity() < KEPT_FRAME
        {
            self.buffer = frame;
        }
        if failure.is_none()
            && let Some(state) = work.state
        {
            self.publish(state);
        }
        Told {
            failure,
            answers: work.answers,
        }
    }

    fn write(&mut self, work: &mut Work<T>) -> Result<(), Fault> {
        if let Some(frame) = &mut work.frame {
            self.log.append(frame)?;
        }
        if work.sync { self.log.sync() } else { Ok(()) }
    }

    /// Why nothing is written any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.broken.lock().clone().map(Error::Unavailable)
    }

    /// Shows a state to readers and watchers.
    pub fn publish(&mut self, state: State<T>) {
        self.past = Some(self.published.swap(Arc::new(state)));
        self.hub.wake();
    }

    /// What a fault means for those who wait; a broken log stops the writer for good.
    pub fn fail(&self, fault: Fault) -> Error {
        match fault {
            Fault::Full(why) => Error::Full(why),
            Fault::Refused(why) => Error::Unavailable(why),
            Fault::Broken(why) => {
                tracing::error!(why, "the store takes no more writes until it is restarted");
                *self.broken.lock() = Some(why.clone());
                Error::Unavailable(why)
            }
        }
    }
}

/// What is left to do when everything is durable and the next work may begin.
pub struct Told<T> {
    failure: Option<Error>,
    answers: Vec<Answer<T>>,
}

impl<T> Told<T> {
    /// Answers all who wait.
    pub fn finish(self) {
        for answer in self.answers {
            answer.send(self.failure.as_ref());
        }
    }
}

/// The publisher, here or on the thread beside.
pub struct Stage<T> {
    here: Option<Publisher<T>>,
    to: Option<mpsc::Sender<(Publisher<T>, Work<T>)>>,
    from: mpsc::Receiver<Publisher<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + Sync + 'static> Stage<T> {
    /// Starts the thread beside.
    pub fn start<R: Send + 'static>(
        publisher: Publisher<T>,
        writer: Arc<Queue<R>>,
    ) -> std::io::Result<Self> {
        let (to, work) = mpsc::channel::<(Publisher<T>, Work<T>)>();
        let (back, from) = mpsc::channel();
        let broken = publisher.broken.clone();
        let run = move || {
            for (mut publisher, work) in work {
                let run = catch_unwind(AssertUnwindSafe(|| publisher.run(work)));
                if run.is_err() {
                    *broken.lock() = Some("the writer panicked".into());
                }
                // The next work may begin while this one's callers are told.
                let _ = back.send(publisher);
                writer.wake();
                if let Ok(told) = run {
                    told.finish();
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("store-sync".into())
            .spawn(run)?;
        Ok(Self {
            here: Some(publisher),
            to: Some(to),
            from,
            thread: Some(thread),
        })
    }

    /// Whether nothing is on its way.
    pub fn is_here(&mut self) -> bool {
        if self.here.is_none() {
            self.here = self.from.try_recv().ok();
        }
        self.here.is_some()
    }

    /// The publisher, once it is back. It is gone only with its thread, at the very end.
    pub fn here(&mut self) -> Option<&mut Publisher<T>> {
        if self.here.is_none() {
            self.here = self.from.recv().ok();
        }
        self.here.as_mut()
    }

    /// Has work done on the thread beside. The publisher is here, because the work's space has been
    /// prepared.
    pub fn send(&mut self, work: Work<T>) {
        let Some(publisher) = self.here.take() else {
            return;
        };
        let unsent = match &self.to {
            Some(to) => to.send((publisher, work)).err().map(|unsent| unsent.0),
            None => Some((publisher, work)),
        };
        if let Some((mut publisher, work)) = unsent {
            publisher.run(work).finish();
            self.here = Some(publisher);
        }
    }
}

impl<T> Drop for Stage<T> {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
