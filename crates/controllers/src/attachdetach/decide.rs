//! The next steps for the volume attachments of one node. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{AttachedVolume, ObjectReference};

/// The start of the names of CSI volumes in the status of nodes.
pub(super) const CSI_PREFIX: &str = "kubernetes.io/csi/";

/// How long a volume in use stays attached to a node that is not ready.
pub(super) const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);

/// The node as the decision sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Host {
    /// Its kubelet attaches volumes itself: this controller ignores it.
    NotManaged,
    /// The node was deleted. `in_use` is its last `volumesInUse`; `None` if unknown.
    Gone {
        /// Names of volumes.
        in_use: Option<BTreeSet<String>>,
    },
    /// The node exists.
    Present {
        /// The condition Ready is True.
        is_ready: bool,
        /// It has the taint node.kubernetes.io/out-of-service.
        is_out_of_service: bool,
        /// `volumesInUse`.
        in_use: BTreeSet<String>,
        /// `volumesAttached`.
        reported: Vec<AttachedVolume>,
    },
}

impl Host {
    fn uses(&self, volume: &str) -> bool {
        match self {
            Self::NotManaged => true,
            Self::Gone { in_use } => in_use.as_ref().is_none_or(|used| used.contains(volume)),
            Self::Present { in_use, .. } => in_use.contains(volume),
        }
    }

    /// The volumes that the node reports as used or attached.
    pub(super) fn volumes(&self) -> impl Iterator<Item = &str> {
        let (used, attached) = match self {
            Self::NotManaged => (None, &[][..]),
            Self::Gone { in_use } => (in_use.as_ref(), &[][..]),
            Self::Present {
                in_use, reported, ..
            } => (Some(in_use), &reported[..]),
        };
        let attached = attached.iter().map(|volume| volume.name.as_str());
        let used = used.into_iter().flatten();
        used.map(String::as_str).chain(attached)
    }

    fn is_ready(&self) -> bool {
        matches!(self, Self::Present { is_ready: true, .. })
    }

    /// Why a volume in use is detached, in the words of upstream's metric.
    pub(super) fn force_detach_reason(&self) -> &'static str {
        match self.is_out_of_service() {
            true => "out-of-service",
            false => "timeout",
        }
    }

    fn is_out_of_service(&self) -> bool {
        matches!(
            self,
            Self::Present {
                is_out_of_service: true,
                ..
            }
        )
    }
}

/// A volume that pods of the node need.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Desired {
    /// The PersistentVolume.
    pub volume: String,
    /// The CSI driver.
    pub driver: String,
    /// The driver's volume handle.
    pub handle: String,
    /// Whether several nodes may attach it at once.
    pub is_shared: bool,
    /// The pods that need it.
    pub pods: Vec<ObjectReference>,
    /// Other nodes that have it attached.
    pub elsewhere: BTreeSet<String>,
    /// The pods on those nodes that need it.
    pub rivals: Vec<ObjectReference>,
}

/// The name of a CSI volume in the status of nodes.
pub(super) fn unique_name(driver: &str, handle: &str) -> String {
    format!("{CSI_PREFIX}{driver}^{handle}")
}

/// A VolumeAttachment of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachment {
    /// Its name.
    pub name: String,
    /// The PersistentVolume.
    pub volume: String,
    /// The name in node statuses; `None` if the PersistentVolume is gone and the node does not report
    /// the volume.
    pub unique_name: Option<String>,
    /// `status.attached`, which the driver sets.
    pub is_attached: bool,
    /// Whether it has a deletion timestamp.
    pub is_leaving: bool,
    /// The attach error.
    pub error: Option<String>,
}

/// The inputs of a decision about one node.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// The node.
    pub host: Host,
    /// By unique name.
    pub desired: BTreeMap<String, Desired>,
    /// All attachments of the node.
    pub attachments: Vec<Attachment>,
    /// Since when volumes wait to be detached, by attachment.
    pub waiting_since: BTreeMap<String, Timestamp>,
    /// Now.
    pub now: Timestamp,
}

