//! Whether the author of an admission policy or binding may read its parameters: expressions and
//! messages can reveal them.

use kinds::{Parameters, tree};
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};
use registry::Table;

use crate::{
    User,
    authz::{self, Decision},
    user,
    write::Write,
};

/// Rejects a valid policy or binding whose parameters its author may not read. Other kinds have no
/// parameters.
pub(crate) async fn authorize(
    write: &Write,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), Status> {
    let parameters = write.resource.kind.server_side().parameters;
    let exempt = write.internal || write.user.is_in(user::MASTERS);
    if matches!(parameters, Parameters::None) || !write.subresource.is_empty() || exempt {
        return Ok(());
    }
    let (spec, was) = (
        tree::get(object, "spec"),
        old.map(|old| tree::get(old, "spec")),
    );
    let is_same = |key: &str| was.is_some_and(|was| tree::same(&spec[key], &was[key]));
    let (field, refused) = match parameters {
        Parameters::None => return Ok(()),
        Parameters::Kind => {
            if !tree::is_set(&spec["paramKind"]) || is_same("paramKind") {
                return Ok(());
            }
            (
                "paramKind",
                check_param_kind(write, &spec["paramKind"]).await,
            )
        }
        Parameters::Reference { policies } => {
            // Also if it stays the same: a changed binding can reveal parameters to other requests.
            if !tree::is_set(&spec["paramRef"]) {
                return Ok(());
            }
            ("paramRef", check_param_ref(write, policies, spec).await)
        }
    };
    refused.map_err(|why| {
        let path = Path::new("spec");
        let path = path.child(field);
        write.invalid(tree::name(object), &[Error::forbidden(&path, why)])
    })
}

/// The resources that the author must be able to read, as far as known; `*` means all.
struct Target {
    group: String,
    version: String,
    resource: String,
}

impl Target {
    fn everything() -> Self {
        let any = || "*".to_owned();
        Self {
            group: any(),
            version: any(),
            resource: any(),
        }
    }

    /// The resource of a paramKind, and whether it is served.
    fn from_param_kind(kind: &Value, table: &Table) -> (Self, bool) {
        let api_version = tree::text(&kind["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut all = table.all();
        let found = all.find(|resource| {
            resource.api_version == api_version
                && resource.kind.names().kind == tree::text(&kind["kind"])
        });
        let target = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: found.map_or_else(|| "*".to_owned(), |found| found.plural.clone()),
        };
        (target, found.is_some())
    }

    async fn is_readable(&self, write: &Write, verb: &str, namespace: &str, name: &str) -> bool {
        let attributes = authz::Attributes {
            user: &write.user,
            verb,
            is_resource: true,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: "",
            namespace,
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        authz::decide(&write.path.authorizers, &attributes).await == Decision::Allow
    }
}

/// A policy requires read access to every object of its paramKind.
async fn check_param_kind(write: &Write, kind: &Value) -> Result<(), String> {
    let (target, _) = Target::from_param_kind(kind, &write.path.reader.table());
    if target.is_readable(write, "get", "*", "*").await {
        return Ok(());
    }
    Err(format!(
        "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
        shown(&write.user),
        tree::text(&kind["kind"]),
        tree::text(&kind["apiVersion"]),
    ))
}

/// A binding requires read access to the objects it names.
async fn check_param_ref(write: &Write, policies: &str, spec: &Value) -> Result<(), String> {
    let name = tree::text(&spec["policyName"]);
    let policy = write
        .path
        .reader
        .get(&write.resource.group, policies, "", name)
        .await;
    let policy = policy.ok().flatten().map(|stored| stored.parse());
    let kind = policy
        .as_ref()
        .map(|policy| &tree::get(policy, "spec")["paramKind"]);
    let (target, is_served) = match kind {
        Some(kind) if tree::is_set(kind) => {
            Target::from_param_kind(kind, &write.path.reader.table())
        }
        _ => (Target::everything(), true),
    };
    let reference = &spec["paramRef"];
    let text = |key: &str| tree::text(&reference[key]);
    let verb = if text("name").is_empty() {
        "list"
    } else {
        "get"
    };
    if target
        .is_readable(write, verb, text("namespace"), text("name"))
        .await
    {
        return Ok(());
    }
    let user = shown(&write.user);
    let lacks = format!(
        "to determine minimum required permissions and user {user} does not have \"{verb}\" permission for all groups, versions and resources"
    );
    Err(match kind {
        None => format!("unable to get policy {name} {lacks}"),
        Some(kind) if !is_served => {
            let (version, kind) = (tree::text(&kind["apiVersion"]), tree::text(&kind["kind"]));
            format!("unable to resolve paramKind &{{{version} {kind}}} {lacks}")
        }
        Some(_) => format!(
            "user {user} does not have \"{verb}\" permission on the object referenced by paramRef"
        ),
    })
}

/// A user as Go prints it.
fn shown(user: &User) -> String {
    let extra = user
        .extra
        .iter()
        .map(|(key, values)| format!("{key}:[{}]", values.join(" ")));
    let extra: Vec<String> = extra.collect();
    format!(
        "&{{{} {} [{}] map[{}]}}",
        user.name,
        user.uid,
        user.groups.join(" "),
        extra.join(" ")
    )
}
