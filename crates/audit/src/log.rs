//! The thread that writes events, and its bounded queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, SyncSender},
    },
    thread::JoinHandle,
};

use stdx::Clock;

use super::{Config, event::Event, file::Rotating};

/// Events that may wait in the queue.
const MAX_QUEUED_EVENTS: usize = 10_000;
/// Bytes of bodies that may wait in the queue.
const MAX_QUEUED_BYTES: usize = 64 << 20;

pub(super) struct Log {
    /// `None` once the log is being closed.
    events: Option<SyncSender<Event>>,
    figures: Arc<Figures>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Figures {
    waiting: AtomicUsize,
    written: AtomicU64,
    lost: AtomicU64,
    /// Whether dropped events have been logged since the last event that was queued.
    has_logged: AtomicBool,
}

impl Log {
    pub(super) fn open(config: &Config, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let mut file = Rotating::open(config, clock)?;
        let (events, received) = mpsc::sync_channel::<Event>(MAX_QUEUED_EVENTS);
        let figures = Arc::new(Figures::default());
        let mine = figures.clone();
        let write = move || {
            for mut event in received {
                let size = event.size();
                let line = event.line().map_err(std::io::Error::other);
                match line.and_then(|line| file.write(&line)) {
                    Ok(()) => {
                        mine.written.fetch_add(1, Ordering::Relaxed);
                        mine.has_logged.store(false, Ordering::Relaxed);
                    }
                    Err(error) => mine.lose(&error.to_string()),
                }
                mine.waiting.fetch_sub(size, Ordering::Relaxed);
            }
        };
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(write)?;
        Ok(Self {
            events: Some(events),
            figures,
            writer: Some(writer),
        })
    }

    /// Queues an event; never blocks.
    pub(super) fn write(&self, event: Event) {
        let Some(events) = &self.events else { return };
        let size = event.size();
        let waiting = self.figures.waiting.fetch_add(size, Ordering::Relaxed);
        let full = waiting > MAX_QUEUED_BYTES || events.try_send(event).is_err();
        if full {
            self.figures.waiting.fetch_sub(size, Ordering::Relaxed);
            self.figures.lose("the queue of audit events is full");
        }
    }

    pub(super) fn figures(&self) -> (u64, u64) {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        (read(&self.figures.written), read(&self.figures.lost))
    }
}

impl Figures {
    fn lose(&self, why: &str) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.has_logged.swap(true, Ordering::Relaxed) {
            tracing::error!(lost, why, "audit event lost");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The thread ends when the sender is dropped; queued events are written first.
        self.events = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
