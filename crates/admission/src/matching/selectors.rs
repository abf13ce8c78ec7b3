//! Label selectors: of the request's namespace, and of its objects.

use kinds::tree;
use machinery::{Object, Value, labels::Selector};

use super::Attributes;
use crate::Operation;

/// `namespaceSelector` and `objectSelector`; absent ones select everything.
#[derive(Debug)]
pub struct Selectors {
    namespace: Result<Selector, String>,
    object: Result<Selector, String>,
}

impl Selectors {
    /// From a webhook or the `matchConstraints` of a policy.
    pub fn read(owner: &Value) -> Self {
        let selector = |key: &str| match &owner[key] {
            Value::Null => Ok(Selector::everything()),
            selector => Selector::from_label_selector(Some(selector)),
        };
        Self {
            namespace: selector("namespaceSelector"),
            object: selector("objectSelector"),
        }
    }

    /// Whether the labels of the request's namespace are needed and are not in the object itself.
    pub fn reads_namespace(&self, attributes: &Attributes<'_>) -> bool {
        let selects = !matches!(&self.namespace, Ok(selector) if selector.is_empty());
        selects && !attributes.namespace.is_empty() && own_labels(attributes).is_none()
    }

    /// Whether the request is selected. `namespace` is its Namespace, needed if
    /// [`Selectors::reads_namespace`]; the error is that of an invalid selector.
    pub fn matches(
        &self,
        attributes: &Attributes<'_>,
        namespace: Option<&Object>,
    ) -> Result<bool, String> {
        Ok(self.selects_namespace(attributes, namespace)? && self.selects_object(attributes)?)
    }

    fn selects_namespace(
        &self,
        attributes: &Attributes<'_>,
        namespace: Option<&Object>,
    ) -> Result<bool, String> {
        if attributes.namespace.is_empty() && attributes.resource.resource != "namespaces" {
            // A namespaceSelector does not exclude cluster-scoped objects.
            return Ok(true);
        }
        let selector = self.namespace.as_ref().map_err(Clone::clone)?;
        let labels = match own_labels(attributes) {
            Some(object) => Some(object),
            None => namespace,
        };
        Ok(selector.is_empty() || selector.matches_map(labels.and_then(labels_of)))
    }

    /// It suffices if one of the two objects is selected.
    fn selects_object(&self, attributes: &Attributes<'_>) -> Result<bool, String> {
        let selector = self.object.as_ref().map_err(Clone::clone)?;
        let objects = [attributes.object, attributes.old].into_iter().flatten();
        let mut objects = objects.filter(|object| object.contains_key("metadata"));
        Ok(selector.is_empty() || objects.any(|object| selector.matches_map(labels_of(object))))
    }
}

/// A written Namespace is selected by its new labels.
fn own_labels<'a>(attributes: &Attributes<'a>) -> Option<&'a Object> {
    let is_written = attributes.resource.resource == "namespaces"
        && attributes.subresource.is_empty()
        && matches!(attributes.operation, Operation::Create | Operation::Update);
    attributes.object.filter(|_| is_written)
}

fn labels_of(object: &Object) -> Option<&Object> {
    tree::get(object, "metadata").get("labels")?.as_object()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    fn labelled(labels: Value) -> Object {
        object(json!({"metadata": {"labels": labels}}))
    }

    #[test]
    fn objects_are_selected_by_their_old_or_new_labels() {
        let selectors = Selectors::read(&json!({"objectSelector": {"matchLabels": {"a": "b"}}}));
        let (yes, no) = (labelled(json!({"a": "b"})), labelled(json!({})));
        for (new, old, expected) in [
            (Some(&yes), None, true),
            (Some(&no), Some(&yes), true),
            (Some(&no), Some(&no), false),
            (None, Some(&yes), true),
            (None, None, false),
        ] {
            let case = Case::new(Operation::Update, "", "pods").named("a", "web");
            let given = case.attributes();
            let mut attributes = Attributes::new(&given, new);
            attributes.old = old;
            let found = selectors.matches(&attributes, None).unwrap();
            assert_eq!(found, expected, "{new:?} {old:?}");
        }
    }

    #[test]
    fn namespaces_are_selected_by_their_labels_and_nothing_else_cluster_scoped_is_exempt() {
        let selectors = Selectors::read(&json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}));
        let (yes, no) = (labelled(json!({"a": "b"})), labelled(json!({})));
        let said = |operation, resource, namespace, name, object, stored| {
            let case = Case::new(operation, "", resource).named(namespace, name);
            let given = case.attributes();
            let attributes = Attributes::new(&given, object);
            let found = selectors.matches(&attributes, stored).unwrap();
            (selectors.reads_namespace(&attributes), found)
        };
        use Operation::{Create, Delete, Update};
        assert_eq!(
            said(Create, "pods", "x", "web", None, Some(&yes)),
            (true, true)
        );
        assert_eq!(
            said(Create, "pods", "x", "web", None, Some(&no)),
            (true, false)
        );
        assert_eq!(said(Create, "nodes", "", "n", None, None), (false, true));
        let namespace =
            |operation, object, stored| said(operation, "namespaces", "", "x", object, stored);
        assert_eq!(namespace(Create, Some(&yes), None), (false, true));
        assert_eq!(namespace(Update, Some(&no), Some(&yes)), (false, false));
        assert_eq!(namespace(Delete, None, Some(&yes)), (true, true));
    }
}
