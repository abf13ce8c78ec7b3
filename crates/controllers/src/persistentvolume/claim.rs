//! The next step for a claim. Pure.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use reconcile::{
    Kind,
    storage::{
        BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE,
        STORAGE_PROVISIONER, annotate, annotation, bound_to, capacity, claim_class, claim_ref,
        find_match, has_class, is_annotated, is_bound_to, mismatch, storage, volume_name,
        waits_for_consumer,
    },
};

use super::decision::{Change, ClusterView, Decision, Event, mark_migrated, migrated};

const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// Decides about a claim.
pub(super) fn decide(claim: &PersistentVolumeClaim, world: &impl ClusterView) -> Decision {
    let mut marked = claim.clone();
    if mark_migrated(&mut marked.metadata) {
        return Decision::Write(Change::Claim(Box::new(marked)), None);
    }
    if is_annotated(&claim.metadata, BIND_COMPLETED) {
        return bound(claim, world);
    }
    match volume_name(claim) {
        Some(name) => named(claim, name, world),
        None => unbound(claim, world),
    }
}

/// A claim that was bound before.
fn bound(claim: &PersistentVolumeClaim, world: &impl ClusterView) -> Decision {
    let Some(name) = volume_name(claim) else {
        let why = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", why);
    };
    let Some(volume) = world.volume(name) else {
        let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", why);
    };
    let owner = claim_ref(&volume).map(|reference| reference.uid.as_deref());
    if owner.is_none_or(|owner| owner == claim.metadata.uid.as_deref()) {
        return bind(claim, &volume);
    }
    let why = "Two claims are bound to the same volume, this one is bound incorrectly";
    lost(claim, "ClaimMisbound", why)
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, message: &str) -> Decision {
    if phase(claim) == Some("Lost") {
        return Decision::DONE;
    }
    let event = Event::new(claim, Kind::Warning, reason, message);
    match status(claim, "Lost", None) {
        Ok(Some(changed)) => Decision::Write(
            Change::ClaimStatus(Box::new(changed)),
            Some(Box::new(event)),
        ),
        Ok(None) => Decision::DONE,
        Err(why) => Decision::Fail(why),
    }
}

/// A claim with a volumeName set by its user.
fn named(claim: &PersistentVolumeClaim, name: &str, world: &impl ClusterView) -> Decision {
    let Some(volume) = world.volume(name) else {
        return pending(claim, None);
    };
    if claim_ref(&volume).is_none() {
        return match mismatch(&volume, claim) {
            None => bind(claim, &volume),
            Some(why) => {
                let message = format!("Cannot bind to requested volume {name:?}: {why}");
                let event = Event::new(claim, Kind::Warning, "VolumeMismatch", message);
                pending(claim, Some(event))
            }
        };
    }
    if is_bound_to(&volume, claim) {
        return bind(claim, &volume);
    }
    let message = format!("volume {name:?} already bound to a different claim.");
    let event = Event::new(claim, Kind::Warning, "FailedBinding", message);
    pending(claim, Some(event))
}

/// A claim that accepts any matching volume.
fn unbound(claim: &PersistentVolumeClaim, world: &impl ClusterView) -> Decision {
    let class = Some(claim_class(claim)).filter(|class| !class.is_empty());
    let found_class = class.and_then(|class| world.class(class));
    let waits = found_class.as_deref().is_some_and(waits_for_consumer);
    let candidates = world.candidates(claim);
    let volumes = candidates.iter().map(AsRef::as_ref);
    if let Some(volume) = find_match(claim, volumes, None, waits, &BTreeSet::new()) {
        return bind(claim, volume);
    }
    if let Some(default) = world.default_class().filter(|_| !has_class(claim)) {
        let mut changed = claim.clone();
        let spec = changed.spec.get_or_insert_default();
        spec.storage_class_name.clone_from(&default.metadata.name);
        return Decision::Write(Change::Claim(Box::new(changed)), None);
    }
    if waits && !is_annotated(&claim.metadata, SELECTED_NODE) {
        return pending(claim, Some(waiting(claim, world)));
    }
    match (class, found_class) {
        (None, _) => {
            let message =
                "no persistent volumes available for this claim and no storage class is set";
            let event = Event::new(claim, Kind::Normal, "FailedBinding", message);
            pending(claim, Some(event))
        }
        (Some(name), None) => {
            let message = format!("storageclass.storage.k8s.io {name:?} not found");
            Decision::Rest(vec![provisioning_failed(claim, message)])
        }
        (_, Some(class)) => provision(claim, &class.provisioner),
    }
}

fn waiting(claim: &PersistentVolumeClaim, world: &impl ClusterView) -> Event {
    let pods = world.unscheduled_pods(claim);
    let (reason, message) = match pods.as_slice() {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [pod] => (
            "WaitForPodScheduled",
            format!("waiting for pod {pod} to be scheduled"),
        ),
        several => (
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", several.join(",")),
        ),
    };
    Event::new(claim, Kind::Normal, reason, message)
}

