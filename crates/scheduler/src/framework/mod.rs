//! The scheduling framework: the extension points of upstream's scheduler as one trait, with
//! nothing done at those that a plugin leaves out. Filters and scores take many nodes at once.

pub mod candidates;
pub mod event;
pub mod profile;

use std::{any::Any, borrow::Cow, collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;

use crate::{
    cluster::{Cluster, Slot},
    cycle::{Cycle, Dice, Failure},
    pod::PodInfo,
    write::Writes,
};
use candidates::Candidates;
use event::{Event, EventKind};

/// The best score that a plugin can give.
pub const BEST: i64 = 100;

/// Extension points, as configurations name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Before a pod may be tried.
    PreEnqueue,
    /// Which pod is tried next.
    QueueSort,
    /// Once for a pod, before nodes are looked at.
    PreFilter,
    /// Which nodes can hold the pod.
    Filter,
    /// When none can.
    PostFilter,
    /// Once for a pod, before nodes are compared.
    PreScore,
    /// How good each node is.
    Score,
    /// The pod was given a node.
    Reserve,
    /// May it be bound now?
    Permit,
    /// Before it is bound.
    PreBind,
    /// Binds it.
    Bind,
    /// After it was bound.
    PostBind,
}

impl Point {
    /// As configurations and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreEnqueue => "PreEnqueue",
            Self::QueueSort => "QueueSort",
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// What a plugin works out for one pod before it filters.
pub trait State: Any + Send {
    /// Another pod comes to a node (`sign` 1) or leaves it (-1) while it is tried what would fit.
    fn shift(&mut self, _change: &Shift<'_>) {}

    /// For the plugin, which knows its own type.
    fn as_any(&self) -> &dyn Any;
}

impl State for () {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Another pod that comes to a node or leaves it, in a trial.
#[derive(Debug)]
pub struct Shift<'a> {
    /// The pod that is being scheduled.
    pub pod: &'a PodInfo,
    /// The pod that comes or goes.
    pub other: &'a PodInfo,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The node.
    pub slot: Slot,
    /// 1 or -1.
    pub sign: i64,
}

/// What came of PreFilter.
pub enum PreFilter {
    /// The pod does not concern this plugin: its Filter is not asked.
    Skip,
    /// Filter is asked, with this state.
    Continue(Box<dyn State>),
    /// The same, and only these nodes are looked at.
    Only(BTreeSet<String>, Box<dyn State>),
    /// No node can hold the pod; whether removing pods could help.
    Reject(Cow<'static, str>, bool),
}

impl PreFilter {
    /// As metrics name it.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Skip => "Skip",
            Self::Continue(_) | Self::Only(..) => "Success",
            Self::Reject(..) => "Unschedulable",
        }
    }
}

/// What came of PostFilter.
pub enum PostFilter {
    /// A node is freed by deleting these pods.
    Nominate {
        /// The node.
        slot: Slot,
        /// The pods that must go, the most important first.
        victims: Vec<Arc<PodInfo>>,
    },
    /// Nothing was found; and whether an old nomination no longer holds.
    Nothing {
        /// Appended to the pod's condition.
        message: String,
        /// Clears `nominatedNodeName`.
        clear: bool,
    },
}

/// What came of Permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// Go on.
    Allow,
    /// The pod must be scheduled anew.
    Reject(String),
}

/// Fails a binding; the pod is tried again.
pub type BindResult = Result<(), kube::Error>;

/// A rule.
pub trait Plugin: Send + Sync {
    /// As in configurations and diagnoses.
    fn name(&self) -> &'static str;

    /// Where it takes part.
    fn points(&self) -> &'static [Point];

    /// Makes what the plugin reads of the cluster for this pod: columns, counts.
    fn prepare(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    /// Why the pod may not be tried yet.
    fn pre_enqueue(&self, _pod: &PodInfo, _cluster: &Cluster) -> Result<(), String> {
        Ok(())
    }

    /// Looks at the pod before any node.
    fn pre_filter(&self, _pod: &PodInfo, _cluster: &Cluster) -> PreFilter {
        PreFilter::Continue(Box::new(()))
    }

    /// Takes away the candidates that cannot hold the pod.
    fn filter(&self, _: &PodInfo, _: &Cluster, _state: &dyn Any, _: &mut Candidates) {}

    /// Makes room when no node can hold the pod.
    fn post_filter(
        &self,
        _cycle: &mut Cycle<'_>,
        _cluster: &mut Cluster,
        _failure: &Failure,
        _dice: &mut Dice,
    ) -> Option<PostFilter> {
        None
    }

    /// Looks at the nodes that are left; `None` when all are equally good.
    fn pre_score(&self, _: &PodInfo, _: &Cluster, _nodes: &[Slot]) -> Option<Box<dyn Any>> {
        None
    }

    /// A number for each node.
    fn score(&self, _: &PodInfo, _: &Cluster, _state: &dyn Any, _: &[Slot], _: &mut [i64]) {}

    /// Whether what Filter and Score say of a node follows from the pod's template and this node alone,
    /// or from what changes [`Cluster::epoch`]. It is remembered then until the node changes. PreScore and
    /// `normalize` of such a plugin do not look at the nodes or the state.
    fn is_local(&self) -> bool {
        false
    }

    /// Whether `normalize` changes scores.
    fn normalizes(&self) -> bool {
        true
    }

    /// Brings the numbers between 0 and [`BEST`].
    fn normalize(&self, _state: &dyn Any, _scores: &mut [i64]) {}

    /// The pod was given a node; an error undoes it.
    fn reserve(&self, _pod: &PodInfo, _cluster: &Cluster, _slot: Slot) -> Result<(), String> {
        Ok(())
    }

    /// The pod lost its node again.
    fn unreserve(&self, _pod: &PodInfo, _slot: Slot) {}

    /// May the pod be bound?
    fn permit(&self, _pod: &PodInfo, _cluster: &Cluster, _slot: Slot) -> Permit {
        Permit::Allow
    }

    /// Before the pod is bound.
    fn pre_bind<'a>(
        &'a self,
        _: &'a Writes,
        _: &'a PodInfo,
        _: &'a str,
    ) -> BoxFuture<'a, BindResult> {
        Box::pin(async { Ok(()) })
    }

    /// Binds the pod, or leaves it to the next plugin.
    fn bind<'a>(
        &'a self,
        _writes: &'a Writes,
        _pod: &'a PodInfo,
        _node: &'a str,
    ) -> BoxFuture<'a, Option<BindResult>> {
        Box::pin(async { None })
    }

    /// The pod is bound.
    fn post_bind(&self, _pod: &PodInfo, _node: &str) {}

    /// The events that could help a pod that this plugin turned away.
    fn events(&self) -> &'static [EventKind] {
        &[]
    }

    /// Whether one of its events could help this pod.
    fn is_helped_by(&self, _pod: &PodInfo, _event: &Event<'_>, _cluster: &Cluster) -> bool {
        false
    }
}

/// Stretches scores so that the highest becomes [`BEST`]; `reverse` makes few the best.
pub(crate) fn normalize(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let stretched = if highest > 0 {
            *score * BEST / highest
        } else {
            0
        };
        *score = if reverse { BEST - stretched } else { stretched };
    }
}
