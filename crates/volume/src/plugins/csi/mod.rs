//! csi: volumes of CSI drivers that are registered on the node. Every step is a call with a
//! deadline; a driver that is unavailable or hangs delays only its own volumes.

mod calls;
mod files;
mod measure;
mod paths;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use csi::{Capability, Node, tonic::Code, v1};
use k8s_openapi::api::{core::v1::Pod, core::v1::SecretReference, storage::v1::CSIDriver};

pub use self::paths::attachment_name;
use self::{
    calls::{Described, can, failed, persistent},
    files::{
        clean_staging, is_there, link_published, make_dir, remove_published, save_published,
        save_staged,
    },
};
use crate::{
    ownership,
    storage::{
        Expand, Expanded, Host, Measure, Measuring, PodMount, Publish, Spec, Staged, Step,
        StepError, StoragePlugin, run_blocking,
    },
};

pub const NAME: &str = "kubernetes.io/csi";

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

pub struct Csi;

fn node(host: &dyn Host, driver: &str) -> Step<Arc<Node>> {
    host.driver(driver).ok_or_else(|| {
        StepError::NotTried(format!(
            "driver name {driver} not found in the list of registered CSI drivers"
        ))
    })
}

fn described(spec: &Spec, pod: &str) -> Step<Described> {
    if spec.is_block {
        paths::check_device_name(&spec.name).map_err(StepError::NotTried)?;
    }
    let missing = || StepError::Failed("not a volume of a CSI driver".to_owned());
    Described::new(spec, pod).ok_or_else(missing)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

async fn secrets(
    what: &str,
    reference: Option<&SecretReference>,
    host: &dyn Host,
) -> Step<BTreeMap<String, String>> {
    let Some(reference) = reference else {
        return Ok(BTreeMap::new());
    };
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    let found = host.secret(namespace, name).await;
    found.map_err(|error| {
        StepError::NotTried(format!(
            "fetching {what} {namespace}/{name} failed: {error}"
        ))
    })
}

#[async_trait]
impl StoragePlugin for Csi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, spec: &Spec) -> bool {
        Described::new(spec, "").is_some()
    }

    fn volume_name(&self, spec: &Spec, pod: &str) -> String {
        match Described::new(spec, pod) {
            Some(volume) if !volume.is_ephemeral => {
                paths::volume_name(&volume.driver, &volume.handle)
            }
            _ => format!("{pod}-{}", spec.name),
        }
    }

    async fn is_attachable(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let Some(source) = persistent(spec) else {
            return Ok(false);
        };
        let driver = host.csi_driver(&source.driver).await?;
        Ok(driver.is_none_or(|driver| driver.spec.attach_required != Some(false)))
    }

    async fn check_attached(&self, spec: &Spec, host: &dyn Host) -> Step<()> {
        let volume = described(spec, "")?;
        let handle = &volume.handle;
        let name = paths::attachment_name(handle, &volume.driver, host.node_name());
        let not_yet = |why: String| Err(StepError::NotTried(why));
        let Some(found) = host.attachment(&name).await? else {
            return not_yet(format!(
                "volume attachment {name} of volume {handle} not found"
            ));
        };
        if found.metadata.deletion_timestamp.is_some() {
            return not_yet(format!(
                "volume attachment {name} of volume {handle} is being deleted"
            ));
        }
        let status = found.status.unwrap_or_default();
        let error = status.attach_error.and_then(|error| error.message);
        match (status.attached, error) {
            (true, _) => Ok(()),
            (false, Some(error)) => not_yet(error),
            (false, None) => not_yet(format!(
                "volume {handle} is not attached for volume attachment {name}"
            )),
        }
    }

    async fn is_limit_reached(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let volume = described(spec, "")?;
        let driver = host.csi_driver(&volume.driver).await?;
        let period = driver.and_then(|it| it.spec.node_allocatable_update_period_seconds);
        let name = paths::attachment_name(&volume.handle, &volume.driver, host.node_name());
        let (Some(_), Some(found)) = (period, host.attachment(&name).await?) else {
            return Ok(false);
        };
        let error = found.status.and_then(|status| status.attach_error);
        let code = error.and_then(|error| error.error_code);
        let is_reached = code == Some(Code::ResourceExhausted as i32);
        if is_reached {
            host.limit_reached(&volume.driver);
        }
        Ok(is_reached)
    }

    async fn stages(&self, spec: &Spec, _: &dyn Host) -> Step<bool> {
        Ok(persistent(spec).is_some())
    }

    async fn stage(&self, spec: &Spec, pod: &Pod, host: &dyn Host) -> Step<()> {
        let volume = described(spec, "")?;
        let node = node(host, &volume.driver)?;
        if !can(&node, Capability::StageUnstageVolume).await? {
            return Ok(());
        }
        let attachable = self.is_attachable(spec, host).await?;
        let publish_context = calls::publish_context(&volume, attachable, host).await?;
        let reference = persistent(spec).and_then(|source| source.node_stage_secret_ref.as_ref());
        let secrets = secrets("NodeStageSecretRef", reference, host).await?;
        let group = mount_group(&node, spec, pod).await?;
        let capability = calls::capability(&node, spec, &volume.fs_type, group).await?;
        let name = paths::volume_name(&volume.driver, &volume.handle);
        let dir = paths::staging(host.root_dir(), &name, &spec.name, spec.is_block);
        make_dir(&dir)?;
        save_staged(&volume, spec, &dir, host.root_dir())?;
        let outcome = node
            .stage(v1::NodeStageVolumeRequest {
                volume_id: volume.handle.clone(),
                publish_context,
                staging_target_path: text(&dir),
                volume_capability: Some(capability),
                secrets,
                volume_context: volume.attributes.clone(),
            })
            .await;
        outcome.map_err(failed)
    }

    async fn forget_stage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        clean_staging(staged, host).await
    }

    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf> {
        let (spec, mount, root) = (request.spec, request.mount, host.root_dir());
        let volume = described(spec, &mount.pod)?;
        let node = node(host, &volume.driver)?;
        let driver = host.csi_driver(&volume.driver).await?;
        calls::check_lifecycle(&volume, driver.as_deref())?;
        let message = publish_request(request, &volume, &node, driver.as_deref(), host).await?;
        let target = paths::target(root, mount);
        if let Some(parent) = target.parent() {
            make_dir(parent)?;
        }
        save_published(&volume, mount, host)?;
        if mount.is_block {
            let link = mount.dir(root, NAME);
            link_published(&target, &link)?;
        }
        if let Err(status) = node.publish(message).await {
            let error = failed(status);
            // A volume that a pod may already use stays.
            if matches!(error, StepError::Failed(_)) && !request.may_be_used {
                remove_published(mount, host).await?;
            }
            return Err(error);
        }
        let by_driver = can(&node, Capability::VolumeMountGroup).await?;
        let by_node = calls::applies_fs_group(spec, &volume.fs_type, driver.as_deref());
        if !mount.is_block && !by_driver && by_node && !request.is_in_place {
            let (dir, pod) = (target.clone(), request.pod.clone());
            let give = move || Ok(ownership::apply_fs_group(&dir, &pod, false)?);
            run_blocking(host, give).await?;
        }
        Ok(target)
    }

    async fn republishes(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        if spec.is_block {
            return Ok(false);
        }
        let driver = host.csi_driver(&described(spec, "")?.driver).await?;
        Ok(driver.is_some_and(|driver| driver.spec.requires_republish == Some(true)))
    }

    async fn unpublish(&self, mount: &PodMount, host: &dyn Host) -> Step<()> {
        let root = host.root_dir();
        let Some(record) = paths::load(&paths::record_dir(root, mount)) else {
            // Without a record the driver was never called.
            return remove_published(mount, host).await;
        };
        let field = |name: &str| record.get(name).map_or("", String::as_str);
        let node = node(host, field("driverName"))?;
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: field("volumeHandle").to_owned(),
            target_path: text(&paths::target(root, mount)),
        };
        node.unpublish(request).await.map_err(failed)?;
        remove_published(mount, host).await
    }

    async fn unstage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        let root = host.root_dir();
        let (driver, handle) = paths::split(&staged.volume);
        let dir = paths::staging(root, &staged.volume, &staged.name, staged.is_block);
        if is_there(&dir, host).await? {
            let node = node(host, driver)?;
            if can(&node, Capability::StageUnstageVolume).await? {
                let request = v1::NodeUnstageVolumeRequest {
                    volume_id: handle.to_owned(),
                    staging_target_path: text(&dir),
                };
                node.unstage(request).await.map_err(failed)?;
            }
        }
        clean_staging(staged, host).await
    }

    async fn expand(&self, request: &Expand<'_>, host: &dyn Host) -> Step<Expanded> {
        let (spec, root) = (request.spec, host.root_dir());
        let volume = described(spec, "")?;
        let node = node(host, &volume.driver)?;
        if !can(&node, Capability::ExpandVolume).await? {
            return Ok(Expanded::NotSupported);
        }
        let reference = persistent(spec).and_then(|source| source.node_expand_secret_ref.as_ref());
        let secrets = secrets("NodeExpandSecretRef", reference, host).await?;
        let staging_target_path = match can(&node, Capability::StageUnstageVolume).await? {
            true => {
                let name = paths::volume_name(&volume.driver, &volume.handle);
                text(&paths::staging(root, &name, &spec.name, spec.is_block))
            }
            false => String::new(),
        };
        let outcome = node
            .expand(v1::NodeExpandVolumeRequest {
                volume_id: volume.handle.clone(),
                volume_path: text(&paths::target(root, request.mount)),
                capacity_range: Some(v1::CapacityRange {
                    required_bytes: request.bytes,
                    limit_bytes: 0,
                }),
                staging_target_path,
                volume_capability: Some(
                    calls::capability(&node, spec, &volume.fs_type, None).await?,
                ),
                secrets,
            })
            .await;
        match outcome {
            Ok(()) => Ok(Expanded::Done),
            Err(status) => match status.code() {
                Code::FailedPrecondition => Ok(Expanded::InUse(csi::go_error(&status))),
                Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
                    Ok(Expanded::Infeasible(csi::go_error(&status)))
                }
                _ => Err(failed(status)),
            },
        }
    }

    async fn stats(
        &self,
        mount: &PodMount,
        host: &dyn Host,
        _measuring: Measuring,
    ) -> Step<Option<Measure>> {
        let root = host.root_dir();
        let Some(record) = paths::load(&paths::record_dir(root, mount)) else {
            return Ok(None);
        };
        let field = |name: &str| record.get(name).cloned().unwrap_or_default();
        let node = node(host, &field("driverName"))?;
        if !can(&node, Capability::GetVolumeStats).await? {
            return Ok(None);
        }
        let path = paths::target(root, mount);
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: field("volumeHandle"),
            volume_path: text(&path),
            staging_target_path: String::new(),
        };
        let answer = node.stats(request).await.map_err(failed)?;
        let says_condition = can(&node, Capability::VolumeCondition).await?;
        Ok(measure::from_answer(answer, says_condition))
    }

    fn find_published(&self, mount: &PodMount, root: &Path) -> Option<String> {
        let own = format!("{}-{}", mount.pod, mount.name);
        let Some(record) = paths::load(&paths::record_dir(root, mount)) else {
            // The driver was never called; the rest is removed with the pod.
            return Some(own);
        };
        if record.get("volumeLifecycleMode").map(String::as_str) == Some("Ephemeral") {
            return Some(own);
        }
        let name = paths::volume_name(record.get("driverName")?, record.get("volumeHandle")?);
        Some(name)
    }

    fn find_staged(&self, root: &Path) -> Vec<Staged> {
        paths::staged(root)
    }
}

