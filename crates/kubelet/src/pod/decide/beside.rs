//! Which volumes are set up while the sandbox is created. Others come first, so that a pod that waits for an object or
//! a disk of its user has neither a sandbox nor an address, as upstream.

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};

use super::View;
use crate::pod::{memory::Volumes, spec};

/// The ConfigMap that every namespace has.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Whether the volumes need not be ready before the sandbox: none of them waits for anything that a user makes, and
/// none has failed.
pub(super) fn are_volumes_beside(view: &View) -> bool {
    view.memory.volumes == Volumes::Pending && has_only_own_volumes(view.pod)
}

fn has_only_own_volumes(pod: &Pod) -> bool {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.all(is_own)
}

/// Whether the kubelet makes the volume by itself and from objects that always exist.
fn is_own(volume: &Volume) -> bool {
    let projected = volume.projected.as_ref();
    let projected = projected.and_then(|projected| projected.sources.as_ref());
    volume.empty_dir.is_some()
        || volume.downward_api.is_some()
        || projected.is_some_and(|sources| sources.iter().all(always_exists))
}

fn always_exists(source: &VolumeProjection) -> bool {
    let config_map = source.config_map.as_ref();
    source.service_account_token.is_some()
        || source.downward_api.is_some()
        || config_map.is_some_and(|map| map.name == ROOT_CA)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_volumes_without_objects_of_users_are_set_up_beside_the_sandbox() {
        let projected = |sources: Value| json!({"projected": {"sources": sources}});
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let root_ca = json!({"configMap": {"name": "kube-root-ca.crt"}});
        let shown = json!({"downwardAPI": {"items": []}});
        for (volumes, expected) in [
            (vec![], true),
            (vec![projected(json!([token, root_ca, shown]))], true),
            (vec![json!({"emptyDir": {}}), shown.clone()], true),
            (
                vec![projected(json!([token, {"configMap": {"name": "mine"}}]))],
                false,
            ),
            (
                vec![projected(json!([token, {"secret": {"name": "mine"}}]))],
                false,
            ),
            (vec![json!({"configMap": {"name": "mine"}})], false),
            (vec![json!({"secret": {"secretName": "mine"}})], false),
            (vec![json!({"hostPath": {"path": "/data"}})], false),
            (
                vec![
                    json!({"emptyDir": {}}),
                    json!({"persistentVolumeClaim": {"claimName": "mine"}}),
                ],
                false,
            ),
        ] {
            let named = volumes.iter().cloned().map(|mut volume| {
                volume["name"] = "v".into();
                volume
            });
            let named: Vec<Value> = named.collect();
            let pod = json!({"spec": {"containers": [], "volumes": named}});
            let pod = serde_json::from_value(pod).unwrap();
            assert_eq!(has_only_own_volumes(&pod), expected, "{volumes:?}");
        }
    }
}
