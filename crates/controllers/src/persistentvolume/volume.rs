//! The next step for a volume. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use reconcile::{
    Kind,
    storage::{
        BOUND_BY_CONTROLLER, EXTERNAL_FINALIZER, IN_TREE_FINALIZER, PROVISIONED_BY, annotation,
        claim_ref, is_annotated, modes_differ, uid, volume_name,
    },
};

use super::{
    decision::{Change, ClusterView, Decision, Event, MIGRATED_TO, mark_migrated, migrated},
    recycle,
};

/// Decides about a volume; `is_confirmed` if the API server confirmed that its claim is gone.
pub(super) fn decide(
    volume: &PersistentVolume,
    world: &impl ClusterView,
    is_confirmed: bool,
) -> Decision {
    if let Some(changed) = prepared(volume) {
        return Decision::Write(Change::Volume(Box::new(changed)), None);
    }
    let Some(reference) = claim_ref(volume) else {
        return phase(volume, "Available");
    };
    let Some(owner) = uid(reference) else {
        // Reserved: the claim's reconciliation finishes the binding.
        return phase(volume, "Available");
    };
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    let claim = world.claim(namespace, name);
    let claim = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(owner));
    let Some(claim) = claim else {
        return if is_confirmed || is_released(volume) {
            release(volume, world)
        } else {
            Decision::Confirm
        };
    };
    match volume_name(&claim) {
        None if modes_differ(&claim, volume) => {
            let (claim_name, volume_name) = (name, named(volume));
            let about_volume = format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} \
                 due to incompatible volumeMode."
            );
            let about_claim = format!(
                "Cannot bind PersistentVolume {volume_name:?} to requested \
                 PersistentVolumeClaim due to incompatible volumeMode."
            );
            Decision::Rest(vec![
                Event::new(volume, Kind::Warning, "VolumeMismatch", about_volume),
                Event::new(&*claim, Kind::Warning, "VolumeMismatch", about_claim),
            ])
        }
        // The claim's reconciliation finishes the binding.
        None => Decision::DONE,
        Some(bound) if Some(bound) == volume.metadata.name.as_deref() => phase(volume, "Bound"),
        Some(_) if is_annotated(&volume.metadata, PROVISIONED_BY) && policy(volume) == "Delete" => {
            // Provisioned for this claim, which is bound to another volume.
            release(volume, world)
        }
        Some(_) => unbind(volume),
    }
}

fn named(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Retain")
}

fn phase_of(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

fn is_released(volume: &PersistentVolume) -> bool {
    matches!(phase_of(volume), Some("Released" | "Failed"))
}

/// Whether a volume is released and not to be recycled.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    is_released(volume) && policy(volume) != "Recycle"
}

/// The volume in this phase; `None` if it is already.
pub(super) fn with_phase(
    volume: &PersistentVolume,
    phase: &str,
    message: &str,
) -> Option<PersistentVolume> {
    if phase_of(volume) == Some(phase) {
        return None;
    }
    let mut changed = volume.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = Some(message.to_owned()).filter(|message| !message.is_empty());
    Some(changed)
}

fn phase(volume: &PersistentVolume, phase: &str) -> Decision {
    match with_phase(volume, phase, "") {
        Some(changed) => Decision::Write(Change::VolumeStatus(Box::new(changed)), None),
        None => Decision::DONE,
    }
}

/// The volume as Failed, with an event; only once.
pub(super) fn fail(volume: &PersistentVolume, reason: &'static str, message: &str) -> Decision {
    match with_phase(volume, "Failed", message) {
        Some(changed) => {
            let event = Event::new(volume, Kind::Warning, reason, message);
            Decision::Write(
                Change::VolumeStatus(Box::new(changed)),
                Some(Box::new(event)),
            )
        }
        None => Decision::DONE,
    }
}

