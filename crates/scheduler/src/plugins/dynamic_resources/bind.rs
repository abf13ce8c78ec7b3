//! PreBind: writes allocations and reservations to the claims, and waits for binding conditions.
//! Reservations are removed when the pod is not bound.

use std::time::Duration;

use client::Api;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Pod, PodExtendedResourceClaimStatus},
        resource::v1::{AllocationResult, ResourceClaim},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use reconcile::{
    Kind,
    devices::{FINALIZER, allocation, consumer, is_reserved_for},
};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    claims::key,
    conditions,
    extended::OnNode,
    pending::{Pending, Reservation},
};
use crate::{
    cluster::device_claims::version,
    pod::PodInfo,
    write::{Release, Writes},
};

/// How often a conflicting write is retried.
const RETRIES: usize = 4;
/// How often binding conditions are checked that no event announced.
const POLL: Duration = Duration::from_secs(1);

/// A pod that is being bound.
pub(super) struct Binding<'a> {
    pub(super) writes: &'a Writes,
    pub(super) pod: &'a PodInfo,
    pub(super) node: &'a str,
    pub(super) pending: &'a Mutex<Pending>,
    /// How long devices may take to become ready.
    pub(super) timeout: Duration,
}

/// Why a write failed.
enum Failed {
    /// The claim has changed.
    Conflict(String),
    Finally(String),
}

fn failed(what: String) -> impl FnOnce(kube::Error) -> Failed {
    move |error| {
        let why = format!("{what}: {error}");
        match error {
            kube::Error::Api(status) if status.code == 409 => Failed::Conflict(why),
            _ => Failed::Finally(why),
        }
    }
}

