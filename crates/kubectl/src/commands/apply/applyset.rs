//! `apply --prune --applyset`: membership is recorded in labels of the members and in annotations
//! of a parent object, so that objects removed from the files are found without a list of types.
//! The parent is widened before anything is applied and narrowed after pruning: an interrupted run
//! loses no member.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    api::{PatchType, Query, with_query},
    commands::version,
    discovery::Resource,
    error,
    json::{list, str_of},
    resources::{Target, of_item},
    session::Session,
};

use super::{super::report::Report, Apply};

const TOOLING: &str = "applyset.kubernetes.io/tooling";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// The annotation of early versions, instead of kinds.
const RESOURCES: &str = "applyset.kubernetes.io/contains-group-resources";
const ID: &str = "applyset.kubernetes.io/id";
const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// The label of a definition whose objects may be parents.
const IS_PARENT_TYPE: &str = "applyset.kubernetes.io/is-parent-type";

/// The name in the tooling annotation.
const TOOL: &str = "kubectl";
const FIELD_MANAGER: &str = "kubectl-applyset";

/// A set, before and after this run.
pub(super) struct ApplySet {
    resource: Resource,
    namespace: String,
    name: String,
    before: Members,
    after: Members,
}

/// The kinds and namespaces of members.
#[derive(Debug, Default, Clone)]
struct Members {
    kinds: Vec<Resource>,
    namespaces: BTreeSet<String>,
}

/// The content of the parent's annotations.
enum Scope {
    /// Everything that was and will be in the set.
    Superset,
    /// What is in the set after this run.
    Latest,
}

impl ApplySet {
    /// Parses `[RESOURCE][.GROUP]/NAME`; a plain name is a Secret.
    pub(super) async fn parse(session: &Session, reference: &str) -> Result<Self> {
        let (kind, name) = reference.split_once('/').unwrap_or(("secrets", reference));
        let resource = match name {
            "" => Err(anyhow!("name cannot be blank")),
            _ => {
                let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
                let resolved = session.discovery.resolve(kind).await;
                resolved.map_err(|_| anyhow!("no matches for {group}/, Resource={plural}"))
            }
        };
        let resource =
            resource.map_err(|why| anyhow!("invalid parent reference {reference:?}: {why}"))?;
        let given = session.namespace_given && resource.namespaced;
        Ok(Self {
            namespace: match given {
                true => session.namespace.clone(),
                false => String::new(),
            },
            name: name.to_owned(),
            resource,
            before: Members::default(),
            after: Members::default(),
        })
    }

    /// Rejects invalid parents.
    pub(super) async fn check(&self, session: &Session) -> Result<()> {
        let mut wrong = Vec::new();
        if self.resource.namespaced && self.namespace.is_empty() {
            wrong.push(anyhow!(
                "namespace is required to use namespace-scoped ApplySet"
            ));
        }
        if !self.is_builtin() && !self.is_parent_type(session).await? {
            wrong.push(anyhow!(
                "resource \"{}/{}, Resource={}\" is not permitted as an ApplySet parent",
                self.resource.group,
                self.resource.version,
                self.resource.plural
            ));
        }
        error::aggregate(wrong)
    }

    fn is_builtin(&self) -> bool {
        self.resource.group.is_empty()
            && ["secrets", "configmaps"].contains(&self.resource.plural.as_str())
    }

    async fn is_parent_type(&self, session: &Session) -> Result<bool> {
        let query: Query = vec![("labelSelector", IS_PARENT_TYPE.to_owned())];
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let found = session
            .api
            .list(&with_query(path, &query), "application/json", 500)
            .await
            .context("identifying allowed custom resource parent types")?;
        let own = self.resource.qualified_plural();
        Ok(list(&found["items"]).any(|definition| definition["metadata"]["name"] == own.as_str()))
    }

