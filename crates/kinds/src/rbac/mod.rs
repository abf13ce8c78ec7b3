//! The kinds of rbac.authorization.k8s.io. Whether a writer may give away rights is decided by
//! the server's authorizer, not here.

pub mod bindings;
pub mod roles;
