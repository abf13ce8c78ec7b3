//! Why a Service does not work.

use client::{Api, kube};
use k8s_openapi::{
    api::core::v1::{Pod, Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{ResourceExt, api::ListParams};
use reconcile::Selector;

use crate::{Answer, Result, question::Name};

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    let services: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
    let service = services.get(&name.name).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
    let pods = pods.list(&ListParams::default()).await?;
    Ok(explain(&service, &pods))
}

/// The answer from the Service and the pods of its namespace.
pub(crate) fn explain(service: &Service, pods: &[Pod]) -> Answer {
    let name = format!("service/{}", service.name_any());
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        let host = spec.external_name.unwrap_or_default();
        return Answer::new(format!(
            "{name} is of type ExternalName for {host}, and has no endpoints"
        ));
    }
    let Some(labels) = spec.selector.filter(|labels| !labels.is_empty()) else {
        return Answer::new(format!(
            "{name} has no selector: its EndpointSlices are managed by another controller or by hand"
        ))
        .next(format!(
            "kubectl get endpointslices -l kubernetes.io/service-name={}",
            service.name_any()
        ));
    };
    let shown: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let (shown, selector) = (shown.join(","), Selector::labels(&labels));
    let chosen: Vec<&Pod> = pods
        .iter()
        .filter(|pod| selector.matches(pod.metadata.labels.as_ref()) && !has_ended(pod))
        .collect();
    if chosen.is_empty() {
        return Answer::new(format!(
            "{name} has no endpoints: no pod has the labels {shown}"
        ))
        .next(format!(
            "kubectl get pods --show-labels -n {}",
            service.namespace().unwrap_or_default()
        ));
    }
    let is_ready =
        |pod: &&&Pod| has_condition(pod, "Ready") && pod.metadata.deletion_timestamp.is_none();
    let ready = chosen.iter().filter(is_ready).count();
    let mut answer = match ready {
        0 => Answer::new(format!(
            "{name} has no ready endpoints: none of its {} pods is ready",
            chosen.len()
        )),
        ready => Answer::new(format!(
            "{name} has {ready} of {} pods as ready endpoints",
            chosen.len()
        )),
    };
    for pod in chosen.iter().filter(|pod| !is_ready(pod)).take(5) {
        answer = answer.next(format!(
            "mainstay why pod/{} -n {}",
            pod.name_any(),
            pod.namespace().unwrap_or_default()
        ));
    }
    for port in spec.ports.iter().flatten() {
        if let Some(missing) = missing_port(port, &chosen) {
            answer = answer.because(missing);
        }
    }
    let balancer = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let addresses = balancer
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default();
    if spec.type_.as_deref() == Some("LoadBalancer") && addresses.is_empty() {
        answer = answer.because(match &spec.load_balancer_class {
            Some(class) => format!(
                "it has no address: the load balancer of class {class} has not assigned one"
            ),
            None => "it has no address: no load balancer has assigned one".to_owned(),
        });
    }
    answer
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn has_condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// A named target port that no container of some pod has.
fn missing_port(port: &ServicePort, pods: &[&Pod]) -> Option<String> {
    let Some(IntOrString::String(wanted)) = &port.target_port else {
        return None;
    };
    let has = |pod: &&&Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        ports.any(|port| port.name.as_ref() == Some(wanted))
    };
    let without = pods.iter().filter(|pod| !has(pod)).count();
    (without > 0).then(|| {
        format!(
            "port {} has the target port {wanted}, which {without} of {} pods do not have",
            port.port,
            pods.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        serde_json::from_value(
            json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}),
        )
        .unwrap()
    }

    fn pod(name: &str, app: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
            "spec": {"containers": [{"name": "a", "ports": [{"name": "http", "containerPort": 80}]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn every_reason_why_a_service_is_unreachable_is_reported() {
        let web =
            || json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]});
        let admin =
            || json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "admin"}]});
        let balancer = || json!({"selector": {"app": "web"}, "type": "LoadBalancer"});
        let cases = [
            (
                web(),
                vec![pod("a", "other", "True")],
                "no pod has the labels app=web",
            ),
            (
                web(),
                vec![pod("a", "web", "False")],
                "none of its 1 pods is ready",
            ),
            (
                web(),
                vec![pod("a", "web", "False")],
                "-> mainstay why pod/a -n default",
            ),
            (
                web(),
                vec![pod("a", "web", "True")],
                "has 1 of 1 pods as ready endpoints",
            ),
            (
                admin(),
                vec![pod("a", "web", "True")],
                "target port admin, which 1 of 1 pods do not have",
            ),
            (
                balancer(),
                vec![pod("a", "web", "True")],
                "no load balancer has assigned one",
            ),
            (
                json!({"type": "ExternalName", "externalName": "a.b"}),
                vec![],
                "of type ExternalName for a.b",
            ),
            (json!({}), vec![], "has no selector"),
        ];
        for (spec, pods, part) in cases {
            let text = explain(&service(spec), &pods).to_string();
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}
