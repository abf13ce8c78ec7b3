//! Copies zone and region of a node to the labels of a pod that is bound to it. Labels of a Binding
//! become those of its pod.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "PodTopologyLabels";

const LABELS: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

pub(crate) struct PodTopologyLabels;

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let created =
            attributes.operation == Operation::Create && attributes.subresource.is_empty();
        attributes.is("", "pods") && (created || attributes.subresource == "binding")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let node = match attributes.subresource {
            "binding" => &tree::get(object, "target")["name"],
            _ => &tree::get(object, "spec")["nodeName"],
        };
        let node = tree::text(node).to_owned();
        if node.is_empty() {
            return Ok(());
        }
        let Some(node) = attributes.reader.get("", "nodes", "", &node).await? else {
            return Ok(());
        };
        for key in LABELS {
            if let Some(value) = node.label(key) {
                let metadata = tree::child_or_new(object, "metadata");
                tree::child_or_new(metadata, "labels").insert(key.to_owned(), value.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn a_bound_pod_takes_over_its_nodes_zone_and_nothing_else() {
        let mut case = Case::new(Operation::Create, "", "pods").named("team", "web");
        case.subresource = "binding";
        let labels = json!({(LABELS[0]): "z1", "rack": "7"});
        let node = json!({"metadata": {"name": "n1", "labels": labels}});
        case.world.put("", "nodes", node).await;
        let mut pod = object(json!({
            "metadata": {"name": "web", "labels": {"app": "web", (LABELS[0]): "lie"}},
            "target": {"name": "n1"},
        }));
        assert!(PodTopologyLabels.handles(&case.attributes()));
        PodTopologyLabels
            .mutate(&case.attributes(), &mut pod)
            .await
            .unwrap();
        let expected = json!({"app": "web", (LABELS[0]): "z1"});
        assert_eq!(tree::get(&pod, "metadata")["labels"], expected);
        for node in ["", "gone"] {
            let mut other = object(json!({"target": {"name": node}}));
            PodTopologyLabels
                .mutate(&case.attributes(), &mut other)
                .await
                .unwrap();
            assert!(tree::get(&other, "metadata").is_null());
        }
    }
}
