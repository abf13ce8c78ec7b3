//! A client of the three metrics APIs: `metrics.k8s.io` for resources, `custom.metrics.k8s.io` for
//! objects and `external.metrics.k8s.io`.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::autoscaling::v2::MetricIdentifier,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use machinery::{labels::Selector, quantity};
use serde::{Deserialize, de::DeserializeOwned};
use stdx::percent;

use super::calculator::{Sample, Samples};

/// The window of `metrics.k8s.io` samples that do not state one.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: ObjectMeta,
    timestamp: Time,
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, Quantity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: Described,
    timestamp: Time,
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    value: Quantity,
}

#[derive(Deserialize, Default)]
struct Described {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct ExternalValue {
    value: Quantity,
}

/// A client of the metrics APIs, with the identity of the autoscaler.
pub(super) struct MetricsClient {
    client: kube::Client,
}

impl MetricsClient {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// The usage of a resource by the pods, or by one container of each.
    pub(super) async fn resource(
        &self,
        resource: &str,
        namespace: &str,
        selector: &Selector,
        container: Option<&str>,
    ) -> Result<Samples, String> {
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={}",
            percent::encode(&selector.to_string(), ""),
        );
        let list: List<PodMetrics> = self.get(&path).await.map_err(|error| {
            format!("unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {error}")
        })?;
        if list.items.is_empty() {
            return Err(format!(
                "unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
            ));
        }
        resource_samples(&list.items, resource, container).map_err(|error| {
            format!("unable to get metrics for resource {resource}: failed to get container metrics: {error}")
        })
    }

    /// A custom metric of each pod.
    pub(super) async fn pods(
        &self,
        metric: &MetricIdentifier,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Samples, String> {
        let name = &metric.name;
        let failed = |error: String| format!("unable to get metric {name}: {error}");
        let path = format!(
            "/apis/custom.metrics.k8s.io/{}/namespaces/{namespace}/pods/%2A/{}?labelSelector={}&metricLabelSelector={}",
            self.custom_version().await,
            percent::encode(name, ""),
            percent::encode(&selector.to_string(), ""),
            percent::encode(&metric_selector(metric)?, ""),
        );
        let list: List<MetricValue> = self.get(&path).await.map_err(|error| {
            failed(format!(
                "unable to fetch metrics from custom metrics API: {error}"
            ))
        })?;
        if list.items.is_empty() {
            return Err(failed(
                "no metrics returned from custom metrics API".to_owned(),
            ));
        }
        let samples = list.items.into_iter().map(|item| {
            let sample = Sample {
                timestamp: item.timestamp.0,
                window: window(item.window_seconds),
                value: millis(&item.value),
            };
            (item.described_object.name, sample)
        });
        Ok(samples.collect())
    }

    /// A custom metric of one object; `resource` is its plural and group, such as `services` or
    /// `ingresses.networking.k8s.io`.
    pub(super) async fn object(
        &self,
        metric: &MetricIdentifier,
        namespace: &str,
        resource: &str,
        object: &str,
    ) -> Result<i64, String> {
        // Metrics of a namespace have a different path.
        let place = match resource {
            "namespaces" => format!("namespaces/{object}/metrics"),
            _ => format!(
                "namespaces/{namespace}/{resource}/{}",
                percent::encode(object, "")
            ),
        };
        let path = format!(
            "/apis/custom.metrics.k8s.io/{}/{place}/{}?metricLabelSelector={}",
            self.custom_version().await,
            percent::encode(&metric.name, ""),
            percent::encode(&metric_selector(metric)?, ""),
        );
        let list: List<MetricValue> = self
            .get(&path)
            .await
            .map_err(|error| format!("unable to fetch metrics from custom metrics API: {error}"))?;
        let value = list.items.first().map(|item| millis(&item.value));
        value.ok_or_else(|| "no metrics returned from custom metrics API".to_owned())
    }

    /// The values of an external metric.
    pub(super) async fn external(
        &self,
        metric: &MetricIdentifier,
        namespace: &str,
    ) -> Result<Vec<i64>, String> {
        let name = &metric.name;
        let path = format!(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}?labelSelector={}",
            percent::encode(name, ""),
            percent::encode(&metric_selector(metric)?, ""),
        );
        let failed =
            |error: String| format!("unable to get external metric {namespace}/{name}: {error}");
        let list: List<ExternalValue> = self.get(&path).await.map_err(|error| {
            failed(format!(
                "unable to fetch metrics from external metrics API: {error}"
            ))
        })?;
        if list.items.is_empty() {
            return Err(failed(
                "no metrics returned from external metrics API".to_owned(),
            ));
        }
        Ok(list.items.iter().map(|item| millis(&item.value)).collect())
    }

