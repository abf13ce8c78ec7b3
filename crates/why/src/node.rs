//! Why a node is not ready or accepts no pods.

use client::{Api, kube};
use k8s_openapi::api::core::v1::{Node, NodeCondition};

use crate::{Answer, Result, events, question::Name};

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    let node = Api::<Node>::all(client.clone()).get(&name.name).await?;
    // Events about nodes are in the namespace default.
    let warnings = events::warnings(client, "default", "Node", &name.name).await?;
    Ok(explain(&node).because_all(warnings.iter().map(events::Warning::line)))
}

fn conditions(node: &Node) -> &[NodeCondition] {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default()
}

/// Why a node is not ready; `None` if it is.
pub(crate) fn not_ready(node: &Node) -> Option<String> {
    match conditions(node)
        .iter()
        .find(|condition| condition.type_ == "Ready")
    {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(
            ready
                .message
                .clone()
                .unwrap_or_else(|| ready.status.clone()),
        ),
        None => Some("its kubelet has not reported yet".to_owned()),
    }
}

fn explain(node: &Node) -> Answer {
    let name = format!("node/{}", node.metadata.name.as_deref().unwrap_or_default());
    let spec = node.spec.clone().unwrap_or_default();
    let mut answer = match not_ready(node) {
        Some(why) => {
            let answer = Answer::new(format!("{name} is not ready")).because(why);
            let ready = conditions(node)
                .iter()
                .find(|condition| condition.type_ == "Ready");
            match ready.map(|ready| ready.status.as_str()) {
                Some("Unknown") => answer.next("check that the machine is up, that mainstay runs on it, and that it reaches the server"),
                _ => answer,
            }
        }
        None if spec.unschedulable == Some(true) => Answer::new(format!(
            "{name} is ready, but cordoned: no new pods are scheduled to it"
        ))
        .next(format!("kubectl uncordon {name}")),
        None => Answer::new(format!("{name} is ready")),
    };
    for condition in conditions(node) {
        if condition.type_ != "Ready" && condition.status == "True" {
            let message = condition.message.as_deref().unwrap_or_default();
            answer = answer.because(format!("{}: {message}", condition.type_));
        }
    }
    for taint in spec.taints.into_iter().flatten() {
        let value = taint
            .value
            .map(|value| format!("={value}"))
            .unwrap_or_default();
        answer = answer.because(format!("taint {}{value}:{}", taint.key, taint.effect));
    }
    answer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_and_taints_of_a_node_are_reported() {
        let node = json!({"metadata": {"name": "n1"},
            "spec": {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]},
            "status": {"conditions": [
                {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."},
                {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}]}});
        let text = explain(&serde_json::from_value(node).unwrap()).to_string();
        for part in [
            "node/n1 is not ready",
            "stopped posting",
            "DiskPressure",
            "taint a=b:NoExecute",
            "-> check that",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_cordoned_node_has_the_uncordon_command() {
        let node = json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let text = explain(&serde_json::from_value(node).unwrap()).to_string();
        assert_eq!(
            text,
            "node/n1 is ready, but cordoned: no new pods are scheduled to it\n  -> kubectl uncordon node/n1\n"
        );
    }
}
