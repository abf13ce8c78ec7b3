//! Authorization checks of CEL expressions. Evaluation does not wait: a check without a decision is
//! recorded, decided afterwards, and the expression is evaluated again.

use std::{collections::HashMap, sync::Arc};

use cel::{Authorizer, Check, Decision};
use parking_lot::Mutex;

use crate::{
    User,
    authz::{self, Decision as Opinion},
    user,
};

/// The checks of one request.
#[derive(Debug, Default)]
pub struct Checks {
    /// Guards checks and decisions; `None` is pending.
    known: Mutex<HashMap<Question, Option<Decision>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    service_account: Option<(String, String)>,
    is_path: bool,
    path: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    field_selector: String,
    label_selector: String,
    verb: String,
}

impl Authorizer for Checks {
    fn decide(&self, check: &Check, verb: &str) -> Decision {
        let question = Question {
            service_account: check.service_account.clone(),
            is_path: check.is_path(),
            path: check.path.clone(),
            group: check.group.clone(),
            resource: check.resource.clone(),
            subresource: check.subresource.clone(),
            namespace: check.namespace.clone(),
            name: check.name.clone(),
            field_selector: check.field_selector.clone().unwrap_or_default(),
            label_selector: check.label_selector.clone().unwrap_or_default(),
            verb: verb.to_owned(),
        };
        let mut known = self.known.lock();
        known
            .entry(question)
            .or_default()
            .clone()
            .unwrap_or_else(|| Decision {
                allowed: false,
                reason: String::new(),
                error: Some("the authorizer has not answered".to_owned()),
            })
    }
}

impl Checks {
    /// Decides pending checks. Returns whether there were any: then the expression must be
    /// evaluated again.
    pub async fn answer_pending(
        &self,
        authorizers: &[Arc<dyn authz::Authorizer>],
        user: &User,
    ) -> bool {
        let waiting: Vec<Question> = {
            let known = self.known.lock();
            let waiting = known.iter().filter(|(_, answer)| answer.is_none());
            waiting.map(|(question, _)| question.clone()).collect()
        };
        let asked = !waiting.is_empty();
        for question in waiting {
            let answer = ask(authorizers, user, &question).await;
            self.known.lock().insert(question, Some(answer));
        }
        asked
    }
}

async fn ask(
    authorizers: &[Arc<dyn authz::Authorizer>],
    user: &User,
    question: &Question,
) -> Decision {
    let account = question.service_account.as_ref().map(|(namespace, name)| {
        let mut account = User::service_account(namespace, name);
        // As upstream: what all authenticated users may do does not count.
        account.groups.retain(|group| group != user::AUTHENTICATED);
        account
    });
    let attributes = authz::Attributes {
        user: account.as_ref().unwrap_or(user),
        verb: &question.verb,
        is_resource: !question.is_path,
        group: &question.group,
        version: if question.is_path { "" } else { "*" },
        resource: &question.resource,
        subresource: &question.subresource,
        namespace: &question.namespace,
        name: &question.name,
        path: &question.path,
        field_selector: &question.field_selector,
        label_selector: &question.label_selector,
    };
    let (allowed, reason) = match authz::decide(authorizers, &attributes).await {
        Opinion::Allow if attributes.user.is_in(user::MASTERS) => (true, String::new()),
        Opinion::Allow => {
            let mut reasons = authorizers.iter().filter_map(|one| one.reason(&attributes));
            (true, reasons.next().unwrap_or_default())
        }
        Opinion::Deny(reason) | Opinion::NoOpinion(reason) => (false, reason),
    };
    Decision {
        allowed,
        reason,
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;

    /// Allows a group, and tells why.
    struct Group(&'static str);

    #[async_trait]
    impl authz::Authorizer for Group {
        fn name(&self) -> &'static str {
            "group"
        }

        async fn authorize(&self, attributes: &authz::Attributes<'_>) -> Opinion {
            match attributes.user.is_in(self.0) {
                true => Opinion::Allow,
                false => Opinion::NoOpinion("not in it".to_owned()),
            }
        }

        fn reason(&self, attributes: &authz::Attributes<'_>) -> Option<String> {
            Some(format!("{} is in it", attributes.user.name))
        }
    }

    #[tokio::test]
    async fn checks_tell_their_reason_and_service_accounts_are_only_in_their_groups() {
        let account = ("team".to_owned(), "robot".to_owned());
        let request = User::new("jane", [""; 0]);
        for (group, account, expected) in [
            (user::AUTHENTICATED, None, (true, "jane is in it")),
            (user::AUTHENTICATED, Some(&account), (false, "not in it")),
            (
                "system:serviceaccounts:team",
                Some(&account),
                (true, "system:serviceaccount:team:robot is in it"),
            ),
        ] {
            let checks = Arc::new(Checks::default());
            let mut check = Check::authorizer(checks.clone()).for_resource();
            check.service_account = account.cloned();
            assert!(checks.decide(&check, "get").error.is_some());
            let authorizers: [Arc<dyn authz::Authorizer>; 1] = [Arc::new(Group(group))];
            assert!(checks.answer_pending(&authorizers, &request).await);
            let decided = checks.decide(&check, "get");
            let found = (decided.allowed, decided.reason.as_str());
            assert_eq!(found, expected, "{group}");
        }
    }
}