    /// The newest served version of the custom metrics API.
    async fn custom_version(&self) -> &'static str {
        let path = "/apis/custom.metrics.k8s.io";
        let group: Result<serde_json::Value, String> = self.get(path).await;
        let served = group.unwrap_or_default();
        let served = served["versions"].as_array().cloned().unwrap_or_default();
        let newest = ["v1beta2", "v1beta1"].into_iter();
        let mut newest = newest.filter(|version| served.iter().any(|v| v["version"] == **version));
        newest.next().unwrap_or("v1beta2")
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await;
        answer.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        })
    }
}

fn resource_samples(
    items: &[PodMetrics],
    resource: &str,
    container: Option<&str>,
) -> Result<Samples, String> {
    let mut samples = Samples::new();
    for item in items {
        let name = item.metadata.name.clone().unwrap_or_default();
        let namespace = item.metadata.namespace.as_deref().unwrap_or_default();
        let used = |container: &ContainerMetrics| container.usage.get(resource).map(millis);
        let value = match container {
            Some(wanted) => {
                let found = item.containers.iter().find(|c| c.name == wanted);
                let found = found.ok_or_else(|| {
                    format!("container {wanted} not present in metrics for pod {namespace}/{name}")
                })?;
                used(found)
            }
            // A pod counts only if all of its containers have a sample.
            None => {
                let all: Option<Vec<i64>> = item.containers.iter().map(used).collect();
                all.map(super::calculator::total)
            }
        };
        let Some(value) = value else { continue };
        let window = machinery::duration::parse(&item.window).ok();
        let window = window.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let sample = Sample {
            timestamp: item.timestamp.0,
            window: window.unwrap_or(DEFAULT_WINDOW),
            value,
        };
        samples.insert(name, sample);
    }
    Ok(samples)
}

fn metric_selector(metric: &MetricIdentifier) -> Result<String, String> {
    let Some(selector) = &metric.selector else {
        return Ok(String::new());
    };
    let text = serde_json::to_vec(selector).map_err(|error| error.to_string())?;
    let selector = machinery::json::from_slice(&text).map_err(|error| error.to_string())?;
    let selector: machinery::Object = selector;
    let selector = machinery::Value::Object(selector);
    Ok(Selector::from_label_selector(Some(&selector))?.to_string())
}

fn window(seconds: Option<i64>) -> Duration {
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(DEFAULT_WINDOW, Duration::from_secs)
}

