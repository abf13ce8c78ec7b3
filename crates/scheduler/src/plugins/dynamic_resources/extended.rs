//! Extended resources that device classes stand for: on nodes that do not have the resource itself,
//! the scheduler makes a claim for devices of the class.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::ContainerExtendedResourceRequest,
        resource::v1::{
            DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use reconcile::devices::EXTENDED_CLAIM;

use crate::{
    cluster::{Cluster, Slot},
    devices::classes::Classes,
    pod::PodInfo,
    template::ContainerRequests,
};

/// The extended resources of a pod that device classes stand for.
#[derive(Debug)]
pub(super) struct Extended {
    resources: Vec<String>,
    /// The temporary uid of the claim.
    uid: String,
    /// The claim of an earlier attempt, which is deleted before the next one.
    pub(super) stale: Option<Arc<ResourceClaim>>,
}

/// The claim for a node, which has a name only when it is created.
#[derive(Debug, Clone)]
pub(super) struct OnNode {
    pub(super) claim: ResourceClaim,
    pub(super) mappings: Vec<ContainerExtendedResourceRequest>,
}

impl Extended {
    /// `None` if the pod requests no such resource.
    pub(super) fn new(pod: &PodInfo, cluster: &Cluster) -> Option<Self> {
        let template = &pod.template;
        if template.extended.is_empty() {
            return None;
        }
        let requests = template.requests.others.iter();
        let backed = requests
            .filter(|(name, amount)| **amount > 0 && cluster.classes.for_resource(name).is_some());
        let resources: Vec<String> = backed.map(|(name, _)| name.clone()).collect();
        (!resources.is_empty()).then(|| Self {
            resources,
            uid: uuid::Uuid::new_v4().to_string(),
            stale: cluster
                .device_claims
                .extended(pod.namespace(), &pod.uid)
                .cloned(),
        })
    }

    /// The claim for a node; `None` if the node has all resources itself.
    pub(super) fn on_node(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        slot: Slot,
    ) -> Result<Option<OnNode>, Cow<'static, str>> {
        if self.stale.is_some() {
            return Err("cannot schedule extended resource claim".into());
        }
        let is_missing = |name: &&String| {
            let column = cluster.others.get(*name);
            column.is_none_or(|column| column.allocatable[slot] == 0)
        };
        let missing: Vec<&String> = self.resources.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        let containers = &pod.template.extended;
        let (requests, mappings) = requests(containers, &missing, &cluster.classes);
        let claim = claim(pod, &self.uid, requests);
        Ok(Some(OnNode { claim, mappings }))
    }
}

fn claim(pod: &PodInfo, uid: &str, requests: Vec<DeviceRequest>) -> ResourceClaim {
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(pod.namespace().to_string()),
            generate_name: Some(format!("{}-extended-resources-", pod.name)),
            uid: Some(uid.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: pod.name.to_string(),
                uid: pod.uid.to_string(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            annotations: Some([(EXTENDED_CLAIM.into(), "true".into())].into()),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(requests),
                ..DeviceClaim::default()
            }),
        },
        status: None,
    }
}

/// A request for devices of a container.
#[derive(Debug, Clone)]
struct Asked {
    name: String,
    count: i64,
}

type Mappings = Vec<ContainerExtendedResourceRequest>;

/// What a container needs beyond the devices of `reusable` requests, and the requests that it uses.
fn ask(
    container: &ContainerRequests,
    resource: &str,
    reusable: &[Option<Asked>],
) -> (Option<Asked>, Mappings) {
    let wanted = container.requests.get(resource).copied().unwrap_or(0);
    if wanted == 0 {
        return (None, Vec::new());
    }
    let mapping = |request: &str| ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_owned(),
        request_name: request.to_owned(),
    };
    let (mut sum, mut mappings) = (0, Vec::new());
    for other in reusable.iter().flatten() {
        sum += other.count;
        mappings.push(mapping(&other.name));
        if sum >= wanted {
            return (None, mappings);
        }
    }
    let mut names = container.requests.keys();
    let at = names.position(|name| name == resource).unwrap_or(0);
    let asked = Asked {
        name: format!("container-{}-request-{at}", container.index),
        count: wanted - sum,
    };
    mappings.push(mapping(&asked.name));
    (Some(asked), mappings)
}