    /// The value of the label that members carry.
    fn id(&self) -> String {
        let Self {
            name, namespace, ..
        } = self;
        let (kind, group) = (&self.resource.kind, &self.resource.group);
        let hash = Sha256::digest(format!("{name}.{namespace}.{kind}.{group}"));
        format!("applyset-{}-v1", BASE64_URL_SAFE_NO_PAD.encode(hash))
    }

    /// As on the command line.
    fn display(&self) -> String {
        format!(
            "{}.{}/{}",
            self.resource.plural, self.resource.group, self.name
        )
    }

    fn path(&self) -> String {
        self.resource.object(&self.namespace, &self.name)
    }

    /// Marks objects as members.
    pub(super) fn label(&self, targets: &mut [Target]) -> Result<()> {
        for manifest in targets
            .iter_mut()
            .filter_map(|target| target.manifest.as_mut())
        {
            if !manifest["metadata"]["labels"][PART_OF].is_null() {
                bail!("ApplySet label {PART_OF:?} already set in input data");
            }
            if !manifest["metadata"]["labels"].is_object() {
                manifest["metadata"]["labels"] = json!({});
            }
            manifest["metadata"]["labels"][PART_OF] = json!(self.id());
        }
        Ok(())
    }

    /// Reads the parent, and widens it to the objects to be applied.
    pub(super) async fn begin(
        &mut self,
        session: &Session,
        apply: &Apply,
        targets: &[Target],
    ) -> Result<()> {
        if let Some(parent) = self.parent(session).await? {
            self.before = self.members(session, &parent).await?;
        }
        for target in targets {
            self.after.add(&target.resource, &target.namespace);
        }
        self.update(session, apply, Scope::Superset).await
    }

    async fn parent(&self, session: &Session) -> Result<Option<Value>> {
        let found = session.api.find(&self.path()).await;
        let found = found.map_err(|why| {
            anyhow!(
                "failed to fetch ApplySet parent object {:?}: {why}",
                self.display()
            )
        })?;
        match found {
            None if !self.is_builtin() => {
                bail!("custom resource ApplySet parents cannot be created automatically")
            }
            found => Ok(found),
        }
    }

    /// The members recorded in a parent; rejects the parent of another tool or another set.
    async fn members(&self, session: &Session, parent: &Value) -> Result<Members> {
        let display = self.display();
        let (labels, annotations) = (
            &parent["metadata"]["labels"],
            &parent["metadata"]["annotations"],
        );
        let Some(tooling) = annotations[TOOLING].as_str() else {
            bail!(
                "ApplySet parent object {display:?} already exists and is missing required annotation {TOOLING:?}"
            );
        };
        let tool = tooling.rsplit_once('/').map_or(tooling, |(tool, _)| tool);
        if tool != TOOL {
            bail!(
                "ApplySet parent object {display:?} already exists and is managed by tooling {tool:?} instead of {TOOL:?}"
            );
        }
        let Some(id) = labels[ID].as_str() else {
            bail!(
                "ApplySet parent object {display:?} exists and does not have required label {ID}"
            );
        };
        if id != self.id() {
            bail!(
                "ApplySet parent object {display:?} exists and has incorrect value for label {ID:?} (got: {id}, want: {})",
                self.id()
            );
        }
        let kinds = kinds(session, annotations)
            .await
            .map_err(|why| anyhow!("parsing ApplySet annotation on {display:?}: {why}"))?;
        let namespaces = split_annotation(&annotations[NAMESPACES]);
        let own = self.resource.namespaced.then(|| self.namespace.clone());
        Ok(Members {
            kinds,
            namespaces: namespaces.map(str::to_owned).chain(own).collect(),
        })
    }

