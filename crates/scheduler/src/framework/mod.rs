//! The scheduling framework: the extension points of upstream's scheduler as one trait with default
//! implementations that do nothing. Filter and Score take many nodes at once.

pub mod candidates;
pub mod event;
pub mod profile;

use std::{any::Any, borrow::Cow, collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::{
    cluster::{Cluster, Slot},
    cycle::{Cycle, Failure, SeededRng},
    plugins::dynamic_resources::Pending,
    pod::PodInfo,
    write::{Release, Writes},
};
use candidates::Candidates;
use event::{Event, EventKind};

/// The maximum score of a plugin.
pub const BEST: i64 = 100;

/// Extension points, as configurations name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Before a pod enters the active queue.
    PreEnqueue,
    /// The order of the active queue.
    QueueSort,
    /// Once per pod, before nodes are evaluated.
    PreFilter,
    /// Which nodes are feasible.
    Filter,
    /// When none is feasible.
    PostFilter,
    /// Once per pod, before nodes are scored.
    PreScore,
    /// The score of each node.
    Score,
    /// A node was chosen.
    Reserve,
    /// Whether the pod may be bound now.
    Permit,
    /// Before the pod is bound.
    PreBind,
    /// Binds the pod.
    Bind,
    /// After the pod was bound.
    PostBind,
}

impl Point {
    /// The name in configurations and metrics.
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
    /// Updates the state when another pod is added to a node (`sign` 1) or removed (-1) in a trial.
    fn shift(&mut self, _change: &Shift<'_>) {}

    /// For downcasting by the plugin.
    fn as_any(&self) -> &dyn Any;
}

impl State for () {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Another pod that is added to a node or removed in a trial.
#[derive(Debug)]
pub struct Shift<'a> {
    /// The pod that is being scheduled.
    pub pod: &'a PodInfo,
    /// The pod that is added or removed.
    pub other: &'a PodInfo,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The node.
    pub slot: Slot,
    /// 1 or -1.
    pub sign: i64,
}

/// The result of PreFilter.
pub enum PreFilter {
    /// The pod does not concern this plugin: its Filter is skipped.
    Skip,
    /// Run Filter with this state.
    Continue(Box<dyn State>),
    /// The same, on these nodes only.
    Only(BTreeSet<String>, Box<dyn State>),
    /// No node is feasible; whether preemption could help.
    Reject(Cow<'static, str>, bool),
}

impl PreFilter {
    /// The name in metrics.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Skip => "Skip",
            Self::Continue(_) | Self::Only(..) => "Success",
            Self::Reject(..) => "Unschedulable",
        }
    }
}

/// The result of PostFilter.
pub enum PostFilter {
    /// Preempt these pods on a node.
    Nominate {
        /// The node.
        slot: Slot,
        /// The victims, in descending order of importance.
        victims: Vec<Arc<PodInfo>>,
    },
    /// No victims were found.
    Nothing {
        /// Appended to the pod's condition.
        message: String,
        /// Whether to clear `nominatedNodeName`.
        clear: bool,
    },
    /// Other plugins are asked, too.
    Message {
        /// Appended to the pod's condition.
        message: String,
        /// A claim to release in the background.
        release: Option<Release>,
    },
}

/// The result of Permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// Continue.
    Allow,
    /// The pod must be scheduled again.
    Reject(String),
}

/// An error fails the binding; the pod is scheduled again.
pub type BindResult = Result<(), kube::Error>;

/// What the plugins of all profiles share while one scheduling loop runs.
#[derive(Default)]
pub struct LoopState {
    /// Guards the device allocations that are being written.
    pub(crate) pending_devices: Arc<Mutex<Pending>>,
}

/// A scheduling plugin.
pub trait Plugin: Send + Sync {
    /// The name in configurations and diagnoses.
    fn name(&self) -> &'static str;

    /// The extension points that it implements.
    fn points(&self) -> &'static [Point];

    /// The plugin for a new scheduling loop, if it shares state with other profiles.
    fn for_loop(&self, _state: &LoopState) -> Option<Arc<dyn Plugin>> {
        None
    }

    /// Prepares what the plugin reads of the cluster for this pod: columns, counts.
    fn prepare(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    /// Fails with the reason if the pod must not be scheduled yet.
    fn pre_enqueue(&self, _pod: &PodInfo, _cluster: &Cluster) -> Result<(), String> {
        Ok(())
    }

    /// Evaluates the pod before any node.
    fn pre_filter(&self, _pod: &PodInfo, _cluster: &Cluster) -> PreFilter {
        PreFilter::Continue(Box::new(()))
    }

    /// Rejects the candidates that are not feasible.
    fn filter(&self, _: &PodInfo, _: &Cluster, _state: &dyn Any, _: &mut Candidates) {}

    /// Finds victims when no node is feasible.
    fn post_filter(
        &self,
        _cycle: &mut Cycle<'_>,
        _cluster: &mut Cluster,
        _failure: &Failure,
        _dice: &mut SeededRng,
    ) -> Option<PostFilter> {
        None
    }

    /// Evaluates the feasible nodes; `None` if all have the same score.
    fn pre_score(&self, _: &PodInfo, _: &Cluster, _nodes: &[Slot]) -> Option<Box<dyn Any>> {
        None
    }

    /// Scores each node.
    fn score(&self, _: &PodInfo, _: &Cluster, _state: &dyn Any, _: &[Slot], _: &mut [i64]) {}

    /// Whether the results of Filter and Score for a node depend only on the pod's template and
    /// this node, or on what changes [`Cluster::epoch`]. They are then cached until the node
    /// changes. PreScore and `normalize` of such a plugin must not read the nodes or the state.
    fn is_local(&self) -> bool {
        false
    }

    /// Whether `normalize` changes scores.
    fn normalizes(&self) -> bool {
        true
    }

    /// Scales the scores to 0 to [`BEST`].
    fn normalize(&self, _state: &dyn Any, _scores: &mut [i64]) {}

    /// A node was chosen; an error undoes it.
    fn reserve(&self, _pod: &PodInfo, _cluster: &Cluster, _slot: Slot) -> Result<(), String> {
        Ok(())
    }

    /// Undoes `reserve`.
    fn unreserve(&self, _pod: &PodInfo, _slot: Slot) {}

    /// Whether the pod may be bound.
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

    /// Undoes what PreBind has written, when the pod was not bound.
    fn roll_back<'a>(&'a self, _: &'a Writes, _: &'a PodInfo) -> BoxFuture<'a, ()> {
        Box::pin(async {})
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

    /// The pod was bound.
    fn post_bind(&self, _pod: &PodInfo, _node: &str) {}

    /// The events that could make a pod schedulable that this plugin rejected.
    fn events(&self) -> &'static [EventKind] {
        &[]
    }

    /// Whether the queueing hint reads only the template, the labels and the nomination of the pod: of equal pods without a
    /// nomination only one is asked about.
    fn hints_by_template(&self) -> bool {
        false
    }

    /// The queueing hint: whether an event could make this pod schedulable.
    fn is_helped_by(&self, _pod: &PodInfo, _event: &Event<'_>, _cluster: &Cluster) -> bool {
        false
    }
}

/// Scales scores so that the highest becomes [`BEST`]; `reverse` inverts them.
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