/// A quantity in thousandths.
pub(super) fn millis(quantity: &Quantity) -> i64 {
    let parsed: Result<quantity::Quantity, _> = quantity.0.parse();
    parsed.map_or(0, quantity::Quantity::millis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, containers: serde_json::Value) -> PodMetrics {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "timestamp": "2026-01-01T00:00:00Z",
            "window": "15s",
            "containers": containers,
        }))
        .unwrap()
    }

    #[test]
    fn a_pods_usage_is_that_of_all_its_containers_and_nothing_where_one_is_unknown() {
        let items = [
            pod(
                "a",
                json!([{"name": "x", "usage": {"cpu": "150m"}}, {"name": "y", "usage": {"cpu": "1"}}]),
            ),
            pod(
                "b",
                json!([{"name": "x", "usage": {"cpu": "150m"}}, {"name": "y", "usage": {}}]),
            ),
        ];
        let samples = resource_samples(&items, "cpu", None).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(samples["a"].value, 1150);
        assert_eq!(samples["a"].window, Duration::from_secs(15));
    }

    /// A fake server of custom and external metrics with these paths.
    fn server(paths: &'static [(&'static str, &'static str)]) -> MetricsClient {
        let service = tower::service_fn(
            move |request: http::Request<kube::client::Body>| async move {
                let asked = request.uri().to_string();
                let found = paths.iter().find(|(path, _)| *path == asked);
                let (code, body) = match found {
                Some((_, body)) => (200, (*body).to_owned()),
                None => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": format!("nothing at {asked}")})
                    .to_string(),
                ),
            };
                let body = kube::client::Body::from(body.into_bytes());
                let response = http::Response::builder().status(code).body(body);
                Ok::<_, std::convert::Infallible>(response.unwrap())
            },
        );
        MetricsClient::new(kube::Client::new(service, "default"))
    }

    fn metric(value: serde_json::Value) -> MetricIdentifier {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn custom_metrics_are_read_in_the_newest_version_that_is_served() {
        let client = server(&[
            (
                "/apis/custom.metrics.k8s.io",
                r#"{"versions": [{"version": "v1beta1"}]}"#,
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/%2A/requests?labelSelector=app%3Dweb&metricLabelSelector=path%3Dx",
                r#"{"items": [
                    {"describedObject": {"kind": "Pod", "name": "p"}, "metricName": "requests",
                     "timestamp": "2026-01-01T00:00:00Z", "window": 30, "value": "1500m"},
                    {"describedObject": {"kind": "Pod", "name": "q"}, "metricName": "requests",
                     "timestamp": "2026-01-01T00:00:00Z", "value": "2"}]}"#,
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/ingresses.networking.k8s.io/front/hits?metricLabelSelector=",
                r#"{"items": [{"describedObject": {"name": "front"}, "timestamp": "2026-01-01T00:00:00Z", "value": "7"}]}"#,
            ),
            (
                "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/metrics/depth?metricLabelSelector=",
                r#"{"items": []}"#,
            ),
        ]);
        let requests = json!({"name": "requests", "selector": {"matchLabels": {"path": "x"}}});
        let selector = Selector::parse("app=web").unwrap();
        let samples = client
            .pods(&metric(requests), "a", &selector)
            .await
            .unwrap();
        assert_eq!((samples["p"].value, samples["q"].value), (1500, 2000));
        assert_eq!(samples["p"].window, Duration::from_secs(30));
        assert_eq!(samples["q"].window, DEFAULT_WINDOW);
        let hits = metric(json!({"name": "hits"}));
        let ingresses = "ingresses.networking.k8s.io";
        assert_eq!(
            client.object(&hits, "a", ingresses, "front").await,
            Ok(7000)
        );
        let depth = metric(json!({"name": "depth"}));
        let none = client.object(&depth, "a", "namespaces", "a").await;
        assert_eq!(
            none.unwrap_err(),
            "no metrics returned from custom metrics API"
        );
    }

    #[tokio::test]
    async fn external_metrics_are_read_and_their_absence_is_explained() {
        let client = server(&[(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/a/queue?labelSelector=name%3Djobs",
            r#"{"items": [{"metricName": "queue", "timestamp": "2026-01-01T00:00:00Z", "value": "30"},
                {"metricName": "queue", "timestamp": "2026-01-01T00:00:00Z", "value": "500m"}]}"#,
        )]);
        let queue = json!({"name": "queue", "selector": {"matchLabels": {"name": "jobs"}}});
        let queue = metric(queue);
        assert_eq!(client.external(&queue, "a").await, Ok(vec![30_000, 500]));
        let refused = client.external(&queue, "b").await.unwrap_err();
        let expected = "unable to get external metric b/queue: unable to fetch metrics from external metrics API: nothing at ";
        assert!(refused.starts_with(expected), "{refused}");
    }

    #[test]
    fn container_metrics_need_the_named_container() {
        let items = [pod("a", json!([{"name": "x", "usage": {"memory": "1Ki"}}]))];
        let samples = resource_samples(&items, "memory", Some("x")).unwrap();
        assert_eq!(samples["a"].value, 1_024_000);
        let error = resource_samples(&items, "memory", Some("z")).unwrap_err();
        assert_eq!(
            error,
            "container z not present in metrics for pod default/a"
        );
    }
}
