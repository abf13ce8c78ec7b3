//! Every path of a resource with its operations, named as upstream: clients are generated from
//! these names.

use machinery::openapi;

use super::{
    custom,
    operation::{Answer, Body, GroupVersionKind, Operation},
    parameters::{self, Parameter},
    place,
};
use registry::Resource;

pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

pub(super) const MEDIA: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const STREAMS: &[&str] = &[
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const ANY: &[&str] = &["*/*"];
const CUSTOM_MEDIA: &[&str] = &["application/json", "application/yaml"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];
const CREATED: &[(&str, &str)] = &[("201", "Created")];
const ACCEPTED: &[(&str, &str)] = &[("202", "Accepted")];
const BOTH: &[(&str, &str)] = &[("201", "Created"), ("202", "Accepted")];
const EVERY_METHOD: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Subresources whose requests are forwarded.
const CONNECTS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];
const NAMESPACE: &str = "namespaces/{namespace}/";

type Paths = Vec<(String, Vec<Operation>)>;

/// All paths of a resource.
pub(super) fn paths_of_resource(resource: &Resource) -> Paths {
    let of = ResourcePaths::new(resource);
    let verbs = resource.kind.verbs();
    let mut paths = Paths::new();
    let scope = if of.namespaced { NAMESPACE } else { "" };
    let collection = format!("{}/{scope}{}", of.root, resource.plural);
    let one = format!("{collection}/{{name}}");
    let main = [
        (&collection, "list"),
        (&collection, "create"),
        (&collection, "deletecollection"),
        (&one, "get"),
        (&one, "update"),
        (&one, "delete"),
        (&one, "patch"),
    ];
    for (path, verb) in main.iter().filter(|(_, verb)| verbs.contains(verb)) {
        push(&mut paths, path, of.operation(verb, path, None));
    }
    if of.namespaced && verbs.contains(&"list") {
        let path = format!("{}/{}", of.root, resource.plural);
        let mut list = of.operation("list", &path, None);
        list.id = of.id("list", &format!("{}ForAllNamespaces", of.kind));
        push(&mut paths, &path, list);
    }
    for name in resource.kind.subresources() {
        of.subresource(&mut paths, &one, name);
    }
    if verbs.contains(&"watch") && !resource.custom {
        of.watches(&mut paths);
    }
    paths
}

/// Kinds that occur only in subresources, with the names of their definitions.
pub(super) fn kinds_of_subresources(resource: &Resource) -> Vec<(String, GroupVersionKind)> {
    let of = ResourcePaths::new(resource);
    let names = resource.kind.subresources().iter();
    let all = names.map(|name| of.kind_of(name));
    all.filter(|kind| kind.kind != of.kind)
        .map(|kind| (of.definition_of(&kind), kind))
        .collect()
}

fn push(paths: &mut Paths, path: &str, operation: Operation) {
    match paths.iter_mut().find(|(known, _)| known == path) {
        Some((_, operations)) => operations.push(operation),
        None => paths.push((path.to_owned(), vec![operation])),
    }
}

/// A resource and what its operations share.
struct ResourcePaths<'a> {
    resource: &'a Resource,
    root: String,
    kind: &'a str,
    namespaced: bool,
    definition: String,
}

/// A subresource: its name, its kind and its definition.
struct SubresourcePaths<'a> {
    name: &'a str,
    kind: GroupVersionKind,
    definition: String,
}

impl<'a> ResourcePaths<'a> {
    fn new(resource: &'a Resource) -> Self {
        Self {
            root: format!("/{}", place(&resource.group, &resource.version)),
            kind: &resource.kind.names().kind,
            namespaced: resource.namespaced(),
            definition: match resource.schema {
                Some(schema) => openapi::name(schema),
                None => custom::name(resource),
            },
            resource,
        }
    }

    fn own(&self) -> GroupVersionKind {
        GroupVersionKind {
            group: self.resource.group.clone(),
            version: self.resource.version.clone(),
            kind: self.kind.to_owned(),
        }
    }

