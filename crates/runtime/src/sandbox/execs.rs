//! The exec processes of a sandbox whose exits are waited for.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::shim::protocol::Exit;

/// Receivers of exits, by the id of the process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Execs(Arc<Mutex<HashMap<String, oneshot::Sender<Exit>>>>);

/// The exit of a process. When it is dropped, nothing of it stays: a process that could not be started has no exit.
pub(crate) struct ExpectedExit {
    execs: Execs,
    pub id: String,
    pub exit: oneshot::Receiver<Exit>,
}

impl Execs {
    /// Registers a receiver for the exit of a process.
    pub(crate) fn expect(&self, id: &str) -> ExpectedExit {
        let (sender, exit) = oneshot::channel();
        self.0.lock().insert(id.to_owned(), sender);
        ExpectedExit {
            execs: self.clone(),
            id: id.to_owned(),
            exit,
        }
    }

    /// Delivers the exit of a process.
    pub(crate) fn ended(&self, id: &str, exit: Exit) {
        if let Some(sender) = self.0.lock().remove(id) {
            let _ = sender.send(exit);
        }
    }

    /// No exit will be known.
    pub(super) fn give_up(&self) {
        self.0.lock().clear();
    }
}

impl Drop for ExpectedExit {
    fn drop(&mut self) {
        self.execs.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Exit {
        Exit {
            code,
            oom: false,
            finished_at: 0,
        }
    }

    #[tokio::test]
    async fn exits_reach_those_that_wait_and_others_leave_nothing_behind() {
        let execs = Execs::default();
        let mut ends = execs.expect("ends");
        drop(execs.expect("cannot start"));
        let mut lost = execs.expect("lost");
        assert_eq!(execs.0.lock().len(), 2);
        execs.ended("ends", exit(3));
        execs.ended("cannot start", exit(4));
        assert_eq!((&mut ends.exit).await.unwrap().code, 3);
        execs.give_up();
        assert!((&mut lost.exit).await.is_err());
        assert!(execs.0.lock().is_empty());
    }
}
