//! The parameters of a policy: objects that its bindings name or select.

use std::{borrow::Cow, sync::Arc};

use machinery::{Object, labels::Selector};
use request::heavy;

use super::spec::{ParamKind, ParamRef};
use crate::{Reader, Resource, Stored};

/// One parameter; `None` for a policy or binding without parameters, which is evaluated once.
pub(super) type Param = Option<Parameter>;

/// A stored object that is served in the version of the policy's paramKind.
pub(super) struct Parameter {
    stored: Arc<Stored>,
    resource: Arc<Resource>,
}

impl Parameter {
    /// The object. Another version than the stored one is made anew each time: a binding may select thousands, and a
    /// request would hold them all.
    pub(super) async fn object(&self) -> Cow<'_, Object> {
        heavy::mark_large(self.stored.size()).await;
        match self.resource.serves_as_stored(&self.stored) {
            true => Cow::Borrowed(self.stored.parsed()),
            false => Cow::Owned(self.resource.parse(&self.stored)),
        }
    }

    /// Its key, as `namespace/name`.
    pub(super) fn id(&self) -> String {
        let header = &self.stored.header;
        format!("{}/{}", header.namespace(), header.name())
    }
}

/// The resource of a paramKind; the error is a misconfiguration of the policy.
pub(super) fn resource_of(reader: &Reader, kind: &ParamKind) -> Result<Arc<Resource>, String> {
    let table = reader.table();
    let found = table.of_kind(&kind.group, &kind.version, &kind.kind);
    found.cloned().ok_or_else(|| {
        let ParamKind {
            group,
            version,
            kind,
        } = kind;
        format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
    })
}

/// The parameters of a binding for a request in a namespace. Each is evaluated separately.
pub(super) async fn collect(
    reader: &Reader,
    resource: Option<&Arc<Resource>>,
    reference: Option<&ParamRef>,
    namespace: &str,
) -> Result<Vec<Param>, String> {
    let (Some(resource), Some(reference)) = (resource, reference) else {
        return Ok(vec![None]);
    };
    let namespace = params_namespace(resource.namespaced(), reference, namespace)?;
    let params = match &reference.selector {
        None if reference.name.is_empty() => {
            return Err("one of name or selector must be provided".to_owned());
        }
        Some(_) if !reference.name.is_empty() => {
            let why = "paramRef.name and paramRef.selector are mutually exclusive";
            return Err(why.to_owned());
        }
        None => named(reader, resource, &namespace, &reference.name).await?,
        Some(Ok(selector)) => selected(reader, resource, &namespace, selector).await?,
        Some(Err(why)) => return Err(why.clone()),
    };
    if params.is_empty() && reference.required {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Err(why.to_owned());
    }
    Ok(params.into_iter().map(Some).collect())
}

/// The namespace of the parameters.
fn params_namespace<'a>(
    namespaced: bool,
    reference: &'a ParamRef,
    namespace: &'a str,
) -> Result<Cow<'a, str>, String> {
    match (namespaced, reference.namespace.as_str(), namespace) {
        (false, "", _) => Ok("".into()),
        (false, _, _) => {
            let why = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
            Err(why.to_owned())
        }
        (true, "", "") => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            Err(why.to_owned())
        }
        (true, "", of_request) => Ok(of_request.into()),
        (true, given, _) => Ok(given.into()),
    }
}

async fn named(
    reader: &Reader,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
) -> Result<Vec<Parameter>, String> {
    let found = reader
        .get(&resource.group, &resource.plural, namespace, name)
        .await
        .map_err(|status| status.message)?;
    converted(resource, found.into_iter().collect()).await
}

async fn selected(
    reader: &Reader,
    resource: &Arc<Resource>,
    namespace: &str,
    selector: &Selector,
) -> Result<Vec<Parameter>, String> {
    let (_, all) = reader
        .list(&resource.group, &resource.plural, namespace)
        .await
        .map_err(|status| status.message)?;
    let selects = |stored: &Arc<Stored>| selector.matches(|key| stored.label(key));
    converted(resource, all.into_iter().filter(selects).collect()).await
}

/// A conversion webhook is asked once for all.
async fn converted(
    resource: &Arc<Resource>,
    stored: Vec<Arc<Stored>>,
) -> Result<Vec<Parameter>, String> {
    let found = resource.convert_all(stored).await;
    let found = found.map_err(|status| status.message)?;
    let parameter = |stored| Parameter {
        stored,
        resource: resource.clone(),
    };
    Ok(found.into_iter().map(parameter).collect())
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        policy::spec::Binding,
        testing::{World, object},
    };

    async fn collected(
        world: &World,
        plural: &str,
        reference: machinery::Value,
        namespace: &str,
    ) -> Result<Vec<String>, String> {
        let resource = world.reader.resource("", plural).unwrap();
        let binding = Binding::read(&object(json!({"spec": {"paramRef": reference}})));
        let params = collect(
            &world.reader,
            Some(&resource),
            binding.params.as_ref(),
            namespace,
        );
        let params = params.await?;
        Ok(params
            .into_iter()
            .map(|param| param.unwrap().id())
            .collect())
    }

    #[tokio::test]
    async fn parameters_are_named_or_selected_where_the_request_is_or_elsewhere() {
        let world = World::new();
        for (namespace, name, tier) in [("a", "one", "x"), ("a", "two", "y"), ("b", "one", "x")] {
            let secret = json!({"metadata": {"namespace": namespace, "name": name, "labels": {"tier": tier}}});
            world.put("", "secrets", secret).await;
        }
        for (reference, namespace, wanted) in [
            (json!({"name": "one"}), "a", vec!["a/one"]),
            (json!({"name": "one", "namespace": "b"}), "a", vec!["b/one"]),
            (
                json!({"name": "three", "parameterNotFoundAction": "Allow"}),
                "a",
                vec![],
            ),
            (json!({"selector": {}}), "a", vec!["a/one", "a/two"]),
            (
                json!({"selector": {"matchLabels": {"tier": "x"}}}),
                "b",
                vec!["b/one"],
            ),
        ] {
            let found = collected(&world, "secrets", reference.clone(), namespace).await;
            assert_eq!(found.unwrap(), wanted, "{reference}");
        }
        for (plural, reference, namespace, why) in [
            (
                "secrets",
                json!({"name": "three", "parameterNotFoundAction": "Deny"}),
                "a",
                "no params found for policy binding with `Deny` parameterNotFoundAction",
            ),
            (
                "secrets",
                json!({"name": "one"}),
                "",
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources",
            ),
            (
                "nodes",
                json!({"name": "one", "namespace": "a"}),
                "a",
                "paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
            ),
        ] {
            let found = collected(&world, plural, reference, namespace).await;
            assert_eq!(found.unwrap_err(), why);
        }
    }

    #[test]
    fn a_kind_that_is_not_served_is_named() {
        let world = World::new();
        let kind = ParamKind {
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            kind: "Limit".to_owned(),
        };
        assert_eq!(
            resource_of(&world.reader, &kind).map(|_| ()).unwrap_err(),
            "failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'"
        );
    }
}