impl Binding<'_> {
    fn api(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.writes.client.clone(), self.pod.namespace())
    }

    /// Writes the claims; fails if the pod must be scheduled again.
    pub(super) async fn run(&self, reservation: &Reservation) -> Result<(), String> {
        let mut written = Vec::new();
        for (claim, new) in &reservation.claims {
            if is_reserved_for(claim, &self.pod.uid) {
                written.push((**claim).clone());
                continue;
            }
            let bound = self.bind_claim(claim, new.as_ref()).await?;
            self.pending.lock().written(claim, version(&bound));
            written.push(bound);
        }
        if let Some((extended, allocation)) = &reservation.extended {
            written.push(self.bind_extended(extended, allocation).await?);
        }
        if !written.iter().any(conditions::exist) {
            return Ok(());
        }
        let started = Instant::now();
        let ready = self.wait(&written).await;
        let status = match &ready {
            Ok(()) => "success",
            Err(why) if why.starts_with(conditions::FAILED) => "failed",
            Err(_) => "timeout",
        };
        for claim in &written {
            for driver in conditions::drivers(claim) {
                let (profile, took) = (&self.writes.name, started.elapsed());
                self.writes.devices.waited(profile, driver, status, took);
            }
        }
        ready
    }

    /// Adds the allocation and the reservation to a claim.
    async fn bind_claim(
        &self,
        claim: &ResourceClaim,
        new: Option<&AllocationResult>,
    ) -> Result<ResourceClaim, String> {
        let (api, mut newest) = (self.api(), claim.clone());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        for _ in 0..RETRIES {
            match self.write(&api, newest, new).await {
                Ok(bound) => return Ok(bound),
                Err(Failed::Finally(why)) => return Err(why),
                Err(Failed::Conflict(_)) => {}
            }
            let got = api.get(name).await;
            newest = got.map_err(|error| {
                format!("get updated claim {} after conflict: {error}", key(claim))
            })?;
        }
        match self.write(&api, newest, new).await {
            Ok(bound) => Ok(bound),
            Err(Failed::Conflict(why) | Failed::Finally(why)) => Err(why),
        }
    }

    async fn write(
        &self,
        api: &Api<ResourceClaim>,
        mut claim: ResourceClaim,
        new: Option<&AllocationResult>,
    ) -> Result<ResourceClaim, Failed> {
        let (key, params) = (key(&claim), PostParams::default());
        let name = claim.metadata.name.clone().unwrap_or_default();
        let meanwhile = |what: &str| {
            let why = format!("claim {key} got {what} in the meantime");
            Err(Failed::Finally(why))
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return meanwhile("deleted");
        }
        if let Some(new) = new {
            if allocation(&claim).is_some() {
                return meanwhile("allocated elsewhere");
            }
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|one| one == FINALIZER) {
                finalizers.push(FINALIZER.into());
                let updated = api.replace(&name, &params, &claim).await;
                claim = updated.map_err(failed(format!("add finalizer to claim {key}")))?;
            }
            claim.status.get_or_insert_default().allocation = Some(new.clone());
        }
        let status = claim.status.get_or_insert_default();
        let Some(allocation) = &mut status.allocation else {
            return meanwhile("deallocated elsewhere");
        };
        let time = &mut allocation.allocation_timestamp;
        time.get_or_insert_with(|| Time(Timestamp::now()));
        let reserved_for = status.reserved_for.get_or_insert_default();
        reserved_for.push(consumer(&self.pod.name, &self.pod.uid));
        let updated = api.replace_status(&name, &params, &claim).await;
        updated.map_err(failed(match new {
            Some(_) => format!("add allocation and reservation to claim {key}"),
            None => format!("add reservation to claim {key}"),
        }))
    }

    /// Creates the claim for extended resources, binds it, and writes it to the pod's status.
    async fn bind_extended(
        &self,
        extended: &OnNode,
        allocation: &AllocationResult,
    ) -> Result<ResourceClaim, String> {
        let mut draft = extended.claim.clone();
        draft.metadata.uid = None;
        let created = self.api().create(&PostParams::default(), &draft).await;
        self.writes.devices.created(created.is_ok());
        let created =
            created.map_err(|error| format!("create claim for extended resources: {error}"))?;
        self.pending.lock().created(&self.pod.uid, &created);
        let bound = self.bind_claim(&created, Some(allocation)).await?;
        let version = version(&bound);
        self.pending.lock().written(&extended.claim, version);
        let status = PodExtendedResourceClaimStatus {
            request_mappings: extended.mappings.clone(),
            resource_claim_name: bound.metadata.name.clone().unwrap_or_default(),
        };
        let (namespace, name) = (self.pod.namespace(), &self.pod.name);
        let api: Api<Pod> = Api::namespaced(self.writes.client.clone(), namespace);
        let patch = json!({"metadata": {"uid": &*self.pod.uid},
            "status": {"extendedResourceClaimStatus": status}});
        let params = PatchParams::default();
        let patched = api
            .patch_status(name, &params, &Patch::Strategic(&patch))
            .await;
        patched.map_err(|error| {
            let what = format!("update pod {namespace}/{name} ExtendedResourceClaimStatus");
            format!("{what}: {error}")
        })?;
        Ok(bound)
    }

    /// Waits until the devices of all claims are ready.
    async fn wait(&self, claims: &[ResourceClaim]) -> Result<(), String> {
        let Some(caches) = &self.writes.bindings else {
            return Ok(());
        };
        let text = format!(
            "waiting for binding conditions for device on node {}",
            self.node
        );
        let about = self.pod.reference();
        let recorder = &self.writes.recorder;
        recorder.event(&about, Kind::Normal, "BindingConditionsPending", text);
        let started = Instant::now();
        let namespace = self.pod.namespace();
        loop {
            // Subscribe before the check, so that no change is missed.
            let name = |claim: &ResourceClaim| claim.metadata.name.clone().unwrap_or_default();
            let names: Vec<String> = claims.iter().map(name).collect();
            let changes = &caches.device_changes;
            let bells = names
                .iter()
                .map(|name| Box::pin(changes.next(namespace, name)));
            let change = futures::future::select_all(bells);
            let mut are_ready = true;
            for (name, claim) in names.iter().zip(claims) {
                let known = caches.device_claims.get(namespace, name);
                let is_same = |known: &ResourceClaim| known.metadata.uid == claim.metadata.uid;
                if !known.as_deref().is_some_and(is_same) {
                    self.ensure_exists(claim).await?;
                }
                // The watch may not show the allocation yet.
                let known = known.filter(|known| version(known) >= version(claim));
                let newest = known.as_deref().unwrap_or(claim);
                let is_ready = conditions::are_met(newest)?;
                if !is_ready && conditions::are_late(newest, self.timeout) {
                    return Err(format!("device binding timeout: claim={name}"));
                }
                are_ready &= is_ready;
            }
            if are_ready {
                return Ok(());
            }
            if started.elapsed() > self.timeout {
                return Err("device binding timeout: context deadline exceeded".into());
            }
            tokio::select! {
                _ = change => {}
                () = sleep(POLL) => {}
            }
        }
    }

    /// Fails if a claim was deleted. The watch may not show a new claim yet.
    async fn ensure_exists(&self, claim: &ResourceClaim) -> Result<(), String> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        match self.api().get_opt(name).await {
            Ok(Some(found)) if found.metadata.uid == claim.metadata.uid => Ok(()),
            Ok(_) => {
                let failed = conditions::FAILED;
                Err(format!("{failed}: claim={name} was deleted"))
            }
            Err(error) => {
                warn!(claim = key(claim), %error, "cannot read a claim that is not in the cache");
                Ok(())
            }
        }
    }
}

/// Removes the pod from its claims, and deletes the claim for its extended resources.
/// Allocations that are written stay pending until the watch shows them, also those whose response
/// was lost.
pub(super) async fn roll_back(
    writes: &Writes,
    pod: &PodInfo,
    pending: &Mutex<Pending>,
    reservation: &Reservation,
) {
    let api: Api<ResourceClaim> = Api::namespaced(writes.client.clone(), pod.namespace());
    if let Some(claim) = &reservation.created {
        writes.release(&Release::Delete(claim.clone())).await;
    }
    for (claim, _) in &reservation.claims {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let newest = match api.get_opt(name).await {
            Ok(newest) => newest.filter(|newest| newest.metadata.uid == claim.metadata.uid),
            Err(error) => {
                warn!(claim = key(claim), %error, "cannot read a claim to unreserve it");
                continue;
            }
        };
        let Some(newest) = newest else { continue };
        if allocation(&newest).is_some() {
            pending.lock().written(claim, version(&newest));
        }
        if !is_reserved_for(&newest, &pod.uid) {
            continue;
        }
        let delete = json!({"$patch": "delete", "uid": &*pod.uid});
        let patch = json!({"metadata": {"uid": claim.metadata.uid},
            "status": {"reservedFor": [delete]}});
        let params = PatchParams::default();
        let patched = api
            .patch_status(name, &params, &Patch::Strategic(&patch))
            .await;
        if let Err(error) = patched {
            warn!(claim = key(claim), %error, "cannot unreserve a claim");
        }
    }
}
