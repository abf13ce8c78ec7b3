//! What happens to an object, by the state of its owners. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// It exists.
    Solid,
    /// It is being deleted in the foreground and waits for its dependents.
    WaitsForDependents,
    /// It does not exist.
    Absent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// Other owners remain: only remove these references.
    Trim(Vec<String>),
    Delete {
        /// Whether its own dependents are deleted first.
        foreground: bool,
    },
}

pub(super) fn decide(
    owners: &[(OwnerReference, Owner)],
    has_dependents: impl Fn() -> bool,
) -> Verdict {
    let of = |wanted: Owner| owners.iter().filter(move |(_, state)| *state == wanted);
    // Owners that are absent or waiting no longer keep the object.
    let leaving: Vec<String> = of(Owner::Absent)
        .chain(of(Owner::WaitsForDependents))
        .map(|(reference, _)| reference.uid.clone())
        .collect();
    if leaving.is_empty() {
        return Verdict::Keep;
    }
    if of(Owner::Solid).next().is_some() {
        return Verdict::Trim(leaving);
    }
    let waits = of(Owner::WaitsForDependents).next().is_some();
    Verdict::Delete {
        foreground: waits && has_dependents(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(states: &[Owner], has_dependents: bool) -> Verdict {
        let owner = |(number, state): (usize, &Owner)| {
            (
                OwnerReference {
                    uid: number.to_string(),
                    ..Default::default()
                },
                *state,
            )
        };
        let owners: Vec<_> = states.iter().enumerate().map(owner).collect();
        decide(&owners, || has_dependents)
    }

    #[test]
    fn an_object_is_kept_while_an_owner_exists_and_dangling_references_are_removed() {
        use Owner::{Absent, Solid, WaitsForDependents};
        assert_eq!(verdict(&[], false), Verdict::Keep);
        assert_eq!(verdict(&[Solid, Solid], false), Verdict::Keep);
        assert_eq!(
            verdict(&[Solid, Absent], false),
            Verdict::Trim(vec!["1".into()])
        );
        assert_eq!(
            verdict(&[WaitsForDependents, Solid], true),
            Verdict::Trim(vec!["0".into()])
        );
    }

    #[test]
    fn an_object_without_owners_is_deleted_in_the_foreground_if_its_owner_waits() {
        use Owner::{Absent, WaitsForDependents};
        assert_eq!(
            verdict(&[Absent], true),
            Verdict::Delete { foreground: false }
        );
        assert_eq!(
            verdict(&[WaitsForDependents], true),
            Verdict::Delete { foreground: true }
        );
        assert_eq!(
            verdict(&[WaitsForDependents], false),
            Verdict::Delete { foreground: false }
        );
    }
}
