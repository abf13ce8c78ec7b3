//! Other activity during the measurement.

use std::time::Duration;

use anyhow::Result;
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    objects::{create, create_node, send},
    shapes::{self, Churn, NAMESPACE},
};

/// The prefix of the churn's own pods, which are not counted.
const OTHERS: &str = "churn";

/// Runs until it is dropped.
pub(crate) async fn run(client: &Client, churn: Churn, nodes: usize) -> Result<()> {
    match churn {
        Churn::None => return std::future::pending().await,
        Churn::Unschedulable | Churn::Preempting | Churn::Mixed => {}
    }
    let namespace = json!({"metadata": {"name": OTHERS}});
    create(client, "/api/v1/namespaces", &namespace).await?;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = format!("/api/v1/namespaces/{OTHERS}/serviceaccounts");
    create(client, &accounts, &account).await?;
    let pause = match churn {
        Churn::Mixed => Duration::from_secs(1),
        _ => Duration::from_millis(200),
    };
    let mut ticks = tokio::time::interval(pause);
    for number in 0.. {
        ticks.tick().await;
        match churn {
            Churn::None => {}
            Churn::Unschedulable => pod(client, shapes::too_large(number)).await?,
            Churn::Preempting => pod(client, shapes::high_priority(number)).await?,
            Churn::Mixed => mixed(client, number, nodes).await?,
        }
    }
    Ok(())
}

async fn pod(client: &Client, mut pod: Value) -> Result<()> {
    pod["metadata"]["namespace"] = json!(OTHERS);
    create(client, &format!("/api/v1/namespaces/{OTHERS}/pods"), &pod).await
}

/// Creates a node, a Service and a pod and deletes the previous ones.
async fn mixed(client: &Client, number: usize, nodes: usize) -> Result<()> {
    let services = format!("/api/v1/namespaces/{NAMESPACE}/services");
    create_node(client, nodes + number).await?;
    pod(client, shapes::too_large(number)).await?;
    let service = shapes::service(&format!("churn-{number}"));
    create(client, &services, &service).await?;
    let Some(last) = number.checked_sub(1) else {
        return Ok(());
    };
    for path in [
        format!("/api/v1/nodes/node-{}", nodes + last),
        format!("/api/v1/namespaces/{OTHERS}/pods/large-{last}"),
        format!("{services}/churn-{last}"),
    ] {
        send(client, Method::DELETE, &path, &json!({})).await?;
    }
    Ok(())
}
