//! Owners that the API server was found not to have, so that it is asked once for the thousands of dependents of an owner.
//! Uids are not used again; entries expire nevertheless, since a restored store has its old objects.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// How long an owner is known to be absent.
const EXPIRES: Duration = Duration::from_secs(30);
/// The maximum number of owners; when it is reached, all are forgotten.
const MAX_REMEMBERED: usize = 500;

/// Kind and name of an owner, and the namespace where it was looked for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    namespace: Option<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AbsentOwners(HashMap<Key, Instant>);

fn key(reference: &OwnerReference, namespace: Option<&str>) -> Key {
    Key {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        uid: reference.uid.clone(),
        namespace: namespace.map(ToOwned::to_owned),
    }
}

impl AbsentOwners {
    pub(super) fn add(&mut self, reference: &OwnerReference, namespace: Option<&str>) {
        self.add_at(reference, namespace, Instant::now());
    }

    pub(super) fn contains(&self, reference: &OwnerReference, namespace: Option<&str>) -> bool {
        self.contains_at(reference, namespace, Instant::now())
    }

    fn add_at(&mut self, reference: &OwnerReference, namespace: Option<&str>, now: Instant) {
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key(reference, namespace), now);
    }

    fn contains_at(
        &self,
        reference: &OwnerReference,
        namespace: Option<&str>,
        now: Instant,
    ) -> bool {
        let since = self.0.get(&key(reference, namespace));
        since.is_some_and(|since| now.duration_since(*since) < EXPIRES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "v1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            ..Default::default()
        }
    }

    #[test]
    fn an_owner_is_absent_for_references_to_it_in_its_namespace_for_half_a_minute() {
        let (mut absent, now) = (AbsentOwners::default(), Instant::now());
        absent.add_at(&owner("ConfigMap", "a", "1"), Some("ns"), now);
        for (reference, namespace, seconds, expected) in [
            (owner("ConfigMap", "a", "1"), Some("ns"), 29, true),
            (owner("ConfigMap", "a", "1"), Some("ns"), 30, false),
            (owner("ConfigMap", "a", "1"), Some("other"), 0, false),
            (owner("ConfigMap", "a", "1"), None, 0, false),
            (owner("ConfigMap", "a", "2"), Some("ns"), 0, false),
            (owner("ConfigMap", "b", "1"), Some("ns"), 0, false),
            (owner("Secret", "a", "1"), Some("ns"), 0, false),
        ] {
            let later = now + Duration::from_secs(seconds);
            let seen = absent.contains_at(&reference, namespace, later);
            assert_eq!(seen, expected, "{reference:?} {namespace:?} {seconds}");
        }
    }

    #[test]
    fn few_owners_are_remembered() {
        let (mut absent, now) = (AbsentOwners::default(), Instant::now());
        for number in 0..10 * MAX_REMEMBERED {
            let name = number.to_string();
            absent.add_at(&owner("ConfigMap", &name, &name), None, now);
            assert!(absent.0.len() <= MAX_REMEMBERED);
            assert!(absent.contains_at(&owner("ConfigMap", &name, &name), None, now));
        }
    }
}