fn provisioning_failed(claim: &PersistentVolumeClaim, message: String) -> Event {
    Event::new(claim, Kind::Warning, "ProvisioningFailed", message)
}

/// Assigns the claim to its provisioner by annotations.
fn provision(claim: &PersistentVolumeClaim, provisioner: &str) -> Decision {
    let driver = migrated(provisioner);
    if driver.is_none() && provisioner.starts_with("kubernetes.io/") {
        let message = format!("no volume plugin matched name: {provisioner}");
        return Decision::Rest(vec![provisioning_failed(claim, message)]);
    }
    let provisioner = driver.unwrap_or(provisioner);
    if annotation(&claim.metadata, STORAGE_PROVISIONER) != Some(provisioner) {
        let mut changed = claim.clone();
        annotate(&mut changed.metadata, BETA_STORAGE_PROVISIONER, provisioner);
        annotate(&mut changed.metadata, STORAGE_PROVISIONER, provisioner);
        return Decision::Write(Change::Claim(Box::new(changed)), None);
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or \
         manually by the system administrator. If volume creation is delayed, please verify that \
         the provisioner is running and correctly registered."
    );
    let event = Event::new(claim, Kind::Normal, "ExternalProvisioning", message);
    Decision::Rest(vec![event])
}

/// The claim is Pending; the event is repeated while it is.
fn pending(claim: &PersistentVolumeClaim, event: Option<Event>) -> Decision {
    match status(claim, "Pending", None) {
        Ok(Some(changed)) => Decision::Write(Change::ClaimStatus(Box::new(changed)), None),
        Ok(None) => Decision::Rest(event.into_iter().collect()),
        Err(why) => Decision::Fail(why),
    }
}

/// The next of the four writes that bind a volume and a claim: volume, its status, claim, its
/// status. Each depends only on the current objects, so that a restart in between loses nothing.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Decision {
    if let Some(bound) = bound_to(volume, claim) {
        return Decision::Write(Change::Volume(Box::new(bound)), None);
    }
    if let Some(changed) = super::volume::with_phase(volume, "Bound", "") {
        return Decision::Write(Change::VolumeStatus(Box::new(changed)), None);
    }
    if let Some(changed) = bound_claim(claim, volume) {
        return Decision::Write(Change::Claim(Box::new(changed)), None);
    }
    match status(claim, "Bound", Some(volume)) {
        Ok(Some(changed)) => Decision::Write(Change::ClaimStatus(Box::new(changed)), None),
        Ok(None) => Decision::DONE,
        Err(why) => Decision::Fail(why),
    }
}

fn bound_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<PersistentVolumeClaim> {
    let is_named = volume_name(claim) == volume.metadata.name.as_deref();
    if is_named && is_annotated(&claim.metadata, BIND_COMPLETED) {
        return None;
    }
    let mut changed = claim.clone();
    if !is_named {
        let spec = changed.spec.get_or_insert_default();
        spec.volume_name.clone_from(&volume.metadata.name);
        annotate(&mut changed.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    annotate(&mut changed.metadata, BIND_COMPLETED, "yes");
    Some(changed)
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// The claim with this phase and the volume's properties; `None` if it has them.
fn status(
    claim: &PersistentVolumeClaim,
    new: &str,
    volume: Option<&PersistentVolume>,
) -> Result<Option<PersistentVolumeClaim>, String> {
    let mut changed = claim.clone();
    let is_new = phase(claim) != Some(new);
    let was_pending = phase(claim) == Some("Pending");
    let status = changed.status.get_or_insert_default();
    status.phase = Some(new.to_owned());
    match volume {
        None => {
            status.access_modes = None;
            status.capacity = None;
            status.current_volume_attributes_class_name = None;
        }
        Some(volume) => {
            let spec = volume.spec.as_ref();
            status.access_modes = spec.and_then(|spec| spec.access_modes.clone());
            if is_new {
                set_capacity(status, volume)?;
            }
            if was_pending && new == "Bound" {
                status.current_volume_attributes_class_name =
                    spec.and_then(|spec| spec.volume_attributes_class_name.clone());
            }
        }
    }
    Ok((changed.status != claim.status).then_some(changed))
}

/// The capacity is copied from the volume only when the claim becomes Bound: a file system may be
/// smaller than its device.
fn set_capacity(
    status: &mut PersistentVolumeClaimStatus,
    volume: &PersistentVolume,
) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let size = capacity(volume)
        .ok_or_else(|| format!("PersistentVolume {name:?} is without a storage capacity"))?;
    let before = annotation(&volume.metadata, PRE_RESIZE_CAPACITY);
    let before = before.filter(|text| text.parse::<machinery::quantity::Quantity>().is_ok());
    if let Some(before) = before {
        let amounts = status.capacity.get_or_insert_default();
        amounts.insert("storage".into(), Quantity(before.to_owned()));
    } else if storage(status.capacity.as_ref()) != Some(size) {
        let spec = volume.spec.as_ref();
        status.capacity = spec.and_then(|spec| spec.capacity.clone());
    }
    Ok(())
}
