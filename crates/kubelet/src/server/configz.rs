//! `GET /configz`: the KubeletConfiguration in effect, also where flags or the cluster say more than the file.

use http::Response;

use super::{Body, json};
use crate::{Config, configuration::KubeletConfiguration, core::Core};

pub(super) fn serve(core: &Core) -> Response<Body> {
    let shown = effective(&core.settings(), &core.config);
    json(&serde_json::json!({ "kubeletconfig": shown }))
}

/// The settings with what is empty in them and set elsewhere.
fn effective(settings: &KubeletConfiguration, config: &Config) -> KubeletConfiguration {
    let mut shown = settings.clone();
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let files = config.static_pods_dir.as_deref().map(path);
    shown.static_pod_path = files.unwrap_or_default();
    shown.address = config.listen.to_string();
    shown.port = config.port.into();
    shown.pod_logs_dir = path(&config.pod_logs_dir);
    shown.cluster_domain.clone_from(&config.cluster_domain);
    shown.cluster_dns = config.cluster_dns.iter().map(ToString::to_string).collect();
    shown.cgroup_root.clone_from(&config.cgroup_root);
    shown.container_runtime_endpoint = format!("unix://{}", config.cri_socket.display());
    shown.resolv_conf = path(&config.resolv_conf);
    let more = config.allowed_unsafe_sysctls.iter().cloned();
    shown.allowed_unsafe_sysctls.extend(more);
    shown
}