/// The requests for all containers. Init containers run before the others and reuse their devices;
/// what they need beyond them is requested once, for the one that needs most.
fn requests(
    containers: &[ContainerRequests],
    resources: &[&String],
    classes: &Classes,
) -> (Vec<DeviceRequest>, Mappings) {
    let (mut all, mut mappings) = (BTreeMap::new(), Mappings::new());
    for resource in resources {
        let class = classes.for_resource(resource);
        let Some(class) = class.and_then(|class| class.metadata.name.clone()) else {
            continue;
        };
        let mut long_lived: Vec<Option<Asked>> = vec![None; containers.len()];
        for (at, container) in containers.iter().enumerate() {
            if !container.is_short_lived {
                let (asked, used) = ask(container, resource, &[]);
                long_lived[at] = asked;
                mappings.extend(used);
            }
        }
        let (largest, used) = short_lived(containers, resource, &long_lived);
        mappings.extend(used);
        for asked in largest.into_iter().chain(long_lived.into_iter().flatten()) {
            let request = ExactDeviceRequest {
                device_class_name: class.clone(),
                allocation_mode: Some("ExactCount".into()),
                count: Some(asked.count),
                ..ExactDeviceRequest::default()
            };
            all.insert(asked.name, request);
        }
    }
    let all = all.into_iter().map(|(name, request)| DeviceRequest {
        name,
        exactly: Some(request),
        first_available: None,
    });
    (all.collect(), mappings)
}

/// The largest additional request of the init containers, which all of them use.
fn short_lived(
    containers: &[ContainerRequests],
    resource: &str,
    long_lived: &[Option<Asked>],
) -> (Option<Asked>, Mappings) {
    let (mut largest, mut names, mut mappings) = (None::<Asked>, Vec::new(), Mappings::new());
    for (at, container) in containers.iter().enumerate() {
        if !container.is_short_lived {
            continue;
        }
        let (asked, used) = ask(container, resource, &long_lived[at..]);
        mappings.extend(used);
        let Some(asked) = asked else { continue };
        names.push(asked.name.clone());
        if largest
            .as_ref()
            .is_none_or(|known| known.count < asked.count)
        {
            largest = Some(asked);
        }
    }
    if let Some(largest) = &largest {
        for mapping in &mut mappings {
            if names.contains(&mapping.request_name) {
                mapping.request_name.clone_from(&largest.name);
            }
        }
    }
    (largest, mappings)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::DeviceClass;
    use serde_json::json;

    use super::*;

    fn container(index: usize, name: &str, is_short_lived: bool, gpus: i64) -> ContainerRequests {
        let requests = [("cpu".to_owned(), 1), ("example.com/gpu".to_owned(), gpus)];
        ContainerRequests {
            index,
            name: name.into(),
            is_short_lived,
            requests: requests.into(),
        }
    }

    #[test]
    fn init_containers_reuse_devices_and_share_what_they_need_beyond_them() {
        let mut classes = Classes::default();
        let class = json!({"metadata": {"name": "gpu"},
            "spec": {"extendedResourceName": "example.com/gpu"}});
        let class: DeviceClass = serde_json::from_value(class).unwrap();
        classes.put("gpu", Some(&Arc::new(class)));
        let containers = [
            container(0, "small", true, 1),
            container(1, "large", true, 4),
            container(2, "larger", true, 5),
            container(3, "web", false, 2),
            container(4, "none", false, 0),
        ];
        let resource = "example.com/gpu".to_owned();
        let (requests, mappings) = requests(&containers, &[&resource], &classes);
        let requests: Vec<(String, i64)> = requests
            .into_iter()
            .map(|one| (one.name, one.exactly.unwrap().count.unwrap()))
            .collect();
        assert_eq!(
            requests,
            [
                ("container-2-request-1".to_owned(), 3),
                ("container-3-request-1".to_owned(), 2),
            ]
        );
        let mappings: Vec<(String, String)> = mappings
            .into_iter()
            .map(|one| (one.container_name, one.request_name))
            .collect();
        let pair =
            |one: &str, other: &str| (one.to_owned(), format!("container-{other}-request-1"));
        assert_eq!(
            mappings,
            [
                pair("web", "3"),
                pair("small", "3"),
                pair("large", "3"),
                pair("large", "2"),
                pair("larger", "3"),
                pair("larger", "2"),
            ]
        );
    }
}