/// The fsGroup, if the driver applies it (VOLUME_MOUNT_GROUP).
async fn mount_group(node: &Node, spec: &Spec, pod: &Pod) -> Step<Option<i64>> {
    if spec.is_block || !can(node, Capability::VolumeMountGroup).await? {
        return Ok(None);
    }
    Ok(ownership::fs_group(pod).map(i64::from))
}

async fn publish_request(
    request: &Publish<'_>,
    volume: &Described,
    node: &Node,
    driver: Option<&CSIDriver>,
    host: &dyn Host,
) -> Step<v1::NodePublishVolumeRequest> {
    let (spec, mount, pod) = (request.spec, request.mount, request.pod);
    let attachable = Csi.is_attachable(spec, host).await?;
    let publish_context = calls::publish_context(volume, attachable, host).await?;
    let reference = match persistent(spec) {
        Some(source) => source.node_publish_secret_ref.clone(),
        None => inline_secret(spec, pod),
    };
    let mut secrets = secrets("NodePublishSecretRef", reference.as_ref(), host).await?;
    let mut context = volume.attributes.clone();
    if let Some(driver) = driver {
        if driver.spec.pod_info_on_mount == Some(true) {
            context.extend(calls::pod_info(pod, volume.is_ephemeral));
        }
        let wanted = driver.spec.token_requests.as_deref().unwrap_or_default();
        if !wanted.is_empty() && !mount.is_block {
            let tokens = host.tokens(pod, wanted).await?;
            let place = match driver.spec.service_account_token_in_secrets {
                Some(true) => &mut secrets,
                _ => &mut context,
            };
            place.insert(TOKENS.to_owned(), tokens);
        }
    }
    let staged = !volume.is_ephemeral && can(node, Capability::StageUnstageVolume).await?;
    let name = paths::volume_name(&volume.driver, &volume.handle);
    let staging = paths::staging(host.root_dir(), &name, &spec.name, spec.is_block);
    let group = mount_group(node, spec, pod).await?;
    Ok(v1::NodePublishVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context,
        staging_target_path: if staged {
            text(&staging)
        } else {
            String::new()
        },
        target_path: text(&paths::target(host.root_dir(), mount)),
        volume_capability: Some(calls::capability(node, spec, &volume.fs_type, group).await?),
        readonly: spec.read_only,
        secrets,
        volume_context: context,
    })
}

fn inline_secret(spec: &Spec, pod: &Pod) -> Option<SecretReference> {
    let source = spec.inline.csi.as_ref()?.node_publish_secret_ref.as_ref()?;
    Some(SecretReference {
        name: Some(source.name.clone()),
        namespace: pod.metadata.namespace.clone(),
    })
}