/// The steps for a node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The new `volumesAttached`, if it changes. It is written before anything is detached.
    pub report: Option<Vec<AttachedVolume>>,
    /// Attachments to delete; true if the API server must confirm first that the node does not use
    /// the volume.
    pub detach: Vec<(String, bool)>,
    /// Volumes to attach.
    pub attach: Vec<Desired>,
    /// Volumes that another node has attached.
    pub blocked: Vec<Desired>,
    /// Failed attachments, with their volumes and errors.
    pub failed: Vec<(Desired, String)>,
    /// Attachments that wait to be detached, and since when.
    pub waiting: BTreeMap<String, Timestamp>,
    /// When to reconcile again if nothing happens before.
    pub look_again: Option<Duration>,
}

/// Decides the steps for a node.
pub(super) fn decide(view: &View) -> Plan {
    if view.host == Host::NotManaged {
        return Plan::default();
    }
    let mut plan = Plan::default();
    let mut detach = Vec::new();
    for attachment in view.attachments.iter().filter(|known| !known.is_leaving) {
        if wanted(view, attachment).is_some() {
            continue;
        }
        let since = view.waiting_since.get(&attachment.name);
        let since = since.copied().unwrap_or(view.now);
        plan.waiting.insert(attachment.name.clone(), since);
        match may_detach(view, attachment, since) {
            Ok(must_confirm) => detach.push((attachment, must_confirm)),
            Err(left) => {
                let soonest = plan.look_again.map_or(left, |other| other.min(left));
                plan.look_again = Some(soonest);
            }
        }
    }
    let report = report(view, &detach);
    if let Host::Present { reported, .. } = &view.host {
        plan.report = (*reported != report).then_some(report);
    }
    let names = detach.into_iter();
    plan.detach = names
        .map(|(one, confirm)| (one.name.clone(), confirm))
        .collect();
    if matches!(view.host, Host::Present { .. }) {
        attach(view, &mut plan);
    }
    plan
}

fn wanted<'a>(view: &'a View, attachment: &Attachment) -> Option<&'a Desired> {
    // Not by PersistentVolume: several of them may have one handle, and thereby one attachment.
    view.desired.get(attachment.unique_name.as_ref()?)
}

/// `Ok` if the volume may be detached, with true if the node must confirm it first; otherwise how
/// long to wait at most.
fn may_detach(view: &View, attachment: &Attachment, since: Timestamp) -> Result<bool, Duration> {
    let waited = Duration::try_from(view.now.duration_since(since)).unwrap_or_default();
    let is_overdue = waited >= MAX_WAIT_FOR_UNMOUNT;
    let is_forced = view.host.is_out_of_service() || (is_overdue && !view.host.is_ready());
    let name = attachment.unique_name.as_deref();
    // Without its PersistentVolume the volume's name is unknown: it waits until the timeout.
    let is_used = name.map_or(!view.host.is_ready(), |name| view.host.uses(name));
    if !is_used || is_forced {
        return Ok(!is_forced);
    }
    let left = MAX_WAIT_FOR_UNMOUNT.saturating_sub(waited);
    Err(left.max(Duration::from_secs(1)))
}

/// The new `volumesAttached`: everything that is attached and stays.
fn report(view: &View, detach: &[(&Attachment, bool)]) -> Vec<AttachedVolume> {
    let stays = |attachment: &&Attachment| {
        attachment.is_attached
            && !attachment.is_leaving
            && detach
                .iter()
                .all(|(other, _)| other.name != attachment.name)
    };
    let attached = view.attachments.iter().filter(stays);
    let names: BTreeSet<&String> = attached.filter_map(|a| a.unique_name.as_ref()).collect();
    let volume = |name: &String| AttachedVolume {
        name: name.clone(),
        device_path: String::new(),
    };
    names.into_iter().map(volume).collect()
}

fn attach(view: &View, plan: &mut Plan) {
    for (unique, desired) in &view.desired {
        let mut known = view.attachments.iter();
        let known = known.find(|one| one.unique_name.as_ref() == Some(unique));
        match known {
            // It is attached again once the driver has detached it.
            Some(known) if known.is_leaving => {}
            Some(known) => {
                let error = known.error.clone().filter(|_| !known.is_attached);
                plan.failed.extend(error.map(|why| (desired.clone(), why)));
            }
            None if !desired.is_shared && !desired.elsewhere.is_empty() => {
                plan.blocked.push(desired.clone());
            }
            None => plan.attach.push(desired.clone()),
        }
    }
}

