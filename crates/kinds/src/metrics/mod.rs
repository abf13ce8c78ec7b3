//! The kinds of metrics.k8s.io. Their objects are made from samples and never stored.

pub mod node_metrics;
pub mod pod_metrics;

use machinery::Value;
use machinery::quantity::Quantity;

use crate::Column;
use crate::columns::{NAME, formatted};
use crate::tree::text;

const COLUMNS: &[Column] = &[
    NAME,
    formatted("cpu", "string", "quantity", "Used processor time.", 0),
    formatted("memory", "string", "quantity", "Memory in use.", 0),
    formatted(
        "Window",
        "string",
        "duration",
        "Time window of the average.",
        0,
    ),
];

/// The sum of a resource's usages.
fn sum<'a>(usages: impl Iterator<Item = &'a Value>, resource: &str) -> Value {
    let used = usages.filter_map(|usage| text(&usage[resource]).parse::<Quantity>().ok());
    let sum = used.fold(Quantity::ZERO, Quantity::plus);
    sum.to_string().into()
}
