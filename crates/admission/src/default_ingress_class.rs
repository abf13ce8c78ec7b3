//! Sets the default class of an Ingress that names none; with several defaults the request is
//! rejected as ambiguous.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "DefaultIngressClass";

const GROUP: &str = "networking.k8s.io";
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
const LEGACY: &str = "kubernetes.io/ingress.class";

pub(crate) struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is_write_of(GROUP, "ingresses")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let named = tree::is_set(&tree::get(object, "spec")["ingressClassName"])
            || tree::is_set(&tree::get(object, "metadata")["annotations"][LEGACY]);
        if named {
            return Ok(());
        }
        let (_, classes) = attributes.reader.list(GROUP, "ingressclasses", "").await?;
        let classes = classes.iter().map(|class| class.parse());
        let is_default =
            |class: &Object| tree::get(class, "metadata")["annotations"][DEFAULT] == "true";
        let defaults: Vec<Object> = classes.filter(is_default).collect();
        match defaults.as_slice() {
            [] => Ok(()),
            [class] => {
                let spec = tree::child_or_new(object, "spec");
                spec.insert("ingressClassName".to_owned(), tree::name(class).into());
                Ok(())
            }
            several => {
                let why = format!(
                    "{} default IngressClasses were found, only 1 allowed",
                    several.len()
                );
                Err(attributes.forbidden(&why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn one_default_is_given_and_two_are_refused() {
        let case = Case::new(Operation::Create, GROUP, "ingresses");
        let class =
            |name: &str| json!({"metadata": {"name": name, "annotations": {DEFAULT: "true"}}});
        case.world.put(GROUP, "ingressclasses", class("one")).await;
        let mut ingress = object(json!({"spec": {}}));
        DefaultIngressClass
            .mutate(&case.attributes(), &mut ingress)
            .await
            .unwrap();
        assert_eq!(ingress["spec"]["ingressClassName"], "one");
        case.world.put(GROUP, "ingressclasses", class("two")).await;
        DefaultIngressClass
            .mutate(&case.attributes(), &mut ingress)
            .await
            .unwrap();
        let mut other = object(json!({}));
        DefaultIngressClass
            .mutate(&case.attributes(), &mut other)
            .await
            .unwrap_err();
    }
}
