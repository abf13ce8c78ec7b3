//! What the house's own components may do, as a table, and what everybody may see: health and
//! version. Stands in until roles and bindings decide.

use async_trait::async_trait;

use super::{Attributes, Authorizer, Decision};
use crate::user;

pub struct Components;

struct Rule {
    verbs: &'static [&'static str],
    /// `resource` or `resource/subresource`; `*` is all.
    resources: &'static [&'static str],
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const ALL: &[&str] = &["*"];

const SCHEDULER: &[Rule] = &[
    Rule {
        verbs: READ,
        resources: ALL,
    },
    Rule {
        verbs: WRITE,
        resources: &["events", "leases"],
    },
    Rule {
        verbs: &["create"],
        resources: &["pods/binding", "pods/eviction", "bindings"],
    },
    Rule {
        verbs: &["update", "patch"],
        resources: &["pods/status", "persistentvolumeclaims"],
    },
    Rule {
        verbs: &["delete"],
        resources: &["pods"],
    },
];
const CONTROLLERS: &[Rule] = &[Rule {
    verbs: ALL,
    resources: ALL,
}];
const NODE: &[Rule] = &[
    Rule {
        verbs: READ,
        resources: &[
            "pods",
            "nodes",
            "services",
            "configmaps",
            "secrets",
            "endpointslices",
            "endpoints",
            "runtimeclasses",
            "csidrivers",
            "csinodes",
            "persistentvolumes",
            "persistentvolumeclaims",
            "serviceaccounts",
            "leases",
            "volumeattachments",
            "resourceclaims",
            "resourceslices",
            "namespaces",
        ],
    },
    Rule {
        verbs: &["create", "update", "patch", "delete"],
        resources: &["nodes", "events", "leases", "csinodes", "pods"],
    },
    Rule {
        verbs: &["update", "patch"],
        resources: &["nodes/status", "pods/status"],
    },
    Rule {
        verbs: &["create"],
        resources: &["serviceaccounts/token", "certificatesigningrequests"],
    },
    Rule {
        verbs: &["create"],
        resources: &["tokenreviews", "subjectaccessreviews"],
    },
];
const PROXY: &[Rule] = &[
    Rule {
        verbs: READ,
        resources: &[
            "services",
            "endpointslices",
            "endpoints",
            "nodes",
            "servicecidrs",
        ],
    },
    Rule {
        verbs: &["create", "update", "patch"],
        resources: &["events"],
    },
];
const DNS: &[Rule] = &[Rule {
    verbs: READ,
    resources: &[
        "services",
        "endpointslices",
        "endpoints",
        "pods",
        "namespaces",
        "nodes",
    ],
}];

/// Paths that everybody may read.
const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];
/// Paths that everybody who is known may read.
const DISCOVERY: &[&str] = &[
    "/api",
    "/apis",
    "/openapi",
    "/version",
    "/.well-known",
    "/openid",
];

#[async_trait]
impl Authorizer for Components {
    fn name(&self) -> &'static str {
        "components"
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if allows(attributes) {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

fn allows(attributes: &Attributes<'_>) -> bool {
    if attributes.is_resource {
        return rules(attributes.user)
            .iter()
            .any(|rule| matches(rule, attributes));
    }
    let below = |root: &str| {
        let rest = attributes.path.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    matches!(attributes.verb, "get" | "head")
        && (PUBLIC.iter().any(|root| below(root))
            || attributes.user.is_in(user::AUTHENTICATED)
                && DISCOVERY.iter().any(|root| below(root)))
}

fn rules(user: &crate::User) -> &'static [Rule] {
    match user.name.as_str() {
        "system:kube-scheduler" => SCHEDULER,
        "system:kube-controller-manager" => CONTROLLERS,
        "system:kube-proxy" => PROXY,
        "system:mainstay:dns" => DNS,
        name if name.starts_with("system:serviceaccount:kube-system:") => CONTROLLERS,
        name if name.starts_with("system:node:") && user.is_in("system:nodes") => NODE,
        _ => &[],
    }
}

fn matches(rule: &Rule, attributes: &Attributes<'_>) -> bool {
    let resource = |allowed: &&str| match allowed.split_once('/') {
        _ if **allowed == *"*" => true,
        Some((resource, subresource)) => {
            resource == attributes.resource && subresource == attributes.subresource
        }
        None => **allowed == *attributes.resource && attributes.subresource.is_empty(),
    };
    let verb = |allowed: &&str| **allowed == *"*" || **allowed == *attributes.verb;
    rule.verbs.iter().any(verb) && rule.resources.iter().any(resource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::User;

    fn ask(user: &User, verb: &str, resource: &str, subresource: &str) -> bool {
        allows(&Attributes {
            user,
            verb,
            is_resource: true,
            group: "",
            version: "v1",
            resource,
            subresource,
            namespace: "default",
            name: "x",
            path: "",
            field_selector: "",
            label_selector: "",
        })
    }

    #[test]
    fn the_scheduler_binds_pods_and_writes_no_others_spec() {
        let scheduler = User::new("system:kube-scheduler", [""; 0]);
        assert!(ask(&scheduler, "create", "pods", "binding"));
        assert!(ask(&scheduler, "watch", "nodes", ""));
        assert!(!ask(&scheduler, "update", "pods", ""));
        assert!(!ask(&scheduler, "update", "deployments", ""));
    }

    #[test]
    fn a_node_needs_its_group_too() {
        assert!(ask(
            &User::new("system:node:a", ["system:nodes"]),
            "patch",
            "nodes",
            "status"
        ));
        assert!(!ask(
            &User::new("system:node:a", [""; 0]),
            "patch",
            "nodes",
            "status"
        ));
    }

    #[test]
    fn strangers_see_health_and_nothing_else() {
        let path = |user: &User, path: &str| {
            allows(&Attributes {
                user,
                verb: "get",
                is_resource: false,
                group: "",
                version: "",
                resource: "",
                subresource: "",
                namespace: "",
                name: "",
                path,
                field_selector: "",
                label_selector: "",
            })
        };
        let nobody = User::anonymous();
        assert!(
            path(&nobody, "/readyz") && path(&nobody, "/livez/ping") && path(&nobody, "/version")
        );
        assert!(
            !path(&nobody, "/apis") && !path(&nobody, "/metrics") && !path(&nobody, "/readyzz")
        );
        assert!(path(&User::new("eve", [""; 0]), "/apis/apps/v1"));
        assert!(!ask(&nobody, "get", "pods", ""));
    }
}
