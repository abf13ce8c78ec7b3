//! The API servers of one cluster. Clients share the list and which one answered last: if a server
//! is gone, one client finds out for all.

use std::sync::Arc;

use http::Uri;
use parking_lot::Mutex;

/// A list that can change while clients use it. Clones share it.
#[derive(Clone, Default)]
pub struct Servers {
    /// Guards the list; never held across an await.
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    known: Vec<Uri>,
    preferred: Option<Uri>,
}

impl Servers {
    /// From addresses `https://HOST:PORT`; invalid ones are skipped.
    pub fn new<S: AsRef<str>>(servers: &[S]) -> Self {
        let list = Self::default();
        list.set(servers);
        list
    }

    /// Replaces the list; keeps which server answered last.
    pub fn set<S: AsRef<str>>(&self, servers: &[S]) {
        let parse = |text: &S| {
            let uri: Uri = text.as_ref().parse().ok()?;
            uri.authority().is_some().then_some(uri)
        };
        self.shared.lock().known = servers.iter().filter_map(parse).collect();
    }

    /// Whether more than one is known.
    pub(crate) fn are_several(&self) -> bool {
        self.shared.lock().known.len() > 1
    }

    /// The servers to try, in order: the one that answered last, `named`, and the others.
    pub(crate) fn candidates(&self, named: &Uri) -> Vec<Uri> {
        let shared = self.shared.lock();
        let first = shared.preferred.iter().chain([named]).chain(&shared.known);
        let mut found: Vec<Uri> = Vec::new();
        for uri in first {
            if found
                .iter()
                .all(|known| known.authority() != uri.authority())
            {
                found.push(uri.clone());
            }
        }
        found
    }

    /// This server answered.
    pub(crate) fn prefer(&self, uri: &Uri) {
        self.shared.lock().preferred = Some(uri.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_answered_last_is_tried_first_and_each_server_once() {
        let servers = Servers::new(&["https://a:1", "https://b:1", "no address"]);
        let named: Uri = "https://a:1/path".parse().unwrap();
        let hosts = |servers: &Servers| -> Vec<String> {
            let all = servers.candidates(&named).into_iter();
            all.map(|uri| uri.host().unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(hosts(&servers), ["a", "b"]);
        assert!(servers.are_several());
        servers.prefer(&"https://b:1".parse().unwrap());
        assert_eq!(hosts(&servers), ["b", "a"]);
        servers.clone().set(&["https://c:1"]);
        assert_eq!(hosts(&servers), ["b", "a", "c"]);
    }
}
