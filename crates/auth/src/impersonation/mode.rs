//! The modes of impersonation. A constrained one requires two permissions: to assume the identity
//! (`impersonate:MODE`), and for each action with it (`impersonate-on:MODE:VERB`). The legacy verb
//! `impersonate` covers everything.

use machinery::format;

use super::account;
use request::{User, user};

const CORE: &str = "";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// The extra key of a service account token with the node of its pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODES: &str = "system:nodes";

#[derive(Clone, Copy, PartialEq, Eq)]
enum ModeKind {
    /// The node of the caller's own pod.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Any user that is neither a node nor a service account.
    UserInfo,
    Legacy,
}

pub(super) struct Mode {
    kind: ModeKind,
    name: &'static str,
}

pub(super) const LEGACY: Mode = Mode {
    kind: ModeKind::Legacy,
    name: "",
};

/// In the order they are tried.
pub(super) const ALL: [Mode; 5] = [
    Mode {
        kind: ModeKind::AssociatedNode,
        name: "associated-node",
    },
    Mode {
        kind: ModeKind::ArbitraryNode,
        name: "arbitrary-node",
    },
    Mode {
        kind: ModeKind::ServiceAccount,
        name: "serviceaccount",
    },
    Mode {
        kind: ModeKind::UserInfo,
        name: "user-info",
    },
    LEGACY,
];

/// One check that must be allowed for each of its names.
pub(super) struct Question {
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) names: Vec<String>,
    /// Why it is denied in any case.
    pub(super) refusal: Option<String>,
}

fn question(group: &'static str, resource: &'static str, names: Vec<String>) -> Question {
    Question {
        group,
        resource,
        subresource: String::new(),
        namespace: String::new(),
        names,
        refusal: None,
    }
}

impl Mode {
    pub(super) fn is_constrained(&self) -> bool {
        self.kind != ModeKind::Legacy
    }

    /// Whether the mode applies to an identity.
    pub(super) fn fits(&self, wanted: &User, caller: &User) -> bool {
        let bare = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let own = |node: &str| {
            let names = caller.extra.get(NODE_NAME).map(Vec::as_slice);
            account(&caller.name).is_some() && names.is_some_and(|names| names == [node])
        };
        match self.kind {
            ModeKind::AssociatedNode => bare && node(&wanted.name).is_some_and(own),
            ModeKind::ArbitraryNode => bare && node(&wanted.name).is_some(),
            ModeKind::ServiceAccount => bare && account(&wanted.name).is_some(),
            ModeKind::UserInfo => node(&wanted.name).is_none() && account(&wanted.name).is_none(),
            ModeKind::Legacy => true,
        }
    }

    /// The verb for assuming an identity.
    pub(super) fn verb(&self) -> String {
        match self.kind {
            ModeKind::Legacy => "impersonate".to_owned(),
            _ => format!("impersonate:{}", self.name),
        }
    }

    /// The verb for an action with it.
    pub(super) fn verb_on(&self, verb: &str) -> Option<String> {
        let name = self.name;
        self.is_constrained()
            .then(|| format!("impersonate-on:{name}:{verb}"))
    }

    /// The checks for assuming an identity.
    pub(super) fn questions(&self, wanted: &User) -> Vec<Question> {
        let names = if self.is_constrained() {
            AUTHENTICATION
        } else {
            CORE
        };
        let mut all = vec![self.question_about(names, &wanted.name)];
        if !wanted.uid.is_empty() {
            all.push(question(AUTHENTICATION, "uids", vec![wanted.uid.clone()]));
        }
        if !wanted.groups.is_empty() {
            let mut groups = question(names, "groups", wanted.groups.clone());
            if self.is_constrained() {
                refuse_groups(&mut groups);
            }
            all.push(groups);
        }
        for (key, values) in &wanted.extra {
            all.push(Question {
                subresource: key.clone(),
                refusal: self
                    .is_constrained()
                    .then(|| bad_extra(key, values))
                    .flatten(),
                ..question(AUTHENTICATION, "userextras", values.clone())
            });
        }
        all
    }

    fn question_about(&self, group: &'static str, name: &str) -> Question {
        if let Some(node) = node(name).filter(|_| self.is_constrained()) {
            let node = match self.kind {
                ModeKind::AssociatedNode => "*",
                _ => node,
            };
            return question(group, "nodes", vec![node.to_owned()]);
        }
        match account(name) {
            Some((namespace, name)) => Question {
                namespace: namespace.to_owned(),
                ..question(group, "serviceaccounts", vec![name.to_owned()])
            },
            None => question(group, "users", vec![name.to_owned()]),
        }
    }

