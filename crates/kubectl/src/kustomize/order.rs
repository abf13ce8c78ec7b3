//! The order of the output: namespaces and definitions first and webhooks last, or the input order.

use anyhow::{Result, bail};
use serde::Deserialize;

use super::{id::Id, resource::Resources};

const FIRST: &[&str] = &[
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: &[&str] = &[
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SortOptions {
    pub order: String,
    pub legacy_sort_options: Option<LegacyOptions>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LegacyOptions {
    pub order_first: Vec<String>,
    pub order_last: Vec<String>,
}

pub(super) fn sort(resources: &mut Resources, options: Option<&SortOptions>) -> Result<()> {
    let owned = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let default = LegacyOptions {
        order_first: owned(FIRST),
        order_last: owned(LAST),
    };
    let legacy = match options {
        None => &default,
        Some(SortOptions {
            order,
            legacy_sort_options,
        }) => match (order.as_str(), legacy_sort_options) {
            ("fifo", None) => return Ok(()),
            ("fifo", Some(_)) => bail!(
                "the field 'sortOptions.legacySortOptions' is set but the selected sort order is 'fifo', not 'legacy'"
            ),
            ("legacy", options) => options.as_ref().unwrap_or(&default),
            _ => bail!("the field 'sortOptions.order' must be one of [fifo, legacy]"),
        },
    };
    resources.0.sort_by_cached_key(|resource| {
        let id = resource.id();
        (rank(&id.gvk.kind, legacy), id.gvk.sort_key(), tie(&id))
    });
    Ok(())
}

fn rank(kind: &str, options: &LegacyOptions) -> isize {
    let place = |kinds: &[String]| kinds.iter().position(|known| known == kind);
    let signed = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
    match (place(&options.order_last), place(&options.order_first)) {
        (Some(at), _) => signed(at) + 1,
        (None, Some(at)) => signed(at) - signed(options.order_first.len()),
        (None, None) => 0,
    }
}

/// The order of objects of one kind.
fn tie(id: &Id) -> String {
    let or = |text: &str, other: &str| {
        if text.is_empty() {
            other.to_owned()
        } else {
            text.to_owned()
        }
    };
    format!(
        "{}|{}|{}",
        id.gvk,
        or(&id.namespace, "~X"),
        or(&id.name, "~N")
    )
}
