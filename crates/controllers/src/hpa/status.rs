//! Builds the status of an autoscaler: conditions by type, metrics in the order of the spec.

use jiff::Timestamp;
use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscalerCondition,
        HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
        ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use machinery::quantity::{self, Format};

use super::calculator::Proposal;

/// Sets a condition; its transition time changes with its status.
pub(super) fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    type_: &str,
    value: bool,
    (reason, message): (&str, &str),
    now: Timestamp,
) {
    let value = if value { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let condition = HorizontalPodAutoscalerCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
    };
    match conditions.iter_mut().find(|known| known.type_ == type_) {
        None => conditions.push(condition),
        Some(known) => {
            let since = known.last_transition_time.take();
            let since = since.filter(|_| known.status == value);
            let since = since.or(Some(Time(now)));
            *known = HorizontalPodAutoscalerCondition {
                last_transition_time: since,
                ..condition
            };
        }
    }
}

/// The status of one metric.
pub(super) fn metric(spec: &MetricSpec, proposal: &Proposal) -> MetricStatus {
    let mut status = MetricStatus {
        type_: spec.type_.clone(),
        ..Default::default()
    };
    if let Some(resource) = &spec.resource {
        status.resource = Some(ResourceMetricStatus {
            name: resource.name.clone(),
            current: current(&resource.target, proposal, &resource.name),
        });
    } else if let Some(container) = &spec.container_resource {
        status.container_resource = Some(ContainerResourceMetricStatus {
            container: container.container.clone(),
            name: container.name.clone(),
            current: current(&container.target, proposal, &container.name),
        });
    } else if let Some(pods) = &spec.pods {
        status.pods = Some(PodsMetricStatus {
            metric: pods.metric.clone(),
            current: current(&pods.target, proposal, ""),
        });
    } else if let Some(object) = &spec.object {
        status.object = Some(ObjectMetricStatus {
            described_object: object.described_object.clone(),
            metric: object.metric.clone(),
            current: current(&object.target, proposal, ""),
        });
    } else if let Some(external) = &spec.external {
        status.external = Some(ExternalMetricStatus {
            metric: external.metric.clone(),
            current: current(&external.target, proposal, ""),
        });
    }
    status
}

fn current(target: &MetricTarget, proposal: &Proposal, resource: &str) -> MetricValueStatus {
    let usage = Some(quantity(proposal.usage, resource));
    let whole = target.value.is_some() && target.average_value.is_none();
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: usage.clone().filter(|_| !whole),
        value: usage.filter(|_| whole),
    }
}

/// Whole memory values get a binary suffix, everything else a decimal one.
fn quantity(millis: i64, resource: &str) -> Quantity {
    let whole = millis % 1000 == 0;
    let quantity = match resource {
        "memory" if whole => quantity::Quantity::from_value(millis / 1000, Format::Binary),
        _ => quantity::Quantity::from_millis(millis),
    };
    Quantity(quantity.to_string())
}
