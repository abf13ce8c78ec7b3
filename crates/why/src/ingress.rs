//! Why an Ingress does not work.

use std::collections::BTreeMap;

use client::{Api, kube};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    networking::v1::{Ingress, IngressBackend, IngressClass},
};
use kube::{ResourceExt, api::ListParams};

use crate::{Answer, Result, question::Name, service};

const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    let ingresses: Api<Ingress> = Api::namespaced(client.clone(), &name.namespace);
    let ingress = ingresses.get(&name.name).await?;
    let everything = ListParams::default();
    let classes = Api::<IngressClass>::all(client.clone())
        .list(&everything)
        .await?;
    let services: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
    let services = services.list(&everything).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
    let pods = pods.list(&everything).await?;
    Ok(explain(&ingress, &classes, &services, &pods))
}

fn explain(
    ingress: &Ingress,
    classes: &[IngressClass],
    services: &[Service],
    pods: &[Pod],
) -> Answer {
    let name = format!("ingress/{}", ingress.name_any());
    let status = ingress
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let addresses = status
        .and_then(|status| status.ingress.as_deref())
        .unwrap_or_default();
    let mut answer = match addresses.is_empty() {
        true => Answer::new(format!("{name} has no address: no controller serves it")),
        false => Answer::new(format!("{name} is served")),
    };
    let class = ingress
        .spec
        .as_ref()
        .and_then(|spec| spec.ingress_class_name.as_deref());
    let is_default = |class: &IngressClass| {
        class
            .annotations()
            .get(DEFAULT_CLASS)
            .is_some_and(|value| value == "true")
    };
    match class {
        Some(class) if !classes.iter().any(|known| known.name_any() == class) => {
            answer = answer.because(format!("there is no IngressClass {class}"));
        }
        None if !classes.iter().any(is_default) => {
            answer = answer.because("it names no class and no IngressClass is the default one");
        }
        _ => {}
    }
    let known: BTreeMap<String, &Service> = services
        .iter()
        .map(|service| (service.name_any(), service))
        .collect();
    let mut wanted: Vec<&str> = backends(ingress)
        .filter_map(|backend| backend.service.as_ref())
        .map(|service| service.name.as_str())
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    for wanted in wanted {
        answer = match known.get(wanted) {
            Some(found) => answer.because_of(service::explain(found, pods)),
            None => answer.because(format!("there is no Service {wanted}")),
        };
    }
    answer
}

fn backends(ingress: &Ingress) -> impl Iterator<Item = &IngressBackend> {
    let spec = ingress.spec.iter();
    spec.flat_map(|spec| {
        let rules = spec
            .rules
            .iter()
            .flatten()
            .filter_map(|rule| rule.http.as_ref());
        let paths = rules.flat_map(|http| &http.paths).map(|path| &path.backend);
        spec.default_backend.iter().chain(paths)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_classes_and_services_are_named() {
        let ingress = json!({"metadata": {"name": "web"}, "spec": {"ingressClassName": "edge",
            "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}});
        let text = explain(&serde_json::from_value(ingress).unwrap(), &[], &[], &[]).to_string();
        for part in [
            "no controller serves it",
            "no IngressClass edge",
            "no Service web",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
