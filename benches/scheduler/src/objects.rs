//! Writes objects, many concurrently.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::{
    Load,
    shapes::{self, NAMESPACE, Shape},
};

/// Requests in flight.
const AT_ONCE: usize = 64;

/// One request with a JSON body.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<String> {
    let media = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, media)
        .body(serde_json::to_vec(body)?)?;
    let answer = client.request_text(request).await;
    answer.with_context(|| path.to_owned())
}

/// Creates an object; an existing one is left as it is.
pub(crate) async fn create(client: &Client, path: &str, object: &Value) -> Result<()> {
    match send(client, Method::POST, path, object).await {
        Ok(_) => Ok(()),
        Err(error) => match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            _ => Err(error),
        },
    }
}

/// Creates a node without the taint that every new node gets.
pub(crate) async fn create_node(client: &Client, number: usize) -> Result<()> {
    let node = shapes::node(number);
    create(client, "/api/v1/nodes", &node).await?;
    let path = format!("/api/v1/nodes/node-{number}");
    let patch = json!({"spec": {"taints": null}});
    send(client, Method::PATCH, &path, &patch).await?;
    Ok(())
}

/// Creates the namespace, the PriorityClass and the nodes.
pub(crate) async fn prepare(client: &Client, load: &Load) -> Result<()> {
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    create(client, "/api/v1/namespaces", &namespace).await?;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    create(client, &accounts, &account).await?;
    let class = json!({"metadata": {"name": shapes::HIGH.0}, "value": shapes::HIGH.1});
    create(client, "/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    many(0..load.nodes, |number| create_node(client, number)).await
}

/// The path of pods.
pub(crate) fn pods_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// Creates the pods before the measurement, distributed over the nodes.
pub(crate) async fn before(client: &Client, load: &Load, shape: &Shape) -> Result<()> {
    if shape.service {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
        create(client, &path, &shapes::service("plain")).await?;
    }
    let path = &pods_path();
    let make = |number: usize| async move {
        let mut pod = (shape.before.pod)(number);
        if !shape.before.gated {
            pod["spec"]["nodeName"] = json!(format!("node-{}", number % load.nodes));
        }
        create(client, path, &pod).await
    };
    many(0..load.before(shape), make).await
}

/// Creates the measured pods.
pub(crate) async fn measured(client: &Client, load: &Load, shape: &Shape) -> Result<()> {
    let first = load.before(shape);
    let path = &pods_path();
    let make = |number: usize| async move {
        let pod = (shape.measured)(number);
        create(client, path, &pod).await
    };
    many(first..first + load.measured(shape), make).await
}

/// Deletes what was created, from a cluster that continues to run.
pub(crate) async fn remove(client: &Client, load: &Load) -> Result<()> {
    let nothing = json!({});
    send(client, Method::DELETE, &pods_path(), &nothing).await?;
    let services = format!("/api/v1/namespaces/{NAMESPACE}/services/plain");
    // Not every shape has it.
    let _ = send(client, Method::DELETE, &services, &nothing).await;
    many(0..load.nodes, |number| {
        let nothing = nothing.clone();
        async move {
            let path = format!("/api/v1/nodes/node-{number}");
            send(client, Method::DELETE, &path, &nothing).await?;
            Ok(())
        }
    })
    .await
}

async fn many<F, W>(numbers: std::ops::Range<usize>, work: F) -> Result<()>
where
    F: Fn(usize) -> W,
    W: Future<Output = Result<()>>,
{
    let all = stream::iter(numbers).map(work).buffer_unordered(AT_ONCE);
    all.try_collect::<()>().await
}
