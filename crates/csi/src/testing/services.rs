//! The driver's services.

use std::path::Path;

use tonic::{Request, Response, Status, async_trait};

use super::{Call, Driver, lost};
use crate::{
    Capability,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::Registration,
    },
    v1::{
        self,
        controller_server::Controller,
        controller_service_capability::{self, rpc::Type as ControllerType},
        identity_server::Identity,
        node_server::Node,
        node_service_capability, volume_capability,
    },
};

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.0.options.name.clone(),
            endpoint: self.0.socket.lock().to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        let status = request.into_inner();
        let mut state = self.0.state.lock();
        state.registered = Some(status.plugin_registered);
        state.registration_error = status.error;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Answer<v1::GetPluginInfoResponse> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.0.options.name.clone(),
            vendor_version: "1".into(),
            ..Default::default()
        }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        let all = [
            ControllerType::CreateDeleteVolume,
            ControllerType::PublishUnpublishVolume,
            ControllerType::ExpandVolume,
        ];
        let capabilities = all.map(|one| v1::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(
                controller_service_capability::Rpc { r#type: one as i32 },
            )),
        });
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Answer<v1::CreateVolumeResponse> {
        let request = request.into_inner();
        let bytes = request
            .capacity_range
            .map_or(0, |range| range.required_bytes);
        let call = Call {
            method: "CreateVolume",
            volume: request.name.clone(),
            bytes,
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        self.0
            .state
            .lock()
            .volumes
            .insert(request.name.clone(), bytes);
        Ok(Response::new(v1::CreateVolumeResponse {
            volume: Some(v1::Volume {
                volume_id: request.name,
                capacity_bytes: bytes,
                ..Default::default()
            }),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Answer<v1::DeleteVolumeResponse> {
        let volume = request.into_inner().volume_id;
        let call = Call {
            method: "DeleteVolume",
            volume: volume.clone(),
            ..Call::default()
        };
        let code = self.enter(call).await?;
        self.0.state.lock().volumes.remove(&volume);
        lost(code).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        let request = request.into_inner();
        let call = Call {
            method: "ControllerPublishVolume",
            volume: request.volume_id,
            path: request.node_id,
            readonly: request.readonly,
            ..Call::default()
        };
        lost(self.enter(call).await?).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Answer<v1::ControllerUnpublishVolumeResponse> {
        let request = request.into_inner();
        let call = Call {
            method: "ControllerUnpublishVolume",
            volume: request.volume_id,
            path: request.node_id,
            ..Call::default()
        };
        lost(self.enter(call).await?).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let bytes = request
            .capacity_range
            .map_or(0, |range| range.required_bytes);
        let call = Call {
            method: "ControllerExpandVolume",
            volume: request.volume_id.clone(),
            bytes,
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        self.0.state.lock().volumes.insert(request.volume_id, bytes);
        let node_expansion_required = self.has(Capability::ExpandVolume);
        Ok(Response::new(v1::ControllerExpandVolumeResponse {
            capacity_bytes: bytes,
            node_expansion_required,
        }))
    }
}

fn access(capability: Option<&v1::VolumeCapability>) -> (String, String) {
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(volume_capability::AccessType::Mount(mount)) => {
            let mut words = vec![mount.fs_type.clone()];
            words.extend(mount.mount_flags.clone());
            (words.join(" "), mount.volume_mount_group.clone())
        }
        Some(volume_capability::AccessType::Block(_)) => ("block".into(), String::new()),
        None => ("none".into(), String::new()),
    }
}

#[async_trait]
impl Node for Driver {
    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        let call = Call {
            method: "NodeGetCapabilities",
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        let all = self.0.options.capabilities.iter();
        let capabilities = all.map(|one| v1::NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(
                node_service_capability::Rpc {
                    r#type: *one as i32,
                },
            )),
        });
        Ok(Response::new(v1::NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Answer<v1::NodeGetInfoResponse> {
        let call = Call {
            method: "NodeGetInfo",
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        let options = &self.0.options;
        let topology = (!options.topology.is_empty()).then(|| v1::Topology {
            segments: options.topology.clone(),
        });
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: options.node_id.clone(),
            max_volumes_per_node: self.0.state.lock().max_volumes,
            accessible_topology: topology,
        }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Answer<v1::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let (access, mount_group) = access(request.volume_capability.as_ref());
        let call = Call {
            method: "NodeStageVolume",
            volume: request.volume_id.clone(),
            path: request.staging_target_path.clone(),
            context: request.volume_context,
            publish_context: request.publish_context,
            secrets: request.secrets,
            mount_group,
            access,
            ..Call::default()
        };
        let code = self.enter(call).await?;
        self.0
            .state
            .lock()
            .staged
            .insert(request.volume_id, request.staging_target_path);
        lost(code).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Answer<v1::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let call = Call {
            method: "NodeUnstageVolume",
            volume: request.volume_id.clone(),
            path: request.staging_target_path.clone(),
            ..Call::default()
        };
        let code = self.enter(call).await?;
        {
            let mut state = self.0.state.lock();
            let targets = state.published.get(&request.volume_id);
            if targets.is_some_and(|targets| !targets.is_empty()) {
                let volume = &request.volume_id;
                let what = format!("{volume} is unstaged while it is published");
                state.violations.push(what);
                return Err(Status::failed_precondition("published"));
            }
            state.staged.remove(&request.volume_id);
        }
        lost(code).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let (access, mount_group) = access(request.volume_capability.as_ref());
        let is_block = access == "block";
        let call = Call {
            method: "NodePublishVolume",
            volume: request.volume_id.clone(),
            path: request.target_path.clone(),
            staging: request.staging_target_path.clone(),
            readonly: request.readonly,
            context: request.volume_context,
            publish_context: request.publish_context,
            secrets: request.secrets,
            mount_group,
            access,
            ..Call::default()
        };
        let code = self.enter(call).await?;
        if !request.staging_target_path.is_empty() {
            let mut state = self.0.state.lock();
            if !state.staged.contains_key(&request.volume_id) {
                let volume = &request.volume_id;
                let what = format!("{volume} is published before it is staged");
                state.violations.push(what);
                return Err(Status::failed_precondition("not staged"));
            }
        }
        let target = Path::new(&request.target_path);
        self.place(&request.volume_id, target, is_block)
            .map_err(|error| Status::internal(format!("{}: {error}", target.display())))?;
        {
            let mut state = self.0.state.lock();
            let targets = state.published.entry(request.volume_id).or_default();
            targets.insert(request.target_path);
        }
        lost(code).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let call = Call {
            method: "NodeUnpublishVolume",
            volume: request.volume_id.clone(),
            path: request.target_path.clone(),
            ..Call::default()
        };
        let code = self.enter(call).await?;
        let target = Path::new(&request.target_path);
        remove(target)
            .map_err(|error| Status::internal(format!("{}: {error}", target.display())))?;
        {
            let mut state = self.0.state.lock();
            if let Some(targets) = state.published.get_mut(&request.volume_id) {
                targets.remove(&request.target_path);
                if targets.is_empty() {
                    state.published.remove(&request.volume_id);
                }
            }
        }
        lost(code).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Answer<v1::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let call = Call {
            method: "NodeGetVolumeStats",
            volume: request.volume_id,
            path: request.volume_path,
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        let usage = |unit: v1::volume_usage::Unit, total, used| v1::VolumeUsage {
            available: total - used,
            total,
            used,
            unit: unit as i32,
        };
        Ok(Response::new(v1::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(v1::volume_usage::Unit::Bytes, 1000, 300),
                usage(v1::volume_usage::Unit::Inodes, 100, 7),
            ],
            volume_condition: self.0.state.lock().condition.clone(),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Answer<v1::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let (access, _) = access(request.volume_capability.as_ref());
        let bytes = request
            .capacity_range
            .map_or(0, |range| range.required_bytes);
        let call = Call {
            method: "NodeExpandVolume",
            volume: request.volume_id,
            path: request.volume_path,
            staging: request.staging_target_path,
            secrets: request.secrets,
            access,
            bytes,
            ..Call::default()
        };
        if let Some(code) = self.enter(call).await? {
            return lost(Some(code)).await;
        }
        Ok(Response::new(v1::NodeExpandVolumeResponse {
            capacity_bytes: bytes,
        }))
    }
}

impl Driver {
    fn has(&self, capability: Capability) -> bool {
        self.0.options.capabilities.contains(&capability)
    }

    /// Puts a volume at its target; an existing one is kept.
    fn place(&self, volume: &str, target: &Path, is_block: bool) -> std::io::Result<()> {
        if target.exists() {
            return Ok(());
        }
        if is_block {
            return std::fs::write(target, "");
        }
        std::fs::create_dir(target)?;
        let Some(data) = &self.0.options.data else {
            return Ok(());
        };
        let source = data.join(volume);
        std::fs::create_dir_all(&source)?;
        rustix::mount::mount_bind(&source, target).map_err(Into::into)
    }
}

fn remove(target: &Path) -> std::io::Result<()> {
    use rustix::{io::Errno, mount::UnmountFlags};
    match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let removed = match target.is_dir() {
        true => std::fs::remove_dir(target),
        false => std::fs::remove_file(target),
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
