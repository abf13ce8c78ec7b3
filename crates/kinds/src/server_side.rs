//! What the API server does for objects of some kinds because it takes more than the object: other
//! objects, the authorizers, the expression language. A kind says here which of it applies, and
//! where in its objects the server looks.

use machinery::{
    Object, Value,
    field::{Path, PathBuf},
};

use crate::{Subresource, reviews::access::About};

/// Calls a function for every list of device selectors in an object.
pub type VisitSelectors = fn(&Object, Option<&Object>, &mut dyn FnMut(&Path<'_>, &Value));

/// The API server's part of a kind.
#[derive(Clone, Copy)]
pub struct ServerSide {
    /// Expressions that must compile.
    pub expressions: Expressions,
    /// Parameters of admission policies, which the author of an object must be able to read.
    pub parameters: Parameters,
    /// Whether addresses and ports are allocated for an object.
    pub allocates_addresses: bool,
    /// Whether an object defines a kind, and stays until the objects of that kind are deleted.
    pub defines_kind: bool,
    /// The path that newly grants administrative access to devices. Only namespaces with a label may
    /// have such objects.
    pub admin_access: fn(&Object, Option<&Object>, Subresource<'_>) -> Option<PathBuf>,
    /// Whether writers of the status need permissions of their own for allocations and devices.
    pub guards_devices: bool,
    /// How requests for a kind without stored objects are answered.
    pub answers: Answers,
    /// Whether an object is a namespace: its path states its name as the namespace, too.
    pub is_namespace: bool,
    /// Which dependents a delete without a propagation policy leaves behind.
    pub orphans: Orphans,
    /// Upstream's storage key as error messages show it; empty: the plural.
    pub upstream_key: &'static str,
}

/// Which expressions an object has.
#[derive(Clone, Copy)]
pub enum Expressions {
    None,
    /// Rules, and defaults that rules check, of a custom resource.
    CustomResource,
    DeviceSelectors(VisitSelectors),
    MutatingPolicy,
    ValidatingPolicy,
    /// Match conditions of webhooks.
    Webhooks,
}

/// How requests for a kind without stored objects are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Lists are empty, and no object is found.
    Nothing,
    /// Creating one assigns a pod to a node.
    Binding,
    /// The health of the control plane's components.
    ComponentHealth,
    /// The usage of the nodes or pods of the same name.
    Usage,
    /// Whether a user may perform a request.
    Access(About),
    /// What the requesting user may do in a namespace.
    Rules,
    /// The requesting user.
    Requester,
    /// The user of a token.
    Token,
}

/// Which dependents a delete without a propagation policy leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphans {
    /// The garbage collector deletes them.
    None,
    /// They stay.
    All,
    /// They stay, and the client is warned.
    AllWithWarning(&'static str),
}

/// Which parameters of admission policies an object gives access to.
#[derive(Clone, Copy)]
pub enum Parameters {
    None,
    /// All objects of `spec.paramKind`.
    Kind,
    /// The objects in `spec.paramRef`, of the kind that the policy named in `spec.policyName` has.
    Reference {
        /// The plural of the policies.
        policies: &'static str,
    },
}

impl ServerSide {
    /// Nothing.
    pub const NONE: Self = Self {
        expressions: Expressions::None,
        parameters: Parameters::None,
        allocates_addresses: false,
        defines_kind: false,
        admin_access: |_, _, _| None,
        guards_devices: false,
        answers: Answers::Nothing,
        is_namespace: false,
        orphans: Orphans::None,
        upstream_key: "",
    };
}