    /// The identity with the groups that its name implies.
    pub(super) fn user(&self, wanted: &User) -> User {
        let mut user = wanted.clone();
        if self.is_constrained() && node(&user.name).is_some() {
            user.groups = vec![NODES.to_owned()];
        } else if user.groups.is_empty()
            && let Some((namespace, name)) = account(&user.name)
        {
            user.groups = User::service_account(namespace, name).groups;
        }
        user
    }
}

/// The node in a user name; `None` if invalid.
fn node(user: &str) -> Option<&str> {
    let name = user.strip_prefix("system:node:")?;
    format::dns1123_subdomain(name).is_empty().then_some(name)
}

fn refuse_groups(groups: &mut Question) {
    if groups.names.iter().any(String::is_empty) {
        groups.names = vec![String::new()];
        groups.refusal = Some("impersonating the empty string group is not allowed".to_owned());
    } else if groups.names.iter().any(|name| name == user::MASTERS) {
        groups.names = vec![user::MASTERS.to_owned()];
        groups.refusal = Some("impersonating the system:masters group is not allowed".to_owned());
    }
}

fn bad_extra(key: &str, values: &[String]) -> Option<String> {
    let why = if key.is_empty() {
        "the empty string key in extra is not allowed".to_owned()
    } else if !is_domain_prefixed(key) {
        let form = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        format!("an invalid key in extra is not allowed: extra.key: Invalid value: {key:?}: {form}")
    } else if key != key.to_lowercase() {
        format!("a non-lowercase key in extra is not allowed: {key:?}")
    } else if values.iter().any(String::is_empty) {
        "the empty string value in extra is not allowed".to_owned()
    } else {
        return None;
    };
    Some(format!("impersonating {why}"))
}

fn is_domain_prefixed(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    key.split_once('/').is_some_and(|(domain, path)| {
        format::dns1123_subdomain(domain).is_empty() && !path.is_empty() && path.chars().all(plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitting(wanted: &User, caller: &User) -> Vec<&'static str> {
        let fits = ALL.iter().filter(|mode| mode.fits(wanted, caller));
        fits.map(|mode| mode.name).collect()
    }

    fn named(name: &str) -> User {
        User {
            name: name.to_owned(),
            ..User::default()
        }
    }

    #[test]
    fn each_kind_of_identity_has_its_impersonation_mode() {
        let mut agent = User::service_account("kube-system", "agent");
        agent
            .extra
            .insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
        for (wanted, expected) in [
            (
                "system:node:n1",
                vec!["associated-node", "arbitrary-node", ""],
            ),
            ("system:node:n2", vec!["arbitrary-node", ""]),
            ("system:node:", vec!["user-info", ""]),
            ("system:serviceaccount:a:b", vec!["serviceaccount", ""]),
            ("alice", vec!["user-info", ""]),
        ] {
            assert_eq!(fitting(&named(wanted), &agent), expected, "{wanted}");
        }
        let mut grouped = named("system:node:n1");
        grouped.groups.push("g".to_owned());
        assert_eq!(fitting(&grouped, &agent), [""]);
    }

    #[test]
    fn a_node_has_its_group_and_nothing_more() {
        let node = ALL[1].user(&named("system:node:n1"));
        assert_eq!(node.groups, [NODES]);
        assert_eq!(LEGACY.user(&named("system:node:n1")).groups, [""; 0]);
        let who = ALL[0].questions(&named("system:node:n1"));
        assert_eq!((who[0].resource, who[0].names[0].as_str()), ("nodes", "*"));
    }

    #[test]
    fn constrained_impersonation_excludes_system_masters_and_unprefixed_extras() {
        let mut wanted = named("alice");
        wanted.groups = vec!["dev".to_owned(), user::MASTERS.to_owned()];
        let refusal = |wanted: &User| ALL[3].questions(wanted).into_iter().find_map(|q| q.refusal);
        assert!(refusal(&wanted).unwrap().contains("system:masters"));
        wanted.groups.pop();
        assert_eq!(refusal(&wanted), None);
        wanted
            .extra
            .insert("plain".to_owned(), vec!["x".to_owned()]);
        assert!(refusal(&wanted).unwrap().contains("domain-prefixed"));
        assert!(
            LEGACY
                .questions(&wanted)
                .iter()
                .all(|q| q.refusal.is_none())
        );
    }
}
