//! Which requests match webhooks and policies: rules, selectors and match conditions, over plain
//! attributes. Pure: namespaces, other versions and authorization decisions are passed in.

mod authorizer;
mod conditions;
mod environment;
mod rules;
mod selectors;

use machinery::{Object, Value, json::json};

pub use authorizer::Checks;
pub use conditions::{Condition, MatchConditions, Outcome, check_conditions};
pub use environment::{Activation, Variables, environment, namespace_object};
pub use rules::{MatchPolicy, ResourceRules};
pub use selectors::Selectors;

use super::{Operation, RequestOptions};
use crate::User;

/// A kind in a version of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupVersionKind<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
}

impl<'a> GroupVersionKind<'a> {
    /// From the `apiVersion` and the `kind` of an object.
    pub fn new(api_version: &'a str, kind: &'a str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group,
            version,
            kind,
        }
    }

    fn to_json(self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// A resource in a version of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupVersionResource<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
}

impl GroupVersionResource<'_> {
    fn to_json(self) -> Value {
        json!({"group": self.group, "version": self.version, "resource": self.resource})
    }
}

/// The resource and kind that a rule matched: the request's own, or another version of the same
/// objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matched<'a> {
    pub resource: GroupVersionResource<'a>,
    pub kind: GroupVersionKind<'a>,
}

/// A request to admit.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub operation: Operation,
    /// The kind of the body: `autoscaling/v1, Scale` for `deployments/scale`.
    pub kind: GroupVersionKind<'a>,
    pub resource: GroupVersionResource<'a>,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty while the name is not generated.
    pub name: &'a str,
    /// Empty for cluster-scoped objects, except for Namespaces: their own name.
    pub namespace: &'a str,
    /// `None` for deletes.
    pub object: Option<&'a Object>,
    /// For updates and deletes.
    pub old: Option<&'a Object>,
    pub user: &'a User,
    pub dry_run: bool,
    pub options: &'a RequestOptions,
}

impl<'a> Attributes<'a> {
    /// From the attributes that plugins get, with the object.
    pub fn new(given: &super::Attributes<'a>, object: Option<&'a Object>) -> Self {
        let is_namespace = given.group.is_empty() && given.resource == "namespaces";
        Self {
            operation: given.operation,
            kind: GroupVersionKind::new(given.api_version, given.kind),
            resource: GroupVersionResource {
                group: given.group,
                version: given.version,
                resource: given.resource,
            },
            subresource: given.subresource,
            name: given.name,
            namespace: if is_namespace {
                given.name
            } else {
                given.namespace
            },
            object,
            old: given.old,
            user: given.user,
            dry_run: given.dry_run,
            options: given.options,
        }
    }

    /// The request's own resource and kind.
    pub fn own(&self) -> Matched<'a> {
        Matched {
            resource: self.resource,
            kind: self.kind,
        }
    }

    /// Whether it is for a webhook or policy configuration, which are exempt from webhooks and
    /// policies.
    pub fn is_admission_configuration(&self) -> bool {
        self.kind.group == "admissionregistration.k8s.io"
            && matches!(
                self.kind.kind,
                "ValidatingWebhookConfiguration"
                    | "MutatingWebhookConfiguration"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
                    | "MutatingAdmissionPolicy"
                    | "MutatingAdmissionPolicyBinding"
            )
    }

    /// The AdmissionRequest in the matched version, without its uid and objects: the variable
    /// `request` of expressions.
    pub fn request(&self, matched: &Matched<'_>) -> Value {
        let mut request = json!({
            "kind": matched.kind.to_json(),
            "resource": matched.resource.to_json(),
            "requestKind": self.kind.to_json(),
            "requestResource": self.resource.to_json(),
            "operation": self.operation.name(),
            "userInfo": user_info(self.user),
            "dryRun": self.dry_run,
            "options": self.options.to_json(self.operation),
        });
        for (key, text) in [
            ("subResource", self.subresource),
            ("requestSubResource", self.subresource),
            ("name", self.name),
            ("namespace", self.namespace),
        ] {
            if !text.is_empty() {
                request[key] = text.into();
            }
        }
        request
    }
}

/// The user as a `UserInfo`.
pub fn user_info(user: &User) -> Value {
    let mut info = json!({});
    for (key, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            info[key] = text.clone().into();
        }
    }
    if !user.groups.is_empty() {
        info["groups"] = user.groups.clone().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn a_review_request_has_the_matched_and_the_original_resource() {
        let case = Case::new(Operation::Update, "apps", "deployments").named("here", "web");
        let given = case.attributes();
        let attributes = Attributes::new(&given, None);
        let matched = Matched {
            resource: GroupVersionResource {
                version: "v1beta1",
                ..attributes.resource
            },
            kind: GroupVersionKind {
                version: "v1beta1",
                ..attributes.kind
            },
        };
        let request = attributes.request(&matched);
        assert_eq!(request["resource"]["version"], "v1beta1");
        assert_eq!(request["requestResource"]["version"], "v1");
        assert_eq!(request["operation"], "UPDATE");
        assert_eq!(request["namespace"], "here");
        assert_eq!(request["options"]["kind"], "UpdateOptions");
        assert!(request.get("subResource").is_none());
    }

    #[test]
    fn a_namespace_is_in_itself() {
        let case = Case::new(Operation::Create, "", "namespaces").named("", "here");
        let given = case.attributes();
        assert_eq!(Attributes::new(&given, None).namespace, "here");
    }
}
