//! Builds NodeMetrics and PodMetrics for a response.

use jiff::Timestamp;
use machinery::{
    Object, Value, duration,
    json::json,
    quantity::{Format, Quantity},
    time,
};
use registry::Stored;

use crate::{Samples, Usage};

const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// The usage of a node, if known.
pub fn node_metrics(samples: &Samples, node: &Stored, now: Timestamp) -> Option<Object> {
    let used = samples.node(node.header.name())?;
    let mut object = object("NodeMetrics", node, &used, now);
    object.insert("usage".to_owned(), usage(&used));
    Some(object)
}

/// The usage of a pod, if known. Only for running pods.
pub fn pod_metrics(samples: &Samples, pod: &Stored, now: Timestamp) -> Option<Object> {
    if pod.field("status.phase") != Some("Running") {
        return None;
    }
    let node = pod.field("spec.nodeName").unwrap_or_default();
    let containers = samples.pod(node, pod.header.namespace(), pod.header.name())?;
    let earliest = containers.iter().min_by_key(|one| one.usage.at)?;
    let mut object = object("PodMetrics", pod, &earliest.usage, now);
    let containers = containers
        .iter()
        .map(|one| json!({"name": &*one.name, "usage": usage(&one.usage)}));
    let containers: Vec<Value> = containers.collect();
    object.insert("containers".to_owned(), containers.into());
    Some(object)
}

fn object(kind: &str, of: &Stored, usage: &Usage, now: Timestamp) -> Object {
    let header = &of.header;
    let mut metadata = json!({"name": header.name()});
    if !header.namespace().is_empty() {
        metadata["namespace"] = header.namespace().into();
    }
    metadata["creationTimestamp"] = time::format(now.as_second()).into();
    if header.labels().len() > 0 {
        let labels = header.labels();
        let labels: Object = labels
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect();
        metadata["labels"] = labels.into();
    }
    let window = i64::try_from(usage.window.as_nanos()).unwrap_or(i64::MAX);
    let object = json!({
        "kind": kind,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "timestamp": time::format(usage.at.as_second()),
        "window": duration::format(window),
    });
    object.as_object().cloned().unwrap_or_default()
}

fn usage(usage: &Usage) -> Value {
    let whole = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let cpu = Quantity::from_nanos(whole(usage.cpu));
    let memory = Quantity::from_value(whole(usage.memory), Format::Binary);
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use registry::Draft;
    use stdx::FakeClock;

    use super::*;
    use crate::page;

    const PAGES: [&str; 2] = [
        "node_cpu_usage_seconds_total 1 1000\nnode_memory_working_set_bytes 4096\n\
         container_cpu_usage_seconds_total{container=\"app\",namespace=\"a\",pod=\"p\"} 1 1000\n\
         container_memory_working_set_bytes{container=\"app\",namespace=\"a\",pod=\"p\"} 1000\n",
        "node_cpu_usage_seconds_total 2.5 16000\nnode_memory_working_set_bytes 4096\n\
         container_cpu_usage_seconds_total{container=\"app\",namespace=\"a\",pod=\"p\"} 1.0001 15703\n\
         container_memory_working_set_bytes{container=\"app\",namespace=\"a\",pod=\"p\"} 1000\n",
    ];

    fn samples() -> Samples {
        let samples = Samples::new(Arc::new(FakeClock::at(Timestamp::UNIX_EPOCH)));
        for text in PAGES {
            samples.record("one", page::parse(text, 0));
        }
        samples
    }

    fn stored(object: Value, fields: &[(&'static str, &str)]) -> Stored {
        let bytes = object.to_string().into_bytes().into();
        let fields = fields
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).to_owned()));
        Stored::stamp(Draft::from_bytes(bytes, |_| fields.collect()).unwrap(), 7)
    }

    #[test]
    fn node_metrics_have_labels_and_usage() {
        let node = stored(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one", "labels": {"x": "y"}}}),
            &[],
        );
        let made = node_metrics(&samples(), &node, Timestamp::UNIX_EPOCH).unwrap();
        let expected = json!({
            "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
            "metadata": {"name": "one", "creationTimestamp": "1970-01-01T00:00:00Z", "labels": {"x": "y"}},
            "timestamp": "1970-01-01T00:00:16Z", "window": "15s",
            "usage": {"cpu": "100m", "memory": "4Ki"},
        });
        assert_eq!(Value::Object(made), expected);
    }

    #[test]
    fn pod_metrics_exist_while_the_pod_runs_on_the_reporting_node() {
        let pod = |node: &str, phase: &str| {
            let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}});
            stored(object, &[("spec.nodeName", node), ("status.phase", phase)])
        };
        let made = |node, phase| pod_metrics(&samples(), &pod(node, phase), Timestamp::UNIX_EPOCH);
        let known = Value::Object(made("one", "Running").unwrap());
        assert_eq!(known["window"], "14.703s");
        let expected = json!([{"name": "app", "usage": {"cpu": "6801n", "memory": "1k"}}]);
        assert_eq!(known["containers"], expected);
        assert_eq!(made("two", "Running"), None);
        assert_eq!(made("one", "Succeeded"), None);
    }
}
