//! Adds tolerations for nodes that are tainted by the name of an extended resource, to pods that
//! request it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use kinds::tree;
use machinery::json::json;
use machinery::{Object, Status, Value};

use super::{Attributes, Plugin};

pub(crate) const NAME: &str = "ExtendedResourceToleration";

pub(crate) struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "pods")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, _: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let spec = tree::get(object, "spec");
        let containers = ["containers", "initContainers"]
            .into_iter()
            .flat_map(|key| tree::list(&spec[key]));
        let requests = containers.filter_map(|c| c["resources"]["requests"].as_object());
        let extended: BTreeSet<String> = requests
            .flat_map(|requests| requests.keys())
            .filter(|name| is_extended(name))
            .map(|name| name.to_string())
            .collect();
        for name in extended {
            let toleration = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
            let spec = tree::child_or_new(object, "spec");
            let list = spec.entry("tolerations").or_insert(Value::Null);
            match list {
                Value::Array(list) if list.contains(&toleration) => {}
                Value::Array(list) => list.push(toleration),
                other => *other = json!([toleration]),
            }
        }
        Ok(())
    }
}

/// An extended resource: another domain than kubernetes.io, and not a quota's `requests.` name.
fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    let ours = |domain: &str| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    domain.is_some_and(|domain| !ours(domain)) && !name.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    #[tokio::test]
    async fn pods_tolerate_the_taints_of_the_devices_they_ask_for() {
        let case = Case::new(Operation::Create, "", "pods").named("team", "web");
        let asks = |name: &str| json!({"resources": {"requests": {name: "1"}}});
        let mut pod = object(json!({"spec": {
            "containers": [asks("example.com/gpu"), asks("cpu"), asks("kubernetes.io/x")],
            "initContainers": [asks("example.com/fpga"), asks("hugepages-2Mi")]}}));
        for _ in 0..2 {
            ExtendedResourceToleration
                .mutate(&case.attributes(), &mut pod)
                .await
                .unwrap();
        }
        let tolerations = tree::list(&tree::get(&pod, "spec")["tolerations"]);
        let keys: Vec<&str> = tolerations.iter().map(|t| tree::text(&t["key"])).collect();
        assert_eq!(keys, ["example.com/fpga", "example.com/gpu"]);
    }
}