    fn id(&self, verb: &str, rest: &str) -> String {
        id(verb, &self.resource.group, &self.resource.version, rest)
    }

    fn consumes(&self) -> &'static [&'static str] {
        if self.resource.custom {
            CUSTOM_MEDIA
        } else {
            ANY
        }
    }

    fn produces(&self) -> Vec<&'static str> {
        if self.resource.custom {
            CUSTOM_MEDIA.to_vec()
        } else {
            MEDIA.to_vec()
        }
    }

    /// A verb of the resource or of a subresource.
    fn operation(&self, verb: &str, path: &str, sub: Option<&SubresourcePaths<'_>>) -> Operation {
        let kind = match sub {
            Some(sub) if !self.resource.custom => sub.kind.clone(),
            _ => self.own(),
        };
        let definition = sub.map_or(&self.definition, |sub| &sub.definition);
        let scope = if self.namespaced { "Namespaced" } else { "" };
        let suffix = sub.map(|sub| title(sub.name)).unwrap_or_default();
        let rest = format!("{scope}{}{suffix}", self.kind);
        let mut parameters = parameters::of_path(path, &kind.kind);
        parameters.push(parameters::pretty());
        let mut out = Operation {
            tag: tag(&self.resource.group, &self.resource.version),
            description: self.describe(verb, sub),
            consumes: self.consumes(),
            produces: self.produces(),
            answer: Answer::Of(definition.clone()),
            ..Operation::default()
        };
        let whole = |required| Body {
            definition: definition.clone(),
            required,
        };
        let mut take = |options| parameters.extend(parameters::query(options));
        let (method, name, action) = match verb {
            "get" => {
                if self.resource.custom {
                    take(parameters::GET);
                }
                ("get", "read", "get")
            }
            "list" => {
                take(parameters::LIST);
                out.answer = Answer::Of(format!("{definition}List"));
                if !self.resource.custom {
                    out.produces.extend(STREAMS);
                }
                ("get", "list", "list")
            }
            "create" => {
                take(parameters::WRITE);
                (out.body, out.codes) = (Some(whole(true)), BOTH);
                ("post", "create", "post")
            }
            "update" => {
                take(parameters::WRITE);
                (out.body, out.codes) = (Some(whole(true)), CREATED);
                ("put", "replace", "put")
            }
            "patch" => {
                take(parameters::PATCH);
                self.patch(&mut out);
                ("patch", "patch", "patch")
            }
            "delete" => {
                take(parameters::DELETE);
                self.delete(&mut out);
                ("delete", "delete", "delete")
            }
            _ => {
                self.delete_collection(&mut out, &mut parameters);
                ("delete", "delete", "deletecollection")
            }
        };
        let collection = if verb == "deletecollection" {
            "Collection"
        } else {
            ""
        };
        out.method = method;
        out.id = self.id(name, &format!("{collection}{rest}"));
        out.parameters = parameters;
        out.action = Some((action, kind));
        out
    }

    fn patch(&self, out: &mut Operation) {
        out.body = Some(Body {
            definition: PATCH.to_owned(),
            required: true,
        });
        out.consumes = PATCHES;
        out.codes = CREATED;
        if self.resource.custom {
            out.consumes = CUSTOM_PATCHES;
            out.codes = &[];
        }
    }

    fn delete(&self, out: &mut Operation) {
        out.body = Some(Body {
            definition: DELETE_OPTIONS.to_owned(),
            required: false,
        });
        out.codes = ACCEPTED;
        // Upstream returns a namespace but documents a Status.
        if !self.resource.kind.returns_deleted() || self.kind == "Namespace" {
            out.answer = Answer::Of(STATUS.to_owned());
        }
    }

    fn delete_collection(&self, out: &mut Operation, parameters: &mut Vec<Parameter>) {
        out.answer = Answer::Of(STATUS.to_owned());
        if self.resource.custom {
            parameters.extend(parameters::query(parameters::LIST));
        } else {
            parameters.extend(parameters::delete_collection());
            out.body = Some(Body {
                definition: DELETE_OPTIONS.to_owned(),
                required: false,
            });
        }
    }

    fn describe(&self, verb: &str, sub: Option<&SubresourcePaths<'_>>) -> String {
        let kind = self.kind;
        let specified = match sub {
            Some(sub) => format!("{} of the specified {kind}", sub.name),
            None => format!("the specified {kind}"),
        };
        let an = article(kind);
        let some = match sub {
            Some(sub) => format!("{} of{an}{kind}", sub.name),
            None => format!("{}{kind}", an.trim_start()),
        };
        let watched = self.resource.kind.verbs().contains(&"watch") && !self.resource.custom;
        match verb {
            "get" => format!("read {specified}"),
            "list" if watched => format!("list or watch objects of kind {kind}"),
            "list" => format!("list objects of kind {kind}"),
            "create" => format!("create {some}"),
            "update" => format!("replace {specified}"),
            "patch" => format!("partially update {specified}"),
            "delete" => format!("delete {some}"),
            _ => format!("delete collection of {kind}"),
        }
    }

    fn subresource(&self, paths: &mut Paths, one: &str, name: &str) {
        let (_, _, _, verbs) = self.resource.subresource(name);
        let kind = self.kind_of(name);
        let sub = SubresourcePaths {
            name,
            definition: self.definition_of(&kind),
            kind,
        };
        let path = format!("{one}/{name}");
        if CONNECTS.contains(&name) {
            self.connects(paths, &path, &sub);
            return;
        }
        for verb in ["get", "create", "update", "patch"] {
            if verbs.contains(&verb) {
                let mut operation = self.operation(verb, &path, Some(&sub));
                let own = parameters::of_subresource(name);
                operation.parameters.extend(parameters::query(own));
                if name == "log" {
                    operation.produces.insert(0, "text/plain");
                    operation.answer = Answer::Text;
                }
                push(paths, &path, operation);
            }
        }
    }

    fn kind_of(&self, subresource: &str) -> GroupVersionKind {
        let (group, version, kind, _) = self.resource.subresource(subresource);
        let own = group.is_empty() && version.is_empty();
        let resource = self.resource;
        GroupVersionKind {
            group: if own { &resource.group } else { group }.to_owned(),
            version: if own { &resource.version } else { version }.to_owned(),
            kind: kind.to_owned(),
        }
    }

    /// The definition of a subresource's kind, possibly of another group.
    fn definition_of(&self, kind: &GroupVersionKind) -> String {
        if kind.kind == self.kind {
            return self.definition.clone();
        }
        let package = kind.group.split('.').next().filter(|name| !name.is_empty());
        let package = package.unwrap_or("core");
        format!("io.k8s.api.{package}.{}.{}", kind.version, kind.kind)
    }

    /// Forwarded requests, by every allowed method.
    fn connects(&self, paths: &mut Paths, path: &str, sub: &SubresourcePaths<'_>) {
        let proxied = sub.name == "proxy";
        let methods: &[&str] = if proxied {
            &EVERY_METHOD
        } else {
            &["get", "post"]
        };
        let rest = format!("{path}/{{path}}");
        let mut all = vec![(path, "")];
        if proxied {
            all.push((rest.as_str(), "WithPath"));
        }
        for (path, suffix) in all {
            for method in methods {
                let operation = self.connect(method, path, sub, suffix);
                push(paths, path, operation);
            }
        }
    }

    fn connect(
        &self,
        method: &'static str,
        path: &str,
        sub: &SubresourcePaths<'_>,
        suffix: &str,
    ) -> Operation {
        let scope = if self.namespaced { "Namespaced" } else { "" };
        let upper = method.to_uppercase();
        let (kind, name) = (self.kind, sub.name);
        let mut parameters = parameters::of_path(path, &sub.kind.kind);
        parameters.extend(parameters::query(parameters::of_subresource(name)));
        let rest = format!("{}{scope}{kind}{}{suffix}", title(method), title(name));
        Operation {
            method,
            id: self.id("connect", &rest),
            tag: tag(&self.resource.group, &self.resource.version),
            description: format!("connect {upper} requests to {name} of {kind}"),
            consumes: ANY,
            produces: ANY.to_vec(),
            parameters,
            action: Some(("connect", sub.kind.clone())),
            ..Operation::default()
        }
    }

    /// The deprecated watch paths.
    fn watches(&self, paths: &mut Paths) {
        let (root, plural, kind) = (&self.root, &self.resource.plural, self.kind);
        let mut all = Vec::new();
        if self.namespaced {
            all.push((plural.clone(), format!("{kind}ListForAllNamespaces"), true));
            let collection = format!("{NAMESPACE}{plural}");
            let one = format!("{collection}/{{name}}");
            all.push((collection, format!("Namespaced{kind}List"), true));
            all.push((one, format!("Namespaced{kind}"), false));
        } else {
            all.push((plural.clone(), format!("{kind}List"), true));
            all.push((format!("{plural}/{{name}}"), kind.to_owned(), false));
        }
        for (path, rest, many) in all {
            let path = format!("{root}/watch/{path}");
            let mut operation = self.operation("list", &path, None);
            operation.id = self.id("watch", &rest);
            operation.answer = Answer::Of(WATCH_EVENT.to_owned());
            let instead = "deprecated: use the 'watch' parameter with a list operation instead";
            let (action, description) = if many {
                let what = "watch individual changes to a list of";
                ("watchlist", format!("{what} {kind}. {instead}."))
            } else {
                let filter = "filtered to a single item with the 'fieldSelector' parameter";
                let what = "watch changes to an object of kind";
                ("watch", format!("{what} {kind}. {instead}, {filter}."))
            };
            operation.description = description;
            operation.action = Some((action, self.own()));
            push(paths, &path, operation);
        }
    }
}

