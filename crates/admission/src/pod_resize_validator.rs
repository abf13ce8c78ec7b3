//! Rejects resizing a running pod beyond its node's allocatable resources, or on a node that is not
//! Linux.

use async_trait::async_trait;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    pod_resources::{Field, PodResources},
    quantity::{Format, Quantity},
    status::Cause,
};
use quota::amounts;

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "PodResizeValidator";

pub(crate) struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("", "pods")
            && attributes.subresource == "resize"
            && attributes.operation == Operation::Update
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(old), Some(pod)) = (attributes.old, object) else {
            return Ok(());
        };
        let spec = tree::get(pod, "spec");
        let name = tree::text(&spec["nodeName"]);
        if name.is_empty() || spec == tree::get(old, "spec") {
            return Ok(());
        }
        let node = attributes.reader.get("", "nodes", "", name).await?;
        let Some(node) = node else {
            return Err(attributes.forbidden(&format!("node {name:?} not found")));
        };
        if let Some(system) = node.label("kubernetes.io/os").filter(|os| *os != "linux") {
            let why =
                format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
            return Err(refuse(attributes, &why, "UnsupportedPlatform"));
        }
        let node = node.parse();
        match too_much(spec, &tree::get(&node, "status")["allocatable"]) {
            None => Ok(()),
            Some(why) => Err(refuse(attributes, &why, "NodeCapacity")),
        }
    }
}

fn refuse(attributes: &Attributes<'_>, why: &str, reason: &str) -> Status {
    let mut status = attributes.forbidden(why);
    status.details.get_or_insert_default().causes.push(Cause {
        reason: reason.to_owned(),
        ..Cause::default()
    });
    status
}

/// The resources that the pod requests beyond the node's.
fn too_much(spec: &Value, allocatable: &Value) -> Option<String> {
    let wanted = PodResources::from_json(Field::Requests, spec, None).total();
    let there = amounts::from_json(allocatable);
    let mut infeasible = Vec::new();
    for name in ["cpu", "memory"] {
        let nothing = Quantity::from_value(0, Format::Decimal);
        let wanted = wanted.get(name).unwrap_or(&nothing);
        let there = there.get(name).unwrap_or(&nothing);
        if wanted > there {
            let (wanted, there) = (wanted.units(name), there.units(name));
            infeasible.push(format!("{name}, requested: {wanted}, allocatable: {there}"));
        }
    }
    let why = "node didn't have enough allocatable resources";
    (!infeasible.is_empty()).then(|| format!("{why}: {}", infeasible.join("; ")))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn a_resize_must_fit_the_node() {
        let pod = |cpu: &str| {
            let requests = json!({"cpu": cpu, "memory": "1Gi"});
            let container = json!({"name": "a", "resources": {"requests": requests}});
            object(json!({"spec": {"nodeName": "n1", "containers": [container]}}))
        };
        let mut case = Case::new(Operation::Update, "", "pods").named("team", "web");
        case.subresource = "resize";
        case.old = Some(pod("1"));
        let allocatable = json!({"cpu": "2", "memory": "4Gi"});
        let node = |os: &str| {
            json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/os": os}},
                   "status": {"allocatable": allocatable}})
        };
        let ask = async |cpu: &str| {
            let wanted = pod(cpu);
            PodResizeValidator
                .validate(&case.attributes(), Some(&wanted))
                .await
        };
        assert!(
            ask("2")
                .await
                .unwrap_err()
                .message
                .contains("node \"n1\" not found")
        );
        case.world.put("", "nodes", node("linux")).await;
        ask("2").await.unwrap();
        let refused = ask("2500m").await.unwrap_err();
        let why = "node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000";
        assert!(refused.message.ends_with(why), "{}", refused.message);
        assert_eq!(refused.details.unwrap().causes[0].reason, "NodeCapacity");
        case.world.put("", "nodes", node("windows")).await;
        let refused = ask("2").await.unwrap_err();
        assert_eq!(
            refused.details.unwrap().causes[0].reason,
            "UnsupportedPlatform"
        );
        ask("1").await.unwrap();
    }
}