/// The claim is gone: the volume becomes Released, and the reclaim policy is applied. With
/// Retain, the data is never touched. With Delete, the provisioner deletes it, except that of a
/// hostPath volume without one; with Recycle, a pod empties it.
fn release(volume: &PersistentVolume, world: &impl ClusterView) -> Decision {
    if !is_released(volume) {
        return phase(volume, "Released");
    }
    if is_annotated(&volume.metadata, MIGRATED_TO) {
        return Decision::DONE;
    }
    match policy(volume) {
        "Retain" => Decision::DONE,
        "Recycle" => recycle(volume, world),
        "Delete" => match deleter(volume) {
            Ok(Deleter::Provisioner) => Decision::DONE,
            Ok(Deleter::Binder) => Decision::RemoveHostPath(Box::new(volume.clone())),
            Err(why) => fail(volume, "VolumeFailedDelete", &why),
        },
        _ => fail(
            volume,
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    }
}

/// A released volume with the policy Recycle. A pod may still use it: that of a claim which was
/// deleted without its protection finalizer.
fn recycle(volume: &PersistentVolume, world: &impl ClusterView) -> Decision {
    let Some(reference) = claim_ref(volume) else {
        return Decision::DONE;
    };
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    // Pods use the new claim of that name if there is one, and that one has another volume.
    let pods = match world.claim(namespace, name) {
        Some(_) => Vec::new(),
        None => world.active_pods(namespace, name),
    };
    if !pods.is_empty() {
        let message = format!("Volume is used by pods: {}", pods.join(","));
        let event = Event::new(volume, Kind::Normal, "VolumeFailedRecycle", message);
        return Decision::Rest(vec![event]);
    }
    match recycle::is_recyclable(volume) {
        true => Decision::Recycle(Box::new(volume.clone())),
        false => fail(
            volume,
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!",
        ),
    }
}

/// The component that deletes a volume's data.
enum Deleter {
    Provisioner,
    Binder,
}

/// The deleter of a volume; an error if there is none.
fn deleter(volume: &PersistentVolume) -> Result<Deleter, String> {
    let provisioner = annotation(&volume.metadata, PROVISIONED_BY).filter(|by| !by.is_empty());
    let spec = volume.spec.as_ref();
    let is_host_path = spec.is_some_and(|spec| spec.host_path.is_some());
    match provisioner {
        None | Some("kubernetes.io/host-path") if is_host_path => Ok(Deleter::Binder),
        Some(by) if by.starts_with("kubernetes.io/") => {
            Err(format!("no volume plugin matched name: {by}"))
        }
        Some(_) => Ok(Deleter::Provisioner),
        None if spec.is_some_and(|spec| spec.csi.is_some()) => Ok(Deleter::Provisioner),
        None => Err(format!(
            "error getting deleter volume plugin for volume {:?}: \
             no deletable volume plugin matched",
            named(volume)
        )),
    }
}

/// The volume is bound to a claim that is bound elsewhere: a controller's binding is undone, a
/// user's stays as a reservation.
fn unbind(volume: &PersistentVolume) -> Decision {
    // The next decision updates its phase.
    Decision::Write(Change::Volume(Box::new(unbound(volume))), None)
}

/// The volume without its claim, or reserved for it if a user did so.
pub(super) fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut changed = volume.clone();
    let spec = changed.spec.get_or_insert_default();
    if is_annotated(&volume.metadata, BOUND_BY_CONTROLLER) {
        spec.claim_ref = None;
        let annotations = changed.metadata.annotations.get_or_insert_default();
        annotations.remove(BOUND_BY_CONTROLLER);
    } else if let Some(reference) = &mut spec.claim_ref {
        reference.uid = None;
    }
    changed
}

/// The volume with its migration annotation and the finalizers of its provisioner and reclaim
/// policy; `None` if it has them.
fn prepared(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let mut changed = volume.clone();
    let mut is_changed = mark_migrated(&mut changed.metadata);
    if let Some(finalizers) = finalizers(volume) {
        changed.metadata.finalizers = Some(finalizers);
        is_changed = true;
    }
    is_changed.then_some(changed)
}

fn finalizers(volume: &PersistentVolume) -> Option<Vec<String>> {
    let provisioner = annotation(&volume.metadata, PROVISIONED_BY)?;
    let known = volume.metadata.finalizers.clone().unwrap_or_default();
    let mut wanted = known.clone();
    if migrated(provisioner).is_some() {
        wanted.retain(|finalizer| finalizer != IN_TREE_FINALIZER);
    } else if provisioner.starts_with("kubernetes.io/") {
        wanted.retain(|finalizer| finalizer != EXTERNAL_FINALIZER);
        let held = wanted
            .iter()
            .any(|finalizer| finalizer == IN_TREE_FINALIZER);
        match policy(volume) {
            // Finalizers cannot be added to an object that is being deleted.
            "Delete" if !held && volume.metadata.deletion_timestamp.is_none() => {
                wanted.push(IN_TREE_FINALIZER.to_owned());
            }
            "Retain" | "Recycle" => wanted.retain(|finalizer| finalizer != IN_TREE_FINALIZER),
            _ => {}
        }
    }
    (wanted != known).then_some(wanted)
}