    /// Writes the scope of the set, with force: these annotations are ours.
    async fn update(&self, session: &Session, apply: &Apply, scope: Scope) -> Result<()> {
        let dry_run = apply.dry_run.mode()?;
        if dry_run.is_client() {
            return Ok(());
        }
        let mut members = self.after.clone();
        if matches!(scope, Scope::Superset) {
            members.extend(&self.before);
        }
        let parent = self.parent_patch(&members);
        for force in [false, true] {
            let mut query: Query = vec![
                ("fieldManager", FIELD_MANAGER.to_owned()),
                apply.validate.parameter()?,
                ("force", force.to_string()),
            ];
            query.extend(dry_run.parameter());
            let patched = session
                .api
                .patch(&self.path(), PatchType::Apply, &parent, &query)
                .await;
            match patched {
                Err(error) if !force && error::code_is(&error, 409) => eprintln!(
                    "WARNING: failed to update ApplySet: {error}\nApplySet field manager {FIELD_MANAGER} should own these fields. Retrying with conflicts forced."
                ),
                Err(error) => bail!("failed to update ApplySet: {error}"),
                Ok(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn parent_patch(&self, members: &Members) -> Value {
        let kind = |resource: &Resource| match resource.group.as_str() {
            "" => resource.kind.clone(),
            group => format!("{}.{group}", resource.kind),
        };
        let kinds: BTreeSet<String> = members.kinds.iter().map(kind).collect();
        let namespaces = members.namespaces.iter();
        let namespaces: Vec<&str> = namespaces
            .map(String::as_str)
            .filter(|namespace| **namespace != *self.namespace)
            .collect();
        let mut metadata = json!({
            "name": self.name,
            "labels": {ID: self.id()},
            "annotations": {
                TOOLING: format!("{TOOL}/{}", version::CLIENT),
                KINDS: kinds.into_iter().collect::<Vec<_>>().join(","),
                NAMESPACES: namespaces.join(","),
            },
        });
        if !self.namespace.is_empty() {
            metadata["namespace"] = json!(self.namespace);
        }
        json!({
            "apiVersion": self.resource.api_version(),
            "kind": self.resource.kind,
            "metadata": metadata,
        })
    }

    /// Deletes members that were not applied, and narrows the parent to the rest.
    pub(super) async fn prune(
        &self,
        session: &Session,
        apply: &Apply,
        applied: &[Value],
    ) -> Result<()> {
        let dry_run = apply.dry_run.mode()?;
        let report = Report::new(&apply.print, dry_run)?;
        let options = apply.how.options(dry_run)?;
        for target in self.departed(session, applied).await? {
            if !dry_run.is_client() {
                let deleted = session.api.delete(&target.path(), &options).await;
                let place = match target.resource.namespaced {
                    true => format!("{}/{}", target.namespace, target.name),
                    false => target.name.clone(),
                };
                let kind = &target.resource.kind;
                deleted.map_err(|why| anyhow!("pruning {kind} {place}: {why}"))?;
            }
            report.print(&target.live.unwrap_or_default(), "pruned")?;
        }
        self.update(session, apply, Scope::Latest)
            .await
            .map_err(|why| anyhow!("apply and prune succeeded, but ApplySet update failed: {why}"))
    }

    async fn departed(&self, session: &Session, applied: &[Value]) -> Result<Vec<Target>> {
        let kept: BTreeSet<&str> = applied
            .iter()
            .map(|object| str_of(&object["metadata"]["uid"]))
            .collect();
        let query: Query = vec![("labelSelector", format!("{PART_OF}={}", self.id()))];
        let mut departed = Vec::new();
        for resource in &self.before.kinds {
            let places: Vec<Option<&str>> = match resource.namespaced {
                true => self
                    .before
                    .namespaces
                    .iter()
                    .map(|name| Some(name.as_str()))
                    .collect(),
                false => vec![None],
            };
            for place in places {
                let path = with_query(&resource.collection(place), &query);
                let found = session.api.list(&path, "application/json", 500).await;
                let found = found.map_err(|why| {
                    let version = resource.api_version();
                    anyhow!(
                        "listing {version}, Kind={} objects for pruning: {why}",
                        resource.kind
                    )
                })?;
                let members = list(&found["items"]).map(|item| of_item(resource, item));
                departed.extend(members.filter(|member| {
                    let uid = member
                        .live
                        .as_ref()
                        .map(|live| str_of(&live["metadata"]["uid"]));
                    uid.is_some_and(|uid| !kept.contains(uid))
                }));
            }
        }
        Ok(departed)
    }
}

impl Members {
    fn add(&mut self, resource: &Resource, namespace: &str) {
        if resource.namespaced && !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
        let is_known =
            |known: &Resource| known.group == resource.group && known.kind == resource.kind;
        if !self.kinds.iter().any(is_known) {
            self.kinds.push(resource.clone());
        }
    }

    fn extend(&mut self, other: &Self) {
        for resource in &other.kinds {
            self.add(resource, "");
        }
        self.namespaces.extend(other.namespaces.iter().cloned());
    }
}

fn split_annotation(value: &Value) -> impl Iterator<Item = &str> {
    str_of(value).split(',').filter(|word| !word.is_empty())
}

/// The kinds in a parent's annotation, or the resources of an earlier version.
async fn kinds(session: &Session, annotations: &Value) -> Result<Vec<Resource>> {
    let mut found = Vec::new();
    if annotations[KINDS].is_null() {
        if str_of(&annotations[RESOURCES]).is_empty() {
            bail!(
                "kubectl requires the {KINDS:?} annotation to be set on all ApplySet parent objects"
            );
        }
        for word in split_annotation(&annotations[RESOURCES]) {
            let resource = session.discovery.resolve(word).await;
            found.push(
                resource.with_context(|| {
                    format!("invalid group resource in {RESOURCES:?} annotation")
                })?,
            );
        }
        return Ok(found);
    }
    for word in split_annotation(&annotations[KINDS]) {
        let (kind, group) = word.split_once('.').unwrap_or((word, ""));
        let Some(resource) = session.discovery.of_group_kind(group, kind).await? else {
            bail!(
                "could not find mapping for kind in {KINDS:?} annotation: no matches for kind {kind:?} in group {group:?}"
            );
        };
        found.push(resource);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, kind: &str, plural: &str, namespaced: bool) -> Resource {
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced,
            verbs: Vec::new(),
            subresources: Vec::new(),
        }
    }

    fn set() -> ApplySet {
        ApplySet {
            resource: resource("", "Secret", "secrets", true),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            before: Members::default(),
            after: Members::default(),
        }
    }

    #[test]
    fn the_parent_lists_kinds_and_other_namespaces_in_order() {
        let mut members = Members::default();
        for (group, kind, plural, namespaced, namespace) in [
            ("", "Service", "services", true, "shop"),
            ("apps", "Deployment", "deployments", true, "staff"),
            ("", "Service", "services", true, "archive"),
            ("", "Namespace", "namespaces", false, "ignored"),
        ] {
            members.add(&resource(group, kind, plural, namespaced), namespace);
        }
        let annotations = &set().parent_patch(&members)["metadata"]["annotations"];
        assert_eq!(annotations[KINDS], "Deployment.apps,Namespace,Service");
        assert_eq!(annotations[NAMESPACES], "archive,staff");
    }

    #[test]
    fn members_carry_the_id_of_the_set_and_no_other() {
        let target = |labels: Value| Target {
            resource: resource("", "Service", "services", true),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            manifest: Some(json!({"metadata": {"labels": labels}})),
            source: String::new(),
            live: None,
        };
        let mut targets = [target(json!({"app": "web"})), target(Value::Null)];
        set().label(&mut targets).unwrap();
        for target in &targets {
            let label = &target.manifest.as_ref().unwrap()["metadata"]["labels"][PART_OF];
            assert_eq!(*label, set().id().as_str());
        }
        assert_eq!(
            set().id(),
            "applyset-ZhFTnyMOfABWycOd1915Uf0UKi6elg7a8lTmmXNRgSQ-v1"
        );
        let refused = set().label(&mut targets).unwrap_err().to_string();
        assert!(refused.contains("already set in input data"), "{refused}");
    }
}
