//! The variables of webhook and policy expressions, and their values.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Check, Decl, DeclKind, Env, Field, Library, ListSemantics, Type, Value as Cel, value::Map,
};
use machinery::{Object, Value, json::json};

use super::{Attributes, Checks};

/// Which optional variables exist.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variables {
    pub params: bool,
    pub authorizer: bool,
}

/// `object`, `oldObject`, `namespaceObject`, `request`, then `params` and the authorizer if
/// enabled: the order of [`Activation::values`]. More variables may follow.
pub fn environment(variables: Variables) -> Env {
    let mut env = Env::new()
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .declared("namespaceObject", NAMESPACE.clone())
        .declared("request", REQUEST.clone());
    if variables.params {
        env = env.variable("params", Type::Dyn);
    }
    if variables.authorizer {
        let named = |name: &str| Type::Struct(format!("kubernetes.authorization.{name}").into());
        env = env
            .variable("authorizer", named("Authorizer"))
            .variable("authorizer.requestResource", named("ResourceCheck"));
    }
    env
}

/// The values of one evaluation.
#[derive(Debug, Clone)]
pub struct Activation<'a> {
    pub object: Option<&'a Object>,
    pub old: Option<&'a Object>,
    /// From [`namespace_object`].
    pub namespace: Option<&'a Object>,
    /// From [`Attributes::request`].
    pub request: &'a Value,
    /// `Some` if the environment has params; they may be null.
    pub params: Option<Option<&'a Object>>,
    /// `Some` if the environment has an authorizer.
    pub authorizer: Option<Arc<Checks>>,
}

impl<'a> Activation<'a> {
    /// The values in the order of [`environment`].
    pub fn values(&self, attributes: &Attributes<'_>) -> Result<Vec<Cel<'a>>, cel::Error> {
        let map = |object: Option<&'a Object>, decl: Option<&'static Decl>| match object {
            Some(map) => Cel::Map(Map::Json { map, decl }),
            None => Cel::Null,
        };
        let mut values = vec![
            map(self.object, None),
            map(self.old, None),
            map(self.namespace, Some(&**NAMESPACE)),
            Cel::from_json(self.request, Some(&**REQUEST))?,
        ];
        if let Some(params) = self.params {
            values.push(map(params, None));
        }
        if let Some(checks) = &self.authorizer {
            let all = Check::authorizer(checks.clone());
            let mut own = all.clone().for_resource();
            attributes.resource.group.clone_into(&mut own.group);
            attributes.resource.resource.clone_into(&mut own.resource);
            attributes.subresource.clone_into(&mut own.subresource);
            attributes.namespace.clone_into(&mut own.namespace);
            attributes.name.clone_into(&mut own.name);
            values.extend([all, own].map(|check| Cel::Library(Library::Check(Arc::new(check)))));
        }
        Ok(values)
    }
}

/// The fields of a Namespace that expressions see.
pub fn namespace_object(namespace: &Object) -> Object {
    const SHOWN: &[&str] = &[
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut shown = json!({"metadata": {}});
    for key in SHOWN {
        if let Some(value) = namespace.get("metadata").and_then(|meta| meta.get(key)) {
            shown["metadata"][*key] = value.clone();
        }
    }
    for key in ["spec", "status"] {
        if let Some(value) = namespace.get(key) {
            shown[key] = value.clone();
        }
    }
    shown.as_object().cloned().unwrap_or_default()
}

fn plain(kind: DeclKind) -> Arc<Decl> {
    Arc::new(Decl::new(kind, u64::MAX))
}

fn text() -> Arc<Decl> {
    plain(DeclKind::String)
}

fn list(element: Arc<Decl>) -> Arc<Decl> {
    plain(DeclKind::List {
        element,
        semantics: ListSemantics::Atomic,
    })
}

fn map(value: Arc<Decl>) -> Arc<Decl> {
    plain(DeclKind::map(value))
}

fn object(name: &str, fields: &[(&str, Arc<Decl>)]) -> Arc<Decl> {
    let fields = fields.iter().map(|(field, decl)| {
        // Unescaped, also `namespace`, which is a reserved word: upstream escapes none of these.
        let json: Arc<str> = (*field).into();
        let decl = decl.clone();
        (json.clone(), Field { json, decl })
    });
    plain(DeclKind::Object {
        name: name.into(),
        fields: fields.collect::<HashMap<_, _>>(),
    })
}

static REQUEST: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let kind = object(
        "kubernetes.GroupVersionKind",
        &[("group", text()), ("version", text()), ("kind", text())],
    );
    let resource = object(
        "kubernetes.GroupVersionResource",
        &[("group", text()), ("version", text()), ("resource", text())],
    );
    let user = object(
        "kubernetes.UserInfo",
        &[
            ("username", text()),
            ("uid", text()),
            ("groups", list(text())),
            ("extra", map(list(text()))),
        ],
    );
    object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", plain(DeclKind::Bool)),
            ("options", Arc::new(Decl::dynamic())),
        ],
    )
});

static NAMESPACE: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let time = || plain(DeclKind::Timestamp);
    let number = || plain(DeclKind::Int);
    let condition = object(
        "kubernetes.NamespaceCondition",
        &[
            ("status", text()),
            ("type", text()),
            ("lastTransitionTime", time()),
            ("message", text()),
            ("reason", text()),
        ],
    );
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", map(text())),
            ("annotations", map(text())),
            ("UID", text()),
            ("creationTimestamp", time()),
            ("deletionGracePeriodSeconds", number()),
            ("deletionTimestamp", time()),
            ("generation", number()),
            ("resourceVersion", text()),
            ("finalizers", list(text())),
        ],
    );
    object(
        "kubernetes.Namespace",
        &[
            ("metadata", metadata),
            (
                "spec",
                object("kubernetes.NamespaceSpec", &[("finalizers", list(text()))]),
            ),
            (
                "status",
                object(
                    "kubernetes.NamespaceStatus",
                    &[("conditions", list(condition)), ("phase", text())],
                ),
            ),
        ],
    )
});
