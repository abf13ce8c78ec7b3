//! Bounds the requests that wait for one backend: in total, and of each user, so that one user's requests to a slow
//! backend leave room for those of others.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Concurrent requests per backend, without long-running ones that have begun.
const ALL: usize = 400;
/// The same of one user.
const OF_USER: usize = ALL / 2;

#[derive(Default)]
pub struct Slots {
    taken: Arc<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Guards the number of requests of each user that has any, and their sum.
    requests: Mutex<(HashMap<String, usize>, usize)>,
}

/// The slot of a request, until it is dropped.
pub struct Slot {
    taken: Arc<Taken>,
    user: String,
}

impl Slots {
    /// A slot for a request of a user; `None` if too many requests wait.
    pub fn take(&self, user: &str) -> Option<Slot> {
        let mut requests = self.taken.requests.lock();
        let (users, sum) = &mut *requests;
        let own = users.get(user).copied().unwrap_or_default();
        if own >= OF_USER || *sum >= ALL {
            return None;
        }
        users.insert(user.to_owned(), own + 1);
        *sum += 1;
        Some(Slot {
            taken: self.taken.clone(),
            user: user.to_owned(),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut requests = self.taken.requests.lock();
        let (users, sum) = &mut *requests;
        *sum -= 1;
        if let Some(own) = users.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_slots_for_others() {
        let slots = Slots::default();
        let of = |user: &str| -> Vec<Slot> { std::iter::from_fn(|| slots.take(user)).collect() };
        let eve = of("eve");
        assert_eq!(eve.len(), OF_USER);
        let jane = of("jane");
        assert_eq!(jane.len(), ALL - OF_USER);
        assert!(slots.take("root").is_none());
        drop(eve);
        assert!(slots.take("root").is_some());
        drop(jane);
        assert!(slots.taken.requests.lock().0.is_empty());
        assert_eq!(slots.taken.requests.lock().1, 0);
    }
}
