//! Restricts the nodes of a namespace's pods: the selector in its annotation is merged into theirs,
//! and a pod with a conflicting one is rejected.

use std::collections::BTreeMap;

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Plugin};

pub(crate) const NAME: &str = "PodNodeSelector";

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// Selectors by namespace, and the default for namespaces without an annotation.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodNodeSelector {
    selectors: BTreeMap<String, Labels>,
}

impl PodNodeSelector {
    /// From the plugin's part of the admission configuration.
    pub(super) fn new(config: &Value) -> Result<Self, String> {
        let config = config.get("podNodeSelectorPluginConfig").unwrap_or(config);
        let mut selectors = BTreeMap::new();
        for (namespace, selector) in config.as_object().into_iter().flatten() {
            selectors.insert(namespace.to_string(), parse(tree::text(selector))?);
        }
        Ok(Self { selectors })
    }

    async fn wanted(&self, attributes: &Attributes<'_>) -> Result<Labels, Status> {
        let (name, reader) = (attributes.namespace, attributes.reader);
        let namespace = reader.get("", "namespaces", "", name).await?;
        let namespace = namespace.ok_or_else(|| Status::not_found("", "namespaces", name))?;
        let namespace = namespace.parse();
        let annotation = &tree::get(&namespace, "metadata")["annotations"][ANNOTATION];
        match annotation.as_str() {
            Some(selector) => parse(selector).map_err(Status::internal),
            None => Ok(self.selectors.get(DEFAULT).cloned().unwrap_or_default()),
        }
    }
}

/// Parses `a=b,c=d`.
fn parse(selector: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    for part in selector.split(',').filter(|part| !part.trim().is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("invalid selector: {part:?}"))?;
        labels.insert(
            key.trim().to_owned(),
            value.trim_start_matches('=').trim().to_owned(),
        );
    }
    Ok(labels)
}

fn of_pod(object: &Object) -> Labels {
    let selector = tree::get(object, "spec")["nodeSelector"].as_object();
    let pairs = selector.into_iter().flatten();
    pairs
        .map(|(key, value)| (key.to_string(), tree::text(value).to_owned()))
        .collect()
}

fn conflict(wanted: &Labels, pod: &Labels) -> bool {
    wanted
        .iter()
        .any(|(key, value)| pod.get(key).is_some_and(|other| other != value))
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "pods") && attributes.operation == super::Operation::Create
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let wanted = self.wanted(attributes).await?;
        if conflict(&wanted, &of_pod(object)) {
            let why = "pod node label selector conflicts with its namespace node label selector";
            return Err(attributes.forbidden(why));
        }
        if !wanted.is_empty() {
            let spec = tree::child_or_new(object, "spec");
            let selector = tree::child_or_new(spec, "nodeSelector");
            selector.extend(wanted.into_iter().map(|(key, value)| (key, value.into())));
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let pod = of_pod(object);
        let wanted = self.wanted(attributes).await?;
        if conflict(&wanted, &pod) {
            let why = "pod node label selector conflicts with its namespace node label selector";
            return Err(attributes.forbidden(why));
        }
        let allowed = self.selectors.get(attributes.namespace);
        let allowed = allowed.filter(|allowed| !allowed.is_empty());
        let stays = |allowed: &Labels| {
            pod.iter()
                .all(|(key, value)| allowed.get(key) == Some(value))
        };
        if allowed.is_none_or(stays) {
            return Ok(());
        }
        let why = "pod node label selector labels conflict with its namespace whitelist";
        Err(attributes.forbidden(why))
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    #[tokio::test]
    async fn the_namespace_annotation_selects_the_nodes_of_pods() {
        let config = json!({DEFAULT: "disk=ssd", "team": "env=prod,disk=hdd"});
        let plugin = PodNodeSelector::new(&json!({"podNodeSelectorPluginConfig": config})).unwrap();
        let case = Case::new(Operation::Create, "", "pods").named("team", "web");
        let namespace =
            |annotations: Value| json!({"metadata": {"name": "team", "annotations": annotations}});
        let ask = async |selector: Value| {
            let mut pod = object(json!({"spec": {"nodeSelector": selector}}));
            plugin
                .mutate(&case.attributes(), &mut pod)
                .await
                .map_err(|e| e.message)?;
            plugin
                .validate(&case.attributes(), Some(&pod))
                .await
                .map_err(|e| e.message)?;
            Ok::<_, String>(tree::get(&pod, "spec")["nodeSelector"].clone())
        };
        case.world.put("", "namespaces", namespace(json!({}))).await;
        let refused = ask(json!({})).await.unwrap_err();
        assert!(
            refused.ends_with("conflict with its namespace whitelist"),
            "{refused}"
        );
        let annotated = namespace(json!({ANNOTATION: "env=prod"}));
        case.world.put("", "namespaces", annotated).await;
        assert_eq!(ask(json!({})).await.unwrap(), json!({"env": "prod"}));
        let refused = ask(json!({"env": "test"})).await.unwrap_err();
        assert!(
            refused.ends_with("its namespace node label selector"),
            "{refused}"
        );
        let merged = ask(json!({"disk": "hdd"})).await.unwrap();
        assert_eq!(merged, json!({"disk": "hdd", "env": "prod"}));
    }
}
