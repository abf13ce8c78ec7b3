//! The nodes that are still feasible for a pod, and why the others were rejected.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use crate::cluster::Slot;

/// Why a plugin rejected a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The node.
    pub slot: Slot,
    /// The plugin's name.
    pub plugin: &'static str,
    /// In Kubernetes' words; several if several resources are missing.
    pub reasons: Arc<[Cow<'static, str>]>,
    /// Whether preemption could help.
    pub resolvable: bool,
}

/// Feasible and rejected nodes.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    left: Vec<Slot>,
    rejected: Vec<Rejection>,
    /// Whether reasons are discarded.
    quiet: bool,
    /// Why the attempt is given up.
    error: Option<String>,
}

impl Candidates {
    /// Starts with these nodes.
    pub fn new(slots: Vec<Slot>) -> Self {
        Self {
            left: slots,
            ..Self::default()
        }
    }

    /// Starts with these nodes; reasons are discarded.
    pub fn quiet(slots: Vec<Slot>) -> Self {
        Self {
            left: slots,
            quiet: true,
            ..Self::default()
        }
    }

    /// The feasible nodes.
    pub fn slots(&self) -> &[Slot] {
        &self.left
    }

    /// The rejected nodes.
    pub fn rejected(&self) -> &[Rejection] {
        &self.rejected
    }

    /// Feasible and rejected nodes.
    pub fn into_parts(self) -> (Vec<Slot>, Vec<Rejection>) {
        (self.left, self.rejected)
    }

    /// Keeps the nodes for which `judge` returns no reason.
    pub fn retain(
        &mut self,
        plugin: &'static str,
        resolvable: bool,
        judge: impl Fn(Slot) -> Option<&'static str>,
    ) {
        self.retain_each(plugin, |slot| {
            judge(slot).map(|reason| (reason, resolvable))
        });
    }

    /// The same, and for each rejected node whether preemption could help.
    pub fn retain_each(
        &mut self,
        plugin: &'static str,
        judge: impl Fn(Slot) -> Option<(&'static str, bool)>,
    ) {
        if self.quiet {
            return self.left.retain(|slot| judge(*slot).is_none());
        }
        self.retain_with(plugin, |slot| {
            let (reason, resolvable) = judge(slot)?;
            Some((vec![Cow::Borrowed(reason)], resolvable))
        });
    }

    /// The same with several reasons.
    pub fn retain_with(
        &mut self,
        plugin: &'static str,
        judge: impl Fn(Slot) -> Option<(Vec<Cow<'static, str>>, bool)>,
    ) {
        if self.quiet {
            return self.left.retain(|slot| judge(*slot).is_none());
        }
        let rejected = &mut self.rejected;
        self.left.retain(|slot| match judge(*slot) {
            None => true,
            Some((reasons, resolvable)) => {
                rejected.push(Rejection {
                    slot: *slot,
                    plugin,
                    reasons: reasons.into(),
                    resolvable,
                });
                false
            }
        });
    }

    /// Gives up the attempt: something is wrong that no other node changes.
    pub fn fail(&mut self, why: String) {
        self.left.clear();
        self.error.get_or_insert(why);
    }

    /// Why the attempt is given up.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    /// Rejects nodes, which are in the order of the feasible ones.
    pub fn reject_all(&mut self, rejections: Vec<Rejection>) {
        let mut next = rejections.iter().map(|rejection| rejection.slot).peekable();
        self.left.retain(|slot| next.next_if_eq(slot).is_none());
        self.rejected.extend(rejections);
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
pub fn histogram<'a>(total: usize, reasons: impl Iterator<Item = (&'a str, usize)>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut run: (&str, usize) = ("", 0);
    for (reason, count) in reasons {
        // Most nodes are rejected for the same reason as the one before.
        if reason == run.0 {
            run.1 += count;
            continue;
        }
        let (before, sum) = std::mem::replace(&mut run, (reason, count));
        if sum > 0 {
            *counts.entry(before).or_default() += sum;
        }
    }
    if run.1 > 0 {
        *counts.entry(run.0).or_default() += run.1;
    }
    let mut parts: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    let start = format!("0/{total} nodes are available:");
    if parts.is_empty() {
        start
    } else {
        format!("{start} {}.", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_rejected_together_leave_the_others_in_order() {
        let rejection = |slot| Rejection {
            slot,
            plugin: "Fit",
            reasons: Arc::from([Cow::Borrowed("full")]),
            resolvable: true,
        };
        for (rejected, left) in [
            (vec![], vec![4, 1, 3, 2]),
            (vec![4, 2], vec![1, 3]),
            (vec![1, 3], vec![4, 2]),
            (vec![4, 1, 3, 2], vec![]),
        ] {
            let mut candidates = Candidates::new(vec![4, 1, 3, 2]);
            candidates.reject_all(rejected.iter().copied().map(rejection).collect());
            let (now, why) = candidates.into_parts();
            assert_eq!(now, left, "{rejected:?}");
            assert_eq!(why, rejected.into_iter().map(rejection).collect::<Vec<_>>());
        }
    }
}