/// `listAppsV1NamespacedDeployment`: verb, group, version and the rest.
pub(super) fn id(verb: &str, group: &str, version: &str, rest: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    let group = camel(group.strip_suffix(".k8s.io").unwrap_or(group), true);
    format!("{verb}{group}{}{rest}", camel(version, true))
}

/// `apps_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    let group = camel(group.strip_suffix(".k8s.io").unwrap_or(group), false);
    match version {
        "" => group,
        version => format!("{group}_{}", camel(version, false)),
    }
}

/// Letters and digits only; a letter after another character is capitalised.
pub(super) fn camel(text: &str, mut capital: bool) -> String {
    let mut out = String::new();
    for (index, c) in text.char_indices() {
        if c.is_alphabetic() || c == '_' || (index > 0 && c.is_numeric()) {
            if capital {
                out.extend(c.to_uppercase());
            } else {
                out.push(c);
            }
            capital = false;
        } else {
            capital = true;
        }
    }
    out
}

fn title(word: &str) -> String {
    camel(word, true)
}

/// The article of a noun with spaces around it; plurals have none.
fn article(noun: &str) -> &'static str {
    let plural = noun.ends_with('s') && !noun.ends_with("ss");
    let vowel = noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']);
    match (plural, vowel) {
        (true, _) => " ",
        (false, true) => " an ",
        (false, false) => " a ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_named_after_verb_group_version_and_kind() {
        for (group, version, expected, of) in [
            ("", "v1", "listCoreV1Pod", "core_v1"),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "listRbacAuthorizationV1Pod",
                "rbacAuthorization_v1",
            ),
            (
                "feat.example.com",
                "v1beta1",
                "listFeatExampleComV1beta1Pod",
                "featExampleCom_v1beta1",
            ),
        ] {
            assert_eq!(id("list", group, version, "Pod"), expected);
            assert_eq!(tag(group, version), of);
        }
        assert_eq!(article("Endpoints"), " ");
        assert_eq!(article("IngressClass"), " an ");
    }
}
