//! `kubectl create namespace|serviceaccount|quota|poddisruptionbudget|priorityclass`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::{Common, Generated, int_or_string};

/// Flags of `create namespace`.
#[derive(Debug, Args)]
pub(super) struct Namespace {
    name: String,
    #[command(flatten)]
    pub common: Common,
}

impl Namespace {
    pub(super) fn generate(&self) -> Generated {
        let object = json!({
            "kind": "Namespace", "apiVersion": "v1", "metadata": {"name": self.name}, "spec": {}, "status": {}});
        Generated::new(object, "")
    }
}

/// Flags of `create serviceaccount`.
#[derive(Debug, Args)]
pub(super) struct ServiceAccount {
    name: String,
    #[command(flatten)]
    pub common: Common,
}

impl ServiceAccount {
    pub(super) fn generate(&self) -> Generated {
        let object =
            json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": self.name}});
        Generated::new(object, "serviceaccount:")
    }
}

/// Flags of `create quota`.
#[derive(Debug, Args)]
pub(super) struct Quota {
    name: String,
    /// Pairs of resource=quantity that define a hard limit, separated by commas
    #[arg(long, value_name = "RESOURCE=QUANTITY,…")]
    hard: Option<String>,
    /// Quota scopes that must all match each object, separated by commas
    #[arg(long, value_name = "SCOPE,…")]
    scopes: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Quota {
    pub(super) fn generate(&self) -> Result<Generated> {
        let mut spec = json!({});
        for pair in self
            .hard
            .iter()
            .flat_map(|hard| hard.split(','))
            .filter(|pair| !pair.is_empty())
        {
            let parts: Vec<&str> = pair.split('=').collect();
            let [resource, quantity] = parts[..] else {
                bail!("Invalid argument syntax {pair}, expected <resource>=<value>");
            };
            quantity.parse::<machinery::quantity::Quantity>()?;
            spec["hard"][resource] = json!(quantity);
        }
        if let Some(scopes) = self.scopes.as_ref().filter(|scopes| !scopes.is_empty()) {
            let scopes: Vec<&str> = scopes.split(',').collect();
            if scopes.contains(&"") {
                bail!("invalid resource quota scope \"\"");
            }
            spec["scopes"] = json!(scopes);
        }
        let object = json!({
            "kind": "ResourceQuota", "apiVersion": "v1", "metadata": {"name": self.name}, "spec": spec, "status": {}});
        Ok(Generated::new(object, "quota:"))
    }
}

/// Flags of `create poddisruptionbudget`.
#[derive(Debug, Args)]
pub(super) struct PodDisruptionBudget {
    name: String,
    /// The minimum number or percentage of available pods this budget requires
    #[arg(long)]
    min_available: Option<String>,
    /// The maximum number or percentage of unavailable pods this budget allows
    #[arg(long)]
    max_unavailable: Option<String>,
    /// A label selector to use for this budget
    #[arg(long)]
    selector: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

impl PodDisruptionBudget {
    pub(super) fn generate(&self) -> Result<Generated> {
        let Some(selector) = self
            .selector
            .as_ref()
            .filter(|selector| !selector.is_empty())
        else {
            bail!("a selector must be specified");
        };
        let (field, flag, amount) = match (&self.min_available, &self.max_unavailable) {
            (None, None) => bail!("one of min-available or max-unavailable must be specified"),
            (Some(_), Some(_)) => {
                bail!("min-available and max-unavailable cannot be both specified")
            }
            (Some(amount), None) => ("minAvailable", "min-available", amount),
            (None, Some(amount)) => ("maxUnavailable", "max-unavailable", amount),
        };
        let digits = amount.strip_suffix('%').unwrap_or(amount);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            bail!("invalid format specified for {flag}");
        }
        let terms = crate::json::selector(selector);
        terms.map_err(|error| {
            anyhow::anyhow!("couldn't parse the selector string {selector:?}: {error}")
        })?;
        let parsed = crate::json::label_selector(selector)?;
        let spec = json!({field: int_or_string(amount), "selector": parsed});
        let object = json!({
            "kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {"name": self.name}, "spec": spec,
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}});
        Ok(Generated::new(object, "poddisruptionbudgets:"))
    }
}

/// Flags of `create priorityclass`.
#[derive(Debug, Args)]
pub(super) struct PriorityClass {
    name: String,
    /// The value of this priority class
    #[arg(long, default_value_t = 0)]
    value: i32,
    /// Whether this is the default priority class
    #[arg(long)]
    global_default: bool,
    /// When this priority class should be used
    #[arg(long)]
    description: Option<String>,
    /// The policy for preempting pods with lower priority
    #[arg(long, default_value = "PreemptLowerPriority")]
    preemption_policy: String,
    #[command(flatten)]
    pub common: Common,
}

impl PriorityClass {
    pub(super) fn generate(&self) -> Generated {
        let mut object = json!({
            "kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": self.name},
            "value": self.value});
        if self.global_default {
            object["globalDefault"] = json!(true);
        }
        if let Some(description) = self.description.as_ref().filter(|text| !text.is_empty()) {
            object["description"] = json!(description);
        }
        object["preemptionPolicy"] = json!(self.preemption_policy);
        Generated::new(object, "priorityclass:")
    }
}
