//! The user who makes a request.

use std::collections::BTreeMap;

/// The group whose members may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all unauthenticated requests.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user name of unauthenticated requests.
pub const ANONYMOUS: &str = "system:anonymous";

/// An identified user. Groups are complete: they include `system:authenticated`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A known user; `system:authenticated` is added to the groups.
    pub fn new<G: Into<String>>(
        name: impl Into<String>,
        groups: impl IntoIterator<Item = G>,
    ) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self {
            name: name.into(),
            groups,
            ..Self::default()
        }
    }

    /// The anonymous user.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// A service account with its groups.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
        Self::new(format!("system:serviceaccount:{namespace}:{name}"), groups)
    }

    /// Whether this user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|mine| mine == group)
    }
}
