//! The kinds of rbac.authorization.k8s.io. Privilege escalation is checked by the server's
//! authorizer, not here.

pub mod bindings;
pub mod roles;
