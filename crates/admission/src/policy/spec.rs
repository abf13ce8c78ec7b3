//! Policies and bindings, parsed when they change: match constraints and parameters.

use kinds::tree;
use machinery::{Object, Value, labels::Selector};

use super::super::matching::{
    Attributes, MatchConditions, MatchPolicy, Matched, ResourceRules, Selectors, Variables,
};

/// What to do when a policy fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailurePolicy {
    Fail,
    Ignore,
}

/// What validating and mutating policies share.
#[derive(Debug)]
pub(super) struct Policy<P> {
    pub(super) name: String,
    /// The version of the object.
    pub(super) state: State,
    pub(super) failure: FailurePolicy,
    pub(super) param_kind: Option<ParamKind>,
    pub(super) constraints: Constraints,
    pub(super) conditions: MatchConditions,
    /// The compiled program.
    pub(super) program: P,
}

/// The uid and resourceVersion of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    uid: String,
    resource_version: String,
}

impl State {
    pub(super) fn from_object(object: &Object) -> Self {
        let text = |key: &str| tree::text(&tree::get(object, "metadata")[key]).to_owned();
        Self {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }
    }
}

impl<P> Policy<P> {
    pub(super) fn read(object: &Object, compile: impl FnOnce(&Value) -> P) -> Self {
        let spec = tree::get(object, "spec");
        let variables = Variables {
            params: tree::is_set(&spec["paramKind"]),
            authorizer: true,
        };
        Self {
            name: tree::name(object).to_owned(),
            state: State::from_object(object),
            failure: match spec["failurePolicy"].as_str() {
                Some("Ignore") => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            param_kind: ParamKind::read(&spec["paramKind"]),
            constraints: Constraints::read(&spec["matchConstraints"]),
            conditions: MatchConditions::read(&spec["matchConditions"], variables),
            program: compile(spec),
        }
    }
}

/// The kind of a policy's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParamKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl ParamKind {
    fn read(value: &Value) -> Option<Self> {
        if !tree::is_set(value) {
            return None;
        }
        let api_version = tree::text(&value["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: tree::text(&value["kind"]).to_owned(),
        })
    }
}

/// The match constraints of a policy or binding.
#[derive(Debug)]
pub(super) struct Constraints {
    pub(super) rules: ResourceRules,
    exclude: ResourceRules,
    policy: MatchPolicy,
    selectors: Selectors,
}

impl Constraints {
    fn read(value: &Value) -> Self {
        Self {
            rules: ResourceRules::read(&value["resourceRules"]),
            exclude: ResourceRules::read(&value["excludeResourceRules"]),
            policy: MatchPolicy::read(&value["matchPolicy"]),
            selectors: Selectors::read(value),
        }
    }

    /// The version of the request that the rules match. Without rules everything matches.
    pub(super) fn match_rules<'a>(
        &self,
        attributes: &Attributes<'a>,
        equivalents: impl Fn() -> Vec<Matched<'a>>,
    ) -> Option<Matched<'a>> {
        let found = match self.rules.is_empty() {
            true => Some(attributes.own()),
            false => self.rules.find(attributes, self.policy, &equivalents),
        }?;
        let excluded = self.exclude.find(attributes, self.policy, &equivalents);
        excluded.is_none().then_some(found)
    }

    /// Whether the request's Namespace has to be read for [`Constraints::match_selectors`].
    pub(super) fn reads_namespace(&self, attributes: &Attributes<'_>) -> bool {
        self.selectors.reads_namespace(attributes)
    }

    pub(super) fn match_selectors(
        &self,
        attributes: &Attributes<'_>,
        namespace: Option<&Object>,
    ) -> Result<bool, String> {
        self.selectors.matches(attributes, namespace)
    }
}

/// A binding of a policy.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) policy: String,
    /// The additional constraints of the binding; `None` for none.
    pub(super) resources: Option<Constraints>,
    pub(super) params: Option<ParamRef>,
    pub(super) actions: Vec<Action>,
}

/// The action on a failed validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Deny,
    Warn,
    Audit,
}

impl Action {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deny => "Deny",
            Self::Warn => "Warn",
            Self::Audit => "Audit",
        }
    }

    /// The name in metrics.
    pub(super) fn name_of_figure(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
            Self::Audit => "audit",
        }
    }
}

/// The parameter reference of a binding.
#[derive(Debug)]
pub(super) struct ParamRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) selector: Option<Result<Selector, String>>,
    /// Whether requests are denied if there are no parameters.
    pub(super) required: bool,
}

impl Binding {
    pub(super) fn read(object: &Object) -> Self {
        let spec = tree::get(object, "spec");
        let text = |value: &Value| tree::text(value).to_owned();
        let reference = &spec["paramRef"];
        let selector = &reference["selector"];
        let actions = tree::list(&spec["validationActions"]).iter();
        Self {
            name: tree::name(object).to_owned(),
            policy: text(&spec["policyName"]),
            resources: tree::is_set(&spec["matchResources"])
                .then(|| Constraints::read(&spec["matchResources"])),
            params: tree::is_set(reference).then(|| ParamRef {
                name: text(&reference["name"]),
                namespace: text(&reference["namespace"]),
                selector: tree::is_set(selector)
                    .then(|| Selector::from_label_selector(Some(selector))),
                required: reference["parameterNotFoundAction"] == "Deny",
            }),
            actions: actions
                .filter_map(|action| match action.as_str()? {
                    "Deny" => Some(Action::Deny),
                    "Warn" => Some(Action::Warn),
                    "Audit" => Some(Action::Audit),
                    _ => None,
                })
                .collect(),
        }
    }
}