/// The event message for a pod whose volume another node has. Names of pods in other namespaces are
/// not shown.
pub(super) fn blocked_message(desired: &Desired, pod: &ObjectReference) -> String {
    let volume = &desired.volume;
    let why = if desired.rivals.is_empty() {
        "Volume is already exclusively attached to one node, waiting on detach before it can be \
         attached to another node"
            .to_owned()
    } else {
        let is_local = |rival: &&ObjectReference| rival.namespace == pod.namespace;
        let local = desired.rivals.iter().filter(is_local);
        let local: Vec<&str> = local.filter_map(|rival| rival.name.as_deref()).collect();
        let others = desired.rivals.len() - local.len();
        let used = "Volume is already used by";
        match (local.is_empty(), others) {
            (true, _) => format!("{used} {others} pod(s) in different namespaces"),
            (false, 0) => format!("{used} pod(s) {}", local.join(", ")),
            (false, _) => {
                let names = local.join(", ");
                format!("{used} pod(s) {names} and {others} pod(s) in different namespaces")
            }
        }
    };
    format!("Waiting for detach for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn pod(namespace: &str, name: &str) -> ObjectReference {
        ObjectReference {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            ..ObjectReference::default()
        }
    }

    fn desired(name: &str) -> Desired {
        Desired {
            volume: format!("pv-{name}"),
            driver: "x.io".into(),
            handle: name.into(),
            is_shared: false,
            pods: vec![pod("default", "a")],
            elsewhere: BTreeSet::new(),
            rivals: Vec::new(),
        }
    }

    fn attachment(name: &str) -> Attachment {
        Attachment {
            name: format!("csi-{name}"),
            volume: format!("pv-{name}"),
            unique_name: Some(unique_name("x.io", name)),
            is_attached: true,
            is_leaving: false,
            error: None,
        }
    }

    fn reported(names: &[&str]) -> Vec<AttachedVolume> {
        let volume = |name: &&str| AttachedVolume {
            name: unique_name("x.io", name),
            device_path: String::new(),
        };
        names.iter().map(volume).collect()
    }

    fn host(in_use: &[&str], reported_volumes: &[&str]) -> Host {
        Host::Present {
            is_ready: true,
            is_out_of_service: false,
            in_use: in_use
                .iter()
                .map(|name| unique_name("x.io", name))
                .collect(),
            reported: reported(reported_volumes),
        }
    }

    fn view(host: Host, wanted: &[Desired], attachments: &[Attachment]) -> View {
        let wanted = wanted
            .iter()
            .map(|one| (unique_name(&one.driver, &one.handle), one.clone()));
        View {
            host,
            desired: wanted.collect(),
            attachments: attachments.to_vec(),
            waiting_since: BTreeMap::new(),
            now: at(1000),
        }
    }

    #[test]
    fn a_volume_is_attached_and_reported_only_when_the_driver_has_attached_it() {
        let plan = decide(&view(host(&[], &[]), &[desired("a")], &[]));
        assert_eq!(plan.attach, [desired("a")]);
        assert_eq!(plan.report, None);
        let mut pending = attachment("a");
        pending.is_attached = false;
        let plan = decide(&view(
            host(&[], &[]),
            &[desired("a")],
            std::slice::from_ref(&pending),
        ));
        assert_eq!(plan, Plan::default());
        let plan = decide(&view(host(&[], &[]), &[desired("a")], &[attachment("a")]));
        assert_eq!(plan.report, Some(reported(&["a"])));
        let plan = decide(&view(
            host(&[], &["a"]),
            &[desired("a")],
            &[attachment("a")],
        ));
        assert_eq!(plan, Plan::default());
        pending.error = Some("no".into());
        let plan = decide(&view(host(&[], &[]), &[desired("a")], &[pending]));
        assert_eq!(plan.failed, [(desired("a"), "no".to_owned())]);
    }

    #[test]
    fn a_volume_in_use_stays_until_the_node_is_done_with_it() {
        let used = view(host(&["a"], &["a"]), &[], &[attachment("a")]);
        let plan = decide(&used);
        assert_eq!((plan.detach.as_slice(), plan.report), (&[][..], None));
        assert_eq!(plan.waiting["csi-a"], at(1000));
        assert_eq!(plan.look_again, Some(MAX_WAIT_FOR_UNMOUNT));
        let free = view(host(&[], &["a"]), &[], &[attachment("a")]);
        let plan = decide(&free);
        assert_eq!(plan.report, Some(Vec::new()), "the node is updated first");
        assert_eq!(plan.detach, [("csi-a".to_owned(), true)]);
        let mut leaving = attachment("a");
        leaving.is_leaving = true;
        let plan = decide(&view(host(&[], &[]), &[], &[leaving]));
        assert_eq!(plan, Plan::default(), "it is asked for once");
    }

    #[test]
    fn an_attachment_serves_every_volume_with_its_handle() {
        let mut other = desired("a");
        other.volume = "pv-second".to_owned();
        let mut view = view(host(&["a"], &["a"]), &[other], &[attachment("a")]);
        let Host::Present { is_ready, .. } = &mut view.host else {
            panic!();
        };
        *is_ready = false;
        view.waiting_since = [("csi-a".to_owned(), at(0))].into();
        assert_eq!(decide(&view), Plan::default());
    }

    #[test]
    fn force_is_used_only_on_a_node_that_is_not_ready_for_six_minutes_or_out_of_service() {
        let late = |is_ready, is_out_of_service, waited: i64| {
            let host = Host::Present {
                is_ready,
                is_out_of_service,
                in_use: [unique_name("x.io", "a")].into(),
                reported: Vec::new(),
            };
            let mut view = view(host, &[], &[attachment("a")]);
            view.waiting_since = [("csi-a".to_owned(), at(1000 - waited))].into();
            decide(&view).detach
        };
        let forced = [("csi-a".to_owned(), false)];
        assert_eq!(
            late(true, false, 1000),
            [],
            "a node that answers is believed"
        );
        assert_eq!(late(false, false, 359), []);
        assert_eq!(late(false, false, 360), forced);
        assert_eq!(late(true, true, 0), forced);
    }

    #[test]
    fn unused_volumes_of_a_deleted_node_are_detached() {
        let gone = |in_use, waited: i64| {
            let mut view = view(Host::Gone { in_use }, &[], &[attachment("a")]);
            view.waiting_since = [("csi-a".to_owned(), at(1000 - waited))].into();
            decide(&view).detach.len()
        };
        assert_eq!(gone(Some(BTreeSet::new()), 0), 1);
        assert_eq!(gone(None, 0), 0);
        assert_eq!(gone(None, 360), 1);
    }

    #[test]
    fn a_node_whose_kubelet_attaches_is_left_alone() {
        let plan = decide(&view(Host::NotManaged, &[desired("a")], &[attachment("b")]));
        assert_eq!(plan, Plan::default());
    }

    #[test]
    fn a_volume_that_another_node_has_waits_unless_it_can_be_shared() {
        let mut taken = desired("a");
        taken.elsewhere = ["n2".to_owned()].into();
        let plan = decide(&view(host(&[], &[]), std::slice::from_ref(&taken), &[]));
        assert_eq!((plan.attach.len(), plan.blocked.len()), (0, 1));
        taken.is_shared = true;
        let plan = decide(&view(host(&[], &[]), &[taken], &[]));
        assert_eq!((plan.attach.len(), plan.blocked.len()), (1, 0));
    }

    #[test]
    fn the_message_of_a_blocked_attach_names_the_pods_that_have_the_volume() {
        let mut taken = desired("a");
        let me = pod("default", "me");
        let start = "Waiting for detach for volume \"pv-a\" Volume is already";
        let message = blocked_message(&taken, &me);
        let end = "exclusively attached to one node, waiting on detach before it can be \
                   attached to another node";
        assert_eq!(message, format!("{start} {end}"));
        taken.rivals = vec![pod("other", "x")];
        let message = blocked_message(&taken, &me);
        assert_eq!(
            message,
            format!("{start} used by 1 pod(s) in different namespaces")
        );
        taken.rivals.push(pod("default", "b"));
        let message = blocked_message(&taken, &me);
        let end = "used by pod(s) b and 1 pod(s) in different namespaces";
        assert_eq!(message, format!("{start} {end}"));
    }
}
